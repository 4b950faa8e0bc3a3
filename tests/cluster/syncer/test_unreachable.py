"""A worker that does not answer: nothing is deleted, it shows as NotReady, and comes back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from conftest import NewCluster
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import NotFound
from kubeocean.runtime.kinds import EVENTS, NODES
from kubeocean.runtime.objects import find_condition
from oceans import Sea
from ourkinds import install_our_kinds
from waiting import until

# Kubernetes waits 50 s before it gives a node up; a test need not.
IMPATIENT = {
    "kube-controller-manager": ["--node-monitor-grace-period=14s", "--node-monitor-period=1s"]
}


@pytest.fixture
async def own_sea(new_cluster: NewCluster) -> AsyncIterator[Sea]:
    """Clusters that may be killed."""
    computing = await new_cluster(
        name="computing",
        components=("etcd", "kube-apiserver", "kube-controller-manager"),
        extra_args=IMPATIENT,
    )
    worker = await new_cluster(name="worker")
    above, below = computing.client(), worker.client()
    await install_our_kinds(above)
    await install_our_kinds(below)
    yield Sea(computing, worker, above, below)
    await above.close()
    await below.close()


async def readiness(sea: Sea) -> set[str]:
    nodes = await sea.vnodes()
    conditions = [find_condition(node.status.conditions, "Ready") for node in nodes]
    return {condition.status if condition else "" for condition in conditions}


@pytest.mark.timeout(240)
async def test_a_dead_worker_is_not_ready_and_comes_back(own_sea: Sea) -> None:
    sea = own_sea
    await sea.bind()
    await sea.lend()
    for name in ("a", "b"):
        await sea.add_node(name)
    async with sea.syncing() as syncer:

        async def ready() -> bool:
            return len(await sea.vnodes()) == 2 and await readiness(sea) == {"True"}

        await until(ready)
        before = {node.uid for node in await sea.vnodes()}
        await sea.worker.kill("kube-apiserver")
        killed = time.monotonic()

        async def not_ready() -> bool:
            return await readiness(sea) == {"Unknown"}

        await until(not_ready, within=50)
        assert not syncer.world.reach.answers
        events = await sea.above.list(EVENTS, "default", fields=f"involvedObject.name={sea.name}")
        assert "WorkerUnreachable" in {event.reason for event in events.items}
        await until(lambda: time.monotonic() - killed >= 45, within=60)  # long after the lease
        assert {node.uid for node in await sea.vnodes()} == before

        await sea.worker.restart("kube-apiserver")
        back = time.monotonic()
        await until(ready, within=15)
        assert time.monotonic() - back <= 15
        assert {node.uid for node in await sea.vnodes()} == before


@pytest.mark.timeout(240)
async def test_a_binding_of_a_dead_worker_can_be_deleted(own_sea: Sea) -> None:
    sea = own_sea
    await sea.bind()
    await sea.lend()
    await sea.add_node("a")
    async with sea.syncing() as syncer:
        await until(sea.vnodes)
        binding = await sea.above.get(CLUSTER_BINDINGS, sea.name)
        await sea.worker.kill("kube-apiserver")
        await until(lambda: not syncer.world.reach.answers)
        await sea.above.delete(CLUSTER_BINDINGS, sea.name, uid=binding.uid)

        async def ended() -> bool:
            try:
                await sea.above.get(CLUSTER_BINDINGS, sea.name)
            except NotFound:
                return not await sea.vnodes()
            return False

        await until(ended, within=60)

        async def said() -> bool:
            fields = f"involvedObject.name={sea.name}"
            events = await sea.above.list(EVENTS, "default", fields=fields)
            return "CleanupUnconfirmed" in {event.reason for event in events.items}

        await until(said)
    await sea.worker.restart("kube-apiserver")
    left = await sea.below.get(NODES, f"{sea.name}-a")
    assert left.uid
