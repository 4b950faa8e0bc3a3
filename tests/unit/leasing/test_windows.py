"""Calendars against a model that checks each minute of the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import DAYS, TimeWindow
from kubeocean.errors import ConfigError, InvariantError
from kubeocean.leasing.windows import Calendar, Window, next_edge, within, zone_of
from support.examples import examples

MINUTE = timedelta(minutes=1)
INSTANT = timedelta(microseconds=1)
ZONES = (
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",  # half an hour of daylight saving
    "Asia/Kathmandu",  # three quarters of an hour from UTC
    "Africa/Casablanca",  # winter time during Ramadan
    "America/Havana",  # the clock is put back from 01:00 to midnight
    "Asia/Beirut",  # the clock is put forward at midnight
    "Antarctica/Troll",  # two hours of daylight saving
    "Pacific/Chatham",
)


# The model


def shows(window: TimeWindow, local: datetime) -> bool:
    """Whether the wall clock shows a minute of the window."""
    clock, today = f"{local:%H:%M}", f"{local:%A}".lower()
    yesterday = f"{local - timedelta(days=1):%A}".lower()
    days = {day.lower() for day in window.days or DAYS}
    if window.start <= window.end:
        return today in days and window.start <= clock <= window.end
    return (today in days and clock >= window.start) or (yesterday in days and clock <= window.end)


def lends(windows: Sequence[TimeWindow], zone: tzinfo, instant: datetime) -> bool:
    local = instant.astimezone(zone)
    return not windows or any(shows(window, local) for window in windows)


def edge_by_looking(
    windows: Sequence[TimeWindow], zone: tzinfo, instant: datetime, *, days: int
) -> datetime | None:
    """Check every minute; today's zones are whole minutes from UTC, and change at whole ones."""
    before = lends(windows, zone, instant)
    at = instant.replace(second=0, microsecond=0) + MINUTE
    for _ in range(days * 24 * 60):
        if lends(windows, zone, at) != before:
            return at
        at += MINUTE
    return None


@cache
def clock_changes(zone: ZoneInfo) -> tuple[datetime, ...]:
    """Return all changes within five years, by a check every quarter of an hour."""
    edges, at = [], datetime(2024, 1, 1, tzinfo=UTC)
    offset = at.astimezone(zone).utcoffset()
    while at.year < 2029:
        at += timedelta(minutes=15)
        if at.astimezone(zone).utcoffset() != offset:
            edges.append(at)
            offset = at.astimezone(zone).utcoffset()
    return tuple(edges)


zones = st.sampled_from(ZONES).map(ZoneInfo)
times = st.builds(
    "{:02}:{:02}".format,
    st.integers(0, 23) | st.integers(0, 4),  # clocks are changed at night
    st.sampled_from([0, 29, 30, 59]) | st.integers(0, 59),
)
weekdays = st.sampled_from(DAYS).flatmap(
    lambda day: st.sampled_from([day, day.capitalize(), day.upper()])
)
windows = st.lists(
    st.builds(
        TimeWindow,
        start=times,
        end=times,
        days=st.none() | st.lists(weekdays, max_size=4).map(tuple),
    ),
    max_size=4,
)


@st.composite
def moments(draw: st.DrawFn) -> tuple[ZoneInfo, datetime]:
    """Return a zone and an instant, often close to where its clocks are changed."""
    zone = draw(zones)
    changes = clock_changes(zone)
    if changes and draw(st.booleans()):
        around = timedelta(hours=draw(st.sampled_from([1, 4, 36])))
        away = draw(st.timedeltas(min_value=-around, max_value=around))
        return zone, draw(st.sampled_from(changes)) + away
    start, end = datetime(2024, 1, 1), datetime(2038, 12, 31)
    return zone, draw(st.datetimes(start, end, timezones=st.just(UTC)))


# Properties


@settings(max_examples=examples(2))
@given(windows, moments())
def test_a_policy_lends_while_the_wall_clock_shows_a_minute_of_a_window(
    windows: list[TimeWindow], moment: tuple[ZoneInfo, datetime]
) -> None:
    zone, instant = moment
    assert within(Calendar.of(windows, zone), instant) == lends(windows, zone, instant)


@given(windows, moments())
def test_the_next_edge_is_that_of_a_check_every_minute(
    windows: list[TimeWindow], moment: tuple[ZoneInfo, datetime]
) -> None:
    zone, instant = moment
    edge = next_edge(Calendar.of(windows, zone), instant)
    looked = edge_by_looking(windows, zone, instant, days=3)
    if looked is not None or (edge is not None and edge - instant < timedelta(days=3)):
        assert edge == looked


@given(windows, moments())
def test_at_an_edge_and_only_there_lending_changes(
    windows: list[TimeWindow], moment: tuple[ZoneInfo, datetime]
) -> None:
    zone, start = moment
    calendar = Calendar.of(windows, zone)
    for _ in range(20):
        edge = next_edge(calendar, start)
        assume(edge is not None)
        assert edge is not None and edge > start and edge.tzinfo is UTC
        assert within(calendar, edge - INSTANT) == within(calendar, start)
        assert within(calendar, edge) != within(calendar, start)
        assert within(calendar, start + (edge - start) / 2) == within(calendar, start)
        start = edge


@given(windows, moments(), st.integers(0, 10**6))
def test_every_instant_before_an_edge_names_the_same_edge(
    windows: list[TimeWindow], moment: tuple[ZoneInfo, datetime], part: int
) -> None:
    zone, instant = moment
    calendar = Calendar.of(windows, zone)
    edge = next_edge(calendar, instant)
    assume(edge is not None)
    assert edge is not None
    later = instant + (edge - instant) * part / (10**6 + 1)
    assert next_edge(calendar, later) == edge
    assert next_edge(calendar, edge - INSTANT) == edge


@given(windows, zones)
def test_no_edge_means_that_every_minute_of_a_week_is_lent(
    windows: list[TimeWindow], zone: ZoneInfo
) -> None:
    calendar = Calendar.of(windows, zone)
    minutes = {minute for span in calendar.spans for minute in span}
    assert (not calendar.edges) == (len(minutes) == 7 * 24 * 60)
    assert sum(map(len, calendar.spans)) == len(minutes), "spans overlap"
    assert all(a.stop < b.start for a, b in zip(calendar.spans, calendar.spans[1:], strict=False))


# By hand


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def edges(calendar: Calendar, start: str, count: int) -> list[str]:
    """Return the next edges, as the wall clock in UTC shows them."""
    edges, at = [], utc(start)
    for _ in range(count):
        edge = next_edge(calendar, at)
        assert edge is not None
        edges.append(f"{edge:%m-%d %H:%M:%S}")
        at = edge
    return edges


def calendar(*written: str, zone: tzinfo = UTC) -> Calendar:
    """Return the calendar of windows such as `20:00-06:00 friday saturday`."""
    parts = [each.split() for each in written]
    return Calendar.of([TimeWindow(*p[0].split("-"), days=tuple(p[1:])) for p in parts], zone)


NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize("windows", [None, (), []])
def test_without_windows_a_policy_lends_always(windows: Sequence[TimeWindow] | None) -> None:
    always = Calendar.of(windows, UTC)
    assert within(always, utc("2026-03-01T00:00"))
    assert next_edge(always, utc("2026-03-01T00:00")) is None


def test_both_ends_of_a_window_are_lent() -> None:
    evening = calendar("20:00-20:30")
    assert not within(evening, utc("2026-03-01T19:59:59.999999"))
    assert within(evening, utc("2026-03-01T20:00"))
    assert within(evening, utc("2026-03-01T20:30:59.999999"))
    assert not within(evening, utc("2026-03-01T20:31"))
    assert edges(evening, "2026-03-01T00:00", 2) == ["03-01 20:00:00", "03-01 20:31:00"]


def test_a_window_that_ends_where_it_starts_is_a_minute_long() -> None:
    minute = calendar("20:00-20:00")
    assert edges(minute, "2026-03-01T00:00", 2) == ["03-01 20:00:00", "03-01 20:01:00"]


def test_a_window_past_midnight_belongs_to_the_day_it_starts_on() -> None:
    friday_night = calendar("18:00-08:00 Friday")  # 2026-03-06 is a Friday
    assert not within(friday_night, utc("2026-03-06T07:00"))
    assert within(friday_night, utc("2026-03-06T18:00"))
    assert within(friday_night, utc("2026-03-07T08:00:59"))
    assert not within(friday_night, utc("2026-03-07T18:00"))
    assert edges(friday_night, "2026-03-01T00:00", 3) == [
        "03-06 18:00:00",
        "03-07 08:01:00",
        "03-13 18:00:00",
    ]


def test_a_window_past_the_end_of_the_week_goes_on_into_the_next() -> None:
    sunday_night = calendar("22:00-01:59 SUNDAY")  # 2026-03-08 is a Sunday
    assert edges(sunday_night, "2026-03-05T00:00", 3) == [
        "03-08 22:00:00",
        "03-09 02:00:00",
        "03-15 22:00:00",
    ]


def test_a_window_that_ends_a_minute_before_it_starts_is_a_day_long() -> None:
    day = calendar("12:00-11:59 monday")  # 2026-03-02 is a Monday
    assert edges(day, "2026-03-01T00:00", 2) == ["03-02 12:00:00", "03-03 12:00:00"]


@pytest.mark.parametrize(
    "written",
    [
        ("00:00-23:59",),
        ("08:00-19:59", "20:00-07:59"),
        ("12:00-11:59",),
        ("00:00-12:00", "11:00-23:59", "05:00-06:00 monday"),
        ("00:00-23:59 monday tuesday wednesday", "00:00-23:59 thursday friday saturday sunday"),
    ],
)
def test_windows_that_leave_no_gap_have_no_edge(written: tuple[str, ...]) -> None:
    always = calendar(*written, zone=NEW_YORK)
    assert next_edge(always, utc("2026-03-08T00:00")) is None
    assert within(always, utc("2026-03-08T07:00"))


def test_windows_that_touch_or_overlap_are_one() -> None:
    merged = calendar("08:00-09:59", "10:00-12:00", "11:00-13:00")
    assert edges(merged, "2026-03-01T00:00", 3) == [
        "03-01 08:00:00",
        "03-01 13:01:00",
        "03-02 08:00:00",
    ]


def test_the_edge_at_this_very_instant_is_not_the_next() -> None:
    evening = calendar("20:00-20:59")
    assert next_edge(evening, utc("2026-03-01T20:00")) == utc("2026-03-01T21:00")
    assert next_edge(evening, utc("2026-03-01T21:00")) == utc("2026-03-02T20:00")


# New York puts its clocks forward on 2026-03-08 at 02:00 (07:00 UTC), and back on 2026-11-01 at
# 02:00 (06:00 UTC).


def test_a_window_is_shorter_by_the_hour_that_is_skipped() -> None:
    night = calendar("01:00-03:59", zone=NEW_YORK)
    assert edges(night, "2026-03-08T00:00", 3) == [
        "03-08 06:00:00",
        "03-08 08:00:00",
        "03-09 05:00:00",
    ]


def test_a_window_that_is_skipped_whole_is_not_lent_that_day() -> None:
    skipped = calendar("02:00-02:59", zone=NEW_YORK)
    assert edges(skipped, "2026-03-08T00:00", 2) == ["03-09 06:00:00", "03-09 07:00:00"]


def test_a_window_that_starts_in_the_skipped_hour_opens_when_the_clock_has_passed_it() -> None:
    late = calendar("02:30-04:59", zone=NEW_YORK)
    assert edges(late, "2026-03-08T00:00", 2) == ["03-08 07:00:00", "03-08 09:00:00"]


def test_a_window_that_ends_in_the_skipped_hour_closes_when_the_clock_passes_it() -> None:
    early = calendar("00:00-02:29", zone=NEW_YORK)
    assert edges(early, "2026-03-08T00:00", 2) == ["03-08 05:00:00", "03-08 07:00:00"]


def test_an_hour_that_is_shown_twice_is_lent_twice() -> None:
    night = calendar("01:00-01:59", zone=NEW_YORK)
    assert edges(night, "2026-11-01T00:00", 2) == ["11-01 05:00:00", "11-01 07:00:00"]


def test_a_window_that_ends_in_the_repeated_hour_is_shown_again() -> None:
    late = calendar("20:00-01:29", zone=NEW_YORK)
    assert edges(late, "2026-11-01T00:00", 4) == [
        "11-01 05:30:00",
        "11-01 06:00:00",
        "11-01 06:30:00",
        "11-02 01:00:00",
    ]


def test_edges_are_exact_where_a_zone_is_seconds_away_from_utc() -> None:
    noon = calendar("12:00-12:00", zone=ZoneInfo("Africa/Monrovia"))  # 44 min 30 s, until 1972
    assert edges(noon, "1971-06-01T00:00", 2) == ["06-01 12:44:30", "06-01 12:45:30"]


def test_edges_are_exact_in_a_zone_of_a_fixed_offset() -> None:
    noon = calendar("12:00-12:00", zone=timezone(timedelta(hours=-3, minutes=-30)))
    assert edges(noon, "2026-06-01T00:00", 1) == ["06-01 15:30:00"]


@example("Europe/Berlin")
@given(st.sampled_from(ZONES))
def test_the_zone_that_a_policy_names_is_its_zone(name: str) -> None:
    assert zone_of(name, local=UTC) == ZoneInfo(name)


def test_without_a_name_the_zone_is_the_callers() -> None:
    assert zone_of("", local=NEW_YORK) is NEW_YORK


@pytest.mark.parametrize("name", ["Mars/Olympus", "America", "../etc/passwd", "/etc/localtime"])
def test_a_zone_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"timeZone: must be an IANA time zone") as error:
        zone_of(name, local=UTC)
    assert error.value.value == name


@pytest.mark.parametrize(
    ("window", "field", "value"),
    [
        (TimeWindow("24:00", "08:00"), "timeWindows[1].start", "24:00"),
        (TimeWindow("8:00", "09:00"), "timeWindows[1].start", "8:00"),
        (TimeWindow("", "09:00"), "timeWindows[1].start", ""),
        (TimeWindow("08:00", "08:60"), "timeWindows[1].end", "08:60"),
        (TimeWindow("08:00", "09:00:00"), "timeWindows[1].end", "09:00:00"),
        (TimeWindow("08:00", "٠٩:٠٠"), "timeWindows[1].end", "٠٩:٠٠"),
        (TimeWindow("08:00", "09:00", ("Mon",)), "timeWindows[1].days[0]", "Mon"),
        (TimeWindow("08:00", "09:00", ("friday", "")), "timeWindows[1].days[1]", ""),
    ],
)
def test_a_mistake_is_named_by_its_path_and_value(
    window: TimeWindow, field: str, value: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Calendar.of((TimeWindow("00:00", "00:00"), window), UTC)
    assert (error.value.field, error.value.value) == (field, value)


def test_a_window_counts_days_from_monday() -> None:
    window = Window.parse(TimeWindow("06:30", "20:15", ("Monday", "SUNDAY", "monday")))
    assert window == Window(390, 1215, frozenset({0, 6}))


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(InvariantError, match="zone"):
        within(Calendar.of((), UTC), datetime(2026, 1, 1))
