"""Desired virtual nodes of the computing cluster, and patches that change a node accordingly.

`forge` builds a whole node; `changes` returns the patches for an existing node. Labels, annotations
and taints that users add to a virtual node stay. Times alone are no difference: a node with only a
newer heartbeat is not written.

Labels of the worker's node are copied as far as Kubernetes would let a kubelet set them, unless the
binding trusts its worker fully. Annotations of the worker's node are copied as far as all
annotations together fit into the size that an API server accepts: the largest are omitted first.

A virtual node that takes no new pods has no allocatable `pods`. A taint and a cordon do not keep
away pods that tolerate everything: the pods' controller would create each evicted pod again, and
the scheduler would bind the new pod to the same node. No pod tolerates a lack of resources. The
capacity stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import TRUE, Domain
from kubeocean.leasing.amounts import PODS, Amounts
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Json, merge_patch, printable_json
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.nodes.foreign_metadata import (
    is_copied_annotation,
    is_derived_taint,
    is_informative_annotation,
    is_kubelet_label,
)
from kubeocean.syncer.nodes.metadata import Expected, merge, merge_taints

__all__ = [
    "LentNode",
    "NodePatches",
    "changes",
    "expected",
    "forge",
    "inner_ip",
    "left_out",
    "notice",
    "refreshed",
]

# Conditions that every node has; Kubernetes' node lifecycle controller sets them, too
_STANDARD_CONDITIONS: Final = frozenset(
    {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}
)
_TIMES: Final = ("lastHeartbeatTime", "lastTransitionTime")
_MOST_ANNOTATION_BYTES: Final = 256 * 1024  # that an API server accepts, keys and values together
_SPARE_BYTES: Final = 32 * 1024  # for our own annotations, and for future annotations of users
_REMEMBERED: Final = 256  # longer values are remembered by their key alone


@dataclass(frozen=True, slots=True)
class LentNode:
    """A worker's node that is lent, with everything else from which its virtual node is forged."""

    pnode: Json  # the worker's node, whole
    vnode: str
    binding: str
    cluster_id: str
    policy: str
    details: str
    offered: Amounts
    default_taint: bool
    reclaim_taints: tuple[Taint, ...]
    unschedulable: bool
    proxier_ip: str
    proxier_port: int
    metrics_port: int
    other_policies: tuple[str, ...] = ()  # policies that select the node, and do not decide
    last_eviction: str = ""  # the time from which a cool-down counts
    trusts_fully: bool = False  # the binding trusts its worker with more than a kubelet
    takes_pods: bool = True  # else no scheduler may bind a pod, whatever the pod tolerates
    domain: Domain = field(default=group.DEFAULT)


@dataclass(frozen=True, slots=True)
class NodePatches:
    """The patches for an existing virtual node: one of the object, one of its status."""

    main: Json
    status: Json

    def __bool__(self) -> bool:
        return bool(self.main or self.status)


def forge(lent: LentNode, *, now: str) -> Json:
    """Return the manifest of a new virtual node; API servers keep the status of a new node."""
    want = expected(lent)
    annotations = {
        **want.annotations,
        lent.domain.expected_metadata: _remembered(want).encode(),
        lent.domain.last_sync_time: now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": lent.vnode,
            "labels": dict(want.labels),
            "annotations": annotations,
            "finalizers": [lent.domain.finalizer_vnode],
        },
        "spec": _spec(want.taints, lent.unschedulable),
        "status": _status(lent),
    }


def changes(vnode: Json, lent: LentNode, *, now: str) -> NodePatches:
    """Return the patches that give a virtual node its desired state; empty if nothing differs."""
    domain, meta = lent.domain, vnode["metadata"]
    labels_now: Mapping[str, str] = meta.get("labels") or {}
    annotations_now: Mapping[str, str] = meta.get("annotations") or {}
    want = expected(lent, annotations_now)
    before = Expected.decode(annotations_now.get(domain.expected_metadata, ""))

    labels = merge_patch(labels_now, merge(labels_now, before.labels, want.labels))
    spec_now = vnode.get("spec") or {}
    # Annotations of a cordon that a reclaim made; the second is of an earlier implementation.
    cordon_keys = {domain.cordoned, domain.deletion_taint_time}
    cordoned = not cordon_keys.isdisjoint(annotations_now)
    cordons = lent.unschedulable and (cordoned or not spec_now.get("unschedulable"))
    annotations_then = merge(
        {key: value for key, value in annotations_now.items() if key not in cordon_keys},
        before.annotations,
        {
            **want.annotations,
            **({domain.cordoned: TRUE} if cordons else {}),
            domain.expected_metadata: _remembered(want).encode(),
        },
    )
    annotations = merge_patch(annotations_now, annotations_then)
    spec = _spec_change(spec_now, before, want, lent, cordoned=cordoned)
    finalizers = _finalizers(meta.get("finalizers") or [], domain.finalizer_vnode)
    status_now = vnode.get("status") or {}
    conditions = _conditions(lent.pnode, status_now, before)
    status = _status_change(status_now, _status(lent) | {"conditions": conditions})
    if not (labels or annotations or spec or finalizers or status):
        return NodePatches({}, {})

    annotations[domain.last_sync_time] = now
    metadata: Json = {"labels": labels, "annotations": annotations}
    # The status of a node may be written together with its labels and annotations, in one request;
    # its spec may not.
    if status and not spec and not finalizers:
        return NodePatches({}, {"metadata": metadata, "status": status})
    main: Json = {"metadata": metadata | ({"finalizers": finalizers} if finalizers else {})}
    if spec:
        main["spec"] = spec
    return NodePatches(main, {"status": status} if status else {})


def notice(vnode: Json, taints: tuple[Taint, ...], unschedulable: bool, domain: Domain) -> Json:
    """Return the patch that taints and cordons a virtual node because of a reclaim.

    An annotation marks a cordon that the syncer set: when the node is lent again, only such a
    cordon is removed.
    """
    spec = vnode.get("spec") or {}
    now = msgspec.convert(spec.get("taints") or [], tuple[Taint, ...])
    keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
    then = (*(taint for taint in now if taint.key not in keys), *taints)
    change: Json = {}
    if _by_key(now) != _by_key(then):
        change["taints"] = [msgspec.to_builtins(taint) for taint in then]
    if not unschedulable or spec.get("unschedulable"):
        return {"spec": change} if change else {}
    return {
        "metadata": {"annotations": {domain.cordoned: TRUE}},
        "spec": change | {"unschedulable": True},
    }


def refreshed(
    vnode: Json,
    pnode: Json | None,
    offered: Amounts | None,
    *,
    takes_pods: bool,
    proxier_ip: str,
    metrics_port: int,
    name: str,
    domain: Domain,
) -> Json:
    """Return the status patch of a virtual node that no policy lends at present.

    Its conditions follow those of the worker's node, so that a dead machine is not shown as Ready;
    the address is that of the proxier's replica. `offered` is None where the capacity stays.
    """
    now = vnode.get("status") or {}
    then: Json = {}
    if pnode is not None:
        annotations = vnode["metadata"].get("annotations") or {}
        before = Expected.decode(annotations.get(domain.expected_metadata, ""))
        then["conditions"] = _conditions(pnode, now, before)
    if offered is not None:
        amounts = {resource: str(amount) for resource, amount in offered.items()}
        then |= {"capacity": amounts, "allocatable": _allocatable(amounts, takes_pods)}
    elif not takes_pods:
        then["allocatable"] = _allocatable(now.get("allocatable") or {}, takes_pods)
    if proxier_ip:
        then["addresses"] = _addresses(proxier_ip, name)
    status = _status_change(now, then)
    if "addresses" not in status:
        return {"status": status} if status else {}
    url = _prometheus_url(proxier_ip, metrics_port, name)
    return {"metadata": {"annotations": {domain.prometheus_url: url}}, "status": status}


def left_out(lent: LentNode, now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the annotations of the worker's node that do not fit; `now` are the virtual node's."""
    return tuple(sorted(_copied(lent).keys() - _fitting(lent, now).keys()))


def expected(lent: LentNode, now: Mapping[str, str] | None = None) -> Expected:
    """Return the metadata and taints that the syncer sets on a virtual node.

    `now` are the present annotations of the virtual node.
    """
    domain, node = lent.domain, lent.pnode["metadata"]
    name, ip = node["name"], inner_ip(lent.pnode)
    labels = {
        **_copied_labels(lent),
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(lent.binding),
        domain.physical_cluster_id: lent.cluster_id,
        domain.physical_node_name: naming.label_value(name),
        domain.physical_node_uid: node["uid"],
        domain.proxier_port: str(lent.proxier_port),
        domain.policy_applied: naming.label_value(lent.policy),
        # The names of the design documents
        domain.cluster_id: lent.cluster_id,
        domain.physical_node: naming.label_value(name),
        domain.node_type: "virtual",
        group.LABEL_NODE_TYPE: group.NODE_TYPE_VIRTUAL,
        group.LABEL_INSTANCE_TYPE: group.INSTANCE_TYPE_VNODE,
        group.LABEL_INSTANCE_TYPE_BETA: group.INSTANCE_TYPE_VNODE,
        group.LABEL_HOSTNAME: lent.vnode,
        # The machine is not in the computing cluster's network: load balancers cannot reach it.
        group.LABEL_EXCLUDE_BALANCERS: "",
    }
    if ip:
        labels[domain.physical_node_inner_ip] = naming.label_value(ip)
    annotations = {
        **_fitting(lent, now or {}),
        domain.physical_node_name: name,
        domain.physical_node_uid: node["uid"],
        domain.policies_applied: lent.policy,
        domain.policy_details: lent.details,
        domain.cluster_binding: lent.binding,
        domain.resource_policy: ",".join((lent.policy, *lent.other_policies)),
        domain.prometheus_url: _prometheus_url(lent.proxier_ip, lent.metrics_port, lent.vnode),
    }
    if lent.last_eviction:
        annotations[domain.last_eviction_time] = lent.last_eviction
    types = {condition["type"] for condition in _conditions_of(lent.pnode)}
    return Expected(labels, annotations, _taints(lent), tuple(types - _STANDARD_CONDITIONS))


def _addresses(proxier_ip: str, vnode: str) -> list[Json]:
    return [
        {"type": "InternalIP", "address": proxier_ip},
        {"type": "Hostname", "address": vnode},
    ]


def _prometheus_url(proxier_ip: str, port: int, vnode: str) -> str:
    return f"{proxier_ip or '<pending>'}:{port}/{vnode}"


def _copied_labels(lent: LentNode) -> dict[str, str]:
    labels: Mapping[str, str] = lent.pnode["metadata"].get("labels") or {}
    if lent.trusts_fully:
        return dict(labels)
    return {
        key: value
        for key, value in labels.items()
        if is_kubelet_label(key) and not lent.domain.owns(key)
    }


def _copied(lent: LentNode) -> dict[str, str]:
    annotations: Mapping[str, str] = lent.pnode["metadata"].get("annotations") or {}
    is_copied = is_copied_annotation if lent.trusts_fully else is_informative_annotation
    return {
        key: value
        for key, value in annotations.items()
        if is_copied(key) and not lent.domain.owns(key)
    }


def _fitting(lent: LentNode, now: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of the worker's node to copy, without the largest that do not fit.

    `now` are the present annotations of the virtual node.
    """
    copied = _copied(lent)
    before = Expected.decode(now.get(lent.domain.expected_metadata, "")).annotations
    others = {
        key: value
        for key, value in now.items()
        if key not in copied and key not in before and not lent.domain.owns(key)
    }
    limit = _MOST_ANNOTATION_BYTES - _SPARE_BYTES - sum(_size(*each) for each in others.items())
    taken = 0
    fitting: set[str] = set()
    for key, value in sorted(copied.items(), key=lambda each: (_size(*each), each[0])):
        # `expected-metadata` repeats each entry, with four characters for every three.
        taken += _size(key, value) + (len(key.encode()) + _REMEMBERED) * 4 // 3
        if taken > limit:
            break
        fitting.add(key)
    return {key: value for key, value in copied.items() if key in fitting}


def _remembered(want: Expected) -> Expected:
    short = {k: v if len(v) <= _REMEMBERED else "" for k, v in want.annotations.items()}
    return Expected(want.labels, short, want.taints, want.conditions)


def _size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode())


def inner_ip(node: Json) -> str:
    """Return the first internal address of a node."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")


def _taints(lent: LentNode) -> tuple[Taint, ...]:
    domain = lent.domain
    taints: list[Taint] = []
    for taint in (lent.pnode.get("spec") or {}).get("taints") or ():
        key = taint["key"]
        if domain.owns(key) or is_derived_taint(key):
            continue
        if key == group.TAINT_UNSCHEDULABLE:
            key = domain.taint_physical_unschedulable
        taints.append(Taint(key, taint.get("value", ""), taint["effect"]))
    if lent.default_taint:
        taints.append(Taint(domain.taint_vnode, "", "NoSchedule"))
    return (*taints, *lent.reclaim_taints)


def _spec(taints: tuple[Taint, ...], unschedulable: bool) -> Json:
    spec: Json = {"taints": [msgspec.to_builtins(taint) for taint in taints]}
    return spec | ({"unschedulable": True} if unschedulable else {})


def _status(lent: LentNode) -> Json:
    status = lent.pnode.get("status") or {}
    amounts = {name: str(amount) for name, amount in lent.offered.items()}
    forged: Json = {
        "capacity": amounts,
        "allocatable": _allocatable(amounts, lent.takes_pods),
        "conditions": _conditions_of(lent.pnode),
        "addresses": _addresses(lent.proxier_ip, lent.vnode),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": lent.proxier_port}},
        "nodeInfo": printable_json(status.get("nodeInfo") or {}),
    }
    return forged | ({"phase": status["phase"]} if status.get("phase") else {})


def _allocatable(amounts: Mapping[str, str], takes_pods: bool) -> dict[str, str]:
    return dict(amounts) if takes_pods else {**amounts, PODS: "0"}


def _conditions_of(pnode: Json) -> list[Json]:
    conditions: list[Json] = (pnode.get("status") or {}).get("conditions") or []
    return [printable_json(each) for each in conditions]


def _conditions(pnode: Json, now: Json, before: Expected) -> list[Json]:
    """Return the conditions of the worker's node, and those that others set on the virtual node."""
    ours = _conditions_of(pnode)
    known = {each["type"] for each in ours} | _STANDARD_CONDITIONS | {*before.conditions}
    return [*ours, *(each for each in now.get("conditions") or () if each["type"] not in known)]


def _spec_change(
    spec: Json, before: Expected, want: Expected, lent: LentNode, *, cordoned: bool
) -> Json:
    """Return the change of a virtual node's spec; `cordoned`: whether the syncer cordoned it."""
    now = msgspec.convert(spec.get("taints") or [], tuple[Taint, ...])
    then = merge_taints(now, before.taints, want.taints, owns=lent.domain.owns)
    change: Json = {}
    if _by_key(now) != _by_key(then):
        change["taints"] = [msgspec.to_builtins(taint) for taint in then]
    if lent.unschedulable and not spec.get("unschedulable"):
        change["unschedulable"] = True
    elif cordoned and not lent.unschedulable and spec.get("unschedulable"):
        change["unschedulable"] = None
    return change


def _by_key(taints: tuple[Taint, ...]) -> dict[tuple[str, str], tuple[str, str | None]]:
    return {(t.key, t.effect): (t.value, t.time_added) for t in taints}


def _finalizers(now: list[str], ours: str) -> list[str]:
    """Return the finalizers to write on a virtual node; empty if `ours` is present."""
    return [] if ours in now else [*now, ours]


def _status_change(now: Json, then: Json) -> Json:
    change: Json = {}
    for name, value in then.items():
        present = now.get(name)
        if _comparable(name, present) == _comparable(name, value):
            continue
        if isinstance(value, dict) and isinstance(present, dict):
            change[name] = merge_patch(present, value)
        else:
            change[name] = value
    return change


def _comparable(name: str, value: Any) -> Any:
    """Return a status field for comparison: conditions without times, quantities by amount."""
    if name in ("capacity", "allocatable"):
        return {resource: Quantity.stored(amount) for resource, amount in (value or {}).items()}
    if name != "conditions":
        return value
    return {c["type"]: {k: v for k, v in c.items() if k not in _TIMES} for c in value or ()}
