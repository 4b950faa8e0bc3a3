"""Zap's flags: all are taken, and choose among the logs that we have."""

from __future__ import annotations

import json

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import parse
from kubeocean.runtime.log_flags import ZapFlags
from kubeocean.runtime.logs import get_level, get_logger


def read(*words: str) -> ZapFlags:
    actual = parse(ZapFlags, words)
    assert actual is not None
    return actual


@pytest.mark.parametrize(
    ("words", "shape", "level"),
    [
        ((), "json", "info"),
        (("--zap-devel",), "console", "debug"),
        (("--zap-devel=false",), "json", "info"),
        (("--zap-devel", "--zap-encoder=json", "--zap-log-level=error"), "json", "error"),
        (("--zap-encoder=console",), "console", "info"),
        (("--zap-encoder", "json"), "json", "info"),
        (("--zap-log-level=debug",), "json", "debug"),
        (("--zap-log-level=INFO",), "json", "info"),
        (("--zap-log-level=warn",), "json", "warning"),
        (("--zap-log-level=panic",), "json", "error"),
        (("--zap-log-level=5",), "json", "debug"),
        (("--zap-stacktrace-level=panic", "--zap-time-encoding=rfc3339nano"), "json", "info"),
    ],
)
def test_they_choose_form_and_level(words: tuple[str, ...], shape: str, level: str) -> None:
    flags = read(*words)
    assert (flags.log_format, flags.log_level) == (shape, level)


@pytest.mark.parametrize(
    "word",
    [
        "--zap-log-level=0",
        "--zap-log-level=-1",
        "--zap-log-level=²",
        "--zap-log-level=loud",
        "--zap-encoder=xml",
        "--zap-stacktrace-level=5",
        "--zap-time-encoding=lunar",
    ],
)
def test_what_zap_does_not_know_is_refused(word: str) -> None:
    name, _, value = word.partition("=")
    with pytest.raises(ConfigError, match=f"^{name}: must be one of .*{value}"):
        read(word)


def test_logs_are_configured_and_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = get_level()
    undo = read("--zap-log-level=warn").configure_logs()
    try:
        get_logger("test").info("Not logged")
        get_logger("test").warning("Ready")
    finally:
        undo()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["msg"] == "Ready"
    assert get_level() == before
