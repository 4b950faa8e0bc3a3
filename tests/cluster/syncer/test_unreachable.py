"""A worker that is dead for a minute, with nobody's patience shortened.

It happens once, to several bindings, and is looked at from all sides: one that only waits; one that
is deleted while its syncer looks on; one that is deleted with a pod that nobody ends, and whose
syncer starts when the worker is dead already. That one has a clock that runs faster, because its
end may take seven minutes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.faults import SkewedClock
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.bindings import PATIENCE_S
from oceans import Sea
from ourkinds import install_our_kinds
from waiting import until

DEAD_S = 60.0
HASTE = 30.0
LONGEST_S = 300 + 120 + 30  # what deletion promises, where no policy is known to say otherwise
HOLD = "example.com/hold"  # a finalizer of somebody else, so that one can read how it ended
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep(sampled=False),
    pytest.mark.timeout(400),
]


@dataclass
class Told:
    """How a binding ended."""

    took_s: float = 0.0
    drained: tuple[str, str, str] = ("", "", "")
    waited_for: list[str] = field(default_factory=list)
    events: dict[str, str] = field(default_factory=dict)
    vnodes: int = -1


@dataclass
class Outage:
    """What was seen."""

    pods_before: dict[str, str] = field(default_factory=dict)
    pods_after: dict[str, str] = field(default_factory=dict)
    nodes_before: set[str] = field(default_factory=set)
    nodes_while_dead: set[str] = field(default_factory=set)
    nodes_after: set[str] = field(default_factory=set)
    not_ready_s: float = 0.0
    connected_while_dead: tuple[str, str, str] = ("", "", "")
    connected_after: tuple[str, str, str] = ("", "", "")
    back_s: float = 0.0
    events: set[str] = field(default_factory=set)
    watched: Told = field(default_factory=Told)
    late: Told = field(default_factory=Told)
    labels_after: set[str | None] = field(default_factory=set)
    policy_finalizers_after: tuple[str, ...] | None = None


async def readiness(sea: Sea) -> list[str]:
    nodes = await sea.vnodes()
    conditions = [find_condition(node.status.conditions, "Ready") for node in nodes]
    return [condition.status if condition else "" for condition in conditions]


async def living(client: Client, namespace: str) -> dict[str, str]:
    """The pods that nobody has asked to leave."""
    pods = (await client.list(PODS, namespace)).items
    return {pod.name: pod.uid for pod in pods if not pod.deleting}


async def prepare(sea: Sea, namespace: str, *graces_s: int) -> None:
    """Nodes that are lent, each with a pod that would be given so much time to end."""
    await sea.bind()
    await sea.lend()
    for number in range(len(graces_s)):
        await sea.add_node(f"n{number}")
    async with sea.syncing():
        await until(lambda: is_lent(sea, len(graces_s)))
    finalizers = [*((await sea.binding()).metadata.finalizers or ()), HOLD]
    patch = MergePatch({"metadata": {"finalizers": finalizers}})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, patch)
    for number, vnode in enumerate(await sea.vnodes()):
        grace = {"terminationGracePeriodSeconds": graces_s[number]}
        await sea.guest(namespace, f"p{number}", vnode.name, **grace)


async def is_lent(sea: Sea, nodes: int) -> bool:
    found = [await sea.below.get(NODES, f"{sea.name}-n{n}") for n in range(nodes)]
    marked = all("kubeocean.io/policy-applied" in node.labels for node in found)
    ours = "kubeocean.io/clusterbinding-syncer" in ((await sea.binding()).metadata.finalizers or ())
    return ours and marked and await readiness(sea) == ["True"] * nodes


async def see_end(sea: Sea, told: Told, began: float) -> None:
    """Wait until only the others hold the binding, and note what it says meanwhile."""

    async def ended() -> bool:
        binding = await sea.binding()
        _, reason, message = await sea.condition("Drained")
        if reason == "Draining" and message not in told.waited_for:
            told.waited_for.append(message)
        return binding.metadata.finalizers == (HOLD,)

    await until(ended, within=90, every=0.1)
    told.took_s = time.monotonic() - began
    told.drained = await sea.condition("Drained")
    told.vnodes = len(await sea.vnodes())

    async def said() -> bool:
        fields = f"involvedObject.name={sea.name}"
        events = (await sea.above.list(EVENTS, "default", fields=fields, keep_raw=True)).items
        told.events = {event.reason: event.content()["message"] for event in events}
        return "CleanupUnconfirmed" in told.events

    await until(said)


async def wait_it_out(sea: Sea, seen: Outage, killed: float) -> None:
    """What becomes of a binding that only waits."""

    async def not_ready() -> bool:
        return set(await readiness(sea)) == {"Unknown"}

    await until(not_ready, within=75, every=0.2)
    seen.not_ready_s = time.monotonic() - killed
    await until(lambda: time.monotonic() - killed >= DEAD_S, within=DEAD_S)
    seen.nodes_while_dead = {node.uid for node in await sea.vnodes()}
    seen.connected_while_dead = await sea.condition("Connected")


async def come_back(sea: Sea, seen: Outage, namespace: str) -> None:
    await sea.worker.restart("kube-apiserver")
    back = time.monotonic()

    async def ready() -> bool:
        return set(await readiness(sea)) == {"True"}

    await until(ready, within=60)
    seen.back_s = time.monotonic() - back

    async def connected() -> bool:
        seen.connected_after = await sea.condition("Connected")
        return seen.connected_after[0] == "True"

    await until(connected)
    seen.nodes_after = {node.uid for node in await sea.vnodes()}
    seen.pods_after = await living(sea.above, namespace)
    seen.events = await sea.events(sea.name)


async def clean_up(sea: Sea, seen: Outage) -> None:
    """What a syncer that is still there does about a binding that ended without the worker."""

    async def clean() -> bool:
        node = await sea.below.get(NODES, f"{sea.name}-n0")
        seen.labels_after = {node.labels.get("kubeocean.io/policy-applied")}
        policy = await sea.below.get(RESOURCE_LEASING_POLICIES, f"{sea.name}-policy")
        seen.policy_finalizers_after = policy.metadata.finalizers
        return seen.labels_after == {None} and not seen.policy_finalizers_after

    await until(clean)


async def live_through(sea: Sea) -> Outage:
    seen, watched, late = Outage(), sea.neighbour(), sea.neighbour()
    homes = {each.name: await home(each) for each in (sea, watched, late)}
    async with asyncio.TaskGroup() as group:
        group.create_task(prepare(sea, homes[sea.name], 30, 30, 30))
        group.create_task(prepare(watched, homes[watched.name], 0))
        group.create_task(prepare(late, homes[late.name], 30))
    await protect(late, homes[late.name])
    async with AsyncExitStack() as stack:
        syncer = await stack.enter_async_context(sea.syncing())
        await stack.enter_async_context(watched.syncing())
        await until(lambda: syncer.ready)
        seen.pods_before = await living(sea.above, homes[sea.name])
        seen.nodes_before = {node.uid for node in await sea.vnodes()}
        await sea.worker.kill("kube-apiserver")
        killed = time.monotonic()
        await late.unbind()
        await stack.enter_async_context(late.syncing(clock=SkewedClock(rate=HASTE)))
        began = time.monotonic()
        await until(lambda: not syncer.world.reach.answers)
        await watched.unbind()
        async with asyncio.TaskGroup() as group:
            group.create_task(see_end(late, seen.late, began))
            group.create_task(see_end(watched, seen.watched, time.monotonic()))
            group.create_task(wait_it_out(sea, seen, killed))
        await come_back(sea, seen, homes[sea.name])
        await clean_up(watched, seen)
    return seen


async def home(sea: Sea) -> str:
    """A namespace where pods can be made."""
    namespace = f"{sea.name}-pods"
    await sea.above.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def usable() -> bool:
        listing = await sea.above.list(SERVICE_ACCOUNTS, namespace)
        return bool(listing.items)

    await until(usable)
    return namespace


async def protect(sea: Sea, namespace: str) -> None:
    """A budget that lets nobody go, once somebody has counted them."""
    spec = {"minAvailable": 1, "selector": {}}
    await sea.above.create(
        BUDGETS, {"metadata": {"name": "keep"}, "spec": spec}, namespace=namespace
    )

    async def counted() -> bool:
        found = await sea.above.get(BUDGETS, "keep", namespace, keep_raw=True)
        return bool(found.content().get("status", {}).get("currentHealthy") == 1)

    await until(counted)


@pytest.fixture(scope="module")
async def outage(assets: Programs, cluster_roots: Path) -> AsyncIterator[Outage]:
    """The minute, lived through once."""
    components = ("etcd", "kube-apiserver", "kube-controller-manager")
    async with AsyncExitStack() as stack:
        clusters = []
        for name, parts in (("computing", components), ("worker", components[:2])):
            root = cluster_roots / f"outage-{name}"
            one = Cluster(name, root, assets, components=parts, ephemeral=True)
            clusters.append(await stack.enter_async_context(one))
        clients = [one.client() for one in clusters]
        for client in clients:
            stack.push_async_callback(client.close)
            await install_our_kinds(client)
        yield await live_through(Sea(*clusters, *clients))


async def test_its_nodes_become_not_ready_and_nothing_is_deleted(outage: Outage) -> None:
    # Kubernetes gives a node up 50 s after its last heartbeat, which was up to 10 s before.
    assert 30 < outage.not_ready_s < DEAD_S + 5
    assert len(outage.nodes_before) == 3
    assert outage.nodes_while_dead == outage.nodes_before


async def test_it_is_back_within_15_seconds_and_no_pod_was_lost(outage: Outage) -> None:
    assert outage.back_s <= 15
    assert outage.nodes_after == outage.nodes_before
    assert len(outage.pods_before) == 3
    assert outage.pods_after == outage.pods_before


async def test_the_binding_says_since_when_and_why_it_is_not_connected(outage: Outage) -> None:
    status, reason, message = outage.connected_while_dead
    assert (status, reason) == ("False", "WorkerUnreachable")
    assert re.search(r"has not answered since 20\d\d-\d\d-\d\dT[\d:]{8}Z; .+: .+", message)
    assert outage.connected_after[:2] == ("True", "ConnectivityPassed")
    assert {"WorkerUnreachable", "WorkerAnswers"} <= outage.events


async def test_a_binding_that_is_deleted_meanwhile_ends_and_says_what_it_does_not_know(
    outage: Outage,
) -> None:
    told = outage.watched
    assert told.took_s <= PATIENCE_S + 10
    assert told.vnodes == 0
    assert told.drained[:2] == ("Unknown", "Unconfirmed")
    assert re.search(r"our label on its nodes \(b\w+-n0\)", told.drained[2])
    assert "The worker has not answered since" in told.events["CleanupUnconfirmed"]


async def test_what_was_not_confirmed_is_made_good_once_the_worker_is_back(outage: Outage) -> None:
    assert outage.labels_after == {None}
    assert not outage.policy_finalizers_after


async def test_a_syncer_that_never_saw_its_worker_ends_its_binding_in_the_promised_time(
    outage: Outage,
) -> None:
    told = outage.late
    assert told.took_s <= LONGEST_S / HASTE + 5
    assert told.vnodes == 0
    waited = " | ".join(told.waited_for)
    assert "Budget" in waited
    assert "Terminating" in waited
    assert told.drained[:2] == ("Unknown", "Unconfirmed")
    assert re.search(r"still run in the worker \(b\w+-pods/p0\)", told.drained[2])
    assert "Not confirmed gone" in told.events["CleanupUnconfirmed"]
