"""Pace: so many evictions in any minute, and not more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

__all__ = ["Pace"]

_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How many evictions may follow now, after those that still count."""

    limit: int  # at least one
    recent: tuple[datetime, ...]  # ascending

    @classmethod
    def of(cls, limit: int, evictions: Iterable[datetime], *, now: datetime) -> Pace:
        """The pace at this instant."""
        return cls(limit, tuple(sorted(each for each in evictions if each > now - _MINUTE)))

    @property
    def free(self) -> int:
        """How many may be made now."""
        return max(0, self.limit - len(self.recent))

    def next_slot(self, *, now: datetime) -> datetime:
        """When the next one may be made, if all that may be made now are."""
        counted = sorted((*self.recent, *[now] * self.free))
        return counted[len(counted) - self.limit] + _MINUTE
