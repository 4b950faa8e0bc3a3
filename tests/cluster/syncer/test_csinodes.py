"""Virtual CSINodes on two real control planes."""

from __future__ import annotations

import pytest

from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import Done, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.csinodes import CsiNodes
from kubeocean.syncer.forge.csinodes import CSI_NODES, CsiNode
from straits import Strait, quiet
from waiting import until

MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
EBS: Json = {
    "name": "ebs.csi.aws.com",
    "nodeID": "i-1",
    "topologyKeys": ["topology.ebs.csi.aws.com/zone"],
    "allocatable": {"count": 25},
}
NFS: Json = {"name": "nfs.csi.k8s.io", "nodeID": "n1", "topologyKeys": None}


async def register(strait: Strait, pnode: str, *drivers: Json) -> CsiNode:
    """A CSINode of the worker."""
    body = {
        "metadata": {
            "name": pnode,
            "labels": {"zone": "z"},
            "annotations": {MIGRATED: "kubernetes.io/aws-ebs"},
        },
        "spec": {"drivers": list(drivers)},
    }
    return await strait.below.create(CSI_NODES, body)


async def reregister(strait: Strait, pnode: str, *drivers: Json) -> None:
    """As kubelets do: one that changed goes before it comes back."""
    for listed in ([], list(drivers)):
        patch = MergePatch({"spec": {"drivers": listed}})
        await strait.below.patch(CSI_NODES, pnode, patch)


async def copy(strait: Strait, pnode: str) -> CsiNode | None:
    return await strait.seen(CSI_NODES, strait.vnode(pnode))


async def shows(strait: Strait, pnode: str, *drivers: Json) -> bool:
    there = await copy(strait, pnode)
    assert there is not None
    assert there.spec["drivers"] == list(drivers)
    return True


async def gone(strait: Strait, pnode: str) -> bool:
    return await copy(strait, pnode) is None


def writes(faults: Faults) -> list[str]:
    return [f"{r.method} {r.path}" for r in faults.requests if r.writes]


async def test_a_virtual_node_shows_its_drivers(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    source = await register(strait, pnode, EBS, NFS)
    await register(strait, f"{strait.name}-not-lent", NFS)
    faults = Faults()
    async with strait.syncing(CsiNodes, above=faults):
        vnode = await strait.lend(pnode)
        await until(lambda: shows(strait, pnode, EBS, NFS))
        there = await copy(strait, pnode)
        assert there is not None
        assert there.labels == {
            "zone": "z",
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": strait.name,
            "kubeocean.io/physical-cluster-id": strait.cluster_id,
            "kubeocean.io/physical-node-name": pnode,
        }
        assert there.annotations[MIGRATED] == "kubernetes.io/aws-ebs"
        assert there.annotations["kubeocean.io/physical-node-name"] == pnode
        assert there.annotations["kubeocean.io/physical-csinode-uid"] == source.uid
        assert [owner.uid for owner in there.metadata.owner_references or ()] == [vnode.uid]
        await quiet(faults)
    assert writes(faults) == [f"POST {CSI_NODES.path()}"]


async def test_a_second_run_writes_nothing(strait: Strait) -> None:
    pnodes = [f"{strait.name}-{n}" for n in range(3)]
    for pnode in pnodes:
        await register(strait, pnode, EBS)
        await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        for pnode in pnodes:
            await until(lambda pnode=pnode: shows(strait, pnode, EBS))
    faults = Faults()
    async with strait.syncing(CsiNodes, above=faults, below=faults) as csinodes:
        await until(lambda: csinodes.copies.has_synced and csinodes.sources.has_synced)
        await quiet(faults)
        for pnode in pnodes:
            assert await csinodes.reconcile(Key("", pnode)) == Done()
    assert not writes(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_a_worker_without_drivers_costs_nothing_but_the_watches(strait: Strait) -> None:
    faults = Faults()
    async with strait.syncing(CsiNodes, above=faults, below=faults):
        for n in range(3):
            await strait.lend(f"{strait.name}-{n}")
        await quiet(faults)
    assert all(watches(request) for request in faults.requests)


async def test_it_follows_the_worker_and_not_the_clock(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    await strait.lend(pnode)
    faults = Faults()
    async with strait.syncing(CsiNodes, above=faults):
        await until(lambda: shows(strait, pnode, EBS))
        patch = MergePatch({"spec": {"drivers": [EBS, NFS]}})
        await strait.below.patch(CSI_NODES, pnode, patch)
        await until(lambda: shows(strait, pnode, EBS, NFS))
        before = faults.writes
        vnode = await strait.above.get(NODES, strait.vnode(pnode))
        patch = MergePatch({"metadata": {"annotations": {"heart": "beat"}}})
        await strait.above.patch(NODES, vnode.name, patch)
        await quiet(faults)
        assert faults.writes == before


@pytest.mark.parametrize(
    "change", [{"nodeID": "i-2"}, {"allocatable": {"count": 3}}], ids=["identity", "allocatable"]
)
async def test_a_driver_that_comes_back_different_is_shown_so(strait: Strait, change: Json) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS, NFS)
    await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS, NFS))
        uid = (await strait.above.get(CSI_NODES, strait.vnode(pnode))).uid
    # Both steps of the kubelet while nobody looks: they are seen as one.
    await reregister(strait, pnode, EBS | change, NFS)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS | change, NFS))
    assert (await strait.above.get(CSI_NODES, strait.vnode(pnode))).uid == uid


async def test_what_users_add_stays(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS))
        ours = {"mine": "yes", "zone": "moved", "kubeocean.io/physical-node-name": None}
        patch = MergePatch({"metadata": {"labels": ours}})
        await strait.above.patch(CSI_NODES, strait.vnode(pnode), patch)

        async def mended() -> bool:
            there = await copy(strait, pnode)
            assert there is not None
            assert there.labels["mine"] == "yes"
            assert there.labels["zone"] == "z"
            return there.labels.get("kubeocean.io/physical-node-name") == pnode

        await until(mended)


async def test_it_goes_with_the_virtual_node(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    vnode = await strait.lend(pnode, finalizer=True)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS))
        await strait.take_back(vnode)
        await until(lambda: strait.above.get(NODES, vnode.name))
        assert await shows(strait, pnode, EBS)  # while the node is only leaving
        patch = MergePatch({"metadata": {"finalizers": []}})
        await strait.above.patch(NODES, vnode.name, patch)
        await until(lambda: gone(strait, pnode))


async def test_it_goes_with_the_virtual_node_even_if_we_are_gone(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    vnode = await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS))
    await strait.take_back(vnode)
    await until(lambda: gone(strait, pnode), within=150)


async def test_it_goes_with_the_workers_csinode(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    source = await register(strait, pnode, EBS)
    await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS))
        await strait.below.delete(CSI_NODES, pnode, uid=source.uid)
        await until(lambda: gone(strait, pnode))
        await register(strait, pnode, NFS)
        await until(lambda: shows(strait, pnode, NFS))


async def test_nothing_is_decided_while_the_worker_does_not_answer(strait: Strait) -> None:
    kept, lost = f"{strait.name}-kept", f"{strait.name}-lost"
    source = await register(strait, kept, EBS)
    await register(strait, lost, EBS)
    await strait.lend(kept)
    vnode = await strait.lend(lost)
    below, above = Faults(), Faults()
    async with strait.syncing(CsiNodes, above=above, below=below) as csinodes:
        for pnode in (kept, lost):
            await until(lambda pnode=pnode: shows(strait, pnode, EBS))
        below.partition()
        await until(lambda: not csinodes.world.reach.answers)
        await strait.below.delete(CSI_NODES, kept, uid=source.uid)
        await strait.take_back(vnode)
        await until(lambda: gone(strait, lost))
        assert await shows(strait, kept, EBS)
        await quiet(above)
        below.rejoin()
        await until(lambda: gone(strait, kept))


async def test_a_foreign_csinode_is_left_alone(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    name = strait.vnode(pnode)
    foreign = await strait.above.create(
        CSI_NODES,
        {"metadata": {"name": name, "labels": {"whose": "theirs"}}, "spec": {"drivers": [NFS]}},
    )
    vnode = await strait.lend(pnode)
    async with strait.syncing(CsiNodes) as csinodes:
        (event,) = await until(lambda: strait.told(name, "NameTaken"))
        assert event.involved_object.uid == vnode.uid
        assert isinstance(await csinodes.reconcile(Key("", pnode)), Stuck)
        await strait.take_back(vnode)
        await until(lambda: csinodes.world.vnodes.get(Key("", name)) is None)
        assert await csinodes.reconcile(Key("", pnode)) == Done()
    there = await strait.above.get(CSI_NODES, name)
    assert there.resource_version == foreign.resource_version
    await strait.above.delete(CSI_NODES, name, uid=foreign.uid)


async def test_when_the_foreign_one_goes_ours_comes(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    name = strait.vnode(pnode)
    body = {"metadata": {"name": name}, "spec": {"drivers": []}}
    foreign = await strait.above.create(CSI_NODES, body)
    await strait.lend(pnode)
    async with strait.syncing(CsiNodes):
        await until(lambda: strait.told(name, "NameTaken"))
        await strait.above.delete(CSI_NODES, name, uid=foreign.uid)
        await until(lambda: shows(strait, pnode, EBS))


async def test_a_neighbour_keeps_its_own(strait: Strait) -> None:
    """Two bindings to one worker: one node each, and one of them goes."""
    other, pnode = strait.neighbour(), f"{strait.name}-n"
    await register(strait, pnode, EBS)
    vnode = await strait.lend(pnode)
    await other.lend(pnode)
    async with strait.syncing(CsiNodes), other.syncing(CsiNodes):
        await until(lambda: shows(strait, pnode, EBS))
        await until(lambda: shows(other, pnode, EBS))
        version = (await other.above.get(CSI_NODES, other.vnode(pnode))).resource_version
        await strait.take_back(vnode)
        await until(lambda: gone(strait, pnode))
        there = await other.above.get(CSI_NODES, other.vnode(pnode))
        assert there.resource_version == version


async def test_a_copy_of_the_earlier_implementation_is_taken_over(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    source = await register(strait, pnode, EBS)
    name = strait.vnode(pnode)
    made = await strait.above.create(
        CSI_NODES,
        {
            "metadata": {
                "name": name,
                "labels": {
                    "zone": "z",
                    "kubeocean.io/managed-by": "kubeocean",
                    "kubeocean.io/cluster-binding": strait.name,
                    "kubeocean.io/physical-cluster-id": strait.cluster_id,
                    "kubeocean.io/physical-node-name": pnode,
                },
                "annotations": {
                    "kubeocean.io/last-sync-time": "2026-01-01T00:00:00+08:00",
                    "kubeocean.io/physical-node-name": pnode,
                    "kubeocean.io/physical-csinode-uid": source.uid,
                },
            },
            "spec": {"drivers": [EBS]},
        },
    )
    vnode = await strait.lend(pnode)
    async with strait.syncing(CsiNodes):

        async def owned() -> bool:
            there = await copy(strait, pnode)
            assert there is not None
            assert there.uid == made.uid
            return [owner.uid for owner in there.metadata.owner_references or ()] == [vnode.uid]

        await until(owned)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 5))
async def test_a_crash_after_the_nth_write_changes_nothing(strait: Strait, n: int) -> None:
    stays, goes = f"{strait.name}-stays", f"{strait.name}-goes"
    await register(strait, stays, EBS)
    await register(strait, goes, EBS)
    await strait.lend(stays)
    vnode = await strait.lend(goes)
    async with strait.crashing(CsiNodes, n) as crash:
        for pnode in (stays, goes):
            await crash.or_until(lambda pnode=pnode: shows(strait, pnode, EBS))
        await strait.below.patch(CSI_NODES, stays, MergePatch({"spec": {"drivers": [EBS, NFS]}}))
        await crash.or_until(lambda: shows(strait, stays, EBS, NFS))
        await strait.take_back(vnode)
        await crash.or_until(lambda: gone(strait, goes))  # the garbage collector may be first
    faults = Faults()
    async with strait.syncing(CsiNodes, above=faults):
        await until(lambda: shows(strait, stays, EBS, NFS))
        await until(lambda: gone(strait, goes))
        await quiet(faults)


async def test_lagging_and_repeating_watches_change_nothing(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    await register(strait, pnode, EBS)
    above, below = Faults(), Faults()
    for faults in (above, below):
        faults.lag(0.3)
        faults.repeat(1)
    async with strait.syncing(CsiNodes, above=above, below=below):
        await strait.lend(pnode)
        await until(lambda: shows(strait, pnode, EBS))
        await strait.below.patch(CSI_NODES, pnode, MergePatch({"spec": {"drivers": [NFS]}}))
        await until(lambda: shows(strait, pnode, NFS))
        above.rewind(20)
        below.rewind(20)
        await quiet(above)
    assert len(writes(above)) == 2
