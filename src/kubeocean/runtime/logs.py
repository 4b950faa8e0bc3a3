"""Logs: one line for each event, for machines or for people.

`configure` decides once, where a program starts: JSON (`ts`, `level`, `logger`, `msg`, then the
fields) or text for a terminal. Messages of libraries through the standard `logging` have the same
form. The level can change while the program runs.

    log = get_logger(__name__)
    log.info("Created pod", vpod=vpod.key, ppod=ppod.key)

Fields bound with `bound(reconcile=...)` are on every line of that task. The last step before a line
is written, for the program's lines and for those of libraries, is `redaction`, so that no secret is
logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO, TypeAlias, cast

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from kubeocean.errors import ConfigError
from kubeocean.runtime.redaction import redact

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

Logger: TypeAlias = BoundLogger
LogFormat: TypeAlias = Literal["json", "console"]

# From the fewest to the most lines.
LEVELS: Final[tuple[str, ...]] = ("error", "warning", "info", "debug")
_HEAD: Final = ("ts", "level", "logger", "msg")

_bound: ContextVar[Mapping[str, object]] = ContextVar("kubeocean_bound")
_NOTHING: Final[Mapping[str, object]] = {}


def get_logger(name: str) -> Logger:
    """Return the logger of a module; use as `log.info("Constant message", field=value)`."""
    return BoundLogger(logging.getLogger(name), processors=list(_CHAIN), context={})


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
    render = _render_json if format == "json" else _console(target)
    handler.setFormatter(_Formatter(render))
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    root.handlers = [h for h in before if not isinstance(h, _Handler)] + [handler]
    root.setLevel(severity)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)  # whatever the level of the process
    logging.captureWarnings(True)
    ours_before = structlog.get_config()
    # For modules that use structlog directly; loggers of `get_logger` do not depend on this.
    structlog.configure(
        processors=list(_CHAIN),
        wrapper_class=BoundLogger,
        context_class=dict,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )

    def restore() -> None:
        structlog.configure(**ours_before)
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


class _Fields(dict[str, object]):
    """Fields of a line of this program; the type distinguishes it from a dict that a library
    logs."""


class _Formatter(ProcessorFormatter):
    """Formatter that renders lines of this program as they are; lines of libraries are converted
    first."""

    def __init__(self, render: Processor) -> None:
        super().__init__(processors=[_head, render], foreign_pre_chain=list(_FOREIGN_CHAIN))
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        if type(record.msg) is not _Fields:
            return super().format(record)
        line: EventDict = {**record.msg, "_record": record, "_from_structlog": True}
        return str(self._render(None, "", _head(None, "", line)))


def _severity(level: str) -> int:
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level must be one of {', '.join(LEVELS)}", value=level)
    return logging.getLevelNamesMapping()[level.upper()]


def _merge_bound(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add bound fields that the log line does not set itself."""
    for name, value in _bound.get(_NOTHING).items():
        event.setdefault(name, value)
    return event


def _exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace `exc_info` by the field `exception`: the traceback as text, without local
    variables."""
    about = event.pop("exc_info", None)
    if about is True:
        about = sys.exc_info()[1]
    elif isinstance(about, tuple):
        about = cast("tuple[type, BaseException | None, TracebackType | None]", about)[1]
    if isinstance(about, BaseException):
        event["exception"] = "".join(traceback.format_exception(about)).rstrip()
    return event


def _redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Redact all fields of a log line; the result has only plain data for a renderer."""
    return {
        name: value if name in _META else redact(value, name=name) for name, value in event.items()
    }


def _to_record(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[_Fields], dict[str, object]]:
    """Return the arguments with which the standard logger makes a LogRecord of a line."""
    return (_Fields(event),), {}


_META: Final = ("_record", "_from_structlog")

# Redaction runs before the line becomes a LogRecord, so that handlers of other code get no secrets
# either.
_CHAIN: Final[tuple[Processor, ...]] = (
    structlog.stdlib.filter_by_level,
    _merge_bound,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.StackInfoRenderer(),
    _exception,
    _redact,
    _to_record,
)
_FOREIGN_CHAIN: Final[tuple[Processor, ...]] = (
    _merge_bound,
    structlog.stdlib.ExtraAdder(),
    _exception,
    _redact,
)


def _head(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put the fixed fields of a log line first; a caller's field with one of their names gets a
    `_`."""
    record: logging.LogRecord = event.pop("_record")
    del event["_from_structlog"]
    line: EventDict = {
        "ts": _rfc3339(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": event.pop("event", ""),
    }
    for name, value in event.items():
        line[f"{name}_" if name in _HEAD else name] = value
    return line


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _render_json(_logger: WrappedLogger, _method: str, line: EventDict) -> str:
    return _encode(line)


def _console(stream: TextIO) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=_colours(stream), sort_keys=False, event_key="msg", timestamp_key="ts"
    )


def _colours(stream: TextIO) -> bool:
    # https://no-color.org: set and not empty, whatever the value.
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
