"""Snapshots of nodes, pods and bindings, for tests of explanations without API servers."""

from __future__ import annotations

import msgspec

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.explain.snapshots import BindingSnapshot, NodeSnapshot, PodSnapshot
from kubeocean.inspect.snapshot import NotRead, ServerSnapshot, WorkerSnapshot, WorkerState
from kubeocean.leasing.requests import CountedPod
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import Lease, Node
from kubeocean.runtime.objects import Json, Key, decode_object
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

NOW = instant_of("2026-11-16T12:00:00Z")  # a Monday
IDS = Ids("b", "w1", "computing")
VNODE, PNODE = "vnode-w1-n1", "n1"
READY = {"type": "Ready", "status": "True"}
VIRTUAL = {"key": "kubeocean.io/vnode", "effect": "NoSchedule"}
CLOSED = {"key": "kubeocean.io/out-of-time-windows", "value": "true", "effect": "NoSchedule"}
TOLERANT = [{"operator": "Exists"}]
NIGHT = [{"start": "20:00", "end": "06:00"}]
UNREAD = NotRead("part", "it is forbidden", forbidden=True)


def binding(**more: object) -> ClusterBinding:
    spec = {
        "clusterID": "w1",
        "secretRef": {"name": "s", "namespace": "default"},
        "mountNamespace": "m",
    }
    status = {"phase": "Ready"}
    body = {"metadata": {"name": "b"}, "spec": spec, "status": status} | more
    return msgspec.convert(body, ClusterBinding)


def policy(name: str = "p", *, created: str = "2026-01-01T00:00:00Z", **spec: object):
    body = {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "finalizers": ["policy.kubeocean.io/finalizer"],
        },
        "spec": {"cluster": "b", **spec},
    }
    return msgspec.convert(body, ResourceLeasingPolicy)


def bound(*policies: ResourceLeasingPolicy, **more: object) -> BindingSnapshot:
    """Return a binding with a worker that answered; `problem` is why not, `parts` change it."""
    parts: Json = {
        "binding": more.pop("binding", None) or binding(),
        "ids": IDS,
        "state": WorkerState.ANSWERED,
        "server": ServerSnapshot(version={"gitVersion": "v1.34.4"}),
        "policies": policies,
        "missing": (),
        "namespace": True,
    }
    if problem := more.pop("problem", ""):
        parts |= {"state": WorkerState.SILENT, "message": problem, "policies": UNREAD}
    parts |= more.pop("parts", {})
    known = {"name": "b", "worker": WorkerSnapshot(**parts)} | more
    return BindingSnapshot(now=NOW, **known)


def pnode(*, ready: bool = True, cordoned: bool = False, **labels: str) -> Node:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    condition = READY if ready else {"type": "Ready", "status": "False", "reason": "KubeletDown"}
    body = {
        "metadata": {"name": PNODE, "uid": "u-n1", "labels": labels},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": amounts, "conditions": [condition]},
    }
    return msgspec.convert(body, Node)


def vnode(
    name: str = VNODE,
    *,
    policy: str = "p",
    taints: tuple[Json, ...] = (VIRTUAL,),
    cordoned: bool = False,
    ready: Json = READY,
    **amounts: str,
) -> Node:
    has = {"cpu": "4", "memory": "32Gi", "pods": "110"} | amounts
    labels = {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": "b",
        "kubeocean.io/physical-cluster-id": "w1",
    }
    annotations = {
        "kubeocean.io/policies-applied": policy,
        "kubeocean.io/physical-node-name": PNODE,
        "kubeocean.io/physical-node-uid": "u-n1",
    }
    body = {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"allocatable": has, "conditions": [ready]},
    }
    return msgspec.convert(body, Node)


def lease(renewed: str = "2026-11-16T11:59:55Z") -> Lease:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 40, "renewTime": renewed}
    return msgspec.convert({"metadata": {"name": VNODE}, "spec": spec}, Lease)


def counted(uid: str, *, ours: bool = False, node: str = PNODE, **requests: str) -> CountedPod:
    labels = ownership_labels(IDS, DEFAULT) if ours else {}
    body = {
        "metadata": {"name": uid, "uid": uid, "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests}}],
        },
    }
    return msgspec.convert(body, CountedPod)


def node(*policies: ResourceLeasingPolicy, **more: object) -> NodeSnapshot:
    known = {
        "binding": bound(*policies),
        "name": VNODE,
        "pnode_name": PNODE,
        "vnode": vnode(),
        "pnode": pnode(),
        "heartbeat": lease(),
    } | more
    return NodeSnapshot(**known)


def vpod(*, on: str = "", status: Json | None = None, metadata: Json | None = None, **spec: object):
    body = {
        "metadata": {"name": "web", "namespace": "team", "uid": "u-web"} | (metadata or {}),
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": on, **spec},
        "status": status or {"phase": "Pending"},
    }
    return decode_object(VirtualPod, msgspec.json.encode(body), keep_raw=True)


def ppod(name: str, *, ours: bool = True, status: Json | None = None, node: str = PNODE):
    annotations = {
        "kubeocean.io/virtual-pod-namespace": "team",
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": "u-web",
    }
    meta = {"name": name, "namespace": "m", "uid": f"u-{name}"}
    if ours:
        meta |= {"labels": ownership_labels(IDS, DEFAULT), "annotations": annotations}
    body = {"metadata": meta, "spec": {"nodeName": node}, "status": status or {"phase": "Running"}}
    return decode_object(PhysicalPod, msgspec.json.encode(body), keep_raw=True)


def pod(vpod: VirtualPod | NotRead | None, **more: object) -> PodSnapshot:
    known = {"key": Key("team", "web"), "now": NOW, "pod": vpod} | more
    return PodSnapshot(**known)
