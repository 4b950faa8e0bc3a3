"""A clock that a test can set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.runtime.clock import RealClock

__all__ = ["SetClock"]

_MINUTE = timedelta(minutes=1)


class SetClock(RealClock):
    """The machine's clock, with a wall clock that a test sets."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def bring_edge(self, in_s: float) -> datetime:
        """Set the clock so that a minute begins in `in_s` seconds; return that minute."""
        now = datetime.now(UTC)
        edge = (now + timedelta(seconds=in_s) + _MINUTE).replace(second=0, microsecond=0)
        self.offset = edge - now - timedelta(seconds=in_s)
        return edge
