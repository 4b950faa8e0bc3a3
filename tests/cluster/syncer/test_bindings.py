"""Bindings on two real control planes: conditions, deletion, and other bindings left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES, PODS, Node
from kubeocean.runtime.objects import Json, Object, Resource, Untyped
from support.binding_env import BindingEnv
from support.faults import Faults
from support.wait import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
LABEL = "kubeocean.io/policy-applied"
HOLD = "example.com/hold"  # a finalizer of the test, to read the last conditions


async def hold(binding_env: BindingEnv) -> None:
    """Add a finalizer of the test to the binding."""
    finalizers = [*((await binding_env.binding()).metadata.finalizers or ()), HOLD]
    patch = MergePatch({"metadata": {"finalizers": finalizers}})
    await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)


async def only_held(binding_env: BindingEnv) -> bool:
    return (await binding_env.binding()).metadata.finalizers == (HOLD,)


async def labels_of(binding_env: BindingEnv, *nodes: str) -> set[str]:
    pnodes = [
        await binding_env.worker_api.get(NODES, f"{binding_env.name}-{name}") for name in nodes
    ]
    return {node.labels.get(LABEL, "") for node in pnodes}


async def vnodes(binding_env: BindingEnv, number: int) -> list[Node]:
    nodes = await binding_env.vnodes()
    return nodes if len(nodes) == number else []


async def test_the_status_of_a_binding_has_its_connection_and_its_number_of_nodes(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    silent = _condition("example.com/Checked", "True", message="")
    status = {"conditions": [_condition("Ready", "True"), silent], "phase": "Ready"}
    patch = MergePatch({"status": status})
    await binding_env.computing_api.patch(
        CLUSTER_BINDINGS, binding_env.name, patch, subresource="status"
    )
    policy = await binding_env.lend()
    await binding_env.worker_api.patch(
        RESOURCE_LEASING_POLICIES,
        policy,
        MergePatch({"status": {"conditions": [silent]}}),
        subresource="status",
    )
    for name in ("a", "b"):
        await binding_env.add_node(name)
    async with binding_env.syncing():

        async def written() -> bool:
            binding = await binding_env.binding()
            assert (await binding_env.condition("Connected"))[:2] == ("True", "ConnectivityPassed")
            assert binding.status.virtual_nodes == 2
            assert (await binding_env.status(policy)).leased_nodes == 2
            assert "kubeocean.io/clusterbinding-syncer" in (binding.metadata.finalizers or ())
            return True

        await until(written)
        # Conditions of others stay as they are.
        assert (await binding_env.condition("Ready"))[:2] == ("True", "OtherManager")
        kept = await binding_env.condition("example.com/Checked")
        assert kept == ("True", "OtherManager", "")
        assert (await binding_env.binding()).status.phase == "Ready"
        assert (await binding_env.condition("Drained"))[0] == ""


async def test_nothing_is_lent_to_a_binding_without_our_finalizer(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("a")
    faults = Faults()
    holding = f"/clusterbindings/{binding_env.name}"
    faults.answer(
        503,
        times=1000,
        when=lambda request: request.writes and request.path.endswith(holding),
    )
    async with binding_env.syncing(computing_api=faults.wrap) as syncer:

        async def tried() -> bool:
            refused = [each for each in faults.requests if each.path.endswith(holding)]
            known = (
                syncer.clusters.synced
                and len(syncer.clusters.pnodes)
                and len(syncer.clusters.policies)
            )
            return len(refused) > 2 and bool(known)

        await until(tried)
        assert await binding_env.vnodes() == []
        held = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
        assert not held.metadata.finalizers
        faults.heal()
        await until(lambda: vnodes(binding_env, 1))


def _condition(type_: str, status: str, message: str = "written by another manager") -> Json:
    at = "2026-01-01T00:00:00Z"
    given = {
        "type": type_,
        "status": status,
        "reason": "OtherManager",
        "message": message,
    }
    return given | {"lastTransitionTime": at}


async def test_a_binding_that_is_deleted_reports_what_it_waits_for_and_leaves_nothing(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    for name in ("a", "b"):
        await binding_env.add_node(name)
    selected = {"matchLabels": {"app": "kept"}}
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": selected}}
    created = await binding_env.computing_api.create(BUDGETS, budget, namespace=namespace)
    async with binding_env.syncing():
        first = (await until(lambda: vnodes(binding_env, 2)))[0]
        kept = await binding_env.create_bound_pod(namespace, "kept", first.name)
        await until(lambda: _counted(binding_env, namespace))
        await until(lambda: _have_labels(binding_env, {policy}))
        await hold(binding_env)
        await binding_env.unbind()

        async def waits() -> bool:
            status, reason, message = await binding_env.condition("Drained")
            assert (status, reason) == ("False", "Draining")
            assert f"1 virtual node: {first.name} (1 pod: {namespace}/kept Budget)" in message
            assert "; ends by 20" in message
            return True

        await until(waits)
        assert not await binding_env.is_gone(kept)
        await binding_env.computing_api.delete(BUDGETS, "keep", namespace, uid=created.uid)
        await until(lambda: only_held(binding_env))
        status, reason, message = await binding_env.condition("Drained")
        assert (status, reason) == ("True", "Drained")
        assert message == "Nothing of the binding is left"
        assert await binding_env.vnodes() == []
        assert await labels_of(binding_env, "a", "b") == {""}
        # The policy belongs to the owner: the policy stays, and can be deleted without a syncer.
        left = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
        assert not left.metadata.finalizers
        assert left.status.leased_nodes == 0
    await binding_env.computing_api.patch(
        CLUSTER_BINDINGS, binding_env.name, MergePatch({"metadata": {"finalizers": None}})
    )
    await until(binding_env.is_unbound)


async def _counted(binding_env: BindingEnv, namespace: str) -> bool:
    budget = await binding_env.computing_api.get(BUDGETS, "keep", namespace, keep_raw=True)
    return bool(budget.content().get("status", {}).get("currentHealthy") == 1)


async def _have_labels(binding_env: BindingEnv, labels: set[str]) -> bool:
    return await labels_of(binding_env, "a", "b") == labels


def settled(obj: Object) -> Json:
    """Return an object without the fields that every write changes."""
    content = obj.content()
    for field in ("managedFields", "resourceVersion"):
        content["metadata"].pop(field, None)
    return content


def settled_pod(pod: Object) -> Json:
    """Return a pod without its conditions, which Kubernetes changes after its node's."""
    content = settled(pod)
    content["status"].pop("conditions", None)
    return content


async def everything(binding_env: BindingEnv, namespace: str) -> Mapping[str, list[Json]]:
    """Return everything that a binding has in both clusters, except the Leases of its nodes."""
    pnodes = await binding_env.worker_api.list(
        NODES, labels=f"test={binding_env.name}", keep_raw=True
    )
    pods = await binding_env.computing_api.list(PODS, namespace, keep_raw=True)
    policy = await binding_env.worker_api.get(
        RESOURCE_LEASING_POLICIES, f"{binding_env.name}-policy", keep_raw=True
    )
    return {
        "virtual nodes": [settled(node) for node in await binding_env.vnodes()],
        "nodes": [settled(node) for node in pnodes.items],
        "pods": [settled_pod(pod) for pod in pods.items],
        "policies": [settled(policy)],
        "binding": [
            settled(
                await binding_env.computing_api.get(
                    CLUSTER_BINDINGS, binding_env.name, keep_raw=True
                )
            )
        ],
    }


async def test_the_deletion_of_a_binding_leaves_another_binding_alone(
    binding_env: BindingEnv, namespace: str
) -> None:
    deleted, faults = binding_env.neighbour(), Faults()
    for each in (binding_env, deleted):
        await each.bind()
        await each.lend()
        for name in ("a", "b"):
            await each.add_node(name)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            binding_env.syncing(computing_api=faults.wrap, worker_api=faults.wrap)
        )
        await stack.enter_async_context(deleted.syncing())
        pods = {}
        for each in (binding_env, deleted):
            nodes = await until(lambda each=each: vnodes(each, 2))
            pods[each.name] = await each.create_bound_pod(
                namespace, f"p-{each.name}", nodes[0].name
            )
            await until(lambda each=each: _have_labels(each, {f"{each.name}-policy"}))

        async def counted() -> bool:
            binding, status = (
                await binding_env.binding(),
                await binding_env.status(f"{binding_env.name}-policy"),
            )
            return (binding.status.virtual_nodes, status.leased_nodes) == (2, 2)

        await until(counted)
        await binding_env.computing_api.delete(
            PODS, f"p-{deleted.name}", namespace, uid=pods[deleted.name].uid, grace_s=0
        )
        written = await _at_rest(faults)
        before = await everything(binding_env, namespace)
        await deleted.unbind()
        await until(deleted.is_unbound)
        assert await deleted.vnodes() == []
        assert await labels_of(deleted, "a", "b") == {""}
        await asyncio.sleep(2.0)  # longer than an effect of the deletion would take
        assert await everything(binding_env, namespace) == before
        assert _writes(faults) == written


async def _at_rest(faults: Faults) -> int:
    """Return the number of writes, once it stays the same."""
    counts = [-1]

    async def rests() -> bool:
        before, counts[0] = counts[0], _writes(faults)
        return before == counts[0]

    await until(rests, every=1.5)
    return counts[0]


def _writes(faults: Faults) -> int:
    """Return the number of writes that are neither heartbeats nor Events."""
    return sum(
        request.writes and not {"leases", "events"} & set(request.path.split("/"))
        for request in faults.requests
    )


async def test_two_bindings_that_lend_the_same_node_do_not_fight_over_it(
    binding_env: BindingEnv,
) -> None:
    other, plans = binding_env.neighbour(), [Faults(), Faults()]
    await binding_env.bind()
    await other.bind(nodeSelector=binding_env.selector())
    for each in (binding_env, other):
        await each.lend()
    await binding_env.add_node("n")
    async with AsyncExitStack() as stack:
        for each, plan in zip((binding_env, other), plans, strict=True):
            await stack.enter_async_context(
                each.syncing(computing_api=plan.wrap, worker_api=plan.wrap)
            )
        for each in (binding_env, other):
            await until(lambda each=each: vnodes(each, 1))

        async def counted() -> bool:
            counts = [(await each.binding()).status.virtual_nodes for each in (binding_env, other)]
            counts += [
                (await each.status(f"{each.name}-policy")).leased_nodes
                for each in (binding_env, other)
            ]
            return counts == [1, 1, 1, 1]

        await until(counted)
        (label,) = await labels_of(binding_env, "n")
        assert label in {f"{binding_env.name}-policy", f"{other.name}-policy"}
        written = [_writes(plan) for plan in plans]
        await asyncio.sleep(2.0)  # longer than one more write of either would take
        assert [_writes(plan) for plan in plans] == written
        assert await labels_of(binding_env, "n") == {label}
