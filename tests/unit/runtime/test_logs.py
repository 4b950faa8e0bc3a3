"""Logs: one JSON object a line or text, a level that moves, and never a secret."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime import logs
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret

CANARY = "canary4711canary"
JWT = f"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.{CANARY}"
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}\n-----END EC PRIVATE KEY-----"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    out = io.StringIO()
    restore = logs.configure("json", "info", out)
    yield out
    restore()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_a_head_and_the_fields(stream: io.StringIO) -> None:
    logs.get_logger("kubeocean.x").info("Created pod", vpod=Key("a", "b"), tries=2)
    (line,) = lines(stream)
    assert list(line) == ["ts", "level", "logger", "msg", "vpod", "tries"]
    assert line["level"] == "info"
    assert line["logger"] == "kubeocean.x"
    assert line["msg"] == "Created pod"
    assert (line["vpod"], line["tries"]) == ("a/b", 2)


def test_the_time_is_rfc3339_in_utc(stream: io.StringIO) -> None:
    logs.get_logger("x").info("Now")
    ts = str(lines(stream)[0]["ts"])
    assert ts.endswith("Z")
    assert datetime.fromisoformat(ts).utcoffset() == timedelta(0)


def test_a_field_cannot_hide_the_head(stream: io.StringIO) -> None:
    logs.get_logger("x").info("Ready", level=7, msg="theirs", ts=1, logger="z")
    (line,) = lines(stream)
    assert (line["level"], line["msg"], line["logger"]) == ("info", "Ready", "x")
    assert (line["level_"], line["msg_"], line["ts_"], line["logger_"]) == (7, "theirs", 1, "z")


def test_newlines_stay_inside_a_line(stream: io.StringIO) -> None:
    logs.get_logger("x").info("One\ntwo", text="a\nb")
    assert len(stream.getvalue().splitlines()) == 1


def test_libraries_come_out_in_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").warning("Odd request %s", "GET", extra={"peer": "1.2.3.4"})
    (line,) = lines(stream)
    assert (line["logger"], line["level"]) == ("aiohttp.server", "warning")
    assert (line["msg"], line["peer"]) == ("Odd request GET", "1.2.3.4")


def test_a_message_whose_arguments_do_not_fit_is_a_line(stream: io.StringIO) -> None:
    arguments = {"msg": "Read %d bytes of %s", "args": (f"Bearer {CANARY}", 5)}
    # Not by a logger, to which pytest has added handlers that refuse such a message.
    (handler,) = (
        each for each in logging.getLogger().handlers if getattr(each, "stream", None) is stream
    )
    handler.handle(logging.makeLogRecord(arguments))
    (line,) = lines(stream)
    assert str(line["msg"]).startswith("Read %d bytes of %s ['Bearer Secret(")


def test_a_value_without_a_text_is_logged(stream: io.StringIO) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise LookupError("no text")

    logs.get_logger("x").warning("Failed", error=Broken(), things=[Broken()], tries=2)
    try:
        raise Broken
    except Broken:
        logs.get_logger("x").exception("Failed")
    first, second = lines(stream)
    assert first["error"] == "Broken: (its text cannot be computed: LookupError)"
    assert first["tries"] == 2
    assert "Broken" in str(second["exception"])


def test_fields_of_a_logger_are_on_each_of_its_lines(stream: io.StringIO) -> None:
    log = logs.get_logger("watch").bind(cluster="w1", tries=1)
    with logs.bound(cluster="other", reconcile="r1"):
        log.bind(resource="pods").info("Started", tries=2, token=CANARY)
    (line,) = lines(stream)
    assert (line["logger"], line["msg"]) == ("watch", "Started")
    assert (line["cluster"], line["resource"], line["tries"]) == ("w1", "pods", 2)
    assert list(line)[-1] == "reconcile"
    assert CANARY not in stream.getvalue()


def test_warnings_of_python_are_logged(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old thing", UserWarning, stacklevel=1)
    assert any("old thing" in str(line["msg"]) for line in lines(stream))


def test_an_exception_is_a_field_with_its_traceback(stream: io.StringIO) -> None:
    log = logs.get_logger("x")
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.exception("Failed")
        log.error("Failed", exc_info=error)
        logging.getLogger("y").exception("Failed")
    for line in lines(stream):
        assert line["msg"] == "Failed"
        text = str(line["exception"])
        assert text.startswith("Traceback")
        assert text.endswith("ValueError: broken")
        assert "exc_info" not in line


def test_an_error_without_an_exception_has_no_such_field(stream: io.StringIO) -> None:
    logs.get_logger("x").error("Failed", exc_info=True)
    assert "exception" not in lines(stream)[0]


async def test_bound_fields_are_on_every_line_of_their_task(stream: io.StringIO) -> None:
    async def work(number: int) -> None:
        with logs.bound(reconcile=number):
            await asyncio.sleep(0)
            logs.get_logger("x").info("Ours")
            logging.getLogger("y").info("Theirs")

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))
    logs.get_logger("x").info("Outside")
    assert sorted(line["reconcile"] for line in lines(stream)[:-1]) == [0, 0, 1, 1, 2, 2]
    assert "reconcile" not in lines(stream)[-1]


def test_the_level_changes_for_loggers_that_exist(stream: io.StringIO) -> None:
    ours, theirs = logs.get_logger("x"), logging.getLogger("y")
    ours.debug("Hidden")
    theirs.debug("Hidden")
    logs.set_level("debug")
    assert logs.get_level() == "debug"
    ours.debug("Shown")
    theirs.debug("Shown")
    logs.set_level("error")
    ours.warning("Hidden")
    assert [line["msg"] for line in lines(stream)] == ["Shown", "Shown"]


def test_the_level_steps_and_stops_at_the_ends(stream: io.StringIO) -> None:
    assert [logs.step_level(+1) for _ in range(2)] == ["debug", "debug"]
    assert [logs.step_level(-1) for _ in range(4)] == ["info", "warning", "error", "error"]
    logging.getLogger().setLevel(logging.CRITICAL)
    assert logs.step_level(+1) == "warning"


def test_an_unknown_level_or_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"error, warning, info, debug.*loud"):
        logs.set_level("loud")
    with pytest.raises(ConfigError, match=r"json or console.*xml"):
        logs.configure("xml")


def test_configuring_twice_writes_a_line_once(stream: io.StringIO) -> None:
    second = io.StringIO()
    restore = logs.configure("json", "info", second)
    logs.get_logger("x").info("Once")
    restore()
    assert (len(lines(stream)), len(lines(second))) == (0, 1)
    logs.get_logger("x").info("Back")
    assert len(lines(stream)) == 1


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    restore = logs.configure()
    logs.get_logger("x").info("Here")
    restore()
    assert json.loads(capsys.readouterr().err)["msg"] == "Here"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_color", "term", "coloured"),
    [
        (Terminal, "", "xterm", True),
        (Terminal, "1", "xterm", False),
        (Terminal, "", "dumb", False),
        (io.StringIO, "", "xterm", False),
    ],
)
def test_the_console_has_colours_only_on_a_terminal_that_wants_them(
    stream: type[io.StringIO],
    no_color: str,
    term: str,
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    out = stream()
    restore = logs.configure("console", "info", out)
    logs.get_logger("x").info("Created pod", name="a")
    restore()
    assert "Created pod" in out.getvalue()
    assert ("\x1b[" in out.getvalue()) is coloured


def test_no_text_sends_escape_sequences_to_a_terminal() -> None:
    out = io.StringIO()
    restore = logs.configure("console", "info", out)
    logging.getLogger("lib").warning("Read \x1b[31mred")
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        logs.get_logger("x").exception("Failed", value="\x1b[31mred\x9b1m")
    restore()
    assert "red" in out.getvalue()
    assert "\n" in out.getvalue().strip()
    assert not set("\x1b\x07\x9b") & set(out.getvalue())


def leak_field(log: logs.Logger, library: logging.Logger) -> None:
    log.info("Read", token=CANARY, password=CANARY, Authorization=f"Bearer {CANARY}")
    library.info("Read", extra={"client_secret": CANARY})


def leak_value(log: logs.Logger, library: logging.Logger) -> None:
    log.info("Read", value=JWT, header=f"Bearer {CANARY}", pem=PEM, url=f"http://u:{CANARY}@h/")
    library.info("Read %s with Bearer %s", JWT, CANARY)


def leak_nested(log: logs.Logger, library: logging.Logger) -> None:
    document = {"users": [{"user": {"client-key-data": CANARY, "token": CANARY}}]}
    log.info("Read", config=document, text=json.dumps(document), shown=repr(document))
    library.info("Read %s", document)


def leak_secret(log: logs.Logger, library: logging.Logger) -> None:
    secret = Secret(CANARY)
    log.info(f"Read {secret}", it=secret, many=[secret], by={secret: secret})
    library.info("Read %s %r", secret, secret)


def leak_exception(log: logs.Logger, library: logging.Logger) -> None:
    token = CANARY  # a local that a traceback with locals would show
    try:
        try:
            raise ValueError(f"bad header: Bearer {token}")
        except ValueError as error:
            raise KeyError(JWT) from error
    except KeyError as error:
        log.exception("Failed", error=error)
        library.exception("Failed")


def leak_context(log: logs.Logger, library: logging.Logger) -> None:
    with logs.bound(token=CANARY):
        log.bind(password=CANARY).warning("Read")
        library.warning("Read")


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize(
    "leak", [leak_field, leak_value, leak_nested, leak_secret, leak_exception, leak_context]
)
def test_a_secret_never_reaches_the_output(
    leak: Callable[[logs.Logger, logging.Logger], None], format: logs.LogFormat
) -> None:
    out = io.StringIO()
    restore = logs.configure(format, "debug", out)
    with contextlib.closing(out):
        leak(logs.get_logger("x"), logging.getLogger("y"))
        restore()
        assert out.getvalue().count("Secret(") >= 2
        assert CANARY not in out.getvalue()


def test_a_secret_does_not_reach_handlers_of_others(caplog: pytest.LogCaptureFixture) -> None:
    logs.get_logger("x").error("Read", token=CANARY, header=f"Bearer {CANARY}")
    assert "Secret(" in caplog.text
    assert CANARY not in caplog.text
