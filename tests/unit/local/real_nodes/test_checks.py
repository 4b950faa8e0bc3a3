"""Node checks: errors name why a machine cannot run real nodes, and the remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kubeocean.errors import LocalError
from kubeocean.local import process
from kubeocean.local.real_nodes import checks

SCRIPT = Path(__file__).parents[4] / "scripts" / "real-nodes"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of root that has no programs at all."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(process, "_SEARCH", ())
    monkeypatch.setattr(checks, "_CNI_DIRECTORIES", (str(tmp_path),))
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_users_other_than_root_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert checks.available() == "real nodes need root"


@pytest.mark.usefixtures("bare")
def test_everything_that_is_missing_is_named_at_once() -> None:
    reason = checks.available()
    assert reason is not None
    assert "make real-nodes" in reason
    assert all(package in reason for package in checks.PACKAGES)
    assert "containernetworking-plugins" in reason


@pytest.mark.usefixtures("bare")
def test_programs_that_are_there_are_not_missed(tmp_path: Path) -> None:
    for name in ("runc", "bridge", "host-local", "loopback", "portmap"):
        (tmp_path / name).touch(0o755)
    assert checks.cni_plugins() == tmp_path
    assert "runc" not in checks.missing_packages()


def test_the_script_installs_what_the_check_asks_for() -> None:
    script = SCRIPT.read_text()
    needed = dict(re.findall(r"^need (\S+) (.+)$", script, re.MULTILINE))
    requested = {package: " ".join(sorted(names)) for package, names in checks.PACKAGES.items()}
    assert {
        package: " ".join(sorted(words.split())) for package, words in needed.items()
    } == requested
    assert {"containernetworking-plugins", "busybox-static"} <= set(re.findall(r"[\w-]+", script))


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(LocalError, match=r"sh -c .*: out of luck"):
        process.run("sh", "-c", "echo out of luck >&2; exit 3")
    with pytest.raises(LocalError, match="no-such-program"):
        process.run("no-such-program")
    assert process.run("cat", stdin=b"in") == "in"
