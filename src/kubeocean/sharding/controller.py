"""Sharded controller: reconciles the keys of this replica's shards.

    ring = Ring(client, config)
    pods = ShardedController("pods", ring, client, PODS, reconcile=reconcile)

`reconcile(key)` is called for keys of shards that this replica owns, one call at a time for a key
over all replicas. A reconcile reads from `pods.get` and writes through `pods.client`, which refuses
a write when the shard is lost. Objects that a reconcile creates for another object (its *children*)
belong to the same shard: `pods.stamped` marks them.

With `handler` instead of `reconcile`, a `ResourceHandler` is called with additions, updates and
deletions (see `handlers`). The new owner of a shard handles its objects as *added*. Deletions are
handled in one of two ways:

    deletions="observed"    as an informer does: a deletion around the hand-over of a shard is
                            handled by the new owner; a deletion while no replica watched,
                            because the owner crashed, is missed
    deletions="guaranteed"  a finalizer keeps every handled object until `handle_delete` returned

An object for which `get_resource_key` or the algorithm fails is not worked on until its shard can
be computed (see `placement`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple

from kubeocean.errors import ApiError, ConfigError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Controller, Done, Outcome, StuckHook
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import (
    Json,
    Key,
    Object,
    ObjectT,
    Resource,
    Untyped,
)
from kubeocean.sharding.batches import BatchSizes
from kubeocean.sharding.callbacks import check_callbacks
from kubeocean.sharding.fencing import NotOurs, current_grant, fenced, stamped, under
from kubeocean.sharding.handlers import (
    HandlerReconciler,
    ResourceHandler,
    has_batches,
)
from kubeocean.sharding.handover import Handled
from kubeocean.sharding.identity import filter_field
from kubeocean.sharding.metrics import Loads, WorkMetrics
from kubeocean.sharding.placement import ShardComputation, Unplaced
from kubeocean.sharding.ring import Ring, WakingClock
from kubeocean.sharding.selection import (
    Everything,
    Labeller,
    Selection,
    SlotLabel,
    choose,
    named,
    owner_key,
)
from kubeocean.sharding.server_objects import ServerObjects
from kubeocean.sharding.slot_cache import SlotCache
from kubeocean.sharding.slot_lifecycle import Ended, Running

__all__ = ["DELETIONS", "Children", "ReconcileWork", "ShardedController"]

DELETIONS: Final = ("observed", "guaranteed")
_BATCH_WORKERS: Final = 4  # the batches of this number of slots are collected at a time
_AGAIN_S: Final = 1.0  # until a shard that could not be computed is computed again
_LONGEST_S: Final = 60.0
_AT_ONCE: Final = 200  # shards that are computed before other tasks run

_log = get_logger(__name__)


class ReconcileWork(NamedTuple):
    """Key to reconcile, and its slot."""

    slot: int
    key: Key

    def __str__(self) -> str:
        return str(self.key)


@dataclass(frozen=True, slots=True)
class Children(Generic[ObjectT]):
    """Resource whose objects are controlled by objects of the controller; a change of a child
    enqueues its owner."""

    resource: Resource[ObjectT]
    labels: str = ""
    keep_raw: bool = False


@dataclass(slots=True)
class _Caches(Generic[ObjectT]):
    """Caches of a controller, which exist once the filter is chosen."""

    objects: SlotCache[ObjectT]
    children: dict[str, SlotCache[Any]] = field(default_factory=dict)

    def all(self) -> list[SlotCache[Any]]:
        return [self.objects, *self.children.values()]


class ShardedController(Generic[ObjectT]):
    """Controller of one resource in a ring (the replicas that share the keys).

    - `reconcile` or `handler`: the function or the handler that is called; exactly one of the two.
    - `children`: kinds of objects that the controlled objects own.
    - `namespace`, `labels`: select the objects of the controller; all objects without them.
    - `workers`: how many keys, or batches, are worked on at a time in this replica.
    - `deadline_s`: a reconcile or handler call that takes longer is cancelled and retried.
    - `deletions`: `observed` or `guaranteed`, for a handler.
    - `resync_s`: how often unchanged objects are handled again; None: never.
    - `batch_size`, `batch_delay_s`: bounds of the batches of `handle_batch`.
    - `on_stuck`: called with every `Stuck` that `reconcile` returns.
    """

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
        deletions: str = "observed",
        resync_s: float | None = None,
        batch_size: int = 100,
        batch_delay_s: float = 0.1,
        on_stuck: StuckHook[ReconcileWork] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if (reconcile is None) == (handler is None):
            raise ConfigError(
                "needs exactly one of reconcile and handler", field=f"controller {name}"
            )
        _check_options(name, deletions, resync_s, deadline_s, has_handler=handler is not None)
        if handler is not None:
            field = f"handler of controller {name}"
            check_callbacks(handler, ResourceHandler, field=field, prefix="handle_")
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
        self._deletions = deletions
        self._resync_s = resync_s
        self._reconcile = reconcile
        self._placement = ShardComputation(name, self._compute_shard)
        # Keys to reconcile when their shard can be computed, and the slot in which each was found.
        self._waiting: dict[Key, int | None] = {}
        self._labeller: Labeller[ObjectT] | None = None
        self._source = ServerObjects(
            client,
            self.client,
            resource,
            labels=labels,
            keep_raw=keep_raw,
            names=ring.names,
            shard_of=self.shard_of,
            cache=lambda: self.objects,
        )
        self._adapter: HandlerReconciler[ObjectT] | None = None
        if handler is not None:
            guaranteed = deletions == "guaranteed"
            self._adapter = HandlerReconciler(
                handler,
                self._source,
                check=self._check_grant,
                finalizer=ring.names.finalizer(name) if guaranteed else "",
                sizes=BatchSizes(batch_size, batch_delay_s, self._clock),
            )
            if has_batches(handler):
                workers = max(workers, batch_size * _BATCH_WORKERS)
        self._processed: dict[int, dict[Key, str]] = {}  # resourceVersion after the last reconcile
        self._caches: _Caches[ObjectT] | None = None
        self._chosen = asyncio.Event()
        self._running = Running()
        self._overdue: set[int] = set()  # slots whose work was cancelled, until they are dropped
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
        """Return the cache of the children of this resource in this replica's shards."""
        return self._ready().children[str(resource)]

    def get(self, key: Key) -> ObjectT | None:
        """Return the object from the cache: whole, unless the filter is `metadata`."""
        return self.objects.get(key)

    async def read(self, key: Key) -> ObjectT | None:
        """Return the whole object; None if the object is not in this replica's shards."""
        return await self._source.read(key)

    def is_processed(self, key: Key | str) -> bool:
        """Return whether this replica has reconciled the object in its present version.

        `key` may be the text `namespace/name`.
        """
        wanted = Key.parse(key) if isinstance(key, str) else key
        obj = self._caches.objects.get(wanted) if self._caches is not None else None
        slot = self.objects.slot_of(obj) if obj is not None else None
        if obj is None or slot is None:
            return False
        return self._processed.get(slot, {}).get(wanted) == obj.resource_version

    def shard_of(self, obj: Any) -> int:
        """Return the shard of an object, which depends on its name alone.

        :raises Unplaced: `get_resource_key` or the algorithm failed.
        """
        return self._placement.shard_of(obj)

    def _compute_shard(self, obj: Any) -> int:
        key = str(obj.key) if self._handler is None else self._handler.get_resource_key(obj)
        return self.ring.shard_of(key)

    def stamped(self, body: Mapping[str, Any]) -> Json:
        """Return the object or patch `body` with its slot label and the epoch of this replica's
        grant."""
        return stamped(body, self.ring.names)

    def wrote(self, obj: ObjectT) -> None:
        """Record the API server's answer to a write of this program."""
        if self.objects.selection.whole:
            self.objects.wrote(obj)

    def enqueue(self, key: Key) -> None:
        """Enqueue a key for a reconcile, if this replica owns the key's slot."""
        cached = self.get(key)
        slot = self._slot_of_key(key) if cached is None else self.objects.slot_of(cached)
        if slot is not None:
            self._controller.enqueue(ReconcileWork(slot, key))

    def _slot_of_key(self, key: Key) -> int | None:
        """Return the slot of a key; None if it cannot be computed: the key is enqueued later."""
        slot = self._placement.find(named(key))
        if slot is None:
            self._waiting.setdefault(key, None)
        return slot

    # Start and stop

    @property
    def ready(self) -> bool:
        return self._caches is not None

    async def run(self) -> None:
        """Reconcile the keys of this replica's shards until `stop`."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._follow()), group.create_task(self._place_again())]
            if self._resync_s is not None:
                tasks.append(group.create_task(self._resync(self._resync_s)))
            await self._controller.run()
            for task in tasks:
                task.cancel()

    async def stop(self) -> None:
        """Start no more reconciles, and wait for the running ones."""
        await self._controller.stop()

    async def _follow(self) -> None:
        await self._chosen.wait()
        async with asyncio.TaskGroup() as group:
            for cache in self._ready().all():
                group.create_task(cache.run())

    async def _resync(self, period_s: float) -> None:
        """Enqueue all keys of this replica every `period_s`."""
        while True:
            await self._clock.sleep(period_s)
            if self._caches is None:
                continue
            for slot in self.ring.serving:
                keys = self._caches.objects.keys(slot)
                if self._adapter is not None:
                    self._adapter.resync(keys)
                for key in keys:
                    self._controller.enqueue(ReconcileWork(slot, key))

    # Objects whose shard cannot be computed

    def unplaced(self) -> int:
        """Return the number of objects whose shard this replica cannot compute."""
        count = len(self._unplaced_keys())
        self._figures.unplaced.set(count)
        return count

    def _unplaced_keys(self) -> set[Key]:
        keys = set(self._waiting)
        if self._caches is not None:
            keys.update(*(cache.unplaced for cache in self._caches.all()))
        if self._labeller is not None:
            keys |= self._labeller.unplaced
        return keys

    async def _place_again(self) -> None:
        """Compute shards again that could not be computed, with increasing delays."""
        pause_s = _AGAIN_S
        while True:
            await self._placement.failed.wait()
            await self._clock.sleep(pause_s)
            self._placement.failed.clear()
            keys = self._unplaced_keys()
            for count, key in enumerate(keys):
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                self._try_place(key)
            left = self._unplaced_keys()
            self._figures.unplaced.set(len(left))
            self._placement.log_placed(left)
            pause_s = min(2 * pause_s, _LONGEST_S) if keys and keys <= left else _AGAIN_S

    def _try_place(self, key: Key) -> None:
        """Compute the shard of an unplaced object again, and resume the work on the object if that
        succeeds."""
        if self._labeller is not None and key in self._labeller.unplaced:
            self._labeller.place_again(key)
        for cache in self._caches.all() if self._caches is not None else ():
            with suppress(Unplaced):
                cache.place_again(key)
        if key in self._waiting and self._placement.find(named(key)) is not None:
            del self._waiting[key]
            self.enqueue(key)

    # As a workload of the ring

    @property
    def hands_over(self) -> bool:
        """Whether the new owner of a slot needs the list of objects that the previous owner
        handled."""
        return self._adapter is not None and self._deletions == "observed"

    async def prepare(self) -> None:
        """Choose the filter by which this replica receives objects, and create the caches.

        :raises NotFound: the API server does not serve the resource.
        :raises ConfigError: the filter does not fit, or other replicas use another one.
        """
        ring = self.ring
        for resource in (self.resource, *(kind.resource for kind in self._children)):
            await self._check_served(resource)
        selection = await choose(
            self._plain,
            self.resource,
            configured=ring.filter_of(self.name),
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
        await self.ring.identify(filter_field(self.name), selection.name)
        self._chosen.set()

    async def _check_served(self, resource: Resource[Any]) -> None:
        """Raise the API server's error if this program cannot list a resource."""
        try:
            path = resource.path(self._namespace)
            await self._plain.request("GET", path, query=[("limit", "1")])
        except NotFound as error:
            message = (
                f"the API server does not serve {resource}: create its CustomResourceDefinition, "
                "or correct group, version and plural of the Resource"
            )
            raise NotFound(message, status=error.status, reason=error.reason) from None

    async def lead(self) -> None:
        """Label objects that have no slot, if the filter uses labels; runs on the planner's
        replica."""
        await self._chosen.wait()
        if not isinstance(self.objects.selection, SlotLabel):
            return
        self._labeller = Labeller(
            self._plain,
            self.resource,
            label=self.ring.names.slot_label,
            slots=self.ring.slots,
            slot_of=self.shard_of,
            namespace=self._namespace,
            among=self._labels,
            clock=self._clock,
        )
        try:
            await self._labeller.run()
        finally:
            self._labeller = None

    async def warm(self, slots: Collection[int]) -> None:
        """Fill the caches for these slots.

        :raises ApiError: the API server did not list the objects; the ring repeats the call.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for cache in self._ready().all():
                    group.create_task(cache.add(slots))
        except (
            ExceptionGroup
        ) as errors:  # of the group; a defect is not repeated, so it comes first
            defects = errors.split(ApiError)[1]
            raise (defects or errors).exceptions[0] from errors

    def start(self, slots: Collection[int]) -> None:
        caches = self._ready()
        for slot in slots:
            keys = set(caches.objects.keys(slot))
            if self._adapter is not None:
                self._adapter.start(slot)
                keys |= set(self._adapter.keys(slot))
            for key in keys:
                self._controller.enqueue(ReconcileWork(slot, key))
            # The owner of a child may be deleted; its children still need a reconcile.
            for cache in caches.children.values():
                for child in cache.of(slot):
                    self._enqueue_owner(child, slot)

    async def idle(self, slot: int) -> None:
        await self._running.idle(slot)
        if self._adapter is None or self._caches is None or slot in self._overdue:
            return
        # Deletions that this replica observed: the next owner never saw these objects.
        for key in self._adapter.pending_deletions(slot, self._caches.objects.get):
            try:
                async with self._running.of(slot):
                    with under(self.ring.grant(slot)):
                        await self._adapter.reconcile(slot, key)
            except (Ended, NotOurs):
                return
            except Exception as error:  # whatever the code of the user raises
                _log.warning(
                    "Could not handle deletion of object, left it to the next owner of the shard",
                    object=str(key),
                    error=str(error),
                )

    def cancel(self, slots: Collection[int]) -> None:
        self._overdue.update(slots)
        self._running.cancel(slots)

    def drop(self, slots: Collection[int]) -> None:
        if self._caches is None:
            return
        for cache in self._caches.all():
            cache.drop(slots)
        for key, slot in list(self._waiting.items()):
            if slot in slots:
                del self._waiting[key]
        for slot in slots:
            self._processed.pop(slot, None)
            self._overdue.discard(slot)
            if self._adapter is not None:
                self._adapter.drop(slot)
        self._loads.drop(slots)

    def busy(self) -> Collection[int]:
        return self._running.slots()

    def resources(self, slot: int) -> Sequence[str]:
        if self._caches is None:
            return []
        objects = self._caches.objects
        if isinstance(objects.selection, SlotLabel):
            # An object whose label was changed is in the cache of a slot to which it does not
            # belong.
            find = self._placement.find
            return [str(obj.key) for obj in objects.of(slot) if find(obj) in (slot, None)]
        return [str(key) for key in objects.keys(slot)]

    def loads(self) -> Mapping[int, float]:
        if self._caches is None:
            return {}
        return self._loads.measure(self.ring.tenancy.serving, self._caches.objects.count)

    def handled(self, slot: int) -> Handled:
        if self._adapter is None or self._caches is None:
            return Handled()
        return self._adapter.handled(slot, self._caches.objects.version)

    def inherit(self, slot: int, handled: Handled) -> None:
        if self._adapter is not None:
            self._adapter.inherit(slot, handled)

    # One reconcile

    async def _turn(self, work: ReconcileWork) -> Outcome:
        if not self.ring.owns(work.slot):
            return Done()  # deleted while the gate waited
        began = self._clock.monotonic()
        ended = False
        try:
            async with self._running.of(work.slot):
                with under(self.ring.grant(work.slot)):
                    outcome = await self._guarded(work)
            ended = True
            self._waiting.pop(work.key, None)
            return outcome
        except Ended:
            ended = True
            return Done()  # the new owner of the slot reconciles all of its keys
        except Unplaced:
            self._waiting[work.key] = work.slot
            return Done()  # enqueued again by `_place_again`
        finally:
            spent_s = self._clock.monotonic() - began
            self._loads.spent(work.slot, spent_s)
            self._figures.latency.observe(spent_s)
            (self._figures.processed if ended else self._figures.errors).inc()

    async def _guarded(self, work: ReconcileWork) -> Outcome:
        """Reconcile a key, unless the object's slot label is wrong.

        :raises Unplaced: it is not known whether the object is in this slot.
        """
        self.objects.place_again(work.key)
        obj = self.get(work.key)
        if isinstance(self.objects.selection, SlotLabel):
            if obj is not None and await self._source.restore_label(obj, found_in=work.slot):
                return Done()
            if obj is None and self._adapter is None and await self._source.unhide(work.key):
                return Done()
        if self._adapter is not None:
            outcome = await self._adapter.reconcile(work.slot, work.key)
        else:
            assert self._reconcile is not None
            outcome = await self._reconcile(work.key)
        processed = self._processed.setdefault(work.slot, {})
        if obj is None:
            processed.pop(work.key, None)
        else:
            processed[work.key] = obj.resource_version
        return outcome

    def _check_grant(self) -> None:
        self.ring.check(current_grant())

    async def _caught_up(self, work: ReconcileWork) -> bool:
        return await self.objects.caught_up(work.key)

    # Changes of the caches

    def _changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        obj = new or old
        assert obj is not None
        slot = self.objects.slot_of(obj)
        if slot is None:
            return
        served = slot in self.ring.tenancy.serving
        if new is None and self._adapter is not None:
            self._adapter.saw_removed(slot, obj, served=served)
        if served:
            self._controller.enqueue(ReconcileWork(slot, obj.key))

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        owner = owner_key(obj, self.resource.kind)
        slot = self._slot_of_key(owner) if owner is not None else None
        if slot is not None:
            self._enqueue_owner(obj, slot)

    def _enqueue_owner(self, child: Object, slot: int) -> None:
        owner = owner_key(child, self.resource.kind)
        if owner is not None and slot in self.ring.tenancy.serving:
            self._controller.enqueue(ReconcileWork(slot, owner))

    # Caches

    def _ready(self) -> _Caches[ObjectT]:
        if self._caches is None:
            raise ConfigError(
                "has no caches yet: this replica has not joined its ring", field=self.name
            )
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


def _check_options(
    name: str,
    deletions: str,
    resync_s: float | None,
    deadline_s: float | None,
    *,
    has_handler: bool,
) -> None:
    """Raise ConfigError if an option of a controller is wrong, or does not fit the other
    options."""
    field = f"controller {name}"
    if deletions not in DELETIONS:
        message = f"deletions must be one of {', '.join(DELETIONS)}"
        raise ConfigError(message, field=field, value=deletions)
    if deletions != "observed" and not has_handler:
        message = "deletions is for a handler; a reconcile function manages its own finalizers"
        raise ConfigError(message, field=field, value=deletions)
    if resync_s is not None and not resync_s > 0:
        raise ConfigError("resync_s must be more than 0", field=field, value=resync_s)
    if deadline_s is not None and not deadline_s > 0:
        raise ConfigError("deadline_s must be more than 0", field=field, value=deadline_s)
