"""Windows that open and close, and pods that have to leave, on two real control planes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.runtime.kinds import NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
OUT = "kubeocean.io/out-of-time-windows"


def closed() -> list[dict[str, str]]:
    """A window that is not open now, nor soon."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return [{"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=5):%H:%M}"}]


async def guest(sea: Sea, namespace: str, name: str, node: str, **spec: object) -> Pod:
    """A pod that was scheduled to a virtual node."""
    body = {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "none"}],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }
    await sea.above.create(PODS, body, namespace=namespace)
    ready = {"type": "Ready", "status": "True"}  # a budget does not protect what does not run
    status = MergePatch({"status": {"phase": "Running", "conditions": [ready]}})
    return await sea.above.patch(PODS, name, status, namespace, subresource="status")


async def gone(sea: Sea, pod: Pod) -> bool:
    try:
        found = await sea.above.get(PODS, pod.name, pod.namespace)
    except NotFound:
        return True
    return found.uid != pod.uid or found.deleting


def effects(node: Node, key: str = OUT) -> list[str]:
    return [taint.effect for taint in node.spec.taints or () if taint.key == key]


async def one(sea: Sea) -> Node:
    return (await until(sea.vnodes))[0]


async def test_a_closed_window_taints_and_evicts_only_by_force(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        vnode = await one(sea)
        assert effects(vnode) == []
        pod = await guest(sea, namespace, "p", vnode.name)
        await sea.patch_policy(policy, timeWindows=closed())

        async def tainted() -> bool:
            return effects(await one(sea)) == ["NoSchedule"]

        await until(tainted)
        assert not await gone(sea, pod)
        status = (await sea.below.get(RESOURCE_LEASING_POLICIES, policy)).status
        assert (status.phase, status.active_time_window) == ("Inactive", False)

        await sea.patch_policy(policy, forceReclaim=True)
        await until(lambda: gone(sea, pod))
        await sea.patch_policy(policy, timeWindows=None)

        async def lent() -> bool:
            return effects(await one(sea)) == []

        await until(lent)


async def test_pods_have_their_grace_and_tolerating_ones_stay(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend(forceReclaim=True, gracefulReclaimPeriodSeconds=3)
    await sea.add_node("n")
    async with sea.syncing():
        vnode = await one(sea)
        leaving = await guest(sea, namespace, "leaving", vnode.name)
        tolerations = [{"operator": "Exists"}]
        staying = await guest(sea, namespace, "staying", vnode.name, tolerations=tolerations)
        await sea.patch_policy(policy, timeWindows=closed())

        async def tainted() -> bool:
            return effects(await one(sea)) == ["NoSchedule"]

        await until(tainted)
        given = datetime.now(UTC)
        assert not await gone(sea, leaving)
        await until(lambda: gone(sea, leaving))
        assert datetime.now(UTC) - given >= timedelta(seconds=1.5)
        assert not await gone(sea, staying)


async def test_a_budget_holds_back_until_the_deadline(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend(forceReclaim=True, forceReclaimDeadlineSeconds=4)
    await sea.add_node("n")
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    await sea.above.create(BUDGETS, budget, namespace=namespace)
    async with sea.syncing():
        vnode = await one(sea)
        kept = await guest(sea, namespace, "kept", vnode.name)
        free = await guest(sea, namespace, "free", vnode.name)

        async def counted() -> bool:
            found = await sea.above.get(BUDGETS, "keep", namespace, keep_raw=True)
            return found.content().get("status", {}).get("currentHealthy") == 1

        await until(counted)
        await sea.patch_policy(policy, timeWindows=closed())
        await until(lambda: gone(sea, free))
        assert not await gone(sea, kept)
        await until(lambda: gone(sea, kept), within=20)


async def test_a_removed_policy_takes_its_nodes_back_by_its_own_rules(
    sea: Sea, namespace: str
) -> None:
    await sea.bind()
    policy = await sea.lend()  # not by force: who is there may stay until he leaves
    await sea.add_node("n")
    async with sea.syncing():
        vnode = await one(sea)
        pod = await guest(sea, namespace, "p", vnode.name)
        found = await until(lambda: held(sea, policy))
        await sea.below.delete(RESOURCE_LEASING_POLICIES, policy, uid=found)

        async def noticed() -> bool:
            node = await one(sea)
            return effects(node, "kubeocean.io/vnode-deleting") == ["NoSchedule"]

        await until(noticed)
        assert not await gone(sea, pod)
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


async def held(sea: Sea, policy: str) -> str:
    """The UID of a policy that has our finalizer."""
    found = await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
    return found.uid if "policy.kubeocean.io/finalizer" in (found.metadata.finalizers or ()) else ""
