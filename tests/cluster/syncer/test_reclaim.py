"""Time windows that open and close, and reclaims of nodes, on two real control planes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conftest import NewCluster
from kubeocean.api.conditions import RECLAIMING
from kubeocean.api.crds import policy_definition
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import Invalid, NotFound, ServiceUnavailable
from kubeocean.runtime.client import ApplyPatch, MergePatch
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS, Node
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from support.binding_env import BindingEnv
from support.clocks import SetClock
from support.controller_env import quiet
from support.crds import install_our_kinds
from support.faults import Faults
from support.wait import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
OUT, DELETING = "kubeocean.io/out-of-time-windows", "kubeocean.io/vnode-deleting"
INVALID = [{"start": "25:00", "end": "half past"}]
MANY = 50  # nodes of one policy
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def window(start: datetime, end: datetime) -> list[dict[str, str]]:
    return [{"start": f"{start:%H:%M}", "end": f"{end:%H:%M}"}]


def closed() -> list[dict[str, str]]:
    """Return a window that is not open now, nor soon."""
    start = datetime.now(UTC) + 6 * HOUR
    return window(start, start + 5 * MINUTE)


def effects(node: Node, key: str = OUT) -> list[str]:
    return [taint.effect for taint in node.spec.taints or () if taint.key == key]


async def one(binding_env: BindingEnv) -> Node:
    return (await until(binding_env.vnodes))[0]


async def is_tainted(binding_env: BindingEnv, *wanted: str) -> bool:
    return effects(await one(binding_env)) == list(wanted)


async def reclaiming(binding_env: BindingEnv, policy: str) -> str:
    """Return the reason of the policy's condition Reclaiming."""
    condition = find_condition((await binding_env.status(policy)).conditions, RECLAIMING)
    return condition.reason if condition is not None else ""


async def protect(binding_env: BindingEnv, namespace: str, *apps: str) -> str:
    """Create a budget that protects all pods of these apps; return its UID once it counts them."""
    selected = [{"key": "app", "operator": "In", "values": list(apps)}]
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": len(apps), "selector": {"matchExpressions": selected}},
    }
    created = await binding_env.computing_api.create(BUDGETS, budget, namespace=namespace)

    async def counted() -> bool:
        stored = await binding_env.computing_api.get(BUDGETS, "keep", namespace, keep_raw=True)
        return stored.content().get("status", {}).get("currentHealthy") == len(apps)

    await until(counted)
    return created.uid


async def test_a_closed_window_taints_and_evicts_only_by_force(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = await one(binding_env)
        assert effects(vnode) == []
        pod = await binding_env.create_bound_pod(namespace, "p", vnode.name)
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: is_tainted(binding_env, "NoSchedule"))
        assert not await binding_env.is_gone(pod)
        status = await binding_env.status(policy)
        assert (status.phase, status.active_time_window) == ("Inactive", False)

        async def held() -> bool:
            assert await reclaiming(binding_env, policy) == "NotForced"
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            assert [(p.name, p.reason) for p in reclaim.pods or ()] == [("p", "NotForced")]
            assert [(n.name, n.phase) for n in reclaim.nodes or ()] == [(vnode.name, "Held")]
            return True

        await until(held)
        await binding_env.patch_policy(policy, forceReclaim=True)
        await until(lambda: binding_env.is_gone(pod))
        await binding_env.patch_policy(policy, timeWindows=None)
        await until(lambda: is_tainted(binding_env))


async def test_windows_close_and_open_on_time_and_pods_leave_by_the_rules(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    a, b = (binding_env.selector(**binding_env.label, role=role) for role in ("a", "b"))
    rules = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 2}
    rules |= {"forceReclaimDeadlineSeconds": 4}
    closing = await binding_env.lend(f"{binding_env.name}-closing", nodeSelector=a, **rules)
    opening = await binding_env.lend(
        f"{binding_env.name}-opening", nodeSelector=b, timeWindows=closed()
    )
    for role in ("a", "b"):
        await binding_env.add_node(role, labels={"role": role})
    clock, faults = SetClock(), Faults()
    async with binding_env.syncing(clock=clock, computing_api=faults.wrap):

        async def before() -> list[Node]:
            nodes = await binding_env.vnodes()
            return nodes if [effects(node) for node in nodes] == [[], ["NoSchedule"]] else []

        vnode = (await until(before))[0]
        tolerations = [{"operator": "Exists"}]
        staying = await binding_env.create_bound_pod(
            namespace, "staying", vnode.name, tolerations=tolerations
        )
        free = await binding_env.create_bound_pod(namespace, "free", vnode.name)
        kept = await binding_env.create_bound_pod(namespace, "kept", vnode.name)
        await protect(binding_env, namespace, "kept")

        edge = clock.bring_edge(2.0)
        await binding_env.patch_policy(closing, timeWindows=window(edge - HOUR, edge - MINUTE))
        await binding_env.patch_policy(opening, timeWindows=window(edge, edge + HOUR))
        assert await before()
        assert clock.now() < edge

        async def after() -> float:
            switched = [effects(node) for node in await binding_env.vnodes()] == [
                ["NoSchedule"],
                [],
            ]
            return (clock.now() - edge).total_seconds() if switched else 0.0

        assert 0.0 < await until(after, every=0.02) < 1.0

        await until(lambda: binding_env.is_gone(free))
        assert clock.now() >= edge + timedelta(seconds=2)
        assert not await binding_env.is_gone(kept)

        async def blocked() -> bool:
            return await reclaiming(binding_env, closing) == "BlockedByBudget"

        await until(blocked)
        await until(lambda: binding_env.is_gone(kept))
        assert clock.now() >= edge + timedelta(seconds=6)
        await until(lambda: is_tainted(binding_env, "NoExecute"))
        assert not await binding_env.is_gone(staying)
        await _reclaim_is_reported(binding_env, closing, "Tolerated")
        await binding_env.patch_policy(closing, reclaim={"respectTolerations": False})
        await until(lambda: binding_env.is_gone(staying))
        await _reclaim_is_reported(binding_env, closing, "Reclaimed")
        steps = {"WindowClosed", "ReclaimStarted", "ReclaimBlocked", "Reclaimed"}
        await until(lambda: emitted(binding_env, closing, steps))
        assert await binding_env.events(opening) == {"WindowOpened"}
        # The syncer deleted the pod; Kubernetes would have because of the taint, without an event.
        sent = faults.requests
        deleted = next(n for n, r in enumerate(sent) if r.method == "DELETE" and "/kept" in r.path)
        tainted = next(n for n, r in enumerate(sent) if b"NoExecute" in (r.body or b""))
        assert deleted < tainted


async def emitted(binding_env: BindingEnv, policy: str, reasons: set[str]) -> bool:
    return await binding_env.events(policy) == reasons


async def _reclaim_is_reported(binding_env: BindingEnv, policy: str, reason: str) -> None:
    """Wait for the report of a reclaim; `Tolerated` as long as one pod tolerates the window."""
    evictions = [("kept", "Deadline"), ("free", "Due")]
    if reason == "Reclaimed":
        evictions.insert(0, ("staying", "Deadline"))

    async def reported() -> bool:
        assert await reclaiming(binding_env, policy) == reason
        reclaim = (await binding_env.status(policy)).reclaim
        assert reclaim is not None
        assert (reclaim.cause, reclaim.pending) == ("WindowClosed", 0)
        assert reclaim.evicted == len(evictions)
        assert (reclaim.completion_time is None) == (reason == "Tolerated")
        shown = [(each.name, each.reason) for each in reclaim.last_evictions or ()]
        assert shown == evictions
        left = [(pod.name, pod.reason) for pod in reclaim.pods or ()]
        assert left == ([("staying", "Tolerates")] if reason == "Tolerated" else [])
        return True

    await until(reported)


async def test_the_pace_holds_for_all_nodes_of_a_policy_together(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    rules = {"forceReclaim": True, "forceReclaimDeadlineSeconds": 3600}
    policy = await binding_env.lend(**rules, maxEvictionsPerMinute=5)
    for number in range(MANY):
        await binding_env.add_node(f"n{number}")
    clock = SetClock()
    worker_api = Faults()
    async with binding_env.syncing(worker_api=worker_api.wrap, clock=clock):

        async def all_lent() -> list[Node]:
            vnodes = await binding_env.vnodes()
            return vnodes if len(vnodes) == MANY else []

        for number, vnode in enumerate(await until(all_lent)):
            await binding_env.create_bound_pod(namespace, f"p{number}", vnode.name)
        await binding_env.patch_policy(policy, timeWindows=closed())

        async def evicted(count: int) -> bool:
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            left = [
                pod.name for pod in (await binding_env.computing_api.list(PODS, namespace)).items
            ]
            assert (reclaim.evicted, reclaim.pending, len(left)) == (
                count,
                MANY - count,
                MANY - count,
            )
            assert {pod.reason for pod in reclaim.pods or ()} == {"Pace"}
            return True

        await until(lambda: evicted(5))
        clock.offset += MINUTE
        await binding_env.patch_policy(policy, coolDownSeconds=1)  # all nodes are planned again
        await until(lambda: evicted(10))
        await quiet(worker_api)
        assert await evicted(10)


async def test_a_node_that_is_lent_again_has_no_further_evictions(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True)
    await binding_env.add_node("n")
    faults = Faults()
    async with binding_env.syncing(computing_api=faults.wrap):
        vnode = await one(binding_env)
        pods = [
            await binding_env.create_bound_pod(namespace, name, vnode.name) for name in ("p", "q")
        ]
        budget = await protect(binding_env, namespace, "p", "q")
        await binding_env.patch_policy(policy, timeWindows=closed())

        async def blocked() -> bool:
            return await reclaiming(binding_env, policy) == "BlockedByBudget"

        await until(blocked)
        reclaim = (await binding_env.status(policy)).reclaim
        assert reclaim is not None
        assert (reclaim.blocked, reclaim.pending, reclaim.evicted) == (2, 2, 0)
        assert {(pod.reason, pod.until) for pod in reclaim.pods or ()} == {
            ("Budget", reclaim.deadline_time)
        }

        await binding_env.patch_policy(policy, timeWindows=None)
        await until(lambda: is_tainted(binding_env))
        before = len(faults.requests)
        await binding_env.computing_api.delete(BUDGETS, "keep", namespace, uid=budget)

        async def stopped() -> bool:
            return "ReclaimStopped" in await binding_env.events(policy)

        await until(stopped)
        assert await reclaiming(binding_env, policy) == "LendingAgain"
        await asyncio.sleep(4.0)  # longer than until the next attempt
        assert not [r for r in faults.requests[before:] if r.path.endswith("/eviction")]
        assert not any([await binding_env.is_gone(pod) for pod in pods])


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another process"])
async def test_a_policy_never_says_reclaimed_while_a_pod_runs(
    binding_env: BindingEnv, namespace: str, restarted: bool
) -> None:
    """A window closes, opens and closes again; the first reclaim must not be shown as complete."""
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    faults = Faults()

    async def shown(reason: str) -> None:
        async def shows() -> bool:
            return await reclaiming(binding_env, policy) == reason

        await until(shows)

    async def close_again() -> None:
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: is_tainted(binding_env, "NoSchedule"))
        await shown("NotForced")

    async with binding_env.syncing(worker_api=faults.wrap):
        vnode = await one(binding_env)
        pod = await binding_env.create_bound_pod(namespace, f"{binding_env.name}-pod", vnode.name)
        await close_again()
        await binding_env.patch_policy(policy, timeWindows=None)
        await shown("LendingAgain")
        await until(lambda: is_tainted(binding_env))
        if not restarted:
            await close_again()
    if restarted:
        await binding_env.patch_policy(policy, timeWindows=closed())
        async with binding_env.syncing(worker_api=faults.wrap):
            await close_again()
    assert not await binding_env.is_gone(pod)
    writes = [r.body or b"" for r in faults.requests if r.path.endswith(f"{policy}/status")]
    assert [body for body in writes if b'"Reclaimed"' in body] == []


async def test_force_reclaim_that_is_switched_on_later_leaves_the_whole_grace_period(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(gracefulReclaimPeriodSeconds=3, timeWindows=closed())
    await binding_env.add_node("n")
    async with binding_env.syncing():
        await until(lambda: is_tainted(binding_env, "NoSchedule"))
        pod = await binding_env.create_bound_pod(namespace, "p", (await one(binding_env)).name)
        since = (await one(binding_env)).spec.taints or ()
        (added,) = [taint.time_added for taint in since if taint.key == OUT]
        assert added is not None
        long_ago = datetime.fromisoformat(added) + timedelta(seconds=3.5)
        await until(lambda: datetime.now(UTC) >= long_ago)
        assert not await binding_env.is_gone(pod)
        switched = time.monotonic()
        await binding_env.patch_policy(policy, forceReclaim=True)
        await until(lambda: binding_env.is_gone(pod))
        assert time.monotonic() - switched >= 3.0


@pytest.fixture
async def unvalidated(
    binding_env: BindingEnv, new_cluster: NewCluster
) -> AsyncIterator[BindingEnv]:
    """A worker whose definition of policies accepts every value, as the earlier one did."""
    worker = await new_cluster(name="unvalidated")
    worker_api = worker.client()
    await install_our_kinds(worker_api)
    definition = policy_definition()
    patch = ApplyPatch(_unchecked(definition), force=True)
    await worker_api.patch(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"], patch)
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": RESOURCE_LEASING_POLICIES.kind,
        "metadata": {"name": "invalid"},
        "spec": {"cluster": "none", "timeWindows": INVALID},
    }

    async def accepted() -> bool:
        try:
            await worker_api.create(RESOURCE_LEASING_POLICIES, body, dry_run=True)
        except (Invalid, ServiceUnavailable):
            return False  # the server does not use the new definition yet
        return True

    await until(accepted)
    yield BindingEnv(binding_env.computing, worker, binding_env.computing_api, worker_api)
    await worker_api.close()


async def test_an_invalid_window_evicts_nothing(unvalidated: BindingEnv, namespace: str) -> None:
    env = unvalidated
    await env.bind()
    policy = await env.lend(forceReclaim=True)
    await env.add_node("n")
    async with env.syncing():
        vnode = await one(env)
        pod = await env.create_bound_pod(namespace, "p", vnode.name)
        await env.patch_policy(policy, timeWindows=INVALID)
        await _stays(env, policy, vnode, seconds=1.5)
        assert not await env.is_gone(pod)
    async with env.syncing() as syncer:  # a new syncer has not read the last valid form
        await until(lambda: syncer.ready)
        await _stays(env, policy, vnode, seconds=1.5)
        assert not await env.is_gone(pod)


async def test_a_machine_that_dies_under_an_invalid_policy_is_not_shown_as_ready(
    unvalidated: BindingEnv,
) -> None:
    env = unvalidated
    await env.bind()
    policy = await env.lend()
    pnode = await env.add_node("n")
    async with env.syncing():
        vnode = await one(env)
    await env.patch_policy(policy, timeWindows=INVALID)
    async with env.syncing() as syncer:  # a new syncer has not read the last valid form
        await until(lambda: syncer.ready)
        await _stays(env, policy, vnode, seconds=0.5)
        shrunk = {"cpu": "2", "memory": "4Gi", "pods": "20"}
        died = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
        status = {"conditions": died, "capacity": shrunk, "allocatable": shrunk}
        patch = MergePatch({"status": status})
        await env.worker_api.patch(NODES, pnode.name, patch, subresource="status")

        async def shown() -> bool:
            now = (await one(env)).content()
            (ready,) = [each for each in now["status"]["conditions"] if each["type"] == "Ready"]
            assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusUnknown")
            assert now["status"]["allocatable"] == shrunk
            return True

        await until(shown)
        await _stays(env, policy, vnode, seconds=0.5)


def _unchecked(schema: Any) -> Any:
    """Return a definition as the earlier implementation had it: without validation of values."""
    if isinstance(schema, dict):
        dropped = ("x-kubernetes-validations", "pattern", "minLength", "minimum", "maximum")
        return {key: _unchecked(each) for key, each in schema.items() if key not in dropped}
    return [_unchecked(each) for each in schema] if isinstance(schema, list) else schema


async def _stays(binding_env: BindingEnv, policy: str, vnode: Node, *, seconds: float) -> None:
    """Wait for the event of the invalid policy, and check that the node does not change."""

    async def reported() -> bool:
        return "Invalid" in await binding_env.events(policy)

    await until(reported)
    await asyncio.sleep(seconds)  # the test needs this time to pass
    now = await one(binding_env)
    assert (now.uid, effects(now), effects(now, DELETING)) == (vnode.uid, [], [])
    assert (await binding_env.status(policy)).phase == "Failed"


async def test_a_removed_policy_reclaims_its_nodes_by_its_own_rules(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()  # without forceReclaim: the pods may stay until they end
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = await one(binding_env)
        pod = await binding_env.create_bound_pod(namespace, "p", vnode.name)
        uid = await until(lambda: held(binding_env, policy))
        await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, policy, uid=uid)

        async def tainted() -> bool:
            node = await one(binding_env)
            assert effects(node, DELETING) == ["NoSchedule"]
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            assert (reclaim.cause, reclaim.pending) == ("PolicyRemoved", 1)
            return True

        await until(tainted)
        assert not await binding_env.is_gone(pod)
        await binding_env.computing_api.delete(PODS, "p", namespace, uid=pod.uid, grace_s=0)

        async def all_gone() -> bool:
            if await binding_env.vnodes():
                return False
            try:
                await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
            except NotFound:
                return True
            return False

        await until(all_gone)
        node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-n")
        assert "kubeocean.io/policy-applied" not in node.labels

        async def reported() -> bool:
            return {"ReclaimStarted", "Reclaimed"} <= await binding_env.events(policy)

        await until(reported)


async def test_a_policy_that_comes_to_name_another_binding_reclaims_by_force(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True)
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = await one(binding_env)
        pod = await binding_env.create_bound_pod(namespace, "p", vnode.name)
        await until(lambda: held(binding_env, policy))
        await binding_env.patch_policy(policy, cluster=f"{binding_env.name}-other")
        await until(lambda: binding_env.is_gone(pod))

        async def free() -> bool:
            stored = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
            pnode = await binding_env.worker_api.get(NODES, f"{binding_env.name}-n")
            assert "kubeocean.io/policy-applied" not in pnode.labels
            return not stored.metadata.finalizers and not await binding_env.vnodes()

        await until(free)


async def test_a_worker_node_under_deletion_drains_within_the_grace_period(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(gracefulReclaimPeriodSeconds=3600)
    pnode = await binding_env.add_node("n")
    hold = MergePatch({"metadata": {"finalizers": ["example.com/karpenter"]}})
    await binding_env.worker_api.patch(NODES, pnode.name, hold)
    async with binding_env.syncing():
        vnode = await one(binding_env)
        pod = await binding_env.create_bound_pod(namespace, "p", vnode.name)
        await binding_env.worker_api.delete(NODES, pnode.name, uid=pnode.uid)

        async def announced() -> bool:
            assert effects(await one(binding_env), DELETING) == ["NoSchedule"]
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            assert (reclaim.cause, reclaim.pending) == ("NodeDeleting", 1)
            assert [(each.name, each.reason) for each in reclaim.pods or ()] == [("p", "Grace")]
            return True

        await until(announced)
        assert not await binding_env.is_gone(pod)
        freed = MergePatch({"metadata": {"finalizers": None}})
        await binding_env.worker_api.patch(NODES, pnode.name, freed)
        await until(lambda: binding_env.is_gone(pod))

        async def none() -> bool:
            return not await binding_env.vnodes()

        await until(none)


async def test_a_worker_node_under_deletion_drains_by_disruption_budgets(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=3600)
    pnode = await binding_env.add_node("n")
    hold = MergePatch({"metadata": {"finalizers": ["example.com/karpenter"]}})
    await binding_env.worker_api.patch(NODES, pnode.name, hold)
    async with binding_env.syncing():
        vnode = await one(binding_env)
        kept = await binding_env.create_bound_pod(namespace, "kept", vnode.name)
        other = await binding_env.create_bound_pod(namespace, "other", vnode.name)
        budget = await protect(binding_env, namespace, "kept")
        await binding_env.worker_api.delete(NODES, pnode.name, uid=pnode.uid)
        await until(lambda: binding_env.is_gone(other))

        async def blocked() -> bool:
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            assert (reclaim.cause, reclaim.pending) == ("NodeDeleting", 1)
            pods = [(each.name, each.reason) for each in reclaim.pods or ()]
            assert pods == [("kept", "Budget")], pods
            return True

        await until(blocked)
        assert not await binding_env.is_gone(kept)
        await binding_env.computing_api.delete(BUDGETS, "keep", namespace, uid=budget)
        await until(lambda: binding_env.is_gone(kept))
        freed = MergePatch({"metadata": {"finalizers": None}})
        await binding_env.worker_api.patch(NODES, pnode.name, freed)

        async def none() -> bool:
            return not await binding_env.vnodes()

        await until(none)


async def test_a_node_that_is_registered_anew_drains_within_the_grace_period(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(gracefulReclaimPeriodSeconds=3600)
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing() as syncer:
        vnode = await one(binding_env)
        await until(lambda: syncer.ready)
    pod = await binding_env.create_bound_pod(namespace, "p", vnode.name)
    await binding_env.worker_api.delete(NODES, pnode.name, uid=pnode.uid)
    anew = await binding_env.add_node("n")
    async with binding_env.syncing():

        async def announced() -> bool:
            reclaim = (await binding_env.status(policy)).reclaim
            assert reclaim is not None
            assert (reclaim.cause, reclaim.pending) == ("NodeReplaced", 1), reclaim
            return True

        await until(announced)
        assert not await binding_env.is_gone(pod)
        await binding_env.computing_api.delete(PODS, "p", namespace, uid=pod.uid, grace_s=0)

        async def lent_anew() -> bool:
            now = await one(binding_env)
            return now.annotations.get("kubeocean.io/physical-node-uid") == anew.uid

        await until(lent_anew)


async def test_a_machine_that_dies_while_it_is_reclaimed_is_not_shown_as_ready(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()  # without forceReclaim: the pod may stay
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = await one(binding_env)
        await binding_env.create_bound_pod(namespace, "p", vnode.name)
        uid = await until(lambda: held(binding_env, policy))
        await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, policy, uid=uid)

        async def announced() -> bool:
            return effects(await one(binding_env), DELETING) == ["NoSchedule"]

        await until(announced)
        died = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
        patch = MergePatch({"status": {"conditions": died}})
        await binding_env.worker_api.patch(NODES, pnode.name, patch, subresource="status")

        async def unready() -> bool:
            ready = find_condition((await one(binding_env)).status.conditions, "Ready")
            return ready is not None and ready.reason == "NodeStatusUnknown"

        await until(unready)


async def test_a_window_that_was_extended_during_an_outage_evicts_nothing_after_it(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    clock, faults = SetClock(), Faults()
    now = clock.now()
    policy = await binding_env.lend(
        forceReclaim=True, timeWindows=window(now - HOUR, now + 2 * HOUR)
    )
    await binding_env.add_node("n")
    async with binding_env.syncing(worker_api=faults.wrap, clock=clock) as syncer:
        pod = await binding_env.create_bound_pod(namespace, "p", (await one(binding_env)).name)
        health, policies = syncer.clusters.worker_health, syncer.clusters.policies
        faults.partition()
        await until(lambda: not health.answers)
        await binding_env.patch_policy(policy, timeWindows=None)
        clock.offset += 4 * HOUR  # the window is over by the policy that the syncer has read
        faults.delay(3.0, when=lambda request: "resourceleasingpolicies" in request.path)
        faults.rejoin()
        await until(lambda: health.answers)
        (known,) = [each for each in policies.items() if each.name == policy]
        assert not known.spec.time_windows
        await until(lambda: is_tainted(binding_env))
        await quiet(faults)
        assert await is_tainted(binding_env)
        assert not await binding_env.is_gone(pod)


async def test_a_pod_with_a_grace_period_of_a_year_is_gone_after_the_deadline(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=4)
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = await one(binding_env)
        year = {"terminationGracePeriodSeconds": 365 * 86400}
        await binding_env.create_bound_pod(namespace, "evicted", vnode.name, **year)
        deleted = await binding_env.create_bound_pod(namespace, "deleted", vnode.name, **year)
        await binding_env.computing_api.delete(PODS, "deleted", namespace, uid=deleted.uid)
        await binding_env.patch_policy(policy, timeWindows=closed())

        async def ending() -> bool:
            """Whether both pods have to end within the deadline, not within a year."""
            pods = (await binding_env.computing_api.list(PODS, namespace)).items
            ends = [instant_of(pod.metadata.deletion_timestamp) for pod in pods]
            return all(end is not None and end < datetime.now(UTC) + MINUTE for end in ends)

        await until(ending)


async def test_pace_and_cool_down_survive_a_restart(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(
        forceReclaim=True,
        forceReclaimDeadlineSeconds=3600,
        maxEvictionsPerMinute=1,
        coolDownSeconds=600,
    )
    await binding_env.add_node("n")
    clock = SetClock()
    annotation = "kubeocean.io/last-eviction-time"

    async def evicted(*left: str) -> bool:
        reclaim = (await binding_env.status(policy)).reclaim
        assert reclaim is not None
        assert [pod.name for pod in reclaim.pods or ()] == list(left)
        assert annotation in (await one(binding_env)).annotations
        return reclaim.evicted == 3 - len(left)

    async def pass_time(time: timedelta) -> None:
        """Set the clock, and cause an event of the node, after which a plan is made."""
        clock.offset += time
        patch = MergePatch({"metadata": {"labels": {"passed": f"{clock.offset.seconds}"}}})
        await binding_env.worker_api.patch(NODES, f"{binding_env.name}-n", patch)

    async with binding_env.syncing(clock=clock):
        vnode = await one(binding_env)
        # Evicted first is the youngest pod, then the first by name: `a` is first in both orders.
        for name in ("c", "b", "a"):
            await binding_env.create_bound_pod(namespace, name, vnode.name)
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: evicted("b", "c"))
    async with binding_env.syncing(clock=clock) as syncer:
        await until(lambda: syncer.ready)
        await asyncio.sleep(3.0)  # the test needs this time to pass
        assert len((await binding_env.computing_api.list(PODS, namespace)).items) == 2
        await pass_time(MINUTE)
        await until(lambda: evicted("c"))
        await binding_env.patch_policy(policy, timeWindows=None)

        async def cooling() -> bool:
            return (await reclaiming(binding_env, policy)) == "LendingAgain"

        await until(cooling)
    async with binding_env.syncing(clock=clock) as syncer:
        await until(lambda: syncer.ready)
        await asyncio.sleep(2.0)  # the test needs this time to pass
        assert await is_tainted(binding_env, "NoSchedule")
        await pass_time(10 * MINUTE)
        await until(lambda: is_tainted(binding_env))
        assert annotation not in (await one(binding_env)).annotations


async def held(binding_env: BindingEnv, policy: str) -> str:
    """Return the UID of a policy once it has our finalizer."""
    stored = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
    return (
        stored.uid if "policy.kubeocean.io/finalizer" in (stored.metadata.finalizers or ()) else ""
    )
