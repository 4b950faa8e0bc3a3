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

from kubeocean.api.naming import physical_name
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import EVENTS, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.podviews import VirtualPod
from kubeocean.syncer.topdown.missing import Missing
from porters import MOUNT, Porter, bind_pod, crashing, make_namespace, seen_below, unbind
from straits import Strait, quiet
from waiting import until

PVCS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped)
PVS: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, Untyped)
CALLS = ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")


@pytest.fixture
async def strait(cluster: Cluster, client: Client) -> AsyncIterator[Strait]:
    """One cluster that is both sides."""
    await make_namespace(client, MOUNT)
    yield Strait(cluster, cluster, client, client)


class Store:
    """A claim, its volume and the Secrets of its driver, above."""

    def __init__(self, strait: Strait, home: str, name: str = "data", cls: str = "none") -> None:
        self.strait = strait
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
        await self.strait.above.create(PVCS, claim, namespace=self.home)
        if bound:
            await self.make_volume(csi, **spec)
            await until(self.is_bound)
        return self

    async def make_volume(self, csi: Json | None = None, **spec: object) -> None:
        """A volume that knows its claim by its UID: the binder acts at once."""
        claim = await until(lambda: self.strait.seen(PVCS, self.claim, self.home))
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
        await self.strait.above.create(PVS, body)

    async def make_secret(self) -> None:
        data = {"key": base64.b64encode(b"canary").decode()}
        body = {"metadata": {"name": self.secret}, "data": data}
        await self.strait.above.create(SECRETS, body, namespace=self.home)

    async def is_bound(self) -> bool:
        claim = await self.strait.above.get(PVCS, self.claim, self.home, keep_raw=True)
        return phase(claim) == "Bound"

    async def bind(self, name: str = "p") -> VirtualPod:
        """A pod that uses it."""
        volume = {"persistentVolumeClaim": {"claimName": self.claim}}
        return await bind_pod(self.strait, self.home, name, volume)

    async def below(self) -> Untyped | None:
        return await seen_below(self.strait, PVCS, self.copy)

    async def volume_below(self) -> Untyped | None:
        return await seen_below(self.strait, PVS, self.volume_copy, "")

    async def bound_below(self) -> bool:
        claim, volume = await self.below(), await self.volume_below()
        assert claim is not None
        assert volume is not None
        return phase(claim) == phase(volume) == "Bound"

    async def gone_below(self) -> bool:
        secret = await seen_below(self.strait, SECRETS, self.secret_copy)
        return await self.below() is await self.volume_below() is secret is None

    async def unmarked(self) -> bool:
        above = self.strait.above
        found: list[Object] = [
            await above.get(PVCS, self.claim, self.home),
            await above.get(PVS, self.volume),
        ]
        if (secret := await self.strait.seen(SECRETS, self.secret, self.home)) is not None:
            found.append(secret)
        keys = [key for each in found for key in (*each.labels, *each.annotations)]
        return not any("kubeocean.io" in key for key in keys)


def phase(obj: Untyped) -> str:
    return str((obj.content().get("status") or {}).get("phase"))


async def test_a_claim_is_bound_below_with_all_that_its_volume_needs(
    strait: Strait, home: str
) -> None:
    store = await Store(strait, home).make(secrets=True)
    faults = Faults()
    async with strait.syncing(Porter, above=faults, below=faults) as porter:
        pod = await store.bind()
        await until(store.bound_below)
        await quiet(faults)
        names = porter.answers[pod.key]
    assert not isinstance(names, Missing)
    assert names.claims == {"data": store.copy}
    claim, volume = await store.below(), await store.volume_below()
    assert claim is not None
    assert volume is not None
    assert claim.content()["spec"]["volumeName"] == store.volume_copy
    assert claim.annotations["mine"] == "kept"
    spec = volume.content()["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["csi"]["volumeHandle"] == store.volume
    ref = {"name": store.secret_copy, "namespace": MOUNT}
    assert [spec["csi"][f"{call}SecretRef"] for call in CALLS] == [ref] * 5
    secret = await seen_below(strait, SECRETS, store.secret_copy)
    assert secret is not None
    assert secret.labels["kubeocean.io/used-by-pv"] == "true"
    marked = await strait.above.get(SECRETS, store.secret, home)
    assert marked.labels["kubeocean.io/used-by-pv"] == "true"


async def test_it_goes_with_the_last_pod_and_the_data_stays(strait: Strait, home: str) -> None:
    store = await Store(strait, home).make(secrets=True)
    async with strait.syncing(Porter):
        first, second = await store.bind("p1"), await store.bind("p2")
        await until(store.bound_below)
        await until(lambda: seen_below(strait, PODS, f"p2-{home}"))
        await unbind(strait, first)
        await until(lambda: _no_pod(strait, f"p1-{home}"))
        assert await store.bound_below()
        await unbind(strait, second)
        await until(store.gone_below)
        await until(store.unmarked)
    assert await store.is_bound()


async def _no_pod(strait: Strait, name: str) -> bool:
    return await seen_below(strait, PODS, name) is None


async def test_an_unbound_claim_is_named_and_waited_for(strait: Strait, home: str) -> None:
    store = await Store(strait, home).make(bound=False)
    async with strait.syncing(Porter) as porter:
        pod = await store.bind()
        missing = await until(lambda: porter.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert missing.message == (
            f"PersistentVolumeClaim {home}/data is not bound to a volume, it is Pending"
        )
        await store.make_volume()
        await until(store.bound_below)


async def test_a_secret_that_a_volume_needs_is_named_and_waited_for(
    strait: Strait, home: str
) -> None:
    store = await Store(strait, home).make(secrets=True)
    secret = await strait.above.get(SECRETS, store.secret, home)
    await strait.above.delete(SECRETS, store.secret, home, uid=secret.uid)
    async with strait.syncing(Porter) as porter:
        pod = await store.bind()
        missing = await until(lambda: porter.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert (missing.kind, missing.key) == ("Secret", Key(home, store.secret))
        assert f"needed by PersistentVolume {store.volume}" in missing.message
        await store.make_secret()
        await until(store.bound_below)


async def test_nobody_else_can_have_the_volume(strait: Strait, home: str) -> None:
    """A claim of the worker that waits for just such a volume."""
    store = await Store(strait, home, cls="shared").make()
    foreign = {
        "metadata": {"name": f"foreign-{home}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "shared",
        },
    }
    waiting = await strait.below.create(PVCS, foreign, namespace=MOUNT)
    async with strait.syncing(Porter):
        await store.bind()
        await until(store.bound_below)
    there = await strait.below.get(PVCS, waiting.name, MOUNT, keep_raw=True)
    assert phase(there) == "Pending"
    await strait.below.delete(PVCS, waiting.name, MOUNT, uid=waiting.uid)


async def test_a_claim_that_others_delete_below_is_bound_again(strait: Strait, home: str) -> None:
    store = await Store(strait, home).make()
    async with strait.syncing(Porter):
        await store.bind()
        await until(store.bound_below)
        claim = await store.below()
        assert claim is not None
        await strait.below.delete(PVCS, store.copy, MOUNT, uid=claim.uid)

        async def another() -> bool:
            there = await store.below()
            return there is not None and there.uid != claim.uid and await store.bound_below()

        await until(another)


async def test_growth_is_followed_where_the_worker_permits(strait: Strait, home: str) -> None:
    name = f"grows-{strait.name}"
    body = {
        "metadata": {"name": name},
        "provisioner": "fake.example.com",
        "allowVolumeExpansion": True,
    }
    await strait.above.create(CLASSES, body)
    store = await Store(strait, home, cls=name).make()
    async with strait.syncing(Porter):
        await store.bind()
        await until(store.bound_below)
        await grow(store)

        async def grown() -> bool:
            claim, volume = await store.below(), await store.volume_below()
            assert claim is not None
            assert volume is not None
            asked = claim.content()["spec"]["resources"]["requests"]["storage"]
            return asked == volume.content()["spec"]["capacity"]["storage"] == "2Gi"

        await until(grown)


async def grow(store: Store) -> None:
    above = store.strait.above
    request = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await above.patch(PVCS, store.claim, MergePatch(request), store.home)
    capacity = {"spec": {"capacity": {"storage": "2Gi"}}}
    await above.patch(PVS, store.volume, MergePatch(capacity))


async def test_growth_that_the_worker_refuses_is_told(bare: Strait, home: str) -> None:
    name = f"grows-{bare.name}"
    body = {
        "metadata": {"name": name},
        "provisioner": "fake.example.com",
        "allowVolumeExpansion": True,
    }
    await bare.above.create(CLASSES, body)  # above alone
    store = await Store(bare, home, cls=name).make()
    async with bare.syncing(Porter) as porter:
        pod = await store.bind()
        await until(store.below)
        await grow(store)

        async def told() -> bool:
            fields = f"involvedObject.name={store.claim},reason=CopyRefused"
            return bool((await bare.above.list(EVENTS, home, fields=fields)).items)

        await until(told)
        assert not isinstance(porter.answers[pod.key], Missing)
        again = await store.bind("q")  # what is there can be used
        names = await until(lambda: porter.answers.get(again.key))
        assert not isinstance(names, Missing)
    await clear(store)


async def clear(store: Store) -> None:
    """What only controllers would let go of."""
    for resource, name, namespace in (
        (PVCS, store.copy, MOUNT),
        (PVS, store.volume_copy, ""),
    ):
        there = await seen_below(store.strait, resource, name, namespace)
        if there is not None:
            patch = MergePatch({"metadata": {"finalizers": None}})
            await store.strait.below.patch(resource, name, patch, namespace)
            await store.strait.below.delete(resource, name, namespace, uid=there.uid)


async def test_a_volume_of_a_virtual_node_is_one_of_the_real_node(bare: Strait, home: str) -> None:
    pnode = f"{bare.name}-n"
    vnode = await bare.lend(pnode)

    def on(name: str) -> Json:
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
        return {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}

    store = await Store(bare, home).make(nodeAffinity=on(vnode.name))
    async with bare.syncing(Porter):
        await store.bind()
        volume = await until(store.volume_below)
        assert volume is not None
        assert volume.content()["spec"]["nodeAffinity"] == on(pnode)
    await clear(store)


async def test_foreign_ones_of_those_names_are_left_alone(strait: Strait, home: str) -> None:
    store = await Store(strait, home).make()
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/theirs"},
        "storageClassName": "theirs",
    }
    body = {"metadata": {"name": store.volume_copy}, "spec": spec}
    volume = await strait.below.create(PVS, body)
    claim = await strait.below.create(
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
    async with strait.syncing(Porter) as porter:
        pod = await store.bind()
        names = await until(lambda: porter.answers.get(pod.key))
        assert not isinstance(names, Missing)
        assert names.claims["data"] != store.copy
        store.copy = names.claims["data"]

        async def bound() -> bool:
            there = await store.below()
            assert there is not None
            return phase(there) == "Bound"

        await until(bound)
        await unbind(strait, pod)
        await until(store.unmarked)
    assert (await strait.below.get(PVCS, claim.name, MOUNT)).uid == claim.uid
    theirs = await strait.below.get(PVS, volume.name, keep_raw=True)
    assert theirs.labels == {}
    assert "claimRef" not in theirs.content()["spec"]
    await strait.below.delete(PVCS, claim.name, MOUNT, uid=claim.uid)
    await strait.below.delete(PVS, volume.name, uid=volume.uid)


async def test_those_of_the_earlier_implementation_are_taken_over(
    strait: Strait, home: str
) -> None:
    store = await Store(strait, home).make()
    marks = {
        "labels": {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{strait.cluster_id}": "true",
        },
        "finalizers": [f"kubeocean.io/finalizer-{strait.cluster_id}"],
    }
    for resource, name, namespace in ((PVCS, store.claim, home), (PVS, store.volume, "")):
        there = await strait.above.get(resource, name, namespace)
        kept = [*(there.metadata.finalizers or ()), *marks["finalizers"]]
        patch = MergePatch({"metadata": marks | {"finalizers": kept}})
        await strait.above.patch(resource, name, patch, namespace)
    labels = {"kubeocean.io/managed-by": "kubeocean"}
    said = {"kubeocean.io/virtual-name": store.volume}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": "fake.example.com", "volumeHandle": store.volume},
    }
    metadata: Json = {"name": store.volume_copy, "labels": labels, "annotations": said}
    volume = await strait.below.create(PVS, {"metadata": metadata, "spec": spec})
    said = {
        "kubeocean.io/virtual-name": store.claim,
        "kubeocean.io/virtual-namespace": home,
        "pv.kubernetes.io/bind-completed": "yes",
    }
    body = {
        "metadata": {"name": store.copy, "labels": labels, "annotations": said},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": store.volume_copy,
        },
    }
    claim = await strait.below.create(PVCS, body, namespace=MOUNT)

    async def bound() -> bool:
        nudge = MergePatch({"metadata": {"annotations": {"now": str(time.monotonic())}}})
        await strait.below.patch(PVCS, store.copy, nudge, MOUNT)
        return await store.bound_below()

    await until(bound, every=0.5)
    async with strait.syncing(Porter):
        pod = await store.bind()

        async def ours() -> bool:
            for there in (await store.below(), await store.volume_below()):
                assert there is not None
                assert there.labels.get("kubeocean.io/cluster-binding") == strait.name
                assert there.uid in (claim.uid, volume.uid)
            return await store.bound_below()

        await until(ours)
        await until(lambda: seen_below(strait, PODS, f"p-{home}"))
        await unbind(strait, pod)
        await until(store.gone_below)
        await until(store.unmarked)
    there = await strait.above.get(PVCS, store.claim, home)
    assert there.metadata.finalizers == ("kubernetes.io/pvc-protection",)


async def test_a_claim_that_is_made_for_a_pod_is_copied(strait: Strait, home: str) -> None:
    store = Store(strait, home, "p-v0")
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "none",
    }
    async with strait.syncing(Porter):
        volume = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        await bind_pod(strait, home, "p", volume)
        await store.make_volume()
        await until(store.bound_below)


async def test_a_claim_that_only_looks_so_is_not(strait: Strait, home: str) -> None:
    store = await Store(strait, home, "p-v0").make()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    async with strait.syncing(Porter) as porter:
        volume = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        pod = await bind_pod(strait, home, "p", volume)
        await until(store.below)
        await until(lambda: porter.dependents.claims.pairs.originals.get(Key(home, "p-v0")))
        porter.controller.enqueue(pod.key)
        await until(lambda: isinstance(porter.answers.get(pod.key), Missing))
        missing = porter.answers[pod.key]
        assert isinstance(missing, Missing)
        assert "was not made for pod" in missing.message


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 14))
async def test_a_crash_after_the_nth_write_changes_nothing(
    strait: Strait, home: str, n: int
) -> None:
    store = await Store(strait, home).make(secrets=True)
    pod = await store.bind()
    async with crashing(strait, n) as crash:
        await crash.or_until(store.bound_below)
        await crash.or_until(lambda: seen_below(strait, PODS, f"p-{home}"))
        if n > 7:
            await unbind(strait, pod)
            await crash.or_until(store.gone_below)
            await crash.or_until(store.unmarked)
    async with strait.syncing(Porter):
        if n > 7:
            await until(store.gone_below)
            await until(store.unmarked)
            return
        await until(store.bound_below)
        await until(lambda: seen_below(strait, PODS, f"p-{home}"))


async def test_a_binding_that_ends_leaves_nothing(strait: Strait, home: str) -> None:
    store = await Store(strait, home).make(secrets=True)
    async with strait.syncing(Porter) as porter:
        await store.bind()
        await until(store.bound_below)
        await until(lambda: porter.dependents.remaining() == 6)
        porter.dependents.drain()
        await until(lambda: porter.dependents.remaining() == 0)
        assert await store.gone_below()
        assert await store.unmarked()
    assert await store.is_bound()
