"""Virtual CSINodes: which storage drivers a lent node has, for the computing cluster's scheduler.

The spec is the worker's, word for word. Labels and annotations are the worker's and ours; what
users add stays. The copy goes with its virtual node, which owns it. The time of the last sync alone
is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json, Object, Resource
from kubeocean.syncer.forge.metadata import Expected, merge, merge_patch

__all__ = ["CSI_NODES", "CsiNode", "Shown", "changes", "forge", "is_ours", "unregister"]


class CsiNode(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """The drivers of a node; the spec is whole, to be copied."""

    spec: Json = msgspec.field(default_factory=dict)


CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, CsiNode)

# Of a person who applied the worker's object, to be found there.
_NOT_COPIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that a virtual CSINode is made from."""

    source: CsiNode  # the worker's
    vnode: str
    vnode_uid: str
    binding: str
    cluster_id: str
    domain: Domain = field(default=group.DEFAULT)


def forge(shown: Shown, *, now: str) -> Json:
    """The CSINode as it is created."""
    domain, want = shown.domain, _expected(shown)
    return {
        "apiVersion": CSI_NODES.api_version,
        "kind": CSI_NODES.kind,
        "metadata": {
            "name": shown.vnode,
            "labels": dict(want.labels),
            "annotations": {
                **want.annotations,
                domain.expected_metadata: want.encode(),
                domain.last_sync_time: now,
            },
            "ownerReferences": [_owner(shown)],
        },
        "spec": _spec(shown.source),
    }


def changes(copy: CsiNode, shown: Shown, *, now: str) -> Json:
    """The merge patch that makes a copy what it should be; empty if it is."""
    domain, want = shown.domain, _expected(shown)
    before = Expected.decode(copy.annotations.get(domain.expected_metadata, ""))
    labels = merge_patch(copy.labels, merge(copy.labels, before.labels, want.labels))
    wanted = {**want.annotations, domain.expected_metadata: want.encode()}
    then = merge(copy.annotations, before.annotations, wanted)
    annotations = merge_patch(copy.annotations, then)
    owners = _owners_then(copy, shown)
    same = _comparable(copy.spec) == _comparable(shown.source.spec)
    if not (labels or annotations or owners) and same:
        return {}
    annotations[domain.last_sync_time] = now
    metadata: Json = {"labels": labels, "annotations": annotations}
    if owners:
        metadata["ownerReferences"] = owners
    return {"metadata": metadata} | ({} if same else {"spec": _spec(shown.source)})


def unregister(copy: CsiNode, shown: Shown) -> Json:
    """The merge patch that drops the drivers which differ; empty if none does.

    A server does not let a driver change while it is registered, but lets it go and come back.
    """
    theirs = {driver["name"]: _bare(driver) for driver in _drivers(shown.source.spec)}
    drivers = _drivers(copy.spec)
    kept = [each for each in drivers if theirs.get(each["name"], _bare(each)) == _bare(each)]
    return {"spec": {"drivers": kept}} if len(kept) < len(drivers) else {}


def is_ours(copy: CsiNode, *, pnode: str, binding: str, cluster_id: str, domain: Domain) -> bool:
    """Whether a CSINode is this binding's copy of that node's; any other is somebody else's.

    The node is in its name already; labels and annotations only must not name another.
    """
    labels, name = copy.labels, domain.physical_node_name
    label = naming.label_value(pnode)
    return (
        labels.get(domain.managed_by) == domain.product
        and labels.get(domain.cluster_binding) == naming.label_value(binding)
        and labels.get(domain.physical_cluster_id) == cluster_id
        and labels.get(name, label) == label
        and copy.annotations.get(name, pnode) == pnode
    )


def _expected(shown: Shown) -> Expected:
    domain, source = shown.domain, shown.source
    name = domain.physical_node_name
    labels = {
        **{key: value for key, value in source.labels.items() if not domain.owns(key)},
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(shown.binding),
        domain.physical_cluster_id: shown.cluster_id,
        name: naming.label_value(source.name),
    }
    # What drivers and migration say about the node is for the scheduler, which is above, too.
    copied = {
        key: value
        for key, value in source.annotations.items()
        if key != _NOT_COPIED and not domain.owns(key)
    }
    annotations = {**copied, name: source.name, domain.physical_csinode_uid: source.uid}
    return Expected(labels, annotations)


def _owner(shown: Shown) -> Json:
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "name": shown.vnode,
        "uid": shown.vnode_uid,
    }


def _owners_then(copy: CsiNode, shown: Shown) -> list[Json]:
    """The owners to write: others', and the virtual node as it is now; empty if it is so."""
    owners = copy.metadata.owner_references or ()
    nodes = [each for each in owners if each.kind == NODES.kind]
    if len(nodes) == 1 and nodes[0].uid == shown.vnode_uid:
        return []
    kept = [_given(msgspec.to_builtins(each)) for each in owners if each.kind != NODES.kind]
    return [*kept, _owner(shown)]


def _given(document: Json) -> Json:
    return {key: value for key, value in document.items() if value is not None}


def _spec(source: CsiNode) -> Json:
    return source.spec | {"drivers": _drivers(source.spec)}


def _drivers(spec: Json) -> list[Json]:
    return spec.get("drivers") or []


def _comparable(spec: Json) -> Json:
    """Without the order of drivers, and without what is there but says nothing."""
    return _bare(spec) | {"drivers": {each["name"]: _bare(each) for each in _drivers(spec)}}


def _bare(document: Json) -> Json:
    return {key: value for key, value in document.items() if value not in (None, [], {})}
