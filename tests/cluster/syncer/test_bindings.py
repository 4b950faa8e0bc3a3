"""Bindings on two real control planes: what they say, how they end, and whom they leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.local.faults import Faults
from kubeocean.runtime.kinds import NODES, PODS, Node
from kubeocean.runtime.objects import Json, Object, Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
MARK = "kubeocean.io/policy-applied"
HOLD = "example.com/hold"  # a finalizer of somebody else, so that one can read how it ended


async def hold(sea: Sea) -> None:
    """Let the binding stay when everybody else has let go of it."""
    finalizers = [*((await sea.binding()).metadata.finalizers or ()), HOLD]
    patch = MergePatch({"metadata": {"finalizers": finalizers}})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, patch)


async def only_held(sea: Sea) -> bool:
    return (await sea.binding()).metadata.finalizers == (HOLD,)


async def marked(sea: Sea, *nodes: str) -> set[str]:
    found = [await sea.below.get(NODES, f"{sea.name}-{name}") for name in nodes]
    return {node.labels.get(MARK, "") for node in found}


async def vnodes(sea: Sea, number: int) -> list[Node]:
    nodes = await sea.vnodes()
    return nodes if len(nodes) == number else []


async def test_a_binding_says_whether_its_worker_answers_and_how_many_nodes_it_has(
    sea: Sea,
) -> None:
    await sea.bind()
    status = {"conditions": [_condition("Ready", "True")], "phase": "Ready"}
    patch = MergePatch({"status": status})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, patch, subresource="status")
    await sea.lend()
    for name in ("a", "b"):
        await sea.add_node(name)
    async with sea.syncing():

        async def said() -> bool:
            binding = await sea.binding()
            assert (await sea.condition("Connected"))[:2] == ("True", "ConnectivityPassed")
            assert binding.status.virtual_nodes == 2
            assert "kubeocean.io/clusterbinding-syncer" in (binding.metadata.finalizers or ())
            return True

        await until(said)
        # What others say stays as it is.
        assert (await sea.condition("Ready"))[:2] == ("True", "Somebody")
        assert (await sea.binding()).status.phase == "Ready"
        assert (await sea.condition("Drained"))[0] == ""


async def test_nothing_is_lent_to_a_binding_that_we_do_not_hold_yet(sea: Sea) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("a")
    faults = Faults()
    holding = f"/clusterbindings/{sea.name}"
    faults.answer(
        503,
        times=1000,
        when=lambda request: request.writes and request.path.endswith(holding),
    )
    async with sea.syncing(above=faults.wrap) as syncer:

        async def tried() -> bool:
            refused = [each for each in faults.requests if each.path.endswith(holding)]
            known = syncer.world.synced and len(syncer.world.pnodes) and len(syncer.world.policies)
            return len(refused) > 2 and bool(known)

        await until(tried)
        assert await sea.vnodes() == []
        held = await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
        assert not held.metadata.finalizers
        faults.heal()
        await until(lambda: vnodes(sea, 1))


def _condition(type_: str, status: str) -> Json:
    at = "2026-01-01T00:00:00Z"
    given = {"type": type_, "status": status, "reason": "Somebody", "message": "said so"}
    return given | {"lastTransitionTime": at}


async def test_a_binding_that_is_deleted_says_what_it_waits_for_and_leaves_nothing(
    sea: Sea, namespace: str
) -> None:
    await sea.bind()
    policy = await sea.lend()
    for name in ("a", "b"):
        await sea.add_node(name)
    chosen = {"matchLabels": {"app": "kept"}}
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": chosen}}
    made = await sea.above.create(BUDGETS, budget, namespace=namespace)
    async with sea.syncing():
        first = (await until(lambda: vnodes(sea, 2)))[0]
        kept = await sea.guest(namespace, "kept", first.name)
        await until(lambda: _counted(sea, namespace))
        await until(lambda: _is(sea, {policy}))
        await hold(sea)
        await sea.unbind()

        async def waits() -> bool:
            status, reason, message = await sea.condition("Drained")
            assert (status, reason) == ("False", "Draining")
            assert f"1 virtual node: {first.name} (1 pod: {namespace}/kept Budget)" in message
            assert "; ends by 20" in message
            return True

        await until(waits)
        assert not await sea.is_gone(kept)
        await sea.above.delete(BUDGETS, "keep", namespace, uid=made.uid)
        await until(lambda: only_held(sea))
        status, reason, message = await sea.condition("Drained")
        assert (status, reason) == ("True", "Drained")
        assert message == "Nothing of the binding is left"
        assert await sea.vnodes() == []
        assert await marked(sea, "a", "b") == {""}
        # The policy is its owner's: it stays, and can be deleted without us.
        left = await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
        assert not left.metadata.finalizers
        assert left.status.leased_nodes == 0
    await sea.above.patch(
        CLUSTER_BINDINGS, sea.name, MergePatch({"metadata": {"finalizers": None}})
    )
    await until(sea.is_unbound)


async def _counted(sea: Sea, namespace: str) -> bool:
    found = await sea.above.get(BUDGETS, "keep", namespace, keep_raw=True)
    return bool(found.content().get("status", {}).get("currentHealthy") == 1)


async def _is(sea: Sea, labels: set[str]) -> bool:
    return await marked(sea, "a", "b") == labels


def settled(obj: Object) -> Json:
    """All of an object, but for what every write changes."""
    content = obj.content()
    for field in ("managedFields", "resourceVersion"):
        content["metadata"].pop(field, None)
    return content


def settled_pod(pod: Object) -> Json:
    """Kubernetes itself says in conditions what it thinks of a pod's node, in its own time."""
    content = settled(pod)
    content["status"].pop("conditions", None)
    return content


async def everything(sea: Sea, namespace: str) -> Mapping[str, list[Json]]:
    """All that a binding has in both clusters; heartbeats are leases, and not among it."""
    pnodes = await sea.below.list(NODES, labels=f"test={sea.name}", keep_raw=True)
    pods = await sea.above.list(PODS, namespace, keep_raw=True)
    policy = await sea.below.get(RESOURCE_LEASING_POLICIES, f"{sea.name}-policy", keep_raw=True)
    return {
        "virtual nodes": [settled(node) for node in await sea.vnodes()],
        "nodes": [settled(node) for node in pnodes.items],
        "pods": [settled_pod(pod) for pod in pods.items],
        "policies": [settled(policy)],
        "binding": [settled(await sea.above.get(CLUSTER_BINDINGS, sea.name, keep_raw=True))],
    }


async def test_a_binding_that_goes_leaves_its_neighbour_alone(sea: Sea, namespace: str) -> None:
    going, faults = sea.neighbour(), Faults()
    for each in (sea, going):
        await each.bind()
        await each.lend()
        for name in ("a", "b"):
            await each.add_node(name)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(sea.syncing(above=faults.wrap, below=faults.wrap))
        await stack.enter_async_context(going.syncing())
        pods = {}
        for each in (sea, going):
            nodes = await until(lambda each=each: vnodes(each, 2))
            pods[each.name] = await each.guest(namespace, f"p-{each.name}", nodes[0].name)
            await until(lambda each=each: _is(each, {f"{each.name}-policy"}))

        async def told() -> bool:
            binding, status = await sea.binding(), await sea.status(f"{sea.name}-policy")
            return (binding.status.virtual_nodes, status.leased_nodes) == (2, 2)

        await until(told)
        await sea.above.delete(
            PODS, f"p-{going.name}", namespace, uid=pods[going.name].uid, grace_s=0
        )
        written = await _at_rest(faults)
        before = await everything(sea, namespace)
        await going.unbind()
        await until(going.is_unbound)
        assert await going.vnodes() == []
        assert await marked(going, "a", "b") == {""}
        await asyncio.sleep(2.0)  # what it could set off would come within that
        assert await everything(sea, namespace) == before
        assert _is_work(faults) == written


async def _at_rest(faults: Faults) -> int:
    """How much was written, once nothing is added of its own accord."""
    seen = [-1]

    async def rests() -> bool:
        before, seen[0] = seen[0], _is_work(faults)
        return before == seen[0]

    await until(rests, every=1.5)
    return seen[0]


def _is_work(faults: Faults) -> int:
    """How much was written that is neither a heartbeat nor an Event."""
    return sum(
        request.writes and not {"leases", "events"} & set(request.path.split("/"))
        for request in faults.requests
    )


async def test_two_bindings_that_lend_the_same_node_do_not_fight_over_it(sea: Sea) -> None:
    other, plans = sea.neighbour(), [Faults(), Faults()]
    await sea.bind()
    await other.bind(nodeSelector=sea.selector())
    for each in (sea, other):
        await each.lend()
    await sea.add_node("n")
    async with AsyncExitStack() as stack:
        for each, plan in zip((sea, other), plans, strict=True):
            await stack.enter_async_context(each.syncing(above=plan.wrap, below=plan.wrap))
        for each in (sea, other):
            await until(lambda each=each: vnodes(each, 1))

        async def told() -> bool:
            counts = [(await each.binding()).status.virtual_nodes for each in (sea, other)]
            counts += [
                (await each.status(f"{each.name}-policy")).leased_nodes for each in (sea, other)
            ]
            return counts == [1, 1, 1, 1]

        await until(told)
        (label,) = await marked(sea, "n")
        assert label in {f"{sea.name}-policy", f"{other.name}-policy"}
        written = [_is_work(plan) for plan in plans]
        await asyncio.sleep(2.0)  # a fight would show
        assert [_is_work(plan) for plan in plans] == written
        assert await marked(sea, "n") == {label}
