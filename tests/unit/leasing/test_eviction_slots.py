"""Tests of the evictions per minute of a policy over all of its nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.leasing.reclaim import EvictionSlots

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_a_policy_has_no_more_slots_than_its_limit() -> None:
    slots = EvictionSlots()
    assert [slots.take("p", 2, now=NOON) for _ in range(10)] == [True, True, *[False] * 8]
    assert slots.recent("p", now=NOON) == (NOON, NOON)
    assert slots.take("q", 2, now=NOON)


def test_a_slot_is_free_again_after_a_minute() -> None:
    slots = EvictionSlots()
    assert slots.take("p", 1, now=NOON)
    assert not slots.take("p", 1, now=NOON + 59 * SECOND)
    assert slots.take("p", 1, now=NOON + 60 * SECOND)


def test_a_slot_that_evicted_no_pod_is_given_back_once() -> None:
    slots = EvictionSlots()
    assert slots.take("p", 2, now=NOON)
    assert slots.take("p", 2, now=NOON + SECOND)
    for _ in range(2):
        slots.give_back("p", NOON)
    slots.give_back("q", NOON)
    assert slots.recent("p", now=NOON + SECOND) == (NOON + SECOND,)


def test_without_a_limit_every_slot_counts_for_those_with_one() -> None:
    slots = EvictionSlots()
    assert all(slots.take("p", None, now=NOON) for _ in range(5))
    assert not slots.take("p", 5, now=NOON)


def test_the_evictions_of_an_earlier_process_hold_their_slots() -> None:
    slots = EvictionSlots()
    slots.recover("p", [NOON - 10 * SECOND, NOON - 90 * SECOND])
    assert slots.recent("p", now=NOON) == (NOON - 10 * SECOND,)
    assert not slots.take("p", 1, now=NOON)
    slots.recover("p", [NOON, NOON])  # the status shows evictions of this process by now
    assert slots.take("p", 2, now=NOON)
