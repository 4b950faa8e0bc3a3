"""Time windows: when a policy lends.

A policy lends while the wall clock in its zone shows a minute of one of its windows; both ends are
such minutes, so 20:00-20:00 is one minute long and 20:00-21:00 ends as the clock turns to 21:01. A
window that ends before it starts runs past midnight and belongs to the day it starts on: Friday
18:00-08:00 ends on Saturday. Without windows a policy lends always.

The wall clock decides on days when it is changed, too: minutes that it skips are not lent, minutes
that it shows twice are lent twice. Nothing here reads a clock; callers pass aware instants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from kubeocean.api.policies import DAY_HINT, DAYS, TIME_HINT, TIME_OF_DAY, ZONE_HINT, TimeWindow
from kubeocean.api.validation import zone_names
from kubeocean.errors import ConfigError, InvariantError

__all__ = ["Calendar", "Window", "next_edge", "within", "zone_of"]

_DAY: Final = 24 * 60  # all in minutes
_WEEK: Final = 7 * _DAY
_TIME: Final = re.compile(TIME_OF_DAY)


@dataclass(frozen=True, slots=True)
class Window:
    """Time window of a policy: a span of minutes of the day, both ends included, on days of the
    week (Monday is 0)."""

    start: int
    end: int
    days: frozenset[int] = frozenset(range(7))

    @classmethod
    def parse(cls, written: TimeWindow, *, field: str = "") -> Window:
        """Parse a time window of a policy; a `ConfigError` names the field within `field`."""
        days = {
            _parse_day(day, field=f"{field}.days[{index}]")
            for index, day in enumerate(written.days or ())
        }
        return cls(
            start=_parse_time(written.start, field=f"{field}.start"),
            end=_parse_time(written.end, field=f"{field}.end"),
            days=frozenset(days or range(7)),
        )

    def spans(self) -> Iterable[range]:
        """Return the window's minutes of the week, from Monday 00:00; a span past Sunday's end is
        split."""
        length = (self.end - self.start) % _DAY + 1
        for day in self.days:
            first = day * _DAY + self.start
            yield range(first, min(first + length, _WEEK))
            if first + length > _WEEK:
                yield range(first + length - _WEEK)


@dataclass(frozen=True, slots=True)
class Calendar:
    """All time windows of a policy, in their time zone."""

    zone: tzinfo
    spans: tuple[range, ...]  # minutes of the week: ascending, no two spans touch
    edges: tuple[int, ...]  # minutes at which lending starts or ends; may be empty

    @classmethod
    def of(
        cls, windows: Sequence[TimeWindow] | None, zone: tzinfo, *, field: str = "timeWindows"
    ) -> Calendar:
        """Parse the time windows of a policy.

        :raises ConfigError: the first mistake in the windows.
        """
        parsed = [
            Window.parse(window, field=f"{field}[{index}]")
            for index, window in enumerate(windows or ())
        ]
        spans = _merge(span for window in parsed for span in window.spans())
        if not windows:
            spans = (range(_WEEK),)
        # A span that ends with the week where another begins is in both sets, and is no edge.
        edges = {span.start for span in spans} ^ {span.stop % _WEEK for span in spans}
        return cls(zone, spans, tuple(sorted(edges)))


def within(calendar: Calendar, instant: datetime) -> bool:
    """Whether a policy with this calendar lends at this instant."""
    minute = _minute_of_week(_local(instant, calendar.zone))
    return any(minute in span for span in calendar.spans)


def next_edge(calendar: Calendar, instant: datetime) -> datetime | None:
    """Return the first instant after `instant` at which lending starts or ends; None if it never
    does.

    The result is in UTC.
    """
    if not calendar.edges:
        return None
    lending, start = within(calendar, instant), instant.astimezone(UTC)
    while True:
        edge = _edge_by_the_wall(calendar, start)
        changed = _clock_change(calendar.zone, start, edge)
        if changed is None:
            return edge
        if within(calendar, changed) != lending:
            return changed
        start = changed


def zone_of(name: str, *, local: tzinfo, field: str = "timeZone") -> tzinfo:
    """Return the time zone of a name in the tz database; without a name, `local`."""
    if not name:
        return local
    if name not in zone_names():
        raise ConfigError(ZONE_HINT, field=field, value=name)
    return ZoneInfo(name)


def _parse_time(text: str, *, field: str) -> int:
    if _TIME.fullmatch(text) is None:
        raise ConfigError(TIME_HINT, field=field, value=text)
    hour, minute = text.split(":")
    return int(hour) * 60 + int(minute)


def _parse_day(text: str, *, field: str) -> int:
    day = text.lower()
    if day not in DAYS:
        raise ConfigError(DAY_HINT, field=field, value=text)
    return DAYS.index(day)


def _merge(spans: Iterable[range]) -> tuple[range, ...]:
    """Return the spans with overlapping and adjacent ones joined."""
    merged: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return tuple(merged)


def _local(instant: datetime, zone: tzinfo) -> datetime:
    if instant.tzinfo is None:
        raise InvariantError("an instant must have a time zone", instant=instant)
    return instant.astimezone(zone)


def _minute_of_week(local: datetime) -> int:
    return local.weekday() * _DAY + local.hour * 60 + local.minute


def _edge_by_the_wall(calendar: Calendar, start: datetime) -> datetime:
    """Return the next edge of the calendar, if the zone's UTC offset does not change before."""
    local = start.astimezone(calendar.zone)
    minute = _minute_of_week(local)
    ahead = min((edge - minute - 1) % _WEEK + 1 for edge in calendar.edges)
    into_minute = timedelta(seconds=local.second, microseconds=local.microsecond)
    return start + timedelta(minutes=ahead) - into_minute


# In all of the tz database no two changes of a zone's clocks are closer than 167 hours: steps of a
# day cannot miss a pair.
_STEP: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)


def _clock_change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first instant in (start, end] at which the zone's offset from UTC changes."""
    offset = start.astimezone(zone).utcoffset()
    before = start.replace(microsecond=0)  # clocks are changed at whole seconds
    while before < end:
        after = min(before + _STEP, end)
        if after.astimezone(zone).utcoffset() != offset:
            return _bisect(zone, before, after)
        before = after
    return None


def _bisect(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """Return the instant between `before` and `after` at which the zone's offset changes."""
    offset = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
