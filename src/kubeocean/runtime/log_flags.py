"""Zap flags: logging flags of controller-runtime.

Existing templates pass these flags, so all of them are accepted. Choices that these logs do not
have (another form of time, a level for stack traces) change nothing: times are RFC 3339, and an
unexpected error always comes with its traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.runtime import logs
from kubeocean.runtime.flags import boolean, flag, one_of

__all__ = ["ZapFlags"]

_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "panic": "error",
}


def _level(written: str, flag: str) -> str:
    """Return the log level for a zap level; zap counts from 0 (info) towards more debugging."""
    word = written.lower()
    if word and word not in _LEVELS and not (word.isascii() and word.isdigit() and int(word)):
        known = ", ".join(_LEVELS)
        raise ConfigError(f"must be one of {known}, or above 0", source=flag, value=written)
    return _LEVELS.get(word, "debug") if word else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZapFlags:
    """Logging flags of a program, as fields of its settings."""

    zap_devel: bool = flag(
        "zap-devel",
        boolean,
        "false",
        "Log for developers: with the level debug and the encoder console.",
    )
    zap_encoder: str = flag(
        "zap-encoder",
        one_of("", "json", "console"),
        "",
        "Format of logs: json, or console for people (default: json; with --zap-devel, console).",
    )
    zap_log_level: str = flag(
        "zap-log-level",
        _level,
        "",
        "Log level: debug, info, warn or error; a number above 0 means debug (default: "
        "info; with --zap-devel, debug). "
        "SIGUSR1 makes a running program log more, SIGUSR2 less.",
    )
    zap_stacktrace_level: str = flag(
        "zap-stacktrace-level",
        one_of("", "debug", "info", "warn", "error", "panic"),
        "",
        "Has no effect: an unexpected error always has its traceback.",
    )
    zap_time_encoding: str = flag(
        "zap-time-encoding",
        one_of("", "epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"),
        "",
        "Has no effect: times are RFC 3339 with microseconds.",
    )

    @property
    def log_format(self) -> logs.Format:
        encoder = self.zap_encoder or ("console" if self.zap_devel else "json")
        return "console" if encoder == "console" else "json"

    @property
    def log_level(self) -> str:
        return self.zap_log_level or ("debug" if self.zap_devel else "info")

    def configure_logs(self) -> Callable[[], None]:
        """Configure logging by these flags; return the function that restores the previous
        configuration."""
        return logs.configure(self.log_format, self.log_level)
