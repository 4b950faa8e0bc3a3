"""When a pod that has to go at once is deleted, and when again."""

from __future__ import annotations

import pytest

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Meta, Object
from kubeocean.syncer.removals import UNDERWAY_S, Removals

MARKED = "2026-11-16T12:00:00Z"


def pod(*, marked: bool = True, grace_s: int = 0, finalizers: tuple[str, ...] = ()) -> Object:
    meta = Meta(
        uid="u",
        deletion_timestamp=MARKED if marked else None,
        deletion_grace_period_seconds=grace_s if marked else None,
        finalizers=finalizers,
    )
    return Object(metadata=meta)


@pytest.mark.parametrize("one", [pod(marked=False), pod(grace_s=30)])
def test_one_that_nobody_removes_yet_is_deleted_now(one: Object) -> None:
    assert Removals(VirtualClock()).due_in_s(one) == 0


async def test_one_that_a_finalizer_keeps_is_not_deleted_again() -> None:
    clock = VirtualClock()
    removals = Removals(clock)
    for _ in range(2):
        assert removals.due_in_s(pod(finalizers=("example.com/keep",))) is None
        await clock.advance(10 * UNDERWAY_S)


async def test_one_that_is_being_removed_is_given_time_and_then_deleted_again() -> None:
    clock = VirtualClock()
    removals = Removals(clock)
    assert removals.due_in_s(pod()) == UNDERWAY_S
    await clock.advance(1)
    assert removals.due_in_s(pod()) == UNDERWAY_S - 1
    await clock.advance(UNDERWAY_S)
    assert removals.due_in_s(pod()) == 0


async def test_what_is_gone_is_forgotten() -> None:
    clock = VirtualClock()
    removals = Removals(clock)
    removals.due_in_s(pod())
    removals.forget(pod())
    removals.forget(pod())
    await clock.advance(UNDERWAY_S)
    assert removals.due_in_s(pod()) == UNDERWAY_S
