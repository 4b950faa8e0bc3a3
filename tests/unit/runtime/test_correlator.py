"""The correlator: counting, combining and limiting, as client-go's recorder does."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.runtime.events import COMBINED, Correlator, EventType, Happening, Limits, Series
from kubeocean.runtime.kinds import ObjectReference

POD = ObjectReference(api_version="v1", kind="Pod", namespace="a", name="web-0", uid="u1")
START = datetime(2026, 1, 1, tzinfo=UTC)
NO_SPAM_LIMIT = Limits(burst=10**6)


def happened(
    message: str = "it broke",
    *,
    regarding: ObjectReference = POD,
    reason: str = "Broke",
    type: EventType = "Warning",
    at_s: float = 0,
) -> Happening:
    return Happening(regarding, type, reason, message, START + timedelta(seconds=at_s))


def see(correlator: Correlator, happening: Happening, at_s: float = 0) -> Series:
    series = correlator.observe(happening, at_s=at_s)
    assert series is not None
    return series


def test_the_first_time_starts_a_series() -> None:
    series = see(Correlator(), happened())
    assert (series.count, series.first, series.stored) == (1, START, False)
    assert series.latest == happened()


def test_the_same_again_adds_to_the_count() -> None:
    correlator = Correlator()
    first = see(correlator, happened())
    again = see(correlator, happened(at_s=30), 30)
    assert again is first
    assert (again.count, again.first) == (2, START)
    assert again.latest.at == START + timedelta(seconds=30)


@pytest.mark.parametrize(
    "other",
    [
        happened("another message"),
        happened(reason="Other"),
        happened(type="Normal"),
        happened(regarding=msgspec.structs.replace(POD, uid="u2")),
        happened(regarding=msgspec.structs.replace(POD, field_path="spec.containers{x}")),
    ],
)
def test_another_object_type_reason_or_message_is_another_series(other: Happening) -> None:
    correlator = Correlator()
    first, second = see(correlator, happened()), see(correlator, other)
    assert first is not second
    assert first.name != second.name


def test_the_version_of_the_object_does_not_matter() -> None:
    correlator = Correlator()
    newer = msgspec.structs.replace(POD, resource_version="7")
    assert see(correlator, happened()) is see(correlator, happened(regarding=newer))


def test_after_a_quiet_interval_a_new_series_starts() -> None:
    correlator = Correlator()
    first = see(correlator, happened())
    assert see(correlator, happened(at_s=600), 600) is first
    later = see(correlator, happened(at_s=1201), 1201)
    assert later is not first
    assert later.count == 1
    assert later.name != first.name


def test_from_the_tenth_message_on_they_are_combined() -> None:
    correlator = Correlator()
    series = [see(correlator, happened(f"message {n}")) for n in range(14)]
    assert len({id(s) for s in series[:9]}) == 9
    assert len({id(s) for s in series[9:]}) == 1
    combined = series[-1]
    assert combined.count == 5
    assert combined.latest.message == COMBINED + "message 13"


def test_combining_ends_after_a_quiet_interval() -> None:
    correlator = Correlator()
    for n in range(12):
        see(correlator, happened(f"message {n}"))
    assert see(correlator, happened("message 12", at_s=601), 601).latest.message == "message 12"


def test_other_reasons_are_not_combined() -> None:
    correlator = Correlator()
    for n in range(12):
        see(correlator, happened(f"message {n}"))
    assert see(correlator, happened("x", reason="Other")).latest.message == "x"


def test_an_object_gets_a_burst_and_then_one_in_five_minutes() -> None:
    correlator = Correlator()

    def written(times: int, at_s: float) -> int:
        return sum(
            correlator.observe(happened(at_s=at_s), at_s=at_s) is not None for _ in range(times)
        )

    assert written(40, 0) == 25
    assert written(5, 299) == 0
    assert written(5, 300) == 1
    assert written(5, 900) == 2
    assert written(100, 10**6) == 25


def test_what_was_left_out_is_counted() -> None:
    correlator = Correlator()
    for _ in range(40):
        correlator.observe(happened(), at_s=0)
    assert see(correlator, happened(), 300).count == 41


def test_one_object_does_not_use_up_the_burst_of_another() -> None:
    correlator = Correlator()
    for _ in range(40):
        correlator.observe(happened(), at_s=0)
    see(correlator, happened(regarding=msgspec.structs.replace(POD, uid="u2")))


def test_parts_of_an_object_share_its_burst() -> None:
    correlator = Correlator()
    for n in range(25):
        part = msgspec.structs.replace(POD, field_path=f"spec.containers{{c{n}}}")
        see(correlator, happened(regarding=part))
    assert correlator.observe(happened(), at_s=0) is None


def test_what_was_not_seen_for_longest_is_forgotten_first() -> None:
    correlator = Correlator(limits=Limits(remembered=2))
    pods = [msgspec.structs.replace(POD, uid=f"u{n}") for n in range(3)]
    first = [see(correlator, happened(regarding=pod)) for pod in pods[:2]]
    assert see(correlator, happened(regarding=pods[0])) is first[0]
    see(correlator, happened(regarding=pods[2]))
    assert see(correlator, happened(regarding=pods[0])) is first[0]
    assert see(correlator, happened(regarding=pods[1])) is not first[1]


def test_two_sources_do_not_share_names() -> None:
    one, two = Correlator(source="replica-1"), Correlator(source="replica-2")
    assert see(one, happened()).name != see(two, happened()).name


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("web-0", "web-0"),
        ("node.example.com", "node.example.com"),
        ("system:node", "event"),
        ("", "event"),
        ("x" * 253, "x" * 236),
        ("x" * 235 + "." + "y" * 17, "x" * 235),
    ],
)
def test_an_event_is_named_after_its_object(name: str, stem: str) -> None:
    regarding = msgspec.structs.replace(POD, name=name)
    series = see(Correlator(), happened(regarding=regarding))
    assert re.fullmatch(re.escape(stem) + r"\.[0-9a-f]{16}", series.name)
    assert len(series.name) <= 253


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15), st.floats(0, 700)), max_size=200),
)
def test_nothing_is_lost_in_counting(steps: list[tuple[int, int, float]]) -> None:
    correlator = Correlator(limits=NO_SPAM_LIMIT)
    at_s = 0.0
    started: dict[int, Series] = {}
    for pod, message, pause in steps:
        at_s += pause
        regarding = msgspec.structs.replace(POD, uid=f"u{pod}")
        series = see(correlator, happened(f"m{message}", regarding=regarding, at_s=at_s), at_s)
        started[id(series)] = series
    assert sum(series.count for series in started.values()) == len(steps)
    assert len({series.name for series in started.values()}) == len(started)


@given(st.lists(st.floats(0, 100), max_size=300))
def test_writes_about_one_object_are_bounded(pauses: list[float]) -> None:
    correlator = Correlator()
    at_s = 0.0
    written = 0
    for n, pause in enumerate(pauses):
        at_s += pause
        written += correlator.observe(happened(f"m{n}", at_s=at_s), at_s=at_s) is not None
    assert written <= 25 + at_s / 300 + 1e-6
