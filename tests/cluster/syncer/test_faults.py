"""The same end whatever happens on the way: crashes after each write, lagging watches, two leaders.

The scenario: three nodes are lent; one is deleted, the policy is narrowed to half the CPU, one
virtual node is deleted by hand. In the end there are two virtual nodes with half the CPU, and then
nothing is written any more but heartbeats.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from kubeocean.local.faults import Crashed, Faults
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.transport import Request
from oceans import Sea
from waiting import until

QUIET_S = 5.0


async def prepare(sea: Sea) -> str:
    await sea.bind()
    policy = await sea.lend()
    for name in ("a", "b", "c"):
        await sea.add_node(name)
    return policy


async def disturb(sea: Sea, policy: str) -> None:
    """What people do meanwhile; every step is done once, whoever is at work."""
    limits = [{"resource": "cpu", "percent": 50}]
    await sea.patch_policy(policy, resourceLimits=limits)
    gone = await sea.below.get(NODES, f"{sea.name}-c")
    await sea.below.delete(NODES, gone.name, uid=gone.uid)


async def as_it_should_be(sea: Sea) -> bool:
    nodes = await sea.vnodes()
    names = [f"vnode-{sea.cluster_id}-{sea.name}-{name}" for name in ("a", "b")]
    assert [node.name for node in nodes] == names
    for node in nodes:
        assert not node.deleting
        assert (node.status.allocatable or {})["cpu"] == "4"
        pnode = await sea.below.get(NODES, node.annotations["kubeocean.io/physical-node-name"])
        assert node.labels["kubeocean.io/physical-node-uid"] == pnode.uid
        assert pnode.labels.get("kubeocean.io/policy-applied") == f"{sea.name}-policy"
        assert len({taint.key for taint in node.spec.taints or ()}) == len(node.spec.taints or ())
    return True


def matters(request: Request) -> bool:
    """A write that is not a heartbeat, nor an Event."""
    heartbeat = "/leases/" in request.path and request.method == "PATCH"
    return request.writes and not heartbeat and not request.path.endswith("/events")


async def quiet(*plans: Faults) -> None:
    """Soon nothing is written any more, for a while."""
    counts: list[int] = []
    for _ in range(4):
        counts.append(sum(matters(r) for plan in plans for r in plan.requests))
        if len(counts) > 1 and counts[-1] == counts[-2]:
            return
        await asyncio.sleep(QUIET_S)  # the passing of time is what is tested
    raise AssertionError(f"still writing: {counts}, {_last(plans)}")


def _last(plans: tuple[Faults, ...]) -> list[Request]:
    return [request for plan in plans for request in plan.requests if matters(request)][-6:]


@pytest.mark.parametrize("n", range(1, 14))
async def test_a_crash_after_the_nth_write_changes_nothing(sea: Sea, n: int) -> None:
    policy = await prepare(sea)
    faults = Faults()
    faults.crash_after_write(n)
    disturbed = False
    try:
        async with sea.syncing(above=faults.wrap, below=faults.wrap):
            await until(lambda: len(faults.requests) > 3)
            await disturb(sea, policy)
            disturbed = True
            await until(lambda: faults.crashed, within=20)
    except BaseExceptionGroup as ended:
        assert ended.subgroup(Crashed) is not None
    assert faults.crashed
    if not disturbed:
        await disturb(sea, policy)
    fresh = Faults()
    async with sea.syncing(above=fresh.wrap, below=fresh.wrap):
        await until(lambda: as_it_should_be(sea))
        await quiet(fresh)


async def test_a_lagging_and_repeating_watch_changes_nothing(sea: Sea) -> None:
    policy = await prepare(sea)
    above, below = Faults(), Faults()
    for faults in (above, below):
        faults.lag(0.4)
        faults.repeat(1)
    async with sea.syncing(above=above.wrap, below=below.wrap):
        await disturb(sea, policy)
        await until(lambda: as_it_should_be(sea))
        above.rewind(20)
        below.rewind(20)
        await quiet(above, below)


async def test_two_leaders_end_where_one_does(sea: Sea) -> None:
    policy = await prepare(sea)
    first, second = Faults(), Faults()
    async with AsyncExitStack() as stack:
        for faults in (first, second):
            await stack.enter_async_context(sea.syncing(above=faults.wrap, below=faults.wrap))
        await disturb(sea, policy)
        await until(lambda: as_it_should_be(sea))
        await quiet(first, second)
