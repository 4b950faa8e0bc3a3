"""Volumes: the content of a copy, its Secrets, its nodes and the claim that it belongs to."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.ownership import Ids
from kubeocean.api.volume_secrets import secrets_of
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.replication.copy_forge import (
    Copy,
    CopyContext,
    Source,
    digested,
    must_be_replaced,
)
from kubeocean.syncer.replication.kinds.volumes import VOLUMES, rebind, translate

CALLS = ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")
CLAIM = Key("mount", "data-hash")
RENAMED = {"namespace": "mount", "name": "s-hash"}


def volume(**spec: object) -> Json:
    ref = {"namespace": "team", "name": "data", "uid": "u", "resourceVersion": "5"}
    return {"spec": {"capacity": {"storage": "1Gi"}, "claimRef": ref, **spec}}


def copied_spec(content: Json, *, controllers: bool = False) -> Json:
    secrets = secrets_of(content, controllers=controllers)
    names = {key: Key("mount", f"{key.name}-hash") for key in secrets}
    hosts = {"vnode-1": "node-1"}
    translated = translate(
        content, claim=CLAIM, secrets=names, host_name=hosts.get, controllers=controllers
    )
    spec: Json = translated["spec"]
    return spec


def test_the_copy_of_a_volume_belongs_to_its_claim_and_retains_the_data() -> None:
    spec = copied_spec(volume(persistentVolumeReclaimPolicy="Delete", csi={"volumeHandle": "h"}))
    assert spec["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "mount",
        "name": "data-hash",
    }
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["capacity"] == {"storage": "1Gi"}
    assert spec["csi"] == {"volumeHandle": "h"}


@pytest.mark.parametrize("controllers", [False, True])
def test_secrets_of_a_driver_are_renamed_and_those_of_its_controllers_stay(
    controllers: bool,
) -> None:
    csi: Json = {f"{call}SecretRef": {"name": call.lower(), "namespace": "ops"} for call in CALLS}
    content = volume(csi={"driver": "d", **csi})
    calls = [call for call in CALLS if controllers or not call.startswith("controller")]
    secrets = secrets_of(content, controllers=controllers)
    assert secrets == {Key("ops", call.lower()): "Expand" in call for call in calls}
    assert copied_spec(content, controllers=controllers)["csi"] == {
        "driver": "d",
        **{
            f"{call}SecretRef": {"namespace": "mount", "name": f"{call.lower()}-hash"}
            for call in calls
        },
    }


def test_a_volume_with_another_source_needs_a_new_copy_and_a_larger_one_does_not() -> None:
    content = {"spec": copied_spec(volume(nfs={"server": "n", "path": "/"}))}
    copy = msgspec.json.decode(msgspec.json.encode(content), type=Copy)
    msgspec.structs.force_setattr(copy, "raw", msgspec.json.encode(content))
    copy = digested(copy, VOLUMES)

    def replaced(*, stale: bool = True, **spec: object) -> bool:
        changed = {"spec": content["spec"] | spec}
        context = CopyContext(
            kind=VOLUMES,
            source=Source(),
            content=changed,
            name="v",
            namespace="",
            ids=Ids("b", "c", "id"),
        )
        return must_be_replaced(copy, context, stale=stale)

    assert replaced(nfs={"server": "other", "path": "/"})
    assert not replaced(nfs={"server": "other", "path": "/"}, stale=False)
    assert not replaced()
    assert not replaced(capacity={"storage": "2Gi"}, mountOptions=["ro"])


def test_a_secret_that_one_call_needs_to_mount_is_not_optional() -> None:
    ref = {"name": "s", "namespace": "ops"}
    csi = {"nodeExpandSecretRef": ref, "nodeStageSecretRef": ref}
    assert secrets_of(volume(csi=csi), controllers=False) == {Key("ops", "s"): False}


@pytest.mark.parametrize(
    ("kind", "source", "copied"),
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
def test_secrets_of_in_tree_volumes_are_renamed_with_their_namespace(
    kind: str, source: Json, copied: Json
) -> None:
    content = volume(**{kind: source})
    assert copied_spec(content)[kind] == copied
    assert set(secrets_of(content, controllers=True)) <= {Key("team", "s")}


def test_node_affinity_names_the_nodes_of_the_worker() -> None:
    def affinity(*hosts: str) -> Json:
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
        return {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone, host]}]}}

    content = volume(nodeAffinity=affinity("vnode-1", "elsewhere"))
    assert copied_spec(content)["nodeAffinity"] == affinity("node-1", "elsewhere")


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
def test_a_volume_that_was_bound_to_another_claim_is_rebound(
    ref: Json | None, uid: str, changes: bool
) -> None:
    copy = msgspec.convert({"spec": {"claimRef": ref}}, Copy)
    change = rebind(copy, CLAIM, uid=uid)
    assert bool(change) is changes
    if change:
        assert change["/spec/claimRef"]["name"] == "data-hash"
        assert "uid" not in change["/spec/claimRef"]
