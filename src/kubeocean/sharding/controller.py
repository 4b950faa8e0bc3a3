"""Sharded controller: a controller that works on its replica's part of the keys.

    ring = Ring(client, config)
    pods = ShardedController("pods", ring, client, PODS, reconcile=reconcile)

`reconcile(key)` is called for keys of shards that are ours, one call at a time for a key over all
replicas. It reads from `pods.get`, and writes through `pods.client`, which refuses when the shard
is not ours any more. Objects that it creates for another one (its *children*) belong to the same
shard: `pods.stamped` marks them so.

With `handler` instead of `reconcile`, a `ResourceHandler` is told of additions, changes and
deletions.
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
from kubeocean.sharding.cache import SlotCache
from kubeocean.sharding.fencing import fenced, stamped, under
from kubeocean.sharding.handlers import HandlerReconciler, ResourceHandler
from kubeocean.sharding.labelling import Labeller, put_slot
from kubeocean.sharding.loads import Loads
from kubeocean.sharding.metrics import WorkMetrics
from kubeocean.sharding.ring import Ring, WakingClock
from kubeocean.sharding.running import Ended, Running
from kubeocean.sharding.selection import Everything, Selection, SlotLabel, choose, named, owner_key

__all__ = ["Children", "ShardedController", "Work"]


class Work(NamedTuple):
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
    """What is there once the way of filtering is chosen."""

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
        on_stuck: StuckHook[Work] | None = None,
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
        self._controller = Controller[Work](
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
        """The cache of our part; there once the replica is healthy."""
        return self._ready().objects

    def children(self, resource: Resource[Any]) -> SlotCache[Any]:
        """The cache of our part of the children of this kind."""
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
        """An object or patch that says in whose shard, and under which grant, it was written."""
        return stamped(body, self.ring.names)

    def wrote(self, obj: ObjectT) -> None:
        """Remember what the server answered to a write of ours."""
        if self.objects.selection.whole:
            self.objects.wrote(obj)

    def enqueue(self, key: Key) -> None:
        """Ask for a reconcile of a key, if it is ours."""
        cached = self.get(key)
        slot = self.objects.slot_of(cached) if cached is not None else self.shard_of(named(key))
        if slot is not None:
            self._controller.enqueue(Work(slot, key))

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
        """Take no more keys, and let what runs come to its end."""
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
        """Label what has no slot, where slots are labels."""
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
                self._controller.enqueue(Work(slot, key))
            # The owner of a child may be gone: nobody else would look at what it left behind.
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

    async def _turn(self, work: Work) -> Outcome:
        assert self._reconcile is not None
        if not self.ring.owns(work.slot):
            return Done()  # it went while the gate was asked
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

    async def _guarded(self, work: Work) -> Outcome:
        """Reconcile, unless the object says that it is in another slot than it is."""
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

    async def _caught_up(self, work: Work) -> bool:
        return await self.objects.caught_up(work.key)

    # What is heard

    def _changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        obj = new or old
        assert obj is not None
        slot = self.objects.slot_of(obj)
        if slot is not None and slot in self.ring.tenancy.serving:
            self._controller.enqueue(Work(slot, obj.key))

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        owner = owner_key(obj, self.resource.kind)
        if owner is not None:
            self._enqueue_owner(obj, self.shard_of(named(owner)))

    def _enqueue_owner(self, child: Object, slot: int) -> None:
        owner = owner_key(child, self.resource.kind)
        if owner is not None and slot in self.ring.tenancy.serving:
            self._controller.enqueue(Work(slot, owner))

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
