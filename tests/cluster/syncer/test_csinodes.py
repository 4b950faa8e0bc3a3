"""Virtual CSINodes on two real control planes."""

from __future__ import annotations

import pytest

from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.controller import Done, Stuck
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.nodes.csinodes import CSI_NODES, CsiNode, CsiNodes
from support.controller_env import ControllerEnv, quiet
from support.faults import Faults, watches
from support.wait import until

MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
EBS: Json = {
    "name": "ebs.csi.aws.com",
    "nodeID": "i-1",
    "topologyKeys": ["topology.ebs.csi.aws.com/zone"],
    "allocatable": {"count": 25},
}
NFS: Json = {"name": "nfs.csi.k8s.io", "nodeID": "n1", "topologyKeys": None}


async def register(controller_env: ControllerEnv, pnode: str, *drivers: Json) -> CsiNode:
    """Create a CSINode in the worker."""
    body = {
        "metadata": {
            "name": pnode,
            "labels": {"zone": "z"},
            "annotations": {MIGRATED: "kubernetes.io/aws-ebs"},
        },
        "spec": {"drivers": list(drivers)},
    }
    return await controller_env.worker_api.create(CSI_NODES, body)


async def reregister(controller_env: ControllerEnv, pnode: str, *drivers: Json) -> None:
    """Replace drivers as kubelets do: a changed driver is removed before it is added again."""
    for listed in ([], list(drivers)):
        patch = MergePatch({"spec": {"drivers": listed}})
        await controller_env.worker_api.patch(CSI_NODES, pnode, patch)


async def read_copy(controller_env: ControllerEnv, pnode: str) -> CsiNode | None:
    return await controller_env.seen(CSI_NODES, controller_env.vnode(pnode))


async def has_drivers(controller_env: ControllerEnv, pnode: str, *drivers: Json) -> bool:
    copy = await read_copy(controller_env, pnode)
    assert copy is not None
    assert copy.spec["drivers"] == list(drivers)
    return True


async def gone(controller_env: ControllerEnv, pnode: str) -> bool:
    return await read_copy(controller_env, pnode) is None


def writes(faults: Faults) -> list[str]:
    return [f"{r.method} {r.path}" for r in faults.requests if r.writes]


async def test_a_virtual_node_has_the_drivers_of_its_physical_node(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    source = await register(controller_env, pnode, EBS, NFS)
    await register(controller_env, f"{controller_env.name}-not-lent", NFS)
    faults = Faults()
    async with controller_env.syncing(CsiNodes, computing_api=faults):
        vnode = await controller_env.lend(pnode)
        await until(lambda: has_drivers(controller_env, pnode, EBS, NFS))
        copy = await read_copy(controller_env, pnode)
        assert copy is not None
        assert copy.labels == {
            "zone": "z",
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": controller_env.name,
            "kubeocean.io/physical-cluster-id": controller_env.cluster_id,
            "kubeocean.io/physical-node-name": pnode,
        }
        assert copy.annotations[MIGRATED] == "kubernetes.io/aws-ebs"
        assert copy.annotations["kubeocean.io/physical-node-name"] == pnode
        assert copy.annotations["kubeocean.io/physical-csinode-uid"] == source.uid
        assert [owner.uid for owner in copy.metadata.owner_references or ()] == [vnode.uid]
        await quiet(faults)
    assert writes(faults) == [f"POST {CSI_NODES.path()}"]


async def test_a_second_run_writes_nothing(controller_env: ControllerEnv) -> None:
    pnodes = [f"{controller_env.name}-{n}" for n in range(3)]
    for pnode in pnodes:
        await register(controller_env, pnode, EBS)
        await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        for pnode in pnodes:
            await until(lambda pnode=pnode: has_drivers(controller_env, pnode, EBS))
    faults = Faults()
    async with controller_env.syncing(
        CsiNodes, computing_api=faults, worker_api=faults
    ) as csinodes:
        await until(lambda: csinodes.copies.has_synced and csinodes.sources.has_synced)
        await quiet(faults)
        for pnode in pnodes:
            assert await csinodes.reconcile(Key("", pnode)) == Done()
    assert not writes(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_a_worker_without_drivers_costs_nothing_but_the_watches(
    controller_env: ControllerEnv,
) -> None:
    faults = Faults()
    async with controller_env.syncing(CsiNodes, computing_api=faults, worker_api=faults):
        for n in range(3):
            await controller_env.lend(f"{controller_env.name}-{n}")
        await quiet(faults)
    assert all(watches(request) for request in faults.requests)


async def test_a_copy_is_written_when_its_source_changes_and_not_periodically(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    await controller_env.lend(pnode)
    faults = Faults()
    async with controller_env.syncing(CsiNodes, computing_api=faults):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        patch = MergePatch({"spec": {"drivers": [EBS, NFS]}})
        await controller_env.worker_api.patch(CSI_NODES, pnode, patch)
        await until(lambda: has_drivers(controller_env, pnode, EBS, NFS))
        before = faults.writes
        vnode = await controller_env.computing_api.get(NODES, controller_env.vnode(pnode))
        patch = MergePatch({"metadata": {"annotations": {"heart": "beat"}}})
        await controller_env.computing_api.patch(NODES, vnode.name, patch)
        await quiet(faults)
        assert faults.writes == before


@pytest.mark.parametrize(
    "change", [{"nodeID": "i-2"}, {"allocatable": {"count": 3}}], ids=["identity", "allocatable"]
)
async def test_a_driver_that_is_registered_again_with_other_fields_is_replaced(
    controller_env: ControllerEnv, change: Json
) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS, NFS)
    await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS, NFS))
        uid = (await controller_env.computing_api.get(CSI_NODES, controller_env.vnode(pnode))).uid
    # Both steps of the kubelet while no syncer runs: they are seen as one.
    await reregister(controller_env, pnode, EBS | change, NFS)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS | change, NFS))
    assert (
        await controller_env.computing_api.get(CSI_NODES, controller_env.vnode(pnode))
    ).uid == uid


async def test_metadata_that_users_add_to_a_copy_stays(controller_env: ControllerEnv) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        ours = {"mine": "yes", "zone": "moved", "kubeocean.io/physical-node-name": None}
        patch = MergePatch({"metadata": {"labels": ours}})
        await controller_env.computing_api.patch(CSI_NODES, controller_env.vnode(pnode), patch)

        async def mended() -> bool:
            copy = await read_copy(controller_env, pnode)
            assert copy is not None
            assert copy.labels["mine"] == "yes"
            assert copy.labels["zone"] == "z"
            return copy.labels.get("kubeocean.io/physical-node-name") == pnode

        await until(mended)


async def test_a_copy_is_deleted_with_its_virtual_node(controller_env: ControllerEnv) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    vnode = await controller_env.lend(pnode, finalizer=True)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        await controller_env.take_back(vnode)
        await until(lambda: controller_env.computing_api.get(NODES, vnode.name))
        assert await has_drivers(controller_env, pnode, EBS)  # while the node is only leaving
        patch = MergePatch({"metadata": {"finalizers": []}})
        await controller_env.computing_api.patch(NODES, vnode.name, patch)
        await until(lambda: gone(controller_env, pnode))


async def test_a_copy_is_garbage_collected_with_its_virtual_node_without_a_syncer(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    vnode = await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
    await controller_env.take_back(vnode)
    await until(lambda: gone(controller_env, pnode), within=150)


async def test_a_copy_is_deleted_with_its_source(controller_env: ControllerEnv) -> None:
    pnode = f"{controller_env.name}-n"
    source = await register(controller_env, pnode, EBS)
    await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        await controller_env.worker_api.delete(CSI_NODES, pnode, uid=source.uid)
        await until(lambda: gone(controller_env, pnode))
        await register(controller_env, pnode, NFS)
        await until(lambda: has_drivers(controller_env, pnode, NFS))


async def test_nothing_is_decided_while_the_worker_does_not_answer(
    controller_env: ControllerEnv,
) -> None:
    kept, lost = f"{controller_env.name}-kept", f"{controller_env.name}-lost"
    source = await register(controller_env, kept, EBS)
    await register(controller_env, lost, EBS)
    await controller_env.lend(kept)
    vnode = await controller_env.lend(lost)
    worker_faults, computing_faults = Faults(), Faults()
    async with controller_env.syncing(
        CsiNodes, computing_api=computing_faults, worker_api=worker_faults
    ) as csinodes:
        for pnode in (kept, lost):
            await until(lambda pnode=pnode: has_drivers(controller_env, pnode, EBS))
        worker_faults.partition()
        await until(lambda: not csinodes.clusters.worker_health.answers)
        await controller_env.worker_api.delete(CSI_NODES, kept, uid=source.uid)
        await controller_env.take_back(vnode)
        await until(lambda: gone(controller_env, lost))
        assert await has_drivers(controller_env, kept, EBS)
        await quiet(computing_faults)
        worker_faults.rejoin()
        await until(lambda: gone(controller_env, kept))


async def test_a_foreign_csinode_is_left_alone(controller_env: ControllerEnv) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    name = controller_env.vnode(pnode)
    foreign = await controller_env.computing_api.create(
        CSI_NODES,
        {"metadata": {"name": name, "labels": {"owner": "others"}}, "spec": {"drivers": [NFS]}},
    )
    vnode = await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes) as csinodes:
        (event,) = await until(lambda: controller_env.events_about(name, "NameTaken"))
        assert event.involved_object.uid == vnode.uid
        assert isinstance(await csinodes.reconcile(Key("", pnode)), Stuck)
        await controller_env.take_back(vnode)
        await until(lambda: csinodes.clusters.vnodes.get(Key("", name)) is None)
        assert await csinodes.reconcile(Key("", pnode)) == Done()
    untouched = await controller_env.computing_api.get(CSI_NODES, name)
    assert untouched.resource_version == foreign.resource_version
    await controller_env.computing_api.delete(CSI_NODES, name, uid=foreign.uid)


async def test_a_copy_is_created_when_the_foreign_csinode_is_deleted(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    name = controller_env.vnode(pnode)
    body = {"metadata": {"name": name}, "spec": {"drivers": []}}
    foreign = await controller_env.computing_api.create(CSI_NODES, body)
    await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):
        await until(lambda: controller_env.events_about(name, "NameTaken"))
        await controller_env.computing_api.delete(CSI_NODES, name, uid=foreign.uid)
        await until(lambda: has_drivers(controller_env, pnode, EBS))


async def test_another_binding_keeps_its_copy(controller_env: ControllerEnv) -> None:
    """Two bindings of one worker have one node each, and one node is deleted."""
    other, pnode = controller_env.neighbour(), f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    vnode = await controller_env.lend(pnode)
    await other.lend(pnode)
    async with controller_env.syncing(CsiNodes), other.syncing(CsiNodes):
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        await until(lambda: has_drivers(other, pnode, EBS))
        version = (await other.computing_api.get(CSI_NODES, other.vnode(pnode))).resource_version
        await controller_env.take_back(vnode)
        await until(lambda: gone(controller_env, pnode))
        copy = await other.computing_api.get(CSI_NODES, other.vnode(pnode))
        assert copy.resource_version == version


async def test_a_copy_of_the_earlier_implementation_is_adopted(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    source = await register(controller_env, pnode, EBS)
    name = controller_env.vnode(pnode)
    legacy = await controller_env.computing_api.create(
        CSI_NODES,
        {
            "metadata": {
                "name": name,
                "labels": {
                    "zone": "z",
                    "kubeocean.io/managed-by": "kubeocean",
                    "kubeocean.io/cluster-binding": controller_env.name,
                    "kubeocean.io/physical-cluster-id": controller_env.cluster_id,
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
    vnode = await controller_env.lend(pnode)
    async with controller_env.syncing(CsiNodes):

        async def owned() -> bool:
            copy = await read_copy(controller_env, pnode)
            assert copy is not None
            assert copy.uid == legacy.uid
            return [owner.uid for owner in copy.metadata.owner_references or ()] == [vnode.uid]

        await until(owned)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 5))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, n: int
) -> None:
    stays, goes = f"{controller_env.name}-stays", f"{controller_env.name}-goes"
    await register(controller_env, stays, EBS)
    await register(controller_env, goes, EBS)
    await controller_env.lend(stays)
    vnode = await controller_env.lend(goes)
    async with controller_env.crashing(CsiNodes, n) as crash:
        for pnode in (stays, goes):
            await crash.or_until(lambda pnode=pnode: has_drivers(controller_env, pnode, EBS))
        await controller_env.worker_api.patch(
            CSI_NODES, stays, MergePatch({"spec": {"drivers": [EBS, NFS]}})
        )
        await crash.or_until(lambda: has_drivers(controller_env, stays, EBS, NFS))
        await controller_env.take_back(vnode)
        await crash.or_until(
            lambda: gone(controller_env, goes)
        )  # the garbage collector may be first
    faults = Faults()
    async with controller_env.syncing(CsiNodes, computing_api=faults):
        await until(lambda: has_drivers(controller_env, stays, EBS, NFS))
        await until(lambda: gone(controller_env, goes))
        await quiet(faults)


async def test_lagging_and_repeating_watches_cause_no_more_writes(
    controller_env: ControllerEnv,
) -> None:
    pnode = f"{controller_env.name}-n"
    await register(controller_env, pnode, EBS)
    computing_faults, worker_faults = Faults(), Faults()
    for faults in (computing_faults, worker_faults):
        faults.lag(0.3)
        faults.repeat(1)
    async with controller_env.syncing(
        CsiNodes, computing_api=computing_faults, worker_api=worker_faults
    ):
        await controller_env.lend(pnode)
        await until(lambda: has_drivers(controller_env, pnode, EBS))
        await controller_env.worker_api.patch(
            CSI_NODES, pnode, MergePatch({"spec": {"drivers": [NFS]}})
        )
        await until(lambda: has_drivers(controller_env, pnode, NFS))
        computing_faults.rewind(20)
        worker_faults.rewind(20)
        await quiet(computing_faults)
    assert len(writes(computing_faults)) == 2
