"""Sharded controller: reconciles the keys of this replica's shards.

    ring = Ring(client, config)
    pods = ShardedController("pods", ring, client, PODS, reconcile=reconcile)

`reconcile(key)` is called for keys of shards that this replica owns, one call at a time for a key
over all replicas. It reads from `pods.get` and writes through `pods.client`, which refuses a write
when the shard is lost. Objects that it creates for another object (its *children*) belong to the
same shard: `pods.stamped` marks them.

With `handler` instead of `reconcile`, a `ResourceHandler` is called with additions, updates and
deletions. `HandlerReconciler` derives these calls from a level-triggered reconcile: it remembers
which version of each object was handled and calls the handler with the difference, so several
changes at once are not lost and failed calls are retried. When a shard is lost, this memory is
dropped: the new owner handles its objects as *added*, and no deletion is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple

from kubeocean.errors import ConfigError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Controller, Done, Outcome, StuckHook
from kubeocean.runtime.objects import Json, Key, Object, ObjectT, Resource, Untyped
from kubeocean.sharding.fencing import fenced, stamped, under
from kubeocean.sharding.metrics import Loads, WorkMetrics
from kubeocean.sharding.ring import Ring, WakingClock
from kubeocean.sharding.selection import (
    Everything,
    Labeller,
    Selection,
    SlotLabel,
    choose,
    named,
    owner_key,
    put_slot,
)
from kubeocean.sharding.slot_cache import SlotCache
from kubeocean.sharding.slot_lifecycle import Ended, Running

__all__ = ["Children", "HandlerReconciler", "ReconcileWork", "ResourceHandler", "ShardedController"]


class ResourceHandler(Generic[ObjectT]):
    """Handler of additions, updates and deletions of one kind. Override the methods you need; a
    call that raises is retried."""

    async def handle_add(self, obj: ObjectT) -> None:
        """Handle an object that is new, or new to this replica."""

    async def handle_update(self, old: ObjectT, new: ObjectT) -> None:
        """Handle an object that changed since it was last handled."""

    async def handle_delete(self, obj: ObjectT) -> None:
        """Handle the deletion of an object, given as it was last handled."""

    def should_process(self, obj: ObjectT) -> bool:
        """Whether it matters at all."""
        return True

    def get_resource_key(self, obj: ObjectT) -> str:
        """Return the sharding key of an object. It must depend on nothing but the name."""
        return str(obj.key)


class HandlerReconciler(Generic[ObjectT]):
    """A reconciler that calls a handler."""

    def __init__(
        self,
        handler: ResourceHandler[ObjectT],
        read: Callable[[Key], Awaitable[ObjectT | None]],
    ) -> None:
        self._handler = handler
        self._read = read
        self._handled: dict[Key, ObjectT] = {}

    async def reconcile(self, key: Key) -> Outcome:
        old, new = self._handled.get(key), await self._read(key)
        if new is not None and not self._handler.should_process(new):
            new = None
        if old is not None and (new is None or new.uid != old.uid):
            await self._handler.handle_delete(old)
            del self._handled[key]
            old = None
        if new is None:
            return Done()
        if old is None:
            await self._handler.handle_add(new)
        elif old.resource_version != new.resource_version:
            await self._handler.handle_update(old, new)
        self._handled[key] = new
        return Done()

    def forget(self, keys: Collection[Key]) -> None:
        """Forget objects that another replica owns now."""
        for key in keys:
            self._handled.pop(key, None)


class ReconcileWork(NamedTuple):
    """A key and the slot that it is in."""

    slot: int
    key: Key

    def __str__(self) -> str:
        return str(self.key)


@dataclass(frozen=True, slots=True)
class Children(Generic[ObjectT]):
    """A kind of objects that ours control; a change of one is a change of its owner."""

    resource: Resource[ObjectT]
    labels: str = ""
    keep_raw: bool = False


@dataclass(slots=True)
class _Caches(Generic[ObjectT]):
    """Caches of a controller, once the filter is chosen."""

    objects: SlotCache[ObjectT]
    children: dict[str, SlotCache[Any]] = field(default_factory=dict)

    def all(self) -> list[SlotCache[Any]]:
        return [self.objects, *self.children.values()]


class ShardedController(Generic[ObjectT]):
    """A controller of one resource in a ring."""

    def __init__(
        self,
        name: str,
        ring: Ring,
        client: Client,
        resource: Resource[ObjectT],
        *,
        reconcile: Callable[[Key], Awaitable[Outcome]] | None = None,
        handler: ResourceHandler[ObjectT] | None = None,
        children: Sequence[Children[Any]] = (),
        namespace: str = "",
        labels: str = "",
        keep_raw: bool = False,
        workers: int = 4,
        deadline_s: float | None = None,
        on_stuck: StuckHook[ReconcileWork] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if (reconcile is None) == (handler is None):
            raise ConfigError("either reconcile or handler is needed", field=f"controller {name}")
        self.name = name
        self.ring = ring
        self.resource = resource
        self.client = fenced(client, ring)
        self._plain = client
        self._children = tuple(children)
        self._namespace = namespace
        self._labels = labels
        self._keep_raw = keep_raw
        self._clock = clock or WakingClock()
        self._handler = handler
        self._adapter = HandlerReconciler(handler, self.read) if handler is not None else None
        self._reconcile = self._adapter.reconcile if self._adapter else reconcile
        self._caches: _Caches[ObjectT] | None = None
        self._chosen = asyncio.Event()
        self._running = Running()
        every_s = ring.config.node.health_check_interval_s
        self._loads = Loads(self._clock, every_s=every_s)
        self._figures = WorkMetrics(ring.metrics, ring.names.ring, name)
        self._controller = Controller[ReconcileWork](
            name,
            self._turn,
            workers=workers,
            owns=lambda work: ring.owns(work.slot),
            gate=self._caught_up,
            on_stuck=on_stuck,
            deadline_s=deadline_s,
            clock=self._clock,
            metrics=ring.metrics,
        )
        ring.add(self)

    # Reading and writing

    @property
    def objects(self) -> SlotCache[ObjectT]:
        """Cache of the objects in this replica's shards; available once the replica is healthy."""
        return self._ready().objects

    def children(self, resource: Resource[Any]) -> SlotCache[Any]:
        """Return the cache of children of this kind in this replica's shards."""
        return self._ready().children[str(resource)]

    def get(self, key: Key) -> ObjectT | None:
        """The object as the cache has it: whole, unless the filter is `metadata`."""
        return self.objects.get(key)

    async def read(self, key: Key) -> ObjectT | None:
        """The object, whole; None if there is none."""
        cached = self.objects.get(key)
        if cached is None or self.objects.selection.whole:
            return cached
        try:
            return await self._plain.get(
                self.resource, key.name, key.namespace, keep_raw=self._keep_raw
            )
        except NotFound:
            return None

    def shard_of(self, obj: Any) -> int:
        """The shard of an object, of which only the name counts."""
        key = str(obj.key) if self._handler is None else self._handler.get_resource_key(obj)
        return self.ring.shard_of(key)

    def stamped(self, body: Mapping[str, Any]) -> Json:
        """Return the object or patch with its shard and the epoch of the grant."""
        return stamped(body, self.ring.names)

    def wrote(self, obj: ObjectT) -> None:
        """Record the server's answer to a write of this program."""
        if self.objects.selection.whole:
            self.objects.wrote(obj)

    def enqueue(self, key: Key) -> None:
        """Ask for a reconcile of a key, if it is ours."""
        cached = self.get(key)
        slot = self.objects.slot_of(cached) if cached is not None else self.shard_of(named(key))
        if slot is not None:
            self._controller.enqueue(ReconcileWork(slot, key))

    # Life

    @property
    def ready(self) -> bool:
        return self._caches is not None

    async def run(self) -> None:
        """Work until `stop`."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow())
            await self._controller.run()
            following.cancel()

    async def stop(self) -> None:
        """Take no more keys, and wait for running reconciles."""
        await self._controller.stop()

    async def _follow(self) -> None:
        await self._chosen.wait()
        async with asyncio.TaskGroup() as group:
            for cache in self._ready().all():
                group.create_task(cache.run())

    # As a workload of the ring

    async def prepare(self) -> None:
        """Choose how to filter, and make the caches for it."""
        ring = self.ring
        selection = await choose(
            self._plain,
            self.resource,
            asked=ring.config.sharding.filter,
            slots=ring.slots,
            label=ring.names.slot_label,
            slot_of=self.shard_of,
            namespace=self._namespace,
            among=self._labels,
            family=bool(self._children),
        )
        objects = self._cache(self.resource, selection, keep_raw=self._keep_raw)
        objects.on_change(self._changed)
        self._caches = _Caches(objects)
        for kind in self._children:
            cache = self._cache(
                kind.resource, self._selection_of(kind, selection), keep_raw=kind.keep_raw
            )
            cache.on_change(self._child_changed)
            self._caches.children[str(kind.resource)] = cache
        self._chosen.set()

    async def lead(self) -> None:
        """Label objects that have no slot, if the filter uses labels."""
        await self._chosen.wait()
        if isinstance(self.objects.selection, SlotLabel):
            await Labeller(
                self._plain,
                self.resource,
                label=self.ring.names.slot_label,
                slot_of=self.shard_of,
                namespace=self._namespace,
                among=self._labels,
                clock=self._clock,
            ).run()

    async def warm(self, slots: Collection[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for cache in self._ready().all():
                group.create_task(cache.add(slots))

    def start(self, slots: Collection[int]) -> None:
        caches = self._ready()
        for slot in slots:
            for key in caches.objects.keys(slot):
                self._controller.enqueue(ReconcileWork(slot, key))
            # The owner of a child may be gone; its children still need a reconcile.
            for cache in caches.children.values():
                for child in cache.of(slot):
                    self._enqueue_owner(child, slot)

    async def idle(self, slot: int) -> None:
        await self._running.idle(slot)

    def cancel(self, slots: Collection[int]) -> None:
        self._running.cancel(slots)

    def drop(self, slots: Collection[int]) -> None:
        if self._caches is None:
            return
        if self._adapter is not None:
            for slot in slots:
                self._adapter.forget(self._caches.objects.keys(slot))
        for cache in self._caches.all():
            cache.drop(slots)
        self._loads.drop(slots)

    def busy(self) -> Collection[int]:
        return self._running.slots()

    def resources(self, slot: int) -> Sequence[str]:
        return [str(key) for key in self._caches.objects.keys(slot)] if self._caches else []

    def loads(self) -> Mapping[int, float]:
        if self._caches is None:
            return {}
        return self._loads.measure(self.ring.tenancy.serving, self._caches.objects.count)

    # One turn

    async def _turn(self, work: ReconcileWork) -> Outcome:
        assert self._reconcile is not None
        if not self.ring.owns(work.slot):
            return Done()  # deleted while the gate waited
        began = self._clock.monotonic()
        ended = False
        try:
            async with self._running.of(work.slot):
                with under(self.ring.grant(work.slot)):
                    outcome = await self._guarded(work)
            ended = True
            return outcome
        except Ended:
            ended = True
            return Done()  # whoever has the slot now takes up all of it
        finally:
            spent_s = self._clock.monotonic() - began
            self._loads.spent(work.slot, spent_s)
            self._figures.latency.observe(spent_s)
            (self._figures.processed if ended else self._figures.errors).inc()

    async def _guarded(self, work: ReconcileWork) -> Outcome:
        """Reconcile, unless the object's slot label is wrong."""
        assert self._reconcile is not None
        obj, selection = self.get(work.key), self.objects.selection
        if obj is not None and isinstance(selection, SlotLabel):
            right = self.shard_of(obj)
            if right != work.slot:
                # Who changes a label must not get two replicas to work on one key.
                label = self.ring.names.slot_label
                await put_slot(self.client, self.resource, obj, label=label, slot=right)
                return Done()
        return await self._reconcile(work.key)

    async def _caught_up(self, work: ReconcileWork) -> bool:
        return await self.objects.caught_up(work.key)

    # What is heard

    def _changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        obj = new or old
        assert obj is not None
        slot = self.objects.slot_of(obj)
        if slot is not None and slot in self.ring.tenancy.serving:
            self._controller.enqueue(ReconcileWork(slot, obj.key))

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        owner = owner_key(obj, self.resource.kind)
        if owner is not None:
            self._enqueue_owner(obj, self.shard_of(named(owner)))

    def _enqueue_owner(self, child: Object, slot: int) -> None:
        owner = owner_key(child, self.resource.kind)
        if owner is not None and slot in self.ring.tenancy.serving:
            self._controller.enqueue(ReconcileWork(slot, owner))

    # In one place

    def _ready(self) -> _Caches[ObjectT]:
        if self._caches is None:
            raise ConfigError("is not ready: its ring has not joined", field=self.name)
        return self._caches

    def _cache(
        self, resource: Resource[Any], selection: Selection[Any], *, keep_raw: bool
    ) -> SlotCache[Any]:
        if not selection.whole:
            resource = replace(resource, type=Untyped) if resource.type is not Untyped else resource
        return SlotCache(
            self._plain,
            resource,
            selection,
            namespace=self._namespace,
            keep_raw=keep_raw and selection.whole,
            clock=self._clock,
            metrics=self.ring.metrics,
        )

    def _selection_of(self, kind: Children[Any], chosen: Selection[Any]) -> Selection[Any]:
        if isinstance(chosen, SlotLabel):
            return replace(chosen, among=kind.labels)
        return Everything(
            self._plain, kind.resource, self.shard_of, kind=self.resource.kind, among=kind.labels
        )
