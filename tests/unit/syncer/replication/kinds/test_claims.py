"""Claims: which volume a claim is bound to, and the content of its copy."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.runtime.objects import Json
from kubeocean.syncer.replication.copy_forge import Copy
from kubeocean.syncer.replication.kinds.claims import (
    CLAIMS,
    Unbound,
    expanded_status,
    translate,
    volume_of,
)


def test_the_copy_of_a_claim_begins_unbound_and_names_the_copy_of_its_volume() -> None:
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
    assert volume_of(content) == "pv"
    assert translate(content, volume="pv-hash") == {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeMode": "Filesystem",
            "volumeName": "pv-hash",
            "storageClassName": "fast",
        }
    }
    assert "pv.kubernetes.io/bind-completed" in CLAIMS.dropped_annotations


@pytest.mark.parametrize(
    ("spec", "status", "phase"),
    [
        ({}, {}, "Pending"),
        ({"volumeName": "pv"}, {"phase": "Pending"}, "Pending"),
        ({"volumeName": "pv"}, {"phase": "Lost"}, "Lost"),
    ],
)
def test_a_claim_without_a_volume_is_unbound(spec: Json, status: Json, phase: str) -> None:
    assert volume_of({"spec": spec, "status": status}) == Unbound(phase)


def test_the_copy_of_a_claim_without_a_class_does_not_get_the_workers_default_class() -> None:
    spec = translate({"spec": {}}, volume="v")["spec"]
    assert spec["storageClassName"] == ""


def test_the_expansion_of_a_claim_ends_when_its_copy_is_enlarged() -> None:
    pending = {"type": "FileSystemResizePending", "status": "True"}
    other = {"type": "ModifyingVolume", "status": "True"}
    claim: Json = {
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "1Gi"},
            "conditions": [pending, other],
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        },
    }

    def change(size: str, **status: object) -> Json:
        copy = msgspec.convert({"status": {"capacity": {"storage": size}}}, Copy)
        return expanded_status(claim | {"status": claim["status"] | status}, copy)

    assert change("2Gi") == {
        "capacity": {"storage": "2Gi"},
        "conditions": [other],
        "allocatedResourceStatuses": {"storage": None},
    }
    assert change("1Gi") == {}
    assert change("512Mi") == {}, "a claim does not shrink"
    assert change("3Gi") == {}, "a worker cannot claim more than was requested"
    assert change("2Gi", phase="Pending") == {}
    assert expanded_status(claim, Copy()) == {}
    after = {"capacity": {"storage": "2Gi"}, "conditions": [other]}
    assert change("2Gi", **after) == {}


def test_a_claim_shows_how_far_a_kubelet_of_the_worker_has_come_with_its_expansion() -> None:
    pending = {"type": "FileSystemResizePending", "status": "True", "message": ""}
    error = {"type": "NodeResizeError", "status": "True", "message": "failed"}
    other = {"type": "Resizing", "status": "True"}

    def change(virtual: list[Json], *physical: Json, state: str = "", own: str = "") -> Json:
        claim: Json = {
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {
                "phase": "Bound",
                "capacity": {"storage": "1Gi"},
                "conditions": virtual,
                "allocatedResourceStatuses": {"storage": own} if own else {},
            },
        }
        status = {
            "capacity": {"storage": "1Gi"},
            "conditions": list(physical),
            "allocatedResourceStatuses": {"storage": state} if state else {},
        }
        return expanded_status(claim, msgspec.convert({"status": status}, Copy))

    assert change([], pending) == {"conditions": [pending]}
    assert change([pending], pending | {"lastTransitionTime": "2026-01-01T00:00:00Z"}) == {}
    assert change([pending]) == {}, "a controller of the computing cluster wrote it"
    assert change([other], other | {"message": "below"}) == {}, "no kubelet writes it"
    assert change([other, pending], error) == {"conditions": [other, pending, error]}
    assert change([other, error]) == {"conditions": [other]}
    assert change([error]) == {"conditions": None}
    longer = error | {"message": "x" * 5000}
    assert len(change([error], longer)["conditions"][0]["message"]) == 1024
    state = {"state": "NodeResizeInfeasible", "own": "NodeResizePending"}
    assert change([], **state) == {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}
    assert change([], state="NodeResizeInProgress") == {}
    assert change([], state="NodeResizeInProgress", own="ControllerResizeInProgress") == {}
    assert change([], state="ControllerResizeInfeasible", own="NodeResizePending") == {}
