"""Volumes: the same files, from copies."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge import check, forge
from kubeocean.syncer.pods.forge_context import Privileges, Refused
from support.forge_inputs import context_for, vpod

A = naming.physical_name("a", "team")
MADE = naming.physical_name("web-v", "team")
ITEMS = [{"key": "k", "path": "p"}]


def token(index: int = 0) -> str:
    volume = f"v.{index}" if index else "v"
    return naming.token_secret("web", "team", volume=volume, uid=vpod()["metadata"]["uid"])


def from_secret(name: str, path: str) -> Json:
    return {"secret": {"name": name, "items": [{"key": "token", "path": path}]}}


def field(path: str, to: str = "f") -> Json:
    return {"path": to, "fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def answer(name: str, to: str = "f") -> Json:
    return field(f"metadata.annotations['kubeocean.io/{name}']", to)


def projected(*sources: Json, **fields: Any) -> Json:
    return {"projected": {"sources": list(sources), **fields}}


def translated(volume: Json, **spec: Any) -> Json:
    pod = vpod(volumes=[{"name": "v", **volume}], **spec)
    (result,) = forge(pod, context_for(pod))["spec"]["volumes"]
    assert result.pop("name") == "v"
    return result


# A volume of the virtual pod → the volume of the physical pod
ROWS: dict[str, tuple[Json, Json]] = {
    "configMap": (
        {"configMap": {"name": "a", "items": ITEMS, "defaultMode": 420, "optional": True}},
        {"configMap": {"name": A, "items": ITEMS, "defaultMode": 420, "optional": True}},
    ),
    "secret": (
        {"secret": {"secretName": "a", "defaultMode": 256}},
        {"secret": {"secretName": A, "defaultMode": 256}},
    ),
    "claim": (
        {"persistentVolumeClaim": {"claimName": "a", "readOnly": True}},
        {"persistentVolumeClaim": {"claimName": A, "readOnly": True}},
    ),
    "generic ephemeral volume": (
        {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
        {"persistentVolumeClaim": {"claimName": MADE}},
    ),
    "projected configMap": (
        projected({"configMap": {"name": "a", "items": ITEMS}}, defaultMode=256),
        projected({"configMap": {"name": A, "items": ITEMS}}, defaultMode=256),
    ),
    "projected secret": (
        projected({"secret": {"name": "a", "optional": True}}),
        projected({"secret": {"name": A, "optional": True}}),
    ),
    "projected token": (
        projected({"serviceAccountToken": {"path": "tok", "expirationSeconds": 3607}}),
        projected(from_secret(token(), "tok")),
    ),
    "several tokens": (
        projected(
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "a"}},
            {"serviceAccountToken": {"path": "vault", "audience": "vault"}},
        ),
        projected(
            from_secret(token(), "token"),
            {"configMap": {"name": A}},
            from_secret(token(1), "vault"),
        ),
    ),
    "tokens in one place": (
        projected(
            {
                "downwardAPI": {
                    "items": [field("metadata.labels", "t"), field("metadata.name", "n")]
                }
            },
            {"downwardAPI": {"items": [field("metadata.labels", "t")]}},
            {"serviceAccountToken": {"path": "t", "audience": "hidden"}},
            {"configMap": {"name": "a"}},
            {"serviceAccountToken": {"path": "t", "audience": "seen"}},
        ),
        projected(
            {"downwardAPI": {"items": [answer("virtual-pod-name", "n")]}},
            {"configMap": {"name": A}},
            from_secret(token(1), "t"),
        ),
    ),
    "a token under another file": (
        projected(
            {"serviceAccountToken": {"path": "p"}},
            {"configMap": {"name": "a", "items": ITEMS}},
        ),
        projected({"configMap": {"name": A, "items": ITEMS}}),
    ),
    "projected downward API": (
        projected({"downwardAPI": {"items": [field("metadata.namespace")]}}),
        projected({"downwardAPI": {"items": [answer("virtual-pod-namespace")]}}),
    ),
    "downward API": (
        {
            "downwardAPI": {
                "defaultMode": 420,
                "items": [
                    field("metadata.name", "n"),
                    field("metadata.uid", "u"),
                    field("metadata.labels", "l"),
                    field("metadata.annotations['x']", "x"),
                    {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}},
                ],
            }
        },
        {
            "downwardAPI": {
                "defaultMode": 420,
                "items": [
                    answer("virtual-pod-name", "n"),
                    answer("virtual-pod-uid", "u"),
                    field("metadata.labels", "l"),
                    field("metadata.annotations['x']", "x"),
                    {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}},
                ],
            }
        },
    ),
    "a trust bundle that the pod can do without": (
        projected({"clusterTrustBundle": {"name": "b", "path": "p", "optional": True}}),
        projected(),
    ),
    "csi": (
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "a"}}},
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": A}}},
    ),
    "csi without a secret": ({"csi": {"driver": "d"}}, {"csi": {"driver": "d"}}),
    "azureFile": (
        {"azureFile": {"secretName": "a", "shareName": "s"}},
        {"azureFile": {"secretName": A, "shareName": "s"}},
    ),
    "a secretRef without a name": (
        {"flexVolume": {"driver": "d", "secretRef": {}}},
        {"flexVolume": {"driver": "d", "secretRef": {}}},
    ),
} | {
    kind: ({kind: {"secretRef": {"name": "a"}}}, {kind: {"secretRef": {"name": A}}})
    for kind in ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
}

VERBATIM: list[Json] = [
    {"emptyDir": {"medium": "Memory"}},
    {"hostPath": {"path": "/var", "type": "Directory"}},
    {"nfs": {"server": "s", "path": "/"}},
    {"image": {"reference": "data:1"}},
    {"downwardAPI": {}},
]


@pytest.mark.parametrize(("virtual", "physical"), ROWS.values(), ids=ROWS)
def test_a_volume_is_translated(virtual: Json, physical: Json) -> None:
    assert translated(virtual) == physical


@pytest.mark.parametrize("volume", VERBATIM, ids=lambda volume: next(iter(volume)))
def test_a_volume_without_references_is_copied(volume: Json) -> None:
    assert translated(volume) == volume


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"clusterTrustBundle": {"name": "b", "path": "p"}}, "sources[1].clusterTrustBundle"),
        ({"podCertificate": {"signerName": "s", "keyType": "t"}}, "sources[1].podCertificate"),
    ],
)
def test_sources_that_the_worker_would_fill_in_its_own_name_are_refused(
    source: Json, where: str
) -> None:
    with pytest.raises(Refused, match="not supported") as refused:
        translated(projected({"configMap": {"name": "a"}}, source))
    assert refused.value.field == f"spec.volumes[0].projected.{where}"


def test_a_token_without_a_service_account_is_refused() -> None:
    with pytest.raises(Refused, match="no service account"):
        translated(projected({"serviceAccountToken": {"path": "t"}}), serviceAccountName="")


def test_a_volume_is_refused_before_anything_is_copied() -> None:
    bundle = {"clusterTrustBundle": {"name": "b", "path": "p"}}
    pod = vpod(volumes=[{"name": "v", **projected(bundle)}])
    with pytest.raises(Refused):
        check(pod, Privileges())
    check(vpod(), Privileges())
