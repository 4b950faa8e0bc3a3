"""Correlator: which of the things that happen become Events, and which add to one.

The rules are those of client-go's recorder, so that a cluster sees no more of ours than of its own:

- the same thing again adds to the count of its Event;
- from the tenth different message about one object and reason within ten minutes, the messages are
  combined in one Event, which shows the last;
- about one object at most 25 Events are written at once, then one in five minutes. What is left
  out is still counted, and the next Event that is written shows it.

All memory is bounded: what was not seen for longest is forgotten first. Nothing here reads a clock
or talks to a server.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from kubeocean.runtime.kinds import ObjectReference

__all__ = ["Correlator", "EventType", "Happening", "Limits", "Series"]

EventType: TypeAlias = Literal["Normal", "Warning"]

COMBINED: Final = "(combined from similar events): "
_NAME_LIMIT = 253
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to an object, as someone told it."""

    regarding: ObjectReference
    type: EventType
    reason: str
    message: str
    at: datetime
    action: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """client-go's numbers."""

    remembered: int = 4096
    similar: int = 10
    interval_s: float = 600
    burst: int = 25
    refill_s: float = 300


@dataclass(slots=True, eq=False)
class Series:
    """Happenings that are one Event. `stored`: the server is known to have it."""

    name: str
    latest: Happening
    first: datetime
    count: int = 1
    stored: bool = False
    seen_s: float = 0.0


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    seen_s: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Correlator:
    """Remembers what happened of late; `source` tells our Events from those of others."""

    def __init__(self, *, source: str = "", limits: Limits | None = None) -> None:
        self._source = source
        self._limits = limits or Limits()
        self._similar: _Recent[tuple[object, ...], _Similar] = _Recent(self._limits.remembered)
        self._series: _Recent[tuple[object, ...], Series] = _Recent(self._limits.remembered)
        self._buckets: _Recent[ObjectReference, _Bucket] = _Recent(self._limits.remembered)

    def observe(self, happening: Happening, *, at_s: float) -> Series | None:
        """The series that this belongs to, now with it; None where it must not be written.

        `at_s` is a monotonic time.
        """
        series = self._join(*self._combine(happening, at_s), at_s)
        return series if self._admit(happening.regarding, at_s) else None

    def _combine(self, told: Happening, at_s: float) -> tuple[Happening, tuple[object, ...]]:
        """What to record and under which key: alone, or together with all that are similar."""
        alike = (_identity(told.regarding), told.type, told.reason)
        similar = self._similar.get(alike, _Similar)
        if at_s - similar.seen_s > self._limits.interval_s:
            similar.messages.clear()
        similar.seen_s = at_s
        similar.messages.add(told.message)
        if len(similar.messages) < self._limits.similar:
            return told, (*alike, told.regarding.field_path, told.message)
        # One too many: any of them goes, so that the set stays as it is until a quiet interval.
        similar.messages.pop()
        return replace(told, message=COMBINED + told.message), alike

    def _join(self, happening: Happening, key: tuple[object, ...], at_s: float) -> Series:
        known = self._series.peek(key)
        if known is None or at_s - known.seen_s > self._limits.interval_s:
            name = _event_name(happening, self._source)
            known = Series(name, happening, first=happening.at)
            self._series.put(key, known)
        else:
            known.count += 1
            known.latest = happening
        known.seen_s = at_s
        return known

    def _admit(self, regarding: ObjectReference, at_s: float) -> bool:
        limits = self._limits
        bucket = self._buckets.get(_identity(regarding), lambda: _Bucket(limits.burst, at_s))
        gained = (at_s - bucket.at_s) / limits.refill_s
        bucket.tokens = min(limits.burst, bucket.tokens + gained)
        bucket.at_s = at_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


class _Recent(Generic[_K, _V]):
    """A dict that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def peek(self, key: _K) -> _V | None:
        """The value, which counts as used now."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: _K, value: _V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value, made where there is none."""
        if (value := self.peek(key)) is None:
            value = make()
            self.put(key, value)
        return value


def _identity(regarding: ObjectReference) -> ObjectReference:
    """The object, whatever its version (every write changes it) and whichever part of it."""
    if not (regarding.resource_version or regarding.field_path):
        return regarding
    return msgspec.structs.replace(regarding, resource_version="", field_path="")


def _event_name(happening: Happening, source: str) -> str:
    """The object's name and a hash of what, when and by whom: no two series share it."""
    told = (source, happening.at, happening.type, happening.reason, happening.message)
    regarding = happening.regarding
    tag = hashlib.blake2b(repr((told, regarding)).encode("utf-8", "replace"), digest_size=8)
    # Some objects (roles) may have names that an Event may not.
    stem = regarding.name[: _NAME_LIMIT - 17].rstrip("-.")
    if not _SUBDOMAIN.fullmatch(stem):
        stem = "event"
    return f"{stem}.{tag.hexdigest()}"
