"""Virtual nodes: what the computing cluster should see of a worker's node.

`forge` makes the whole node from what is known; `changes` says what to write to make an existing
one so. Labels, annotations and taints that users put on a virtual node stay. Times alone are no
difference: a node whose heartbeat is newer, and nothing else, is not written.

Annotations of the worker's node are shown as far as a server has room for them, beside ours and the
users': the largest are left out first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Json, Object
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.forge.foreign import is_copied_annotation, is_derived_taint
from kubeocean.syncer.forge.metadata import Expected, merge, merge_patch, merge_taints

__all__ = [
    "Change",
    "Lent",
    "changes",
    "expected",
    "forge",
    "inner_ip",
    "is_ours",
    "left_out",
    "notice",
    "readdressed",
]

_TIMES: Final = ("lastHeartbeatTime", "lastTransitionTime")
_MOST_ANNOTATION_BYTES: Final = 256 * 1024  # that a server accepts, keys and values together
_SPARE_BYTES: Final = 32 * 1024  # for what we write ourselves, and what others may yet write
_REMEMBERED: Final = 256  # to know that an annotation was ours its key is enough


@dataclass(frozen=True, slots=True)
class Lent:
    """Everything that a virtual node is made from."""

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
    domain: Domain = field(default=group.DEFAULT)


@dataclass(frozen=True, slots=True)
class Change:
    """What to write to an existing virtual node: patches of the object, and of its status."""

    main: Json
    status: Json

    def __bool__(self) -> bool:
        return bool(self.main or self.status)


def forge(lent: Lent, *, now: str) -> Json:
    """The node as it is created, status and all: a server keeps the status of a new node."""
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


def changes(vnode: Json, lent: Lent, *, now: str) -> Change:
    """The difference between a virtual node and what it should be."""
    domain, meta = lent.domain, vnode["metadata"]
    labels_now: Mapping[str, str] = meta.get("labels") or {}
    annotations_now: Mapping[str, str] = meta.get("annotations") or {}
    want = expected(lent, annotations_now)
    before = Expected.decode(annotations_now.get(domain.expected_metadata, ""))

    labels = merge_patch(labels_now, merge(labels_now, before.labels, want.labels))
    forgotten = {domain.deletion_taint_time}  # an earlier implementation's, of a deletion undone
    annotations_then = merge(
        {key: value for key, value in annotations_now.items() if key not in forgotten},
        before.annotations,
        {**want.annotations, domain.expected_metadata: _remembered(want).encode()},
    )
    annotations = merge_patch(annotations_now, annotations_then)
    spec = _spec_change(vnode.get("spec") or {}, before, want, lent)
    finalizers = _finalizers(meta.get("finalizers") or [], domain.finalizer_vnode)
    status = _status_change(vnode.get("status") or {}, _status(lent))
    if not (labels or annotations or spec or finalizers or status):
        return Change({}, {})

    annotations[domain.last_sync_time] = now
    metadata: Json = {"labels": labels, "annotations": annotations}
    # The status of a node may be written together with its labels and annotations, in one request;
    # its spec may not.
    if status and not spec and not finalizers:
        return Change({}, {"metadata": metadata, "status": status})
    main: Json = {"metadata": metadata | ({"finalizers": finalizers} if finalizers else {})}
    if spec:
        main["spec"] = spec
    return Change(main, {"status": status} if status else {})


def notice(vnode: Json, taints: tuple[Taint, ...], unschedulable: bool, domain: Domain) -> Json:
    """What to write to tell that a virtual node is taken back; nothing else of it changes."""
    spec = vnode.get("spec") or {}
    now = msgspec.convert(spec.get("taints") or [], tuple[Taint, ...])
    keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
    then = (*(taint for taint in now if taint.key not in keys), *taints)
    change: Json = {}
    if _by_key(now) != _by_key(then):
        change["taints"] = [msgspec.to_builtins(taint) for taint in then]
    if unschedulable and not spec.get("unschedulable"):
        change["unschedulable"] = True
    return {"spec": change} if change else {}


def readdressed(
    vnode: Json, *, proxier_ip: str, metrics_port: int, name: str, domain: Domain
) -> Json:
    """What to write, in one request to its status, for a virtual node to point at this replica."""
    wanted = _addresses(proxier_ip, name)
    if not proxier_ip or (vnode.get("status") or {}).get("addresses") == wanted:
        return {}
    url = _prometheus_url(proxier_ip, metrics_port, name)
    annotations = {domain.prometheus_url: url}
    return {"metadata": {"annotations": annotations}, "status": {"addresses": wanted}}


def is_ours(vnode: Object, labels: Mapping[str, str], domain: Domain) -> bool:
    """Whether a node that lost some of these labels is one that we made: by what it remembers, or,
    if nothing else claims it, by our finalizer."""
    remembered = Expected.decode(vnode.annotations.get(domain.expected_metadata, ""))
    if labels.items() <= remembered.labels.items():
        return True
    unclaimed = all(vnode.labels.get(key, value) == value for key, value in labels.items())
    return unclaimed and domain.finalizer_vnode in (vnode.metadata.finalizers or ())


def left_out(lent: Lent, now: Mapping[str, str]) -> tuple[str, ...]:
    """The annotations of the worker's node for which the virtual one, annotated so, has no room."""
    return tuple(sorted(_copied(lent).keys() - _fitting(lent, now).keys()))


def expected(lent: Lent, now: Mapping[str, str] | None = None) -> Expected:
    """What we want in metadata and taints; the rest is the user's. `now` are its annotations."""
    domain, node = lent.domain, lent.pnode["metadata"]
    name, ip = node["name"], inner_ip(lent.pnode)
    labels = {
        **(node.get("labels") or {}),
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(lent.binding),
        domain.physical_cluster_id: lent.cluster_id,
        domain.physical_node_name: naming.label_value(name),
        domain.physical_node_uid: node["uid"],
        domain.proxier_port: str(lent.proxier_port),
        domain.policy_applied: naming.label_value(lent.policy),
        group.LABEL_NODE_TYPE: group.NODE_TYPE_VIRTUAL,
        group.LABEL_INSTANCE_TYPE: group.INSTANCE_TYPE_VNODE,
        group.LABEL_INSTANCE_TYPE_BETA: group.INSTANCE_TYPE_VNODE,
        group.LABEL_HOSTNAME: lent.vnode,
        # The machine is not in this cluster's network: no balancer of it may send traffic there.
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
        domain.prometheus_url: _prometheus_url(lent.proxier_ip, lent.metrics_port, lent.vnode),
    }
    return Expected(labels, annotations, _taints(lent))


def _addresses(proxier_ip: str, vnode: str) -> list[Json]:
    return [
        {"type": "InternalIP", "address": proxier_ip},
        {"type": "Hostname", "address": vnode},
    ]


def _prometheus_url(proxier_ip: str, port: int, vnode: str) -> str:
    return f"{proxier_ip or '<pending>'}:{port}/{vnode}"


def _copied(lent: Lent) -> dict[str, str]:
    annotations: Mapping[str, str] = lent.pnode["metadata"].get("annotations") or {}
    return {
        key: value
        for key, value in annotations.items()
        if is_copied_annotation(key) and not lent.domain.owns(key)
    }


def _fitting(lent: Lent, now: Mapping[str, str]) -> dict[str, str]:
    """What is copied, without the largest ones that there is no room for."""
    copied = _copied(lent)
    before = Expected.decode(now.get(lent.domain.expected_metadata, "")).annotations
    theirs = {
        key: value
        for key, value in now.items()
        if key not in copied and key not in before and not lent.domain.owns(key)
    }
    room = _MOST_ANNOTATION_BYTES - _SPARE_BYTES - sum(_size(*each) for each in theirs.items())
    taken = 0
    fitting: set[str] = set()
    for key, value in sorted(copied.items(), key=lambda each: (_size(*each), each[0])):
        # What is remembered of it is written in four characters for every three.
        taken += _size(key, value) + (len(key.encode()) + _REMEMBERED) * 4 // 3
        if taken > room:
            break
        fitting.add(key)
    return {key: value for key, value in copied.items() if key in fitting}


def _remembered(want: Expected) -> Expected:
    short = {k: v if len(v) <= _REMEMBERED else "" for k, v in want.annotations.items()}
    return Expected(want.labels, short, want.taints)


def _size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode())


def inner_ip(node: Json) -> str:
    """The first address of a node within its own cluster."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")


def _taints(lent: Lent) -> tuple[Taint, ...]:
    domain = lent.domain
    found: list[Taint] = []
    for taint in (lent.pnode.get("spec") or {}).get("taints") or ():
        key = taint["key"]
        if domain.owns(key) or is_derived_taint(key):
            continue
        if key == group.TAINT_UNSCHEDULABLE:
            key = domain.taint_physical_unschedulable
        found.append(Taint(key, taint.get("value", ""), taint["effect"]))
    if lent.default_taint:
        found.append(Taint(domain.taint_vnode, "", "NoSchedule"))
    return (*found, *lent.reclaim_taints)


def _spec(taints: tuple[Taint, ...], unschedulable: bool) -> Json:
    spec: Json = {"taints": [msgspec.to_builtins(taint) for taint in taints]}
    return spec | ({"unschedulable": True} if unschedulable else {})


def _status(lent: Lent) -> Json:
    status = lent.pnode.get("status") or {}
    amounts = {name: str(amount) for name, amount in lent.offered.items()}
    wanted: Json = {
        "capacity": amounts,
        "allocatable": dict(amounts),
        "conditions": status.get("conditions") or [],
        "addresses": _addresses(lent.proxier_ip, lent.vnode),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": lent.proxier_port}},
        "nodeInfo": status.get("nodeInfo") or {},
    }
    return wanted | ({"phase": status["phase"]} if status.get("phase") else {})


def _spec_change(spec: Json, before: Expected, want: Expected, lent: Lent) -> Json:
    now = msgspec.convert(spec.get("taints") or [], tuple[Taint, ...])
    then = merge_taints(now, before.taints, want.taints, owns=lent.domain.owns)
    change: Json = {}
    if _by_key(now) != _by_key(then):
        change["taints"] = [msgspec.to_builtins(taint) for taint in then]
    # Ours alone to lift is what we set; a user's cordon has no taint of ours beside it.
    marked = any(taint.key == lent.domain.taint_vnode_deleting for taint in now)
    if lent.unschedulable and not spec.get("unschedulable"):
        change["unschedulable"] = True
    elif marked and not lent.unschedulable and spec.get("unschedulable"):
        change["unschedulable"] = None
    return change


def _by_key(taints: tuple[Taint, ...]) -> dict[tuple[str, str], tuple[str, str | None]]:
    return {(t.key, t.effect): (t.value, t.time_added) for t in taints}


def _finalizers(now: list[str], ours: str) -> list[str]:
    """The list to write, if ours is missing."""
    return [] if ours in now else [*now, ours]


def _status_change(now: Json, then: Json) -> Json:
    change: Json = {}
    for name, wanted in then.items():
        has = now.get(name)
        if _comparable(name, has) == _comparable(name, wanted):
            continue
        if isinstance(wanted, dict) and isinstance(has, dict):
            change[name] = {key: None for key in has if key not in wanted} | wanted
        else:
            change[name] = wanted
    return change


def _comparable(name: str, value: Any) -> Any:
    """Without what changes while nothing does; quantities by amount, however written."""
    if name in ("capacity", "allocatable"):
        return {resource: Quantity.parse(amount) for resource, amount in (value or {}).items()}
    if name != "conditions":
        return value
    return {c["type"]: {k: v for k, v in c.items() if k not in _TIMES} for c in value or ()}
