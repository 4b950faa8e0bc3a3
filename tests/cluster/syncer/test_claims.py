"""Copies of claims, volumes and their Secrets.

Where binding matters one cluster, which has all its controllers, is both sides at once: virtual
claims are in the namespaces of tests, their copies in the mount namespace.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from typing import Final

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.naming import physical_name
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import EVENTS, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.syncer.pods.views import VirtualPod
from kubeocean.syncer.replication.missing import Missing
from support.controller_env import ControllerEnv, quiet
from support.faults import Faults
from support.pod_copies_driver import (
    MOUNT,
    PodCopiesDriver,
    bind_pod,
    crashing,
    delete_pod,
    make_namespace,
    read_in_worker,
)
from support.wait import until

PVCS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped)
PVS: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, Untyped)
CALLS = ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")


@pytest.fixture
async def controller_env(cluster: Cluster, client: Client) -> AsyncIterator[ControllerEnv]:
    """A cluster that is both the computing and the worker cluster."""
    await make_namespace(client, MOUNT)
    yield ControllerEnv(cluster, cluster, client, client)


class Store:
    """A virtual claim, its volume and the Secrets of its driver."""

    def __init__(
        self, controller_env: ControllerEnv, home: str, name: str = "data", cls: str = "none"
    ) -> None:
        self.controller_env = controller_env
        self.home = home
        self.claim = name
        self.volume = f"{home}-{name}"
        self.cls = cls
        self.secret = f"{name}-driver"
        self.copy = physical_name(name, home)
        self.volume_copy = physical_name(self.volume)
        self.secret_copy = physical_name(self.secret, home)

    async def make(self, *, secrets: bool = False, bound: bool = True, **spec: object) -> Store:
        csi: Json = {}
        if secrets:
            await self.make_secret()
            ref = {"name": self.secret, "namespace": self.home}
            csi |= {f"{call}SecretRef": ref for call in CALLS}
        claim = {
            "metadata": {"name": self.claim, "annotations": {"mine": "kept"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": self.cls,
            },
        }
        await self.controller_env.computing_api.create(PVCS, claim, namespace=self.home)
        if bound:
            await self.make_volume(csi, **spec)
            await until(self.is_bound)
        return self

    async def make_volume(self, csi: Json | None = None, **spec: object) -> None:
        """Create a volume that has the UID of its claim: the binder acts at once."""
        claim = await until(lambda: self.controller_env.seen(PVCS, self.claim, self.home))
        assert claim is not None
        source = {"driver": "fake.example.com", "volumeHandle": self.volume} | (csi or {})
        body = {
            "metadata": {"name": self.volume},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.cls,
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": source,
                "claimRef": {"namespace": self.home, "name": self.claim, "uid": claim.uid},
                **spec,
            },
        }
        await self.controller_env.computing_api.create(PVS, body)

    async def make_secret(self) -> None:
        data = {"key": base64.b64encode(b"canary").decode()}
        body = {"metadata": {"name": self.secret}, "data": data}
        await self.controller_env.computing_api.create(SECRETS, body, namespace=self.home)

    async def is_bound(self) -> bool:
        claim = await self.controller_env.computing_api.get(
            PVCS, self.claim, self.home, keep_raw=True
        )
        return phase(claim) == "Bound"

    async def bind(self, name: str = "p") -> VirtualPod:
        """Create a pod that uses the claim."""
        volume = {"persistentVolumeClaim": {"claimName": self.claim}}
        return await bind_pod(self.controller_env, self.home, name, volume)

    async def claim_copy(self) -> Untyped | None:
        return await read_in_worker(self.controller_env, PVCS, self.copy)

    async def read_volume_copy(self) -> Untyped | None:
        return await read_in_worker(self.controller_env, PVS, self.volume_copy, "")

    async def kubelet_writes(self, **status: object) -> None:
        """Write the status of the copy of the claim."""
        await self.controller_env.worker_api.patch(
            PVCS, self.copy, MergePatch({"status": status}), MOUNT, subresource="status"
        )

    async def status_with(self, condition: str = "") -> Json:
        """Return the status of the claim, once it has a condition."""
        claim = await self.controller_env.computing_api.get(
            PVCS, self.claim, self.home, keep_raw=True
        )
        status: Json = claim.content()["status"]
        types = [each["type"] for each in status.get("conditions") or ()]
        assert not condition or condition in types, status
        return status

    async def copies_are_bound(self) -> bool:
        claim, volume = await self.claim_copy(), await self.read_volume_copy()
        assert claim is not None
        assert volume is not None
        return phase(claim) == phase(volume) == "Bound"

    async def copies_are_gone(self) -> bool:
        secret = await read_in_worker(self.controller_env, SECRETS, self.secret_copy)
        return await self.claim_copy() is await self.read_volume_copy() is secret is None

    async def unmarked(self) -> bool:
        client = self.controller_env.computing_api
        sources: list[Object] = [
            await client.get(PVCS, self.claim, self.home),
            await client.get(PVS, self.volume),
        ]
        if (secret := await self.controller_env.seen(SECRETS, self.secret, self.home)) is not None:
            sources.append(secret)
        keys = [key for each in sources for key in (*each.labels, *each.annotations)]
        return not any("kubeocean.io" in key for key in keys)


def phase(obj: Untyped) -> str:
    return str((obj.content().get("status") or {}).get("phase"))


async def test_a_claim_is_replicated_and_bound_with_its_volume_and_secrets(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make(secrets=True)
    faults = Faults()
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=faults, worker_api=faults
    ) as driver:
        pod = await store.bind()
        await until(store.copies_are_bound)
        await quiet(faults)
        names = driver.answers[pod.key]
    assert not isinstance(names, Missing)
    assert names.claims == {"data": store.copy}
    claim, volume = await store.claim_copy(), await store.read_volume_copy()
    assert claim is not None
    assert volume is not None
    assert claim.content()["spec"]["volumeName"] == store.volume_copy
    assert claim.annotations["mine"] == "kept"
    spec = volume.content()["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["csi"]["volumeHandle"] == store.volume
    ref = {"name": store.secret_copy, "namespace": MOUNT}
    on_nodes = {f"{call}SecretRef": ref for call in CALLS if call.startswith("node")}
    assert {key: value for key, value in spec["csi"].items() if key.endswith("Ref")} == on_nodes
    secret = await read_in_worker(controller_env, SECRETS, store.secret_copy)
    assert secret is not None
    assert secret.labels["kubeocean.io/used-by-pv"] == "true"
    marked = await controller_env.computing_api.get(SECRETS, store.secret, home)
    assert marked.labels["kubeocean.io/used-by-pv"] == "true"


async def test_the_copy_of_a_claim_is_deleted_with_the_last_pod_and_the_data_stays(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make(secrets=True)
    async with controller_env.syncing(PodCopiesDriver):
        first, second = await store.bind("p1"), await store.bind("p2")
        await until(store.copies_are_bound)
        await until(lambda: read_in_worker(controller_env, PODS, f"p2-{home}"))
        await delete_pod(controller_env, first)
        await until(lambda: _no_pod(controller_env, f"p1-{home}"))
        assert await store.copies_are_bound()
        await delete_pod(controller_env, second)
        await until(store.copies_are_gone)
        await until(store.unmarked)
    assert await store.is_bound()


async def _no_pod(controller_env: ControllerEnv, name: str) -> bool:
    return await read_in_worker(controller_env, PODS, name) is None


async def test_an_unbound_claim_is_named_and_waited_for(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make(bound=False)
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await store.bind()
        missing = await until(lambda: driver.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert missing.message == (
            f"PersistentVolumeClaim {home}/data is not bound to a volume, it is Pending"
        )
        await store.make_volume()
        await until(store.copies_are_bound)


async def test_a_secret_that_a_volume_needs_is_named_and_waited_for(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make(secrets=True)
    secret = await controller_env.computing_api.get(SECRETS, store.secret, home)
    await controller_env.computing_api.delete(SECRETS, store.secret, home, uid=secret.uid)
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await store.bind()
        missing = await until(lambda: driver.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert (missing.kind, missing.key) == ("Secret", Key(home, store.secret))
        assert f"needed by PersistentVolume {store.volume}" in missing.message
        await store.make_secret()
        await until(store.copies_are_bound)


async def test_a_claim_of_the_worker_cannot_take_the_copy_of_a_volume(
    controller_env: ControllerEnv, home: str
) -> None:
    """The worker has a pending claim that the volume would satisfy."""
    store = await Store(controller_env, home, cls="shared").make()
    foreign = {
        "metadata": {"name": f"foreign-{home}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "shared",
        },
    }
    waiting = await controller_env.worker_api.create(PVCS, foreign, namespace=MOUNT)
    async with controller_env.syncing(PodCopiesDriver):
        await store.bind()
        await until(store.copies_are_bound)
    pending = await controller_env.worker_api.get(PVCS, waiting.name, MOUNT, keep_raw=True)
    assert phase(pending) == "Pending"
    await controller_env.worker_api.delete(PVCS, waiting.name, MOUNT, uid=waiting.uid)


async def test_the_copy_of_a_claim_that_others_delete_is_created_and_bound_again(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make()
    async with controller_env.syncing(PodCopiesDriver):
        await store.bind()
        await until(store.copies_are_bound)
        claim = await store.claim_copy()
        assert claim is not None
        await controller_env.worker_api.delete(PVCS, store.copy, MOUNT, uid=claim.uid)

        async def another() -> bool:
            copy = await store.claim_copy()
            return copy is not None and copy.uid != claim.uid and await store.copies_are_bound()

        await until(another)


async def test_the_copy_of_a_claim_grows_where_the_worker_permits(
    controller_env: ControllerEnv, home: str
) -> None:
    name = f"grows-{controller_env.name}"
    body = {
        "metadata": {"name": name},
        "provisioner": "fake.example.com",
        "allowVolumeExpansion": True,
    }
    await controller_env.computing_api.create(CLASSES, body)
    store = await Store(controller_env, home, cls=name).make()
    faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=faults, worker_api=faults):
        await store.bind()
        await until(store.copies_are_bound)
        await grow(store)

        async def grown() -> bool:
            claim, volume = await store.claim_copy(), await store.read_volume_copy()
            assert claim is not None
            assert volume is not None
            requested = claim.content()["spec"]["resources"]["requests"]["storage"]
            return requested == volume.content()["spec"]["capacity"]["storage"] == "2Gi"

        await until(grown)

        # The resizer of the computing cluster has enlarged the volume, and waits for a kubelet.
        waiting = {"type": "FileSystemResizePending", "status": "True"}
        await controller_env.computing_api.patch(
            PVCS,
            store.claim,
            MergePatch(
                {
                    "status": {
                        "conditions": [waiting],
                        "allocatedResources": {"storage": "2Gi"},
                        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                    }
                }
            ),
            home,
            subresource="status",
        )
        # A kubelet of the worker cannot enlarge the file system at first, then does.
        pending = {"type": "FileSystemResizePending", "status": "True", "message": "on the node"}
        error = {"type": "NodeResizeError", "status": "True", "message": "resize2fs failed"}
        failing = {
            "conditions": [pending, error],
            "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
        }
        await store.kubelet_writes(**failing)
        status = await until(lambda: store.status_with("NodeResizeError"))
        messages = {each["type"]: each["message"] for each in status["conditions"]}
        assert messages == {
            "FileSystemResizePending": "on the node",
            "NodeResizeError": "resize2fs failed",
        }
        assert status["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
        assert status["capacity"] == {"storage": "1Gi"}
        await quiet(faults)
        await store.kubelet_writes(
            capacity={"storage": "2Gi"}, conditions=None, allocatedResourceStatuses=None
        )

        async def ended() -> bool:
            claim = await controller_env.computing_api.get(PVCS, store.claim, home, keep_raw=True)
            return bool(claim.content()["status"]["capacity"] == {"storage": "2Gi"})

        await until(ended)
        status = await store.status_with()
        assert "conditions" not in status
        assert "allocatedResourceStatuses" not in status
        await quiet(faults)


async def test_the_phases_of_copies_are_shown_on_the_volume_and_the_claim(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make()
    key = DEFAULT.phase_in(controller_env.cluster_id)
    faults = Faults()

    async def phases(phase: str) -> bool:
        client = controller_env.computing_api
        claim = await client.get(PVCS, store.claim, home)
        volume = await client.get(PVS, store.volume)
        return claim.annotations.get(key) == volume.annotations.get(key) == phase

    async with controller_env.syncing(PodCopiesDriver, computing_api=faults):
        pod = await store.bind()
        await until(store.copies_are_bound)
        await until(lambda: phases("Bound"))
        await quiet(faults)

        # The storage of the copies is lost in the worker.
        copy = await until(store.read_volume_copy)
        await controller_env.worker_api.delete(PVS, store.volume_copy, uid=copy.uid)
        patch = MergePatch({"metadata": {"finalizers": None}})
        await controller_env.worker_api.patch(PVS, store.volume_copy, patch)

        async def reported() -> bool:
            fields = f"involvedObject.name={store.claim},reason=CopyNotBound"
            events = await controller_env.computing_api.list(EVENTS, home, fields=fields)
            return any("of the worker is Lost, not Bound" in each.message for each in events.items)

        await until(reported)
        assert await store.is_bound(), "the computing cluster's own phase is not changed"
        await delete_pod(controller_env, pod)
        await until(store.unmarked, within=60)


async def grow(store: Store) -> None:
    client = store.controller_env.computing_api
    request = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await client.patch(PVCS, store.claim, MergePatch(request), store.home)
    capacity = {"spec": {"capacity": {"storage": "2Gi"}}}
    await client.patch(PVS, store.volume, MergePatch(capacity))


async def test_growth_that_the_worker_refuses_is_reported_by_an_event(
    bare: ControllerEnv, home: str
) -> None:
    name = f"grows-{bare.name}"
    body = {
        "metadata": {"name": name},
        "provisioner": "fake.example.com",
        "allowVolumeExpansion": True,
    }
    await bare.computing_api.create(CLASSES, body)  # in the computing cluster alone
    store = await Store(bare, home, cls=name).make()
    async with bare.syncing(PodCopiesDriver) as driver:
        pod = await store.bind()
        await until(store.claim_copy)
        await grow(store)

        async def reported() -> bool:
            fields = f"involvedObject.name={store.claim},reason=CopyRefused"
            return bool((await bare.computing_api.list(EVENTS, home, fields=fields)).items)

        await until(reported)
        assert not isinstance(driver.answers[pod.key], Missing)
        again = await store.bind("q")  # the copy that exists can be used
        names = await until(lambda: driver.answers.get(again.key))
        assert not isinstance(names, Missing)
    await clear(store)


async def clear(store: Store) -> None:
    """Remove the finalizers of claims and volumes, and delete them."""
    for resource, name, namespace in (
        (PVCS, store.copy, MOUNT),
        (PVS, store.volume_copy, ""),
    ):
        copy = await read_in_worker(store.controller_env, resource, name, namespace)
        if copy is not None:
            patch = MergePatch({"metadata": {"finalizers": None}})
            await store.controller_env.worker_api.patch(resource, name, patch, namespace)
            await store.controller_env.worker_api.delete(resource, name, namespace, uid=copy.uid)


async def test_a_local_volume_of_a_virtual_node_names_the_physical_node(
    bare: ControllerEnv, home: str
) -> None:
    pnode = f"{bare.name}-n"
    vnode = await bare.lend(pnode)

    def on(name: str) -> Json:
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
        return {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}

    store = await Store(bare, home).make(nodeAffinity=on(vnode.name))
    async with bare.syncing(PodCopiesDriver):
        await store.bind()
        volume = await until(store.read_volume_copy)
        assert volume is not None
        assert volume.content()["spec"]["nodeAffinity"] == on(pnode)
    await clear(store)


async def test_foreign_claims_and_volumes_with_the_names_of_copies_are_left_alone(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make()
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/theirs"},
        "storageClassName": "theirs",
    }
    body = {"metadata": {"name": store.volume_copy}, "spec": spec}
    volume = await controller_env.worker_api.create(PVS, body)
    claim = await controller_env.worker_api.create(
        PVCS,
        {
            "metadata": {"name": store.copy},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "9Gi"}},
                "storageClassName": "none",
            },
        },
        namespace=MOUNT,
    )
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await store.bind()
        names = await until(lambda: driver.answers.get(pod.key))
        assert not isinstance(names, Missing)
        assert names.claims["data"] != store.copy
        store.copy = names.claims["data"]

        async def bound() -> bool:
            copy = await store.claim_copy()
            assert copy is not None
            return phase(copy) == "Bound"

        await until(bound)
        await delete_pod(controller_env, pod)
        await until(store.unmarked)
    assert (await controller_env.worker_api.get(PVCS, claim.name, MOUNT)).uid == claim.uid
    theirs = await controller_env.worker_api.get(PVS, volume.name, keep_raw=True)
    assert theirs.labels == {}
    assert "claimRef" not in theirs.content()["spec"]
    await controller_env.worker_api.delete(PVCS, claim.name, MOUNT, uid=claim.uid)
    await controller_env.worker_api.delete(PVS, volume.name, uid=volume.uid)


async def test_claims_and_volumes_of_the_earlier_implementation_are_adopted(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make()
    marks = {
        "labels": {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{controller_env.cluster_id}": "true",
        },
        "finalizers": [f"kubeocean.io/finalizer-{controller_env.cluster_id}"],
    }
    for resource, name, namespace in ((PVCS, store.claim, home), (PVS, store.volume, "")):
        source = await controller_env.computing_api.get(resource, name, namespace)
        kept = [*(source.metadata.finalizers or ()), *marks["finalizers"]]
        patch = MergePatch({"metadata": marks | {"finalizers": kept}})
        await controller_env.computing_api.patch(resource, name, patch, namespace)
    labels = {"kubeocean.io/managed-by": "kubeocean"}
    annotations = {"kubeocean.io/virtual-name": store.volume}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": "fake.example.com", "volumeHandle": store.volume},
    }
    metadata: Json = {"name": store.volume_copy, "labels": labels, "annotations": annotations}
    volume = await controller_env.worker_api.create(PVS, {"metadata": metadata, "spec": spec})
    annotations = {
        "kubeocean.io/virtual-name": store.claim,
        "kubeocean.io/virtual-namespace": home,
        "pv.kubernetes.io/bind-completed": "yes",
    }
    body = {
        "metadata": {"name": store.copy, "labels": labels, "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": store.volume_copy,
        },
    }
    claim = await controller_env.worker_api.create(PVCS, body, namespace=MOUNT)

    async def bound() -> bool:
        nudge = MergePatch({"metadata": {"annotations": {"now": str(time.monotonic())}}})
        await controller_env.worker_api.patch(PVCS, store.copy, nudge, MOUNT)
        return await store.copies_are_bound()

    await until(bound, every=0.5)
    async with controller_env.syncing(PodCopiesDriver):
        pod = await store.bind()

        async def ours() -> bool:
            for copy in (await store.claim_copy(), await store.read_volume_copy()):
                assert copy is not None
                assert copy.labels.get("kubeocean.io/cluster-binding") == controller_env.name
                assert copy.uid in (claim.uid, volume.uid)
            return await store.copies_are_bound()

        await until(ours)
        await until(lambda: read_in_worker(controller_env, PODS, f"p-{home}"))
        await delete_pod(controller_env, pod)
        await until(store.copies_are_gone)
        await until(store.unmarked)
    source = await controller_env.computing_api.get(PVCS, store.claim, home)
    assert source.metadata.finalizers == ("kubernetes.io/pvc-protection",)


async def test_the_claim_of_an_ephemeral_volume_is_replicated(
    controller_env: ControllerEnv, home: str
) -> None:
    store = Store(controller_env, home, "p-v0")
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "none",
    }
    async with controller_env.syncing(PodCopiesDriver):
        volume = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        await bind_pod(controller_env, home, "p", volume)
        await store.make_volume()
        await until(store.copies_are_bound)


async def test_a_claim_with_the_name_of_an_ephemeral_one_that_the_pod_does_not_own_is_refused(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home, "p-v0").make()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    async with controller_env.syncing(PodCopiesDriver) as driver:
        volume = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        pod = await bind_pod(controller_env, home, "p", volume)
        await until(store.claim_copy)
        sources = driver.pod_copies.replicators["PersistentVolumeClaim"].sources
        await until(lambda: sources.get(Key(home, "p-v0")))
        driver.controller.enqueue(pod.key)
        await until(lambda: isinstance(driver.answers.get(pod.key), Missing))
        missing = driver.answers[pod.key]
        assert isinstance(missing, Missing)
        assert "was not created for pod" in missing.message


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 14))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, home: str, n: int
) -> None:
    store = await Store(controller_env, home).make(secrets=True)
    pod = await store.bind()
    async with crashing(controller_env, n) as crash:
        await crash.or_until(store.copies_are_bound)
        await crash.or_until(lambda: read_in_worker(controller_env, PODS, f"p-{home}"))
        if n > 7:
            await delete_pod(controller_env, pod)
            await crash.or_until(store.copies_are_gone)
            await crash.or_until(store.unmarked)
    async with controller_env.syncing(PodCopiesDriver):
        if n > 7:
            await until(store.copies_are_gone)
            await until(store.unmarked)
            return
        await until(store.copies_are_bound)
        await until(lambda: read_in_worker(controller_env, PODS, f"p-{home}"))


async def test_draining_deletes_all_copies_and_marks(
    controller_env: ControllerEnv, home: str
) -> None:
    store = await Store(controller_env, home).make(secrets=True)
    async with controller_env.syncing(PodCopiesDriver) as driver:
        await store.bind()
        await until(store.copies_are_bound)
        await until(lambda: driver.pod_copies.remaining() == 6)
        driver.pod_copies.drain()
        await until(lambda: driver.pod_copies.remaining() == 0)
        assert await store.copies_are_gone()
        assert await store.unmarked()
    assert await store.is_bound()
