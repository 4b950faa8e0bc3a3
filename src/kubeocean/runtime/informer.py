"""Informer: a cache of a cluster's objects that follows their changes.

One cache for one resource and selection. Reads cost no request; handlers are called for every
change, synchronously and in order, and only enqueue. After `synced` the cache is the server's state
at some recent moment, and never goes back in time, except when the server itself did.

*Bounded*: if the client has a `cache_budget`, objects that do not fit are left out. The cache then
counts as not synced, and all objects are listed again after `OVERFLOW_S`, until a list fits.

*Read your own writes*: after a write, `wrote` records the version that the server returned, and
`caught_up` holds the next reconcile of that key until the cache has reached that version.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final, Generic, TypeAlias

from kubeocean.runtime.cache_budget import size_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, ObjectT, Resource
from kubeocean.runtime.pending_writes import PendingWrites
from kubeocean.runtime.watch import Changed, Listed, Restarted, Scope, Watch

__all__ = ["Handler", "Informer"]

# Longer than any healthy delivery; afterwards the object is read from the server.
CATCH_UP_S: Final = 5.0
FREEZE_EVERY: Final = 2_000
OVERFLOW_S: Final = 10.0  # from a list that did not fit into the budget to the next one

_log = get_logger(__name__)

Handler: TypeAlias = Callable[[ObjectT | None, ObjectT | None], None]
Indexer: TypeAlias = Callable[[ObjectT], Iterable[str]]


class Informer(Generic[ObjectT]):
    """Cache of the objects that one watch selects.

    - `prune`: returns the part of an object that is kept.
    - `keep`: whether an object is kept at all, where no selector can decide.
    - `keep_raw`: whether the bytes of each object are kept, too.
    - `metadata_only`: whether the server sends only the metadata of objects.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[ObjectT],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Indexer[ObjectT]] | None = None,
        prune: Callable[[ObjectT], ObjectT] | None = None,
        keep: Callable[[ObjectT], bool] | None = None,
        keep_raw: bool = False,
        metadata_only: bool = False,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        watch: Watch[ObjectT] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock or RealClock()
        self.scope = Scope(resource, namespace, labels, fields, keep_raw, metadata_only)
        metrics = metrics or Metrics()
        self._watch = watch or Watch(client, self.scope, clock=self._clock, metrics=metrics)
        self._prune = prune
        self._keep = keep
        self._items: dict[Key, ObjectT] = {}
        self._indexes = {name: _Index(of) for name, of in (indexes or {}).items()}
        self._handlers: list[Handler[ObjectT]] = []
        self._version = ""
        # During a list: keys that the list has not contained yet
        self._unseen: set[Key] | None = None
        self._began_at = self._listed_from = float("-inf")  # monotonic
        self._listed_handlers: list[Callable[[], None]] = []
        self._growth = 0
        self._budget = client.cache_budget
        self._sizes: dict[Key, int] = {}  # charged to the budget
        self._left_out = 0  # objects that did not fit since the last list began
        self._synced = asyncio.Event()
        self._writes = PendingWrites(self._items, self._clock)
        self._figures = _Figures(metrics, client.cluster, str(resource), self._items)

    # Reading

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def version(self) -> str:
        """resourceVersion up to which the cache is complete."""
        return self._version

    @property
    def listed_from(self) -> float:
        """When the last complete list was requested, as monotonic time; -inf if there was none."""
        return self._listed_from

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> ObjectT | None:
        """Return the cached object, or None."""
        return self._items.get(key)

    def items(self) -> Iterable[ObjectT]:
        """Return all cached objects, unordered."""
        return self._items.values()

    def by(self, index: str, value: str) -> list[ObjectT]:
        """Return the objects that have `value` in this index."""
        return [self._items[key] for key in self._indexes[index].keys_of(value)]

    async def synced(self) -> None:
        """Return once the first list is complete."""
        await self._synced.wait()

    def on_change(self, handler: Handler[ObjectT]) -> None:
        """Call `handler(old, new)` for each change; None stands for absence.

        The handler is called at once for objects that are cached already. Handlers run on the event
        loop between two changes: a handler must be quick, and must not change the cache. An
        exception is logged and counted, and affects neither other handlers nor other objects.
        """
        self._handlers.append(handler)
        for obj in self._items.values():
            self._call(handler, None, obj)

    def on_listed(self, handler: Callable[[], None]) -> None:
        """Call `handler` whenever a list is complete."""
        self._listed_handlers.append(handler)

    def relist(self, since: float) -> None:
        """List all objects again, unless a list was requested at `since` (monotonic) or later."""
        if self._began_at < since:
            self._watch.relist()

    # Own writes

    def wrote(self, obj: ObjectT) -> None:
        """Record the server's answer to a create, update or patch of this program."""
        self._writes.expect_version(obj, now_at=self._version)

    def deleted(self, obj: ObjectT) -> None:
        """Record that the server accepted a delete of this object."""
        self._writes.expect_gone(obj, now_at=self._version)

    async def caught_up(self, key: Key, *, timeout_s: float = CATCH_UP_S) -> bool:
        """Return whether the cache shows this program's last write to the key, waiting up to
        `timeout_s`.

        A write may have moved the object out of this selection, and then no event need come: after
        the timeout this one object is read from the server. False means that the cache is behind.
        """
        if key not in self._writes:
            return True
        if await self._writes.shown(key, timeout_s):
            return True
        return await self._compare(key)

    async def _compare(self, key: Key) -> bool:
        scope = self.scope
        fields = ",".join(part for part in (scope.fields, f"metadata.name={key.name}") if part)
        listing = await self._client.list(
            scope.resource, key.namespace, labels=scope.labels, fields=fields
        )
        kept = [obj for obj in listing.items if self._keep is None or self._keep(obj)]
        stored = kept[0].resource_version if kept else ""
        cached = self._items.get(key)
        if stored != (cached.resource_version if cached else ""):
            return False
        self._writes.forget(key)
        return True

    # Following

    async def run(self) -> None:
        """Follow the changes of the objects until cancelled."""
        async with aclosing(self._watch.follow()) as account:
            async for news in account:
                match news:
                    case Changed():
                        self._change(news)
                        # Objects that are not kept would stay in memory until the next event.
                        news.events.clear()
                    case Restarted():
                        self._began_at = self._clock.monotonic()
                        self._unseen = set(self._items)
                        self._left_out = 0
                    case Listed():
                        self._complete(news.version)
                if self._left_out and self._unseen is None:
                    # The server has to wait meanwhile: nothing is read.
                    await self._clock.sleep(OVERFLOW_S)
                    self._watch.relist()

    def _change(self, news: Changed[ObjectT]) -> None:
        prune, keep, unseen = self._prune, self._keep, self._unseen
        for fate, obj in news.events:
            key = obj.key
            if unseen is not None:
                unseen.discard(key)
            if fate == "DELETED" or (keep is not None and not keep(obj)):
                self._put(key, None)
            else:
                new = prune(obj) if prune else obj
                if self._budget is None or self._fits(key, new):
                    self._put(key, new)
        if unseen is None:
            self._version = news.version
        self._figures.events.inc(len(news.events))
        if self._writes:
            self._pass(obj.key for _, obj in news.events)

    def _complete(self, version: str) -> None:
        gone = self._unseen or set()
        for key in gone:
            self._put(key, None)
        self._unseen = None
        self._version = version
        self._listed_from = self._began_at
        if not self._left_out:
            self._synced.set()
        self._pass(gone)
        for handler in self._listed_handlers:
            handler()

    def _pass(self, changed: Iterable[Key]) -> None:
        for delay_s in self._writes.passed(self._version, changed):
            self._figures.lag.observe(delay_s)

    def _fits(self, key: Key, new: ObjectT) -> bool:
        """Charge the budget with an object; False if the object has to be left out.

        During a list, objects that the list has not contained yet make room: they are gone, or the
        list will contain them.
        """
        assert self._budget is not None
        old = self._items.get(key)
        if old is not None and old.uid != new.uid:
            self._put(key, None)
        size = size_of(new)
        more = size - self._sizes.get(key, 0)
        while not self._budget.take(more):
            if not self._unseen:
                self._leave_out(key, size)
                return False
            self._put(self._unseen.pop(), None)
        self._sizes[key] = size
        return True

    def _leave_out(self, key: Key, size: int) -> None:
        self._synced.clear()
        self._left_out += 1
        if self._left_out == 1:
            _log.error(
                "Left objects out of full cache",
                cluster=self._client.cluster, resource=str(self.scope.resource),
                first=str(key), size=size,
            )  # fmt: skip

    def _put(self, key: Key, new: ObjectT | None) -> None:
        old = self._items.get(key)
        if new is None:
            if old is None:
                return
            del self._items[key]
            if self._budget is not None:
                self._budget.take(-self._sizes.pop(key, 0))
        else:
            if old is not None:
                was, is_ = old.metadata, new.metadata
                if was.uid != is_.uid:
                    # Deleted and created again between two events: two changes, not one.
                    self._put(key, None)
                    old = None
                elif was.resource_version == is_.resource_version:
                    return
            elif self._unseen is not None:
                self._grew()
            self._items[key] = new
        for index in self._indexes.values():
            index.move(key, old, new)
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: Handler[ObjectT], old: ObjectT | None, new: ObjectT | None) -> None:
        try:
            handler(old, new)
        except Exception as error:
            # An object for which a handler fails must not end the cache of all others.
            self._figures.failures.inc()
            subject = new if new is not None else old
            assert subject is not None
            _log.error(
                "Failed to handle change of object", cluster=self._client.cluster,
                resource=str(self.scope.resource), object=str(subject.key), error=str(error),
                exc_info=error,
            )  # fmt: skip

    def _grew(self) -> None:
        """Count an object that a list added; after every `FREEZE_EVERY`, exclude all objects from
        garbage collection.

        Cached objects live long and hold no cycles. The garbage collector would walk over all of
        them again and again during a list, for a tenth of a second at a time with 50,000 pods. Only
        growth by lists counts: later changes replace objects.
        """
        self._growth += 1
        if self._growth % FREEZE_EVERY == 0:
            gc.collect()  # garbage would stay for ever
            gc.freeze()


class _Index(Generic[ObjectT]):
    """Index of a cache: keys by the values that a function returns for their objects."""

    def __init__(self, of: Indexer[ObjectT]) -> None:
        self._of = of
        self._keys: dict[str, set[Key]] = {}

    def keys_of(self, value: str) -> Iterable[Key]:
        return self._keys.get(value, ())

    def move(self, key: Key, old: ObjectT | None, new: ObjectT | None) -> None:
        before = tuple(self._of(old)) if old is not None else ()
        after = tuple(self._of(new)) if new is not None else ()
        if before == after:
            return
        for value in set(before).difference(after):
            keys = self._keys[value]
            keys.discard(key)
            if not keys:
                del self._keys[value]
        for value in set(after).difference(before):
            self._keys.setdefault(value, set()).add(key)


class _Figures:
    """Metrics of an informer."""

    def __init__(
        self, metrics: Metrics, cluster: str, resource: str, items: Mapping[Key, object]
    ) -> None:
        labels = {"cluster": cluster, "resource": resource}
        names = list(labels)
        self.events = metrics.counter(
            "kubeocean_informer_events_total", "Changes taken from the watch", names
        ).labels(**labels)
        self.failures = metrics.counter(
            "kubeocean_informer_handler_errors_total",
            "Changes that a handler of the cache raised an error for",
            names,
        ).labels(**labels)
        self.lag = metrics.histogram(
            "kubeocean_informer_lag_seconds",
            "From the answer to a write of this program until the cache showed it",
            names,
        ).labels(**labels)
        metrics.gauge("kubeocean_informer_objects", "Objects in the cache", names).labels(
            **labels
        ).set_function(lambda: len(items))
