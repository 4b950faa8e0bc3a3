"""Claims and volumes: bound to each other, and to nothing of the computing cluster."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.forge import claims, volumes
from kubeocean.syncer.forge.claims import Unbound
from kubeocean.syncer.forge.copies import Copy

CALLS = ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")
CLAIM = Key("mount", "data-hash")
RENAMED = {"namespace": "mount", "name": "s-hash"}


def volume(**spec: object) -> Json:
    ref = {"namespace": "team", "name": "data", "uid": "u", "resourceVersion": "5"}
    return {"spec": {"capacity": {"storage": "1Gi"}, "claimRef": ref, **spec}}


def below(content: Json) -> Json:
    names = {key: Key("mount", f"{key.name}-hash") for key in volumes.secrets_of(content)}
    translated = volumes.translate(
        content, claim=CLAIM, secrets=names, host={"vnode-1": "node-1"}.get
    )
    spec: Json = translated["spec"]
    return spec


def test_a_volume_is_only_for_its_claim_and_never_the_end_of_the_data() -> None:
    spec = below(volume(persistentVolumeReclaimPolicy="Delete", csi={"volumeHandle": "h"}))
    assert spec["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "mount",
        "name": "data-hash",
    }
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["capacity"] == {"storage": "1Gi"}
    assert spec["csi"] == {"volumeHandle": "h"}


def test_every_secret_of_a_driver_is_renamed_with_its_namespace() -> None:
    csi: Json = {f"{call}SecretRef": {"name": call.lower(), "namespace": "ops"} for call in CALLS}
    content = volume(csi={"driver": "d", **csi})
    assert volumes.secrets_of(content) == {
        Key("ops", call.lower()): "Expand" in call for call in CALLS
    }
    for call in CALLS:
        ref = below(content)["csi"][f"{call}SecretRef"]
        assert ref == {"namespace": "mount", "name": f"{call.lower()}-hash"}


def test_a_secret_that_is_needed_once_is_needed() -> None:
    ref = {"name": "s", "namespace": "ops"}
    csi = {"nodeExpandSecretRef": ref, "nodeStageSecretRef": ref}
    assert volumes.secrets_of(volume(csi=csi)) == {Key("ops", "s"): False}


@pytest.mark.parametrize(
    ("kind", "source", "then"),
    [
        ("cephfs", {"secretRef": {"name": "s"}}, {"secretRef": RENAMED}),
        ("rbd", {"secretRef": {"name": "s", "namespace": "team"}}, {"secretRef": RENAMED}),
        (
            "azureFile",
            {"secretName": "s", "shareName": "x"},
            {"secretName": "s-hash", "secretNamespace": "mount", "shareName": "x"},
        ),
        ("nfs", {"server": "n", "path": "/"}, {"server": "n", "path": "/"}),
    ],
)
def test_old_kinds_of_volumes_name_secrets_too(kind: str, source: Json, then: Json) -> None:
    content = volume(**{kind: source})
    assert below(content)[kind] == then
    assert set(volumes.secrets_of(content)) <= {Key("team", "s")}


def test_nodes_are_the_workers() -> None:
    def affinity(*hosts: str) -> Json:
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
        return {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone, host]}]}}

    content = volume(nodeAffinity=affinity("vnode-1", "elsewhere"))
    assert below(content)["nodeAffinity"] == affinity("node-1", "elsewhere")


@pytest.mark.parametrize(
    ("ref", "uid", "changes"),
    [
        ({"namespace": "mount", "name": "data-hash"}, "", False),
        ({"namespace": "mount", "name": "data-hash"}, "u1", False),
        ({"namespace": "mount", "name": "data-hash", "uid": "u1"}, "u1", False),
        ({"namespace": "mount", "name": "data-hash", "uid": "u0"}, "u1", True),
        ({"namespace": "mount", "name": "data-hash", "uid": "u0"}, "", True),
        ({"namespace": "mount", "name": "first"}, "", True),
        (None, "", True),
    ],
)
def test_a_volume_that_remembers_another_claim_is_freed_for_ours(
    ref: Json | None, uid: str, changes: bool
) -> None:
    copy = msgspec.convert({"spec": {"claimRef": ref}}, Copy)
    change = volumes.rebind(copy, CLAIM, uid=uid)
    assert bool(change) is changes
    if change:
        assert change["/spec/claimRef"]["name"] == "data-hash"
        assert "uid" not in change["/spec/claimRef"]


def test_a_claim_begins_unbound_and_names_its_volume() -> None:
    content: Json = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeMode": "Filesystem",
            "volumeName": "pv",
            "storageClassName": "fast",
            "dataSource": {"kind": "VolumeSnapshot", "name": "s"},
            "selector": {"matchLabels": {"a": "b"}},
        },
        "status": {"phase": "Bound"},
    }
    assert claims.volume_of(content) == "pv"
    assert claims.translate(content, volume="pv-hash") == {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeMode": "Filesystem",
            "volumeName": "pv-hash",
            "storageClassName": "fast",
        }
    }
    assert "pv.kubernetes.io/bind-completed" in claims.DROPPED


@pytest.mark.parametrize(
    ("spec", "status", "phase"),
    [
        ({}, {}, "Pending"),
        ({"volumeName": "pv"}, {"phase": "Pending"}, "Pending"),
        ({"volumeName": "pv"}, {"phase": "Lost"}, "Lost"),
    ],
)
def test_a_claim_without_a_volume_is_unbound(spec: Json, status: Json, phase: str) -> None:
    assert claims.volume_of({"spec": spec, "status": status}) == Unbound(phase)


def test_no_class_means_none_and_not_the_workers_default() -> None:
    spec = claims.translate({"spec": {}}, volume="v")["spec"]
    assert spec["storageClassName"] == ""
