"""Objects of a computing cluster and its workers, for tests without API servers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.snapshot import NotRead, WorkerSnapshot, WorkerState
from kubeocean.leasing.requests import CountedPod
from kubeocean.runtime.kinds import Deployment, Lease, Node
from kubeocean.runtime.objects import Json, Object, decode_object

__all__ = [
    "NOW",
    "a_binding",
    "a_deployment",
    "a_lease",
    "a_node",
    "a_pod",
    "a_policy",
    "a_worker",
    "by_name",
    "condition",
]

NOW = datetime(2026, 11, 16, 21, 0, tzinfo=UTC)  # a Monday
THEN = "2026-11-16T20:00:00Z"

ObjectT = TypeVar("ObjectT", bound=Object)


def condition(
    type_: str, status: str = "True", reason: str = "Reported", message: str = ""
) -> Json:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": THEN,
    }


def a_binding(name: str = "berlin", **more: object) -> ClusterBinding:
    """Return a Ready binding, changed by `conditions`, `phase`, `spec` and `metadata`."""
    metadata = {"name": name, **_mapping(more.pop("metadata", {}))}
    spec = {"clusterID": name, **_mapping(more.pop("spec", {}))}
    status = {"phase": "Ready", "conditions": [condition("Ready"), condition("Connected")], **more}
    body = {"metadata": metadata, "spec": spec, "status": status}
    return msgspec.convert(body, ClusterBinding)


def a_node(name: str = "n1", cluster: str = "berlin", **more: object) -> Node:
    """Return a lent virtual node, changed by `ready`, `policy`, `taints` and `amounts`."""
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    taints = [{"key": key, "effect": "NoSchedule"} for key in _list(more.get("taints"))]
    body = {
        "metadata": {
            "name": f"vnode-{cluster}-{name}",
            "labels": {"kubeocean.io/cluster-binding": cluster},
            "annotations": {
                "kubeocean.io/policies-applied": more.get("policy", "night"),
                "kubeocean.io/physical-node-name": name,
            },
        },
        "spec": {"taints": taints, "unschedulable": more.get("unschedulable", False)},
        "status": {
            "allocatable": more.get("amounts", amounts),
            "conditions": [condition("Ready", str(more.get("ready", "True")))],
        },
    }
    return msgspec.convert(body, Node)


def a_pod(node: str, phase: str = "Running", *, cpu: str = "500m", **more: object) -> CountedPod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    body = {
        "metadata": {"name": "p", "namespace": "team", **_mapping(more.get("metadata", {}))},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase, "conditions": _list(more.get("conditions"))},
    }
    return msgspec.convert(body, CountedPod)


def a_policy(name: str = "night", cluster: str = "berlin", **more: object) -> ResourceLeasingPolicy:
    status, metadata = more.pop("status", {}), _mapping(more.pop("metadata", {}))
    spec = {"cluster": cluster, **more}
    body = {"metadata": {"name": name, **metadata}, "spec": spec, "status": status}
    return msgspec.convert(body, ResourceLeasingPolicy)


def a_worker(
    name: str = "berlin",
    state: WorkerState = WorkerState.ANSWERED,
    message: str = "",
    *policies: ResourceLeasingPolicy,
) -> WorkerSnapshot:
    """Return a worker that answered with these policies, or that did not answer."""
    answered = state is WorkerState.ANSWERED
    return WorkerSnapshot(
        binding=a_binding(name),
        state=state,
        message=message,
        policies=policies if answered else NotRead("policies", message),
    )


def a_deployment(
    name: str, *, serving: int = 2, wanted: int = 2, old: int = 0, generation: int = 1
) -> Deployment:
    """Return a Deployment whose pods are all updated, beside `old` pods of the spec before."""
    body = {
        "metadata": {"name": name, "namespace": "kubeocean-system", "generation": generation},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": 1,
            "replicas": wanted + old,
            "updatedReplicas": wanted,
            "availableReplicas": serving,
        },
    }
    return decode_object(Deployment, msgspec.json.encode(body), keep_raw=True)


def a_lease(name: str, *, renewed: str, holder: str = "pod-1") -> Lease:
    body = {
        "metadata": {"name": name, "namespace": "kubeocean-system"},
        "spec": {"holderIdentity": holder, "renewTime": renewed},
    }
    return msgspec.convert(body, Lease)


def by_name(*objects: ObjectT) -> dict[str, ObjectT]:
    return {each.name: each for each in objects}


def _mapping(value: object) -> Json:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
