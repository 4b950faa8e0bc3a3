"""A worker cluster that does not run for a minute, with the timeouts of production.

The outage happens once, to several bindings: one that only waits; one that is deleted while its
syncer runs; one that is deleted with a pod that does not end, and whose syncer starts when the
worker is dead already. The last one has a faster clock, because its end may take seven minutes.
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

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from kubeocean.syncer.cleanup.binding_deletion import PATIENCE_S
from support.binding_env import BindingEnv
from support.crds import install_our_kinds
from support.faults import SkewedClock
from support.wait import until

DEAD_S = 60.0
HASTE = 30.0
LONGEST_S = 300 + 120 + 30  # the promised time of a deletion, where no policy is known
HOLD = "example.com/hold"  # a foreign finalizer, which keeps the binding readable after its end
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep(sampled=False),
    pytest.mark.timeout(400),
]


@dataclass
class BindingEnd:
    """State of a binding after its deletion."""

    took_s: float = 0.0
    drained: tuple[str, str, str] = ("", "", "")
    waited_for: list[str] = field(default_factory=list)
    events: dict[str, str] = field(default_factory=dict)
    vnodes: int = -1


@dataclass
class Outage:
    """Observations before, during and after the outage."""

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
    watched: BindingEnd = field(default_factory=BindingEnd)
    late: BindingEnd = field(default_factory=BindingEnd)
    labels_after: set[str | None] = field(default_factory=set)
    policy_finalizers_after: tuple[str, ...] | None = None


async def readiness(binding_env: BindingEnv) -> list[str]:
    nodes = await binding_env.vnodes()
    conditions = [find_condition(node.status.conditions, "Ready") for node in nodes]
    return [condition.status if condition else "" for condition in conditions]


async def living(client: Client, namespace: str) -> dict[str, str]:
    """Return the pods that are not being deleted."""
    pods = (await client.list(PODS, namespace)).items
    return {pod.name: pod.uid for pod in pods if not pod.deleting}


async def prepare(binding_env: BindingEnv, namespace: str, *graces_s: int) -> None:
    """Lend nodes, each with a pod of this grace period."""
    await binding_env.bind()
    await binding_env.lend()
    for number in range(len(graces_s)):
        await binding_env.add_node(f"n{number}")
    async with binding_env.syncing():
        await until(lambda: is_lent(binding_env, len(graces_s)))
    finalizers = [*((await binding_env.binding()).metadata.finalizers or ()), HOLD]
    patch = MergePatch({"metadata": {"finalizers": finalizers}})
    await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)
    for number, vnode in enumerate(await binding_env.vnodes()):
        grace = {"terminationGracePeriodSeconds": graces_s[number]}
        await binding_env.create_bound_pod(namespace, f"p{number}", vnode.name, **grace)


async def is_lent(binding_env: BindingEnv, nodes: int) -> bool:
    pnodes = [
        await binding_env.worker_api.get(NODES, f"{binding_env.name}-n{n}") for n in range(nodes)
    ]
    marked = all("kubeocean.io/policy-applied" in node.labels for node in pnodes)
    ours = "kubeocean.io/clusterbinding-syncer" in (
        (await binding_env.binding()).metadata.finalizers or ()
    )
    return ours and marked and await readiness(binding_env) == ["True"] * nodes


async def see_end(binding_env: BindingEnv, end: BindingEnd, began: float) -> None:
    """Wait until only the foreign finalizer keeps the binding; note its conditions and events."""

    async def ended() -> bool:
        binding = await binding_env.binding()
        _, reason, message = await binding_env.condition("Drained")
        if reason == "Draining" and message not in end.waited_for:
            end.waited_for.append(message)
        return binding.metadata.finalizers == (HOLD,)

    await until(ended, within=90, every=0.1)
    end.took_s = time.monotonic() - began
    end.drained = await binding_env.condition("Drained")
    end.vnodes = len(await binding_env.vnodes())

    async def reported() -> bool:
        fields = f"involvedObject.name={binding_env.name}"
        events = (
            await binding_env.computing_api.list(EVENTS, "default", fields=fields, keep_raw=True)
        ).items
        end.events = {event.reason: event.content()["message"] for event in events}
        return "CleanupUnconfirmed" in end.events

    await until(reported)


async def wait_it_out(binding_env: BindingEnv, seen: Outage, killed: float) -> None:
    """Observe a binding that only waits."""

    async def not_ready() -> bool:
        return set(await readiness(binding_env)) == {"Unknown"}

    await until(not_ready, within=75, every=0.2)
    seen.not_ready_s = time.monotonic() - killed
    await until(lambda: time.monotonic() - killed >= DEAD_S, within=DEAD_S)
    seen.nodes_while_dead = {node.uid for node in await binding_env.vnodes()}
    seen.connected_while_dead = await binding_env.condition("Connected")


async def come_back(binding_env: BindingEnv, seen: Outage, namespace: str) -> None:
    await binding_env.worker.restart("kube-apiserver")
    back = time.monotonic()

    async def ready() -> bool:
        return set(await readiness(binding_env)) == {"True"}

    await until(ready, within=60)
    seen.back_s = time.monotonic() - back

    async def connected() -> bool:
        seen.connected_after = await binding_env.condition("Connected")
        return seen.connected_after[0] == "True"

    await until(connected)
    seen.nodes_after = {node.uid for node in await binding_env.vnodes()}
    seen.pods_after = await living(binding_env.computing_api, namespace)
    seen.events = await binding_env.events(binding_env.name)


async def clean_up(binding_env: BindingEnv, seen: Outage) -> None:
    """Wait until a syncer has cleaned the worker up after a binding that ended without it."""

    async def clean() -> bool:
        node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-n0")
        seen.labels_after = {node.labels.get("kubeocean.io/policy-applied")}
        policy = await binding_env.worker_api.get(
            RESOURCE_LEASING_POLICIES, f"{binding_env.name}-policy"
        )
        seen.policy_finalizers_after = policy.metadata.finalizers
        return seen.labels_after == {None} and not seen.policy_finalizers_after

    await until(clean)


async def observe_outage(binding_env: BindingEnv) -> Outage:
    seen, watched, late = Outage(), binding_env.neighbour(), binding_env.neighbour()
    homes = {each.name: await home(each) for each in (binding_env, watched, late)}
    async with asyncio.TaskGroup() as group:
        group.create_task(prepare(binding_env, homes[binding_env.name], 30, 30, 30))
        group.create_task(prepare(watched, homes[watched.name], 0))
        group.create_task(prepare(late, homes[late.name], 30))
    await protect(late, homes[late.name])
    async with AsyncExitStack() as stack:
        syncer = await stack.enter_async_context(binding_env.syncing())
        await stack.enter_async_context(watched.syncing())
        await until(lambda: syncer.ready)
        seen.pods_before = await living(binding_env.computing_api, homes[binding_env.name])
        seen.nodes_before = {node.uid for node in await binding_env.vnodes()}
        await binding_env.worker.kill("kube-apiserver")
        killed = time.monotonic()
        await late.unbind()
        await stack.enter_async_context(late.syncing(clock=SkewedClock(rate=HASTE)))
        began = time.monotonic()
        await until(lambda: not syncer.clusters.worker_health.answers)
        await watched.unbind()
        async with asyncio.TaskGroup() as group:
            group.create_task(see_end(late, seen.late, began))
            group.create_task(see_end(watched, seen.watched, time.monotonic()))
            group.create_task(wait_it_out(binding_env, seen, killed))
        await come_back(binding_env, seen, homes[binding_env.name])
        await clean_up(watched, seen)
    return seen


async def home(binding_env: BindingEnv) -> str:
    """Return a namespace in which pods can be created."""
    namespace = f"{binding_env.name}-pods"
    await binding_env.computing_api.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def usable() -> bool:
        listing = await binding_env.computing_api.list(SERVICE_ACCOUNTS, namespace)
        return bool(listing.items)

    await until(usable)
    return namespace


async def protect(binding_env: BindingEnv, namespace: str) -> None:
    """Create a budget that allows no eviction, and wait until its controller has counted the
    pods."""
    spec = {"minAvailable": 1, "selector": {}}
    await binding_env.computing_api.create(
        BUDGETS, {"metadata": {"name": "keep"}, "spec": spec}, namespace=namespace
    )

    async def counted() -> bool:
        budget = await binding_env.computing_api.get(BUDGETS, "keep", namespace, keep_raw=True)
        return bool(budget.content().get("status", {}).get("currentHealthy") == 1)

    await until(counted)


@pytest.fixture(scope="module")
async def outage(assets: Programs, cluster_roots: Path) -> AsyncIterator[Outage]:
    """The observations of one outage."""
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
        yield await observe_outage(BindingEnv(*clusters, *clients))


async def test_nodes_of_a_dead_worker_become_not_ready_and_nothing_is_deleted(
    outage: Outage,
) -> None:
    # Kubernetes marks a node as unknown 50 s after its last heartbeat, which was up to 10 s before.
    assert 30 < outage.not_ready_s < DEAD_S + 5
    assert len(outage.nodes_before) == 3
    assert outage.nodes_while_dead == outage.nodes_before


async def test_a_worker_is_back_within_15_seconds_and_no_pod_was_lost(outage: Outage) -> None:
    assert outage.back_s <= 15
    assert outage.nodes_after == outage.nodes_before
    assert len(outage.pods_before) == 3
    assert outage.pods_after == outage.pods_before


async def test_the_binding_has_the_time_and_reason_of_the_outage(outage: Outage) -> None:
    status, reason, message = outage.connected_while_dead
    assert (status, reason) == ("False", "WorkerUnreachable")
    assert re.search(r"has not answered since 20\d\d-\d\d-\d\dT[\d:]{8}Z; .+: .+", message)
    assert outage.connected_after[:2] == ("True", "ConnectivityPassed")
    assert {"WorkerUnreachable", "WorkerAnswers"} <= outage.events


async def test_a_binding_that_is_deleted_during_the_outage_ends_and_reports_what_is_unconfirmed(
    outage: Outage,
) -> None:
    end = outage.watched
    assert end.took_s <= PATIENCE_S + 10
    assert end.vnodes == 0
    assert end.drained[:2] == ("Unknown", "Unconfirmed")
    assert re.search(r"the binding's label on the worker's nodes \(b\w+-n0\)", end.drained[2])
    assert "The worker has not answered since" in end.events["CleanupUnconfirmed"]


async def test_unconfirmed_deletions_are_completed_once_the_worker_is_back(outage: Outage) -> None:
    assert outage.labels_after == {None}
    assert not outage.policy_finalizers_after


async def test_a_syncer_that_never_saw_its_worker_ends_its_binding_in_the_promised_time(
    outage: Outage,
) -> None:
    end = outage.late
    assert end.took_s <= LONGEST_S / HASTE + 5
    assert end.vnodes == 0
    waited = " | ".join(end.waited_for)
    assert "Budget" in waited
    assert "Terminating" in waited
    assert end.drained[:2] == ("Unknown", "Unconfirmed")
    assert re.search(r"still run in the worker \(b\w+-pods/p0\)", end.drained[2])
    assert "Not confirmed gone" in end.events["CleanupUnconfirmed"]
