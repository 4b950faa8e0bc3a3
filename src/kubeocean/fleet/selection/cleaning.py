"""Cleaning: the form in which an object of the hub is placed.

Fields that the hub's server or controllers have set, and that the member's will set again, are
removed: the object's identity and history, its status, its owners, a Service's addresses and node
ports, the labels by which a Job finds its pods. Labels, finalizers and all other annotations stay.
A change of removed fields, such as the status, causes no new snapshot.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from kubeocean.fleet.applier.manifests import KUBECTL_LAST_APPLIED, SERVER_SET_METADATA
from kubeocean.runtime.objects import Json

__all__ = ["UNPLACED_ANNOTATIONS", "clean"]

UNPLACED_ANNOTATIONS: Final = (
    KUBECTL_LAST_APPLIED,
    "deployment.kubernetes.io/revision",
)
_JOB_LABELS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")


def clean(obj: Json) -> Json:
    """Return a copy of a hub's object as it is placed, without fields that belong to the hub."""
    cleaned = copy.deepcopy({name: value for name, value in obj.items() if name != "status"})
    metadata = _part(cleaned, "metadata")
    _remove(metadata, *SERVER_SET_METADATA)
    _remove(_part(metadata, "annotations"), *UNPLACED_ANNOTATIONS)
    if not metadata.get("annotations"):
        _remove(metadata, "annotations")
    match cleaned.get("apiVersion"), cleaned.get("kind"):
        case "v1", "Service":
            _clean_service(_part(cleaned, "spec"))
        case "batch/v1", "Job":
            _clean_job(_part(cleaned, "spec"))
    return cleaned


def _clean_service(spec: Json) -> None:
    if spec.get("clusterIP") != "None":
        _remove(spec, "clusterIP", "clusterIPs")
    _remove(spec, "healthCheckNodePort")
    ports = spec.get("ports")
    for port in ports if isinstance(ports, list) else ():
        if isinstance(port, dict):
            _remove(port, "nodePort")


def _clean_job(spec: Json) -> None:
    if spec.get("manualSelector") is True:
        return
    _remove(_part(_part(spec, "selector"), "matchLabels"), *_JOB_LABELS)
    metadata = _part(_part(spec, "template"), "metadata")
    _remove(metadata, "creationTimestamp")
    _remove(_part(metadata, "labels"), *_JOB_LABELS)


def _part(parent: Json, name: str) -> Json:
    """Return the nested object `name` for changes in place; a new, detached one if absent."""
    part: Any = parent.get(name)
    return part if isinstance(part, dict) else {}


def _remove(parent: Json, *names: str) -> None:
    for name in names:
        parent.pop(name, None)
