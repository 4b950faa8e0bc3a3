"""Logs: one line for each event, for machines or for people.

`configure` decides once, where a program starts: JSON (`ts`, `level`, `logger`, `msg`, then the
fields) or text for a terminal. Messages of libraries through the standard `logging` have the same
form. The level can change while the program runs.

    log = get_logger(__name__)
    log.info("Created pod", vpod=vpod.key, ppod=ppod.key)

Fields bound with `bound(reconcile=...)` are on every line of that task. Every line of the program
and of libraries goes through `redaction`, so that no secret is logged.

A line is rendered in a few microseconds: a syncer logs each of its writes.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO, TypeAlias

import msgspec

from kubeocean.errors import ConfigError, printable
from kubeocean.runtime.redaction import Plain, redact, redact_fields

__all__ = [
    "AUDIT_LOGGER",
    "LEVELS",
    "LogFormat",
    "Logger",
    "bound",
    "configure",
    "get_level",
    "get_logger",
    "set_level",
    "step_level",
]

AUDIT_LOGGER: Final = "kubeocean.audit"

LogFormat: TypeAlias = Literal["json", "console"]

# From the fewest to the most lines.
LEVELS: Final[tuple[str, ...]] = ("error", "warning", "info", "debug")
_HEAD: Final = frozenset({"ts", "level", "logger", "msg"})

_bound: ContextVar[Mapping[str, object]] = ContextVar("kubeocean_bound")
_NOTHING: Final[Mapping[str, object]] = {}


class Logger:
    """Logger of a module, over the standard logger of the same name, with fields on each line.

    The field `exc_info`, which is an exception or True for the present one, becomes the field
    `exception` with the traceback.
    """

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, fields: Mapping[str, object]) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: object) -> Logger:
        """Return a logger with these fields on each line, in addition to those of this logger."""
        return Logger(self._logger, {**self._fields, **fields})

    def debug(self, message: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """Log an error with the traceback of the present exception."""
        self._write(logging.ERROR, message, {"exc_info": True, **fields})

    def _write(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        line = _line(message, {**self._fields, **fields})
        # Not by `logger.log`, which would look for the caller in the stack.
        logger.handle(logger.makeRecord(logger.name, level, "", 0, line, (), None))


def get_logger(name: str) -> Logger:
    """Return the logger of a module; use as `log.info("Constant message", field=value)`."""
    return Logger(logging.getLogger(name), _NOTHING)


class bound:
    """Context manager that adds fields to every log line of this task within the block.

    One context variable holds all fields: every reconcile enters a block, mostly without logging a
    line.
    """

    __slots__ = ("_before", "_fields")

    def __init__(self, **fields: object) -> None:
        self._fields = fields
        self._before: Token[Mapping[str, object]] | None = None

    def __enter__(self) -> None:
        self._before = _bound.set({**_bound.get(_NOTHING), **self._fields})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._before is not None
        _bound.reset(self._before)


def configure(
    format: LogFormat = "json", level: str = "info", stream: TextIO | None = None
) -> Callable[[], None]:
    """Send all logs of this process to `stream` (standard error); return the function that undoes
    this.

    Handlers of other code stay; a handler of an earlier `configure` is replaced.
    """
    if format not in ("json", "console"):
        raise ConfigError("log format must be json or console", value=format)
    severity = _severity(level)
    target = stream if stream is not None else sys.stderr
    handler = _Handler(target)
    render = _json if format == "json" else _console(target)
    handler.setFormatter(_Formatter(render))
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    root.handlers = [h for h in before if not isinstance(h, _Handler)] + [handler]
    root.setLevel(severity)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)  # whatever the level of the process
    logging.captureWarnings(True)

    def restore() -> None:
        root.handlers = before
        root.setLevel(before_level)
        logging.captureWarnings(False)

    return restore


def set_level(level: str) -> None:
    """Change the level of all loggers, except the audit logger, from now on."""
    logging.getLogger().setLevel(_severity(level))


def get_level() -> str:
    """Return the current log level."""
    return logging.getLevelName(logging.getLogger().level).lower()


def step_level(steps: int) -> str:
    """Move the log level by `steps` towards debug (or, if negative, towards error); return the new
    level."""
    now = get_level()
    # A level that other code set (critical, a number) counts as the quietest.
    at = LEVELS.index(now) if now in LEVELS else 0
    level = LEVELS[min(max(at + steps, 0), len(LEVELS) - 1)]
    set_level(level)
    return level


class _Handler(logging.StreamHandler[TextIO]):
    """Log handler made by `configure`; the type distinguishes it from other handlers."""


class _Line(dict[str, Plain]):
    """A redacted message, as `msg`, with its fields; the type distinguishes it from a dict that a
    library logs."""


class _Formatter(logging.Formatter):
    """Formatter of the lines of this program and of records of libraries."""

    def __init__(self, render: Callable[[dict[str, Plain]], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if type(record.msg) is _Line else _foreign(record)
        head: dict[str, Plain] = {
            "ts": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        return self._render(head | line)


def _severity(level: str) -> int:
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level must be one of {', '.join(LEVELS)}", value=level)
    return logging.getLevelNamesMapping()[level.upper()]


def _line(message: str, fields: Mapping[str, object]) -> _Line:
    """Return the line of a message, already redacted: handlers of other code get no secrets.

    A field with a name of the head gets a `_`. Bound fields come last and replace no other field.
    """
    line: dict[str, object] = {"msg": message}
    for name, value in {**fields, **_bound.get(_NOTHING), **fields}.items():
        line[f"{name}_" if name in _HEAD else name] = value
    if "exc_info" in line and (error := _exception(line.pop("exc_info"))) is not None:
        # Without local variables, which may be secrets.
        line["exception"] = "".join(traceback.format_exception(error)).rstrip()
    return _Line(redact_fields(line))


def _exception(exc_info: object) -> BaseException | None:
    """Return the exception that a caller, or the standard library, means by `exc_info`."""
    if exc_info is True:
        return sys.exc_info()[1]
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    return exc_info if isinstance(exc_info, BaseException) else None


# Attributes of all records; the others are fields that a library gave with `extra`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _foreign(record: logging.LogRecord) -> _Line:
    """Return the line of a library's record."""
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    stack = {"stack_info": record.stack_info} if record.stack_info else {}
    return _line(_message(record), {**extra, **stack, "exc_info": record.exc_info})


def _message(record: logging.LogRecord) -> str:
    """Return the message of a record; if its arguments do not fit its format, both of them.

    An error of the formatter would make `logging` print the arguments, which may be secrets.
    """
    try:
        return record.getMessage()
    except Exception:  # whatever the arguments of a library raise in their texts
        return f"{redact(record.msg)} {redact(record.args)}"


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


_encode: Final = msgspec.json.Encoder().encode


def _json(line: dict[str, Plain]) -> str:
    return _encode(line).decode()


def _console(stream: TextIO) -> Callable[[dict[str, Plain]], str]:
    # Imported here: structlog imports rich, which costs memory that no JSON log needs.
    from structlog.dev import ConsoleRenderer

    render = ConsoleRenderer(
        colors=_colours(stream), sort_keys=False, event_key="msg", timestamp_key="ts"
    )
    return lambda line: str(render(None, "", _printable(line)))


def _printable(line: dict[str, Plain]) -> dict[str, Plain]:
    """Return a line without escape sequences, which the renderer writes as they are."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in line.items()
    }


def _colours(stream: TextIO) -> bool:
    # https://no-color.org: set and not empty, whatever the value.
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
