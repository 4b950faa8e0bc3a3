"""Windows that open and close, and pods that have to leave, on two real control planes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clocks import SetClock
from conftest import NewCluster
from kubeocean.api.conditions import RECLAIMING
from kubeocean.api.crds import policy_definition
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import Invalid, NotFound, ServiceUnavailable
from kubeocean.local.faults import Faults
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS, Node
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from kubeocean.runtime.patches import ApplyPatch
from oceans import Sea
from ourkinds import install_our_kinds
from waiting import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
OUT, DELETING = "kubeocean.io/out-of-time-windows", "kubeocean.io/vnode-deleting"
SENSELESS = [{"start": "25:00", "end": "half past"}]
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def window(start: datetime, end: datetime) -> list[dict[str, str]]:
    return [{"start": f"{start:%H:%M}", "end": f"{end:%H:%M}"}]


def closed() -> list[dict[str, str]]:
    """A window that is not open now, nor soon."""
    start = datetime.now(UTC) + 6 * HOUR
    return window(start, start + 5 * MINUTE)


def effects(node: Node, key: str = OUT) -> list[str]:
    return [taint.effect for taint in node.spec.taints or () if taint.key == key]


async def one(sea: Sea) -> Node:
    return (await until(sea.vnodes))[0]


async def is_tainted(sea: Sea, *wanted: str) -> bool:
    return effects(await one(sea)) == list(wanted)


async def reclaiming(sea: Sea, policy: str) -> str:
    """What the policy says of taking back, in one word."""
    condition = find_condition((await sea.status(policy)).conditions, RECLAIMING)
    return condition.reason if condition is not None else ""


async def protect(sea: Sea, namespace: str, *apps: str) -> str:
    """A budget that lets none of these go, once somebody has counted them; its UID."""
    chosen = [{"key": "app", "operator": "In", "values": list(apps)}]
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": len(apps), "selector": {"matchExpressions": chosen}},
    }
    made = await sea.above.create(BUDGETS, budget, namespace=namespace)

    async def counted() -> bool:
        found = await sea.above.get(BUDGETS, "keep", namespace, keep_raw=True)
        return found.content().get("status", {}).get("currentHealthy") == len(apps)

    await until(counted)
    return made.uid


async def test_a_closed_window_taints_and_evicts_only_by_force(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        vnode = await one(sea)
        assert effects(vnode) == []
        pod = await sea.guest(namespace, "p", vnode.name)
        await sea.patch_policy(policy, timeWindows=closed())
        await until(lambda: is_tainted(sea, "NoSchedule"))
        assert not await sea.is_gone(pod)
        status = await sea.status(policy)
        assert (status.phase, status.active_time_window) == ("Inactive", False)

        async def held() -> bool:
            assert await reclaiming(sea, policy) == "NotForced"
            reclaim = (await sea.status(policy)).reclaim
            assert reclaim is not None
            assert [(p.name, p.reason) for p in reclaim.pods or ()] == [("p", "NotForced")]
            assert [(n.name, n.phase) for n in reclaim.nodes or ()] == [(vnode.name, "Held")]
            return True

        await until(held)
        await sea.patch_policy(policy, forceReclaim=True)
        await until(lambda: sea.is_gone(pod))
        await sea.patch_policy(policy, timeWindows=None)
        await until(lambda: is_tainted(sea))


async def test_windows_close_and_open_on_time_and_pods_leave_by_the_rules(
    sea: Sea, namespace: str
) -> None:
    await sea.bind()
    a, b = (sea.selector(**sea.label, role=role) for role in ("a", "b"))
    rules = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 2}
    rules |= {"forceReclaimDeadlineSeconds": 4}
    closing = await sea.lend(f"{sea.name}-closing", nodeSelector=a, **rules)
    opening = await sea.lend(f"{sea.name}-opening", nodeSelector=b, timeWindows=closed())
    for role in ("a", "b"):
        await sea.add_node(role, labels={"role": role})
    clock, faults = SetClock(), Faults()
    async with sea.syncing(clock=clock, above=faults.wrap):

        async def before() -> list[Node]:
            nodes = await sea.vnodes()
            return nodes if [effects(node) for node in nodes] == [[], ["NoSchedule"]] else []

        vnode = (await until(before))[0]
        tolerations = [{"operator": "Exists"}]
        staying = await sea.guest(namespace, "staying", vnode.name, tolerations=tolerations)
        free = await sea.guest(namespace, "free", vnode.name)
        kept = await sea.guest(namespace, "kept", vnode.name)
        await protect(sea, namespace, "kept")

        edge = clock.bring_edge(2.0)
        await sea.patch_policy(closing, timeWindows=window(edge - HOUR, edge - MINUTE))
        await sea.patch_policy(opening, timeWindows=window(edge, edge + HOUR))
        assert await before()
        assert clock.now() < edge

        async def after() -> float:
            turned = [effects(node) for node in await sea.vnodes()] == [["NoSchedule"], []]
            return (clock.now() - edge).total_seconds() if turned else 0.0

        assert 0.0 < await until(after, every=0.02) < 1.0

        await until(lambda: sea.is_gone(free))
        assert clock.now() >= edge + timedelta(seconds=2)
        assert not await sea.is_gone(kept)

        async def blocked() -> bool:
            return await reclaiming(sea, closing) == "BlockedByBudget"

        await until(blocked)
        await until(lambda: sea.is_gone(kept))
        assert clock.now() >= edge + timedelta(seconds=6)
        await until(lambda: is_tainted(sea, "NoExecute"))
        assert not await sea.is_gone(staying)
        await _was_told(sea, closing, opening)
        # By us, and not by Kubernetes because of the taint, which would be nobody's doing.
        sent = faults.requests
        deleted = next(n for n, r in enumerate(sent) if r.method == "DELETE" and "/kept" in r.path)
        tainted = next(n for n, r in enumerate(sent) if b"NoExecute" in (r.body or b""))
        assert deleted < tainted


async def _was_told(sea: Sea, closing: str, opening: str) -> None:
    async def told() -> bool:
        assert await reclaiming(sea, closing) == "Reclaimed"
        reclaim = (await sea.status(closing)).reclaim
        assert reclaim is not None
        assert (reclaim.cause, reclaim.evicted, reclaim.pending) == ("WindowClosed", 2, 0)
        evicted = [(each.name, each.reason) for each in reclaim.last_evictions or ()]
        assert evicted == [("kept", "Deadline"), ("free", "Due")]
        assert [(pod.name, pod.reason) for pod in reclaim.pods or ()] == [("staying", "Tolerates")]
        steps = {"WindowClosed", "ReclaimStarted", "ReclaimBlocked", "Reclaimed"}
        assert await sea.events(closing) == steps
        assert await sea.events(opening) == {"WindowOpened"}
        return True

    await until(told)


async def test_what_is_lent_again_is_not_evicted_from(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend(forceReclaim=True)
    await sea.add_node("n")
    faults = Faults()
    async with sea.syncing(above=faults.wrap):
        vnode = await one(sea)
        pods = [await sea.guest(namespace, name, vnode.name) for name in ("p", "q")]
        budget = await protect(sea, namespace, "p", "q")
        await sea.patch_policy(policy, timeWindows=closed())

        async def blocked() -> bool:
            return await reclaiming(sea, policy) == "BlockedByBudget"

        await until(blocked)
        reclaim = (await sea.status(policy)).reclaim
        assert reclaim is not None
        assert (reclaim.blocked, reclaim.pending, reclaim.evicted) == (2, 2, 0)
        assert {(pod.reason, pod.until) for pod in reclaim.pods or ()} == {
            ("Budget", reclaim.deadline_time)
        }

        await sea.patch_policy(policy, timeWindows=None)
        await until(lambda: is_tainted(sea))
        tried = len(faults.requests)
        await sea.above.delete(BUDGETS, "keep", namespace, uid=budget)

        async def stopped() -> bool:
            return "ReclaimStopped" in await sea.events(policy)

        await until(stopped)
        assert await reclaiming(sea, policy) == "LendingAgain"
        await asyncio.sleep(4.0)  # longer than the next try would have been away
        assert not [r for r in faults.requests[tried:] if r.path.endswith("/eviction")]
        assert not any([await sea.is_gone(pod) for pod in pods])


async def test_force_that_is_switched_on_later_leaves_the_whole_grace(
    sea: Sea, namespace: str
) -> None:
    await sea.bind()
    policy = await sea.lend(gracefulReclaimPeriodSeconds=3, timeWindows=closed())
    await sea.add_node("n")
    async with sea.syncing():
        await until(lambda: is_tainted(sea, "NoSchedule"))
        pod = await sea.guest(namespace, "p", (await one(sea)).name)
        since = (await one(sea)).spec.taints or ()
        (added,) = [taint.time_added for taint in since if taint.key == OUT]
        assert added is not None
        long_ago = datetime.fromisoformat(added) + timedelta(seconds=3.5)
        await until(lambda: datetime.now(UTC) >= long_ago)
        assert not await sea.is_gone(pod)
        switched = time.monotonic()
        await sea.patch_policy(policy, forceReclaim=True)
        await until(lambda: sea.is_gone(pod))
        assert time.monotonic() - switched >= 3.0


@pytest.fixture
async def careless_sea(sea: Sea, new_cluster: NewCluster) -> AsyncIterator[Sea]:
    """A worker whose definition of policies lets everything pass, as the earlier one did."""
    worker = await new_cluster(name="careless")
    below = worker.client()
    await install_our_kinds(below)
    definition = policy_definition()
    patch = ApplyPatch(_unchecked(definition), force=True)
    await below.patch(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"], patch)
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": RESOURCE_LEASING_POLICIES.kind,
        "metadata": {"name": "senseless"},
        "spec": {"cluster": "none", "timeWindows": SENSELESS},
    }

    async def taken() -> bool:
        try:
            await below.create(RESOURCE_LEASING_POLICIES, body, dry_run=True)
        except (Invalid, ServiceUnavailable):
            return False  # it takes the server a moment to use another definition
        return True

    await until(taken)
    yield Sea(sea.computing, worker, sea.above, below)
    await below.close()


async def test_a_window_that_makes_no_sense_evicts_nothing(
    careless_sea: Sea, namespace: str
) -> None:
    own = careless_sea
    await own.bind()
    policy = await own.lend(forceReclaim=True)
    await own.add_node("n")
    async with own.syncing():
        vnode = await one(own)
        pod = await own.guest(namespace, "p", vnode.name)
        await own.patch_policy(policy, timeWindows=SENSELESS)
        await _stays(own, policy, vnode, seconds=1.5)
        assert not await own.is_gone(pod)
    async with own.syncing() as syncer:  # one that does not remember what was said before
        await until(lambda: syncer.ready)
        await _stays(own, policy, vnode, seconds=1.5)
        assert not await own.is_gone(pod)


def _unchecked(schema: Any) -> Any:
    """A definition as the earlier implementation had it: everything of the right type is taken."""
    if isinstance(schema, dict):
        dropped = ("x-kubernetes-validations", "pattern", "minLength", "minimum", "maximum")
        return {key: _unchecked(each) for key, each in schema.items() if key not in dropped}
    return [_unchecked(each) for each in schema] if isinstance(schema, list) else schema


async def _stays(sea: Sea, policy: str, vnode: Node, *, seconds: float) -> None:
    """It is said what is wrong, and nothing becomes of the node for a while."""

    async def said() -> bool:
        return "Invalid" in await sea.events(policy)

    await until(said)
    await asyncio.sleep(seconds)  # the passing of time is what is tested
    now = await one(sea)
    assert (now.uid, effects(now), effects(now, DELETING)) == (vnode.uid, [], [])
    assert (await sea.status(policy)).phase == "Failed"


async def test_a_removed_policy_takes_its_nodes_back_by_its_own_rules(
    sea: Sea, namespace: str
) -> None:
    await sea.bind()
    policy = await sea.lend()  # not by force: who is there may stay until he leaves
    await sea.add_node("n")
    async with sea.syncing():
        vnode = await one(sea)
        pod = await sea.guest(namespace, "p", vnode.name)
        found = await until(lambda: held(sea, policy))
        await sea.below.delete(RESOURCE_LEASING_POLICIES, policy, uid=found)

        async def noticed() -> bool:
            node = await one(sea)
            assert effects(node, DELETING) == ["NoSchedule"]
            reclaim = (await sea.status(policy)).reclaim
            assert reclaim is not None
            assert (reclaim.cause, reclaim.pending) == ("PolicyRemoved", 1)
            return True

        await until(noticed)
        assert not await sea.is_gone(pod)
        await sea.above.delete(PODS, "p", namespace, uid=pod.uid, grace_s=0)

        async def all_gone() -> bool:
            if await sea.vnodes():
                return False
            try:
                await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
            except NotFound:
                return True
            return False

        await until(all_gone)
        node = await sea.below.get(NODES, f"{sea.name}-n")
        assert "kubeocean.io/policy-applied" not in node.labels

        async def told() -> bool:
            return {"ReclaimStarted", "Reclaimed"} <= await sea.events(policy)

        await until(told)


async def held(sea: Sea, policy: str) -> str:
    """The UID of a policy that has our finalizer."""
    found = await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
    return found.uid if "policy.kubeocean.io/finalizer" in (found.metadata.finalizers or ()) else ""
