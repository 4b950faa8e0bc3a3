"""CSINodes: each virtual node shows the storage drivers of its worker's node.

The key is the name of the worker's node. A copy is made when the virtual node is there, and removed
with it or with the worker's CSINode; the virtual node owns it, so that it goes even if we are gone.
A CSINode of that name which is not ours is left alone, and somebody is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeocean.api import naming
from kubeocean.api.reasons import NodeEvent
from kubeocean.errors import AlreadyExists, Conflict, Invalid, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import Done, Outcome, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge import csinodes as forge
from kubeocean.syncer.forge.csinodes import CSI_NODES, CsiNode, Shown
from kubeocean.syncer.world import World

__all__ = ["CsiNodes"]

WORKERS: Final = 8

_log = get_logger(__name__)


class CsiNodes:
    """The virtual CSINodes of one binding."""

    def __init__(self, world: World) -> None:
        self.world = world
        domain, binding = world.domain, naming.label_value(world.binding_name)
        self.sources = Informer(world.worker, CSI_NODES, clock=world.clock, metrics=world.metrics)
        self.copies = Informer(
            world.computing,
            CSI_NODES,
            labels=f"{domain.managed_by}={domain.product},{domain.cluster_binding}={binding}",
            clock=world.clock,
            metrics=world.metrics,
        )
        self.controller: Controller[Key] = Controller(
            f"csinode-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (self.sources, self.copies, self.controller)
        world.vnodes.on_change(self._vnode_changed)
        world.reach.on_change(self._reached)
        self.sources.on_change(self._source_changed)
        self.copies.on_change(self._copy_changed)

    # What makes us look

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes are heartbeats and amounts, and concern no driver.
        if old is None or new is None or old.deleting != new.deleting:
            self._enqueue(self.world.pnode_of(vnode) for vnode in (old, new) if vnode is not None)

    def _source_changed(self, old: CsiNode | None, new: CsiNode | None) -> None:
        self._enqueue(source.name for source in (old, new) if source is not None)

    def _copy_changed(self, old: CsiNode | None, new: CsiNode | None) -> None:
        # Of both: somebody may have taken the name off.
        name = self.world.domain.physical_node_name
        copies = (copy for copy in (old, new) if copy is not None)
        self._enqueue(copy.annotations.get(name) or copy.labels.get(name, "") for copy in copies)

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue(map(self.world.pnode_of, self.world.vnodes.items()))

    def _enqueue(self, pnodes: Iterable[str]) -> None:
        for pnode in pnodes:
            self.controller.enqueue(Key("", pnode))

    async def _caught_up(self, key: Key) -> bool:
        caches = (self.world.vnodes, self.sources, self.copies)
        if not all(cache.has_synced for cache in caches):
            return False
        return await self.copies.caught_up(Key("", self.world.vnode_name(key.name)))

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        name = Key("", world.vnode_name(key.name))
        vnode, copy = world.vnodes.get(name), self.copies.get(name)
        if vnode is None:
            return await self._ensure_gone(key, copy)
        if vnode.deleting or not self._stands_for(vnode, key) or not world.reach.answers:
            return Done()  # we are called again when it is gone, or when the worker answers
        source = self.sources.get(key)
        if source is not None:
            return await self._ensure(vnode, source, copy)
        if copy is None or await self._has_source(key):
            return Done()
        return await self._ensure_gone(key, copy)

    async def _ensure(self, vnode: Node, source: CsiNode, copy: CsiNode | None) -> Outcome:
        world = self.world
        shown = Shown(
            source=source,
            vnode=vnode.name,
            vnode_uid=vnode.uid,
            binding=world.binding_name,
            cluster_id=world.cluster_id,
            domain=world.domain,
        )
        if copy is None:
            try:
                return await self._create(shown)
            except AlreadyExists:
                copy = await world.computing.get(CSI_NODES, vnode.name)
        if not self._is_ours(copy, source.name):
            message = f"CSINode {copy.name} belongs to somebody else; volumes are not counted"
            world.events.emit(reference(NODES, vnode), "Warning", NodeEvent.NAME_TAKEN, message)
            return Stuck(NodeEvent.NAME_TAKEN, message)
        return await self._update(copy, shown)

    async def _create(self, shown: Shown) -> Outcome:
        body = forge.forge(shown, now=self.world.now_text())
        self.copies.wrote(await self.world.computing.create(CSI_NODES, body))
        _log.info("Created virtual CSINode", node=shown.vnode, physical=shown.source.name)
        return Done()

    async def _update(self, copy: CsiNode, shown: Shown) -> Outcome:
        change = forge.changes(copy, shown, now=self.world.now_text())
        if not change:
            return Done()
        try:
            await self._write(copy, change)
        except Invalid:
            dropped = forge.unregister(copy, shown)
            if not dropped:
                raise
            await self._write(await self._write(copy, dropped), change)
        _log.info("Updated virtual CSINode", node=shown.vnode, physical=shown.source.name)
        return Done()

    async def _write(self, copy: CsiNode, change: Json) -> CsiNode:
        precondition = {"uid": copy.uid, "resourceVersion": copy.resource_version}
        patch = MergePatch(change | {"metadata": change.get("metadata", {}) | precondition})
        written = await self.world.computing.patch(CSI_NODES, copy.name, patch)
        self.copies.wrote(written)
        return written

    async def _ensure_gone(self, key: Key, copy: CsiNode | None) -> Outcome:
        if copy is None or copy.deleting or not self._is_ours(copy, key.name):
            return Done()
        try:
            await self.world.computing.delete(CSI_NODES, copy.name, uid=copy.uid)
        except (NotFound, Conflict):
            return Done()  # it is gone, or another one: the cache will show
        self.copies.deleted(copy)
        _log.info("Deleted virtual CSINode", node=copy.name, physical=key.name)
        return Done()

    # Small questions

    async def _has_source(self, key: Key) -> bool:
        """Ask the server about what the cache does not show, before removing for it."""
        try:
            await self.world.worker.get(CSI_NODES, key.name)
        except NotFound:
            return False
        return True

    def _stands_for(self, vnode: Node, key: Key) -> bool:
        world = self.world
        cluster_id = vnode.labels.get(world.domain.physical_cluster_id)
        return cluster_id == world.cluster_id and world.pnode_of(vnode) == key.name

    def _is_ours(self, copy: CsiNode, pnode: str) -> bool:
        world = self.world
        return forge.is_ours(
            copy,
            pnode=pnode,
            binding=world.binding_name,
            cluster_id=world.cluster_id,
            domain=world.domain,
        )
