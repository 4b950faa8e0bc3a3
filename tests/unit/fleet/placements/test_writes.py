"""Writes of the hub's controllers."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import PlacementStatus
from kubeocean.errors import Conflict, InternalError, Invalid, ServiceUnavailable
from kubeocean.fleet.steps import settle
from kubeocean.fleet.writes import (
    finalizers_patch,
    in_parallel,
    in_thread,
    is_refusal,
    status_document,
)
from unit.fleet.placements.builders import NOW, a_placement, condition

LATER = "2026-01-01T00:01:00Z"


async def test_one_refused_write_holds_up_no_other() -> None:
    written: list[int] = []

    async def write(number: int) -> None:
        await asyncio.sleep(0)
        if number == 3:
            raise Conflict("no")
        written.append(number)

    with pytest.raises(Conflict):
        await in_parallel(write, range(10), limit=2)
    assert sorted(written) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


async def test_only_so_many_writes_are_in_flight() -> None:
    now, most = 0, 0

    async def write(number: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    await in_parallel(write, range(50), limit=4)
    assert most == 4


async def test_long_computations_have_the_same_result() -> None:
    assert await in_thread(lambda: 1, many=True) == await in_thread(lambda: 1, many=False) == 1


def test_transition_times_move_with_the_status_only() -> None:
    old = (condition("A"), condition("B"), condition("Gone"))
    new = (condition("A", reason="other"), condition("B", "False"), condition("C"))
    settled = settle(old, new, LATER)
    assert [each.last_transition_time for each in settled] == [NOW, LATER, LATER]
    assert [each.type for each in settled] == ["A", "B", "C"]


def test_writes_name_the_version_that_was_decided_on() -> None:
    placement, status = a_placement(), PlacementStatus(observed_resource_index="1")
    resource = scope_of(placement.key).placements
    assert status_document(resource, placement, status) == {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": placement.name,
            "uid": placement.uid,
            "resourceVersion": placement.resource_version,
        },
        "status": {"observedResourceIndex": "1"},
    }
    body = finalizers_patch(placement, ["x"]).body
    assert body["metadata"].keys() == {"resourceVersion", "finalizers"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Invalid("no"), True),
        (InternalError("etcdserver: request is too large"), True),
        (InternalError("panic"), False),
        (ServiceUnavailable("later"), False),
        (Conflict("race"), False),
    ],
)
def test_refusals_are_told_from_failures(error: Exception, expected: bool) -> None:
    assert is_refusal(error) is expected  # type: ignore[arg-type]
