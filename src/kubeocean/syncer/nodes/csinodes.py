"""Replicates CSINodes: each virtual node has the storage drivers of its physical node.

The scheduler of the computing cluster reads CSINodes to count volumes. The spec of a copy is that
of its source. Its labels and annotations are those of the source and of the syncer; metadata that
users add stays. A copy is created when the virtual node exists, which owns it, and is deleted with
it or with the source. A CSINode of that name that the binding did not create is left alone, and an
event reports it.

The key is the name of the physical node. A difference in the time of the last sync alone is not
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.conditions import NodeEvent
from kubeocean.api.group import Domain
from kubeocean.errors import Invalid, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Done, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node, ObjectReference
from kubeocean.runtime.objects import Json, Key, Object, Resource, merge_patch
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.copy_metadata import (
    copied_annotations,
    copied_labels,
    merged,
    recorded,
)
from kubeocean.syncer.replication.loop import ReplicationLoop
from kubeocean.syncer.replication.store import CopyStore

__all__ = [
    "CSI_NODES",
    "CsiNode",
    "CsiNodeContext",
    "CsiNodes",
    "changes",
    "forge",
    "is_ours",
    "unregister",
]

WORKERS: Final = 8


class CsiNode(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """The storage drivers of a node; the spec is kept as it is, to be copied."""

    spec: Json = msgspec.field(default_factory=dict)


CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, CsiNode)


@dataclass(frozen=True, slots=True)
class CsiNodeContext:
    """Everything that the copy of a CSINode for a virtual node is built from."""

    source: CsiNode  # of the physical node
    vnode: str
    vnode_uid: str
    binding: str
    cluster_id: str
    domain: Domain = field(default=group.DEFAULT)


def forge(context: CsiNodeContext, *, now: str) -> Json:
    """Return the manifest of a new copy of a CSINode."""
    labels, annotations = _metadata(context)
    return {
        "apiVersion": CSI_NODES.api_version,
        "kind": CSI_NODES.kind,
        "metadata": {
            "name": context.vnode,
            "labels": labels,
            "annotations": annotations | {context.domain.last_sync_time: now},
            "ownerReferences": [_owner(context)],
        },
        "spec": _spec(context.source),
    }


def changes(copy: CsiNode, context: CsiNodeContext, *, now: str) -> Json:
    """Return the merge patch that makes a CSINode copy equal to its source; empty if it is."""
    expected_labels, expected_annotations = merged(copy, *_metadata(context), context.domain)
    labels = merge_patch(copy.labels, expected_labels)
    annotations = merge_patch(copy.annotations, expected_annotations)
    owners = _changed_owners(copy, context)
    same = _comparable(copy.spec) == _comparable(context.source.spec)
    if not (labels or annotations or owners) and same:
        return {}
    annotations[context.domain.last_sync_time] = now
    metadata: Json = {"labels": labels, "annotations": annotations}
    if owners:
        metadata["ownerReferences"] = owners
    return {"metadata": metadata} | ({} if same else {"spec": _spec(context.source)})


def unregister(copy: CsiNode, context: CsiNodeContext) -> Json:
    """Return the merge patch that removes the drivers of a copy that differ from the source.

    Empty if none differs.

    An API server refuses a change of a registered driver, but accepts that a driver is removed and
    added again.
    """
    registered = {
        driver["name"]: _without_empty(driver) for driver in _drivers(context.source.spec)
    }
    drivers = _drivers(copy.spec)
    kept = [
        driver
        for driver in drivers
        if registered.get(driver["name"], _without_empty(driver)) == _without_empty(driver)
    ]
    return {"spec": {"drivers": kept}} if len(kept) < len(drivers) else {}


def is_ours(copy: CsiNode, *, pnode: str, binding: str, cluster_id: str, domain: Domain) -> bool:
    """Whether a CSINode is this binding's copy for physical node `pnode`.

    The name of the copy contains the node's name; labels and annotations need not name the node,
    but must not name another.
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


def _metadata(context: CsiNodeContext) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of a new copy, without the time of the last sync."""
    domain, source = context.domain, context.source
    name = domain.physical_node_name
    labels = {
        **copied_labels(source, domain),
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(context.binding),
        domain.physical_cluster_id: context.cluster_id,
        name: naming.label_value(source.name),
    }
    annotations = {
        **copied_annotations(source, domain),  # of drivers and of migration: for the scheduler
        name: source.name,
        domain.physical_csinode_uid: source.uid,
    }
    return labels, recorded(labels, annotations, domain)


def _owner(context: CsiNodeContext) -> Json:
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "name": context.vnode,
        "uid": context.vnode_uid,
    }


def _changed_owners(copy: CsiNode, context: CsiNodeContext) -> list[Json]:
    """Return the ownerReferences to write, including the virtual node; empty if they are right."""
    owners = copy.metadata.owner_references or ()
    nodes = [each for each in owners if each.kind == NODES.kind]
    if len(nodes) == 1 and nodes[0].uid == context.vnode_uid:
        return []
    others = [msgspec.to_builtins(each) for each in owners if each.kind != NODES.kind]
    kept = [{key: value for key, value in each.items() if value is not None} for each in others]
    return [*kept, _owner(context)]


def _spec(source: CsiNode) -> Json:
    return source.spec | {"drivers": _drivers(source.spec)}


def _drivers(spec: Json) -> list[Json]:
    return spec.get("drivers") or []


def _comparable(spec: Json) -> Json:
    """Return the spec of a CSINode without the order of drivers and without empty fields."""
    drivers = {driver["name"]: _without_empty(driver) for driver in _drivers(spec)}
    return _without_empty(spec) | {"drivers": drivers}


def _without_empty(document: Json) -> Json:
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def _physical_node(copy: CsiNode, domain: Domain) -> Key:
    """Return the key of the physical node that the annotation or label of a CSINode copy names."""
    name = domain.physical_node_name
    return Key("", copy.annotations.get(name) or copy.labels.get(name, ""))


class CsiNodes(ReplicationLoop[CsiNode, CsiNode]):
    """Replicates CSINodes from the worker cluster to the computing cluster, for one binding."""

    def __init__(self, clusters: Clusters) -> None:
        domain, binding = clusters.domain, naming.label_value(clusters.binding_name)
        sources = Informer(
            clusters.worker, CSI_NODES, clock=clusters.clock, metrics=clusters.metrics
        )
        store = CopyStore(
            clusters,
            clusters.computing,
            CSI_NODES,
            lambda copy: _physical_node(copy, domain),
            labels=f"{domain.managed_by}={domain.product},{domain.cluster_binding}={binding}",
        )
        super().__init__(clusters, "csinode", sources, store, workers=WORKERS)
        self.parts: tuple[Runnable, ...] = (self.sources, self.copies, self.controller)
        clusters.vnodes.on_change(self._vnode_changed)
        self.follow(self.sources, lambda source: source.key)
        self.follow(self.copies, self.source_of)

    def keys(self) -> Iterator[Key]:
        clusters = self.clusters
        yield from (Key("", clusters.pnode_of(vnode)) for vnode in clusters.vnodes.items())
        yield from (self.source_of(copy) for copy in self.copies.items())

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes of nodes are heartbeats and capacity, and concern no driver.
        if old is None or new is None or old.deleting != new.deleting:
            vnodes = (vnode for vnode in (old, new) if vnode is not None)
            self.enqueue(Key("", self.clusters.pnode_of(vnode)) for vnode in vnodes)

    async def caught_up(self, key: Key) -> bool:
        caches = (self.clusters.vnodes, self.sources, self.copies)
        if not all(cache.has_synced for cache in caches):
            return False
        return await self._store.caught_up(key)

    def event_target(self, key: Key) -> ObjectReference | None:
        vnode = self.clusters.vnodes.get(Key("", self.clusters.vnode_name(key.name)))
        return None if vnode is None else reference(NODES, vnode)

    async def reconcile(self, key: Key) -> Outcome:
        clusters = self.clusters
        name = Key("", clusters.vnode_name(key.name))
        vnode, copy = clusters.vnodes.get(name), self.copies.get(name)
        if vnode is None:
            return await self._ensure_deleted(key, copy)
        if vnode.deleting or not self._is_vnode_of(vnode, key):
            return Done()  # the key is enqueued again when the virtual node is gone
        if not clusters.worker_health.answers:
            return Done()  # the key is enqueued again when the worker answers
        source = self.sources.get(key)
        if source is not None:
            return await self._ensure(vnode, source, copy)
        if copy is None or await self._source_exists(key):
            return Done()
        return await self._ensure_deleted(key, copy)

    async def _ensure(self, vnode: Node, source: CsiNode, copy: CsiNode | None) -> Outcome:
        clusters = self.clusters
        context = CsiNodeContext(
            source=source,
            vnode=vnode.name,
            vnode_uid=vnode.uid,
            binding=clusters.binding_name,
            cluster_id=clusters.cluster_id,
            domain=clusters.domain,
        )
        if copy is None:
            body = forge(context, now=clusters.now_text())
            copy, created = await self._store.create_or_get(source.key, body)
            if created:
                return Done()
        if not self._is_ours(copy, source.name):
            message = (
                f"CSINode {copy.name} belongs to another owner; the limits of attached volumes are"
                " not copied"
            )
            return Stuck(NodeEvent.NAME_TAKEN, message)
        return await self._update(copy, context)

    async def _update(self, copy: CsiNode, context: CsiNodeContext) -> Outcome:
        change = changes(copy, context, now=self.clusters.now_text())
        if not change:
            return Done()
        key = context.source.key
        try:
            await self._store.merge(key, copy, change)
        except Invalid:
            removal = unregister(copy, context)
            if not removal:
                raise
            unregistered = await self._store.merge(key, copy, removal)
            await self._store.merge(key, unregistered, change)
        return Done()

    async def _ensure_deleted(self, key: Key, copy: CsiNode | None) -> Outcome:
        if copy is not None and self._is_ours(copy, key.name):
            await self._store.delete(key, copy)
        return Done()

    async def _source_exists(self, key: Key) -> bool:
        """Whether the worker's API server has a CSINode that the cache does not show."""
        try:
            await self.clusters.worker.get(CSI_NODES, key.name)
        except NotFound:
            return False
        return True

    def _is_vnode_of(self, vnode: Node, key: Key) -> bool:
        clusters = self.clusters
        cluster_id = vnode.labels.get(clusters.domain.physical_cluster_id)
        return cluster_id == clusters.cluster_id and clusters.pnode_of(vnode) == key.name

    def _is_ours(self, copy: CsiNode, pnode: str) -> bool:
        clusters = self.clusters
        return is_ours(
            copy,
            pnode=pnode,
            binding=clusters.binding_name,
            cluster_id=clusters.cluster_id,
            domain=clusters.domain,
        )
