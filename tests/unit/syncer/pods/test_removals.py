"""When a pod that has to go at once is deleted, and when it is deleted again."""

from __future__ import annotations

import pytest

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Meta, Object
from kubeocean.syncer.pods.record import UNDERWAY_S, Removals, awaits_removal, removal_due_in_s

MARKED = "2026-11-16T12:00:00Z"


def pod(*, marked: bool = True, grace_s: int = 0, finalizers: tuple[str, ...] = ()) -> Object:
    meta = Meta(
        uid="u",
        deletion_timestamp=MARKED if marked else None,
        deletion_grace_period_seconds=grace_s if marked else None,
        finalizers=finalizers,
    )
    return Object(metadata=meta)


@pytest.mark.parametrize("unmarked", [pod(marked=False), pod(grace_s=30)])
def test_a_pod_that_is_not_being_removed_is_deleted_now(unmarked: Object) -> None:
    assert not awaits_removal(unmarked)
    assert removal_due_in_s(unmarked, seen_s=None, now_s=0.0) == 0
    assert Removals(VirtualClock()).due_in_s(unmarked) == 0


async def test_a_pod_that_a_finalizer_keeps_is_not_deleted_again() -> None:
    clock = VirtualClock()
    removals, held = Removals(clock), pod(finalizers=("example.com/keep",))
    assert not awaits_removal(held)
    for _ in range(2):
        assert removals.due_in_s(held) is None
        await clock.advance(10 * UNDERWAY_S)


async def test_a_pod_that_is_being_removed_is_given_time_and_then_deleted_again() -> None:
    clock = VirtualClock()
    removals = Removals(clock)
    assert awaits_removal(pod())
    assert removals.due_in_s(pod()) == UNDERWAY_S
    await clock.advance(1)
    assert removals.due_in_s(pod()) == UNDERWAY_S - 1
    await clock.advance(UNDERWAY_S)
    assert removals.due_in_s(pod()) == 0


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    clock = VirtualClock()
    removals = Removals(clock)
    removals.due_in_s(pod())
    removals.forget(pod())
    removals.forget(pod())
    await clock.advance(UNDERWAY_S)
    assert removals.due_in_s(pod()) == UNDERWAY_S
