"""Leased nodes on two real control planes."""

from __future__ import annotations

from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.runtime.kinds import LEASES, NODES
from kubeocean.runtime.objects import Json
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


async def test_what_went_while_nobody_looked_is_taken_back(sea: Sea) -> None:
    await sea.bind()
    lost = await sea.lend(f"{sea.name}-lost", nodeSelector=sea.selector(**sea.label, role="lost"))
    kept = await sea.lend(f"{sea.name}-kept", nodeSelector=sea.selector(**sea.label, role="kept"))
    for name, role in (("a", "kept"), ("b", "kept"), ("c", "kept"), ("d", "lost")):
        await sea.add_node(name, labels={"role": role})
    async with sea.syncing():

        async def marked() -> bool:
            nodes = [await sea.below.get(NODES, f"{sea.name}-{name}") for name in "abcd"]
            applied = [node.labels.get("kubeocean.io/policy-applied") for node in nodes]
            return applied == [kept, kept, kept, lost] and len(await sea.vnodes()) == 4

        await until(marked)
    first = (await sea.vnodes())[0]
    # A node leaves, another is not selected any more, a policy goes and nobody could hold it.
    gone = await sea.below.get(NODES, f"{sea.name}-b")
    await sea.below.delete(NODES, gone.name, uid=gone.uid)
    unchosen = MergePatch({"metadata": {"labels": {"role": "other"}}})
    await sea.below.patch(NODES, f"{sea.name}-c", unchosen)
    policy = await sea.below.patch(
        RESOURCE_LEASING_POLICIES, lost, MergePatch({"metadata": {"finalizers": None}})
    )
    await sea.below.delete(RESOURCE_LEASING_POLICIES, lost, uid=policy.uid)
    await _stray(sea, first.content())
    async with sea.syncing():

        async def only_one() -> bool:
            names = [node.name for node in await sea.vnodes()]
            assert names == [first.name]
            for name in "cd":
                node = await sea.below.get(NODES, f"{sea.name}-{name}")
                assert "kubeocean.io/policy-applied" not in node.labels
            return True

        await until(only_one)
        assert (await sea.vnodes())[0].uid == first.uid


async def _stray(sea: Sea, like: Json) -> None:
    """A virtual node of an earlier binding of the same name, which had another clusterID."""
    metadata = like["metadata"]
    labels = metadata["labels"] | {"kubeocean.io/physical-cluster-id": "another"}
    given = {key: metadata[key] for key in ("annotations", "finalizers")}
    name = f"vnode-another-{sea.name}"
    await sea.above.create(NODES, {"metadata": {"name": name, "labels": labels, **given}})


async def test_a_virtual_node_that_forgot_whose_it_is_is_mended(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    name = "kubeocean.io/physical-node-name"
    async with sea.syncing():
        first = (await until(sea.vnodes))[0]
        forgotten = {"metadata": {"labels": {name: None}, "annotations": {name: None}}}
        await sea.above.patch(NODES, first.name, MergePatch(forgotten))

        async def mended() -> bool:
            (node,) = await sea.vnodes()
            assert node.uid == first.uid
            return node.labels.get(name) == node.annotations.get(name) == f"{sea.name}-n"

        await until(mended)
