"""Leased nodes on two real control planes."""

from __future__ import annotations

from kubeocean.runtime.kinds import LEASES, NODES
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until


async def test_each_lent_node_has_its_virtual_node(sea: Sea) -> None:
    await sea.bind()
    policy = await sea.lend(resourceLimits=[{"resource": "cpu", "percent": 50}])
    for n in range(3):
        await sea.add_node(f"n{n}")
    async with sea.syncing():

        async def three() -> bool:
            return len(await sea.vnodes()) == 3

        await until(three)
        vnode = (await sea.vnodes())[0]
        pnode = await sea.below.get(NODES, f"{sea.name}-n0")
        assert vnode.name == f"vnode-{sea.cluster_id}-{sea.name}-n0"
        assert vnode.labels["kubeocean.io/managed-by"] == "kubeocean"
        assert vnode.labels["kubeocean.io/physical-node-uid"] == pnode.uid
        assert vnode.labels["kubeocean.io/policy-applied"] == policy
        assert vnode.labels["test"] == sea.name
        assert vnode.annotations["kubeocean.io/policies-applied"] == policy
        assert "kubeocean.io/vnode" in [t.key for t in vnode.spec.taints or ()]
        assert vnode.status.allocatable == {"cpu": "4", "memory": "32Gi", "pods": "110"}
        content = vnode.content()
        assert content["metadata"]["finalizers"] == ["kubeocean.io/vnode"]
        assert content["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == int(
            vnode.labels["kubeocean.io/proxier_port"]
        )

        async def leased() -> bool:
            fields = f"metadata.name={vnode.name}"
            found = await sea.above.list(LEASES, "kube-node-lease", fields=fields)
            return [lease.spec.holder_identity for lease in found.items] == [vnode.name]

        await until(leased)

        async def marked() -> bool:
            node = await sea.below.get(NODES, f"{sea.name}-n0")
            return node.labels.get("kubeocean.io/policy-applied") == policy

        await until(marked)


async def test_user_labels_and_taints_stay(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    pnode = await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        taints = [*vnode.content()["spec"]["taints"], taint]
        body = {"metadata": {"labels": {"mine": "yes"}}, "spec": {"taints": taints}}
        await sea.above.patch(NODES, vnode.name, MergePatch(body))
        body = {"metadata": {"labels": {"zone": "z1", "test": sea.name}}}
        await sea.below.patch(NODES, pnode.name, MergePatch(body))

        async def followed() -> bool:
            node = (await sea.vnodes())[0]
            keys = [t.key for t in node.spec.taints or ()]
            return (
                node.labels.get("zone") == "z1"
                and node.labels.get("mine") == "yes"
                and "team" in keys
            )

        await until(followed)
        body = {"metadata": {"labels": {"zone": None}}}
        await sea.below.patch(NODES, pnode.name, MergePatch(body))

        async def gone() -> bool:
            node = (await sea.vnodes())[0]
            return "zone" not in node.labels and node.labels.get("mine") == "yes"

        await until(gone)


async def test_a_node_that_goes_takes_its_virtual_node_along(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    pnode = await sea.add_node("n")
    async with sea.syncing():
        await until(sea.vnodes)
        await sea.below.delete(NODES, pnode.name, uid=pnode.uid)

        async def none() -> bool:
            return not await sea.vnodes()

        await until(none)


async def test_a_virtual_node_deleted_by_hand_comes_back(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        first = (await until(sea.vnodes))[0]
        await sea.above.delete(NODES, first.name, uid=first.uid)

        async def again() -> bool:
            nodes = await sea.vnodes()
            return bool(nodes) and nodes[0].uid != first.uid and not nodes[0].deleting

        await until(again)
