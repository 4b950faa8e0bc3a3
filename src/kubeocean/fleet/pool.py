"""Watch pool: notices changes of single objects of any kind, without keeping the objects.

Owners name the objects that they depend on (`need`). The pool opens one watch for each resource of
these objects: of one namespace while all objects are in one, of all namespaces otherwise. A watch
is metadata-only, unless the type of the resource has more than metadata. Events of other objects
are decoded and dropped. A watch is closed when no owner has needed it for a while. At most
`MOST_WATCHES` are open; objects of further resources are not watched, and `is_current` is False for
them.

Of a watched object the pool remembers the last resourceVersion and a fingerprint of its metadata.
An owner that reads or writes an object reports the metadata with `saw`, so that events of its own
writes are dropped. Any other event is a change:

    CONTENT   the generation or the metadata differ; any event, for kinds without a generation
    STATUS    neither differs, so only the status can
    GONE      the object was deleted

`is_current` returns whether an object has not changed since a version for which an owner has kept a
result. While a resource is not watched, or its watch lists again, no object is current.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Meta, Resource, Untyped
from kubeocean.runtime.watch import Changed, Listed, Restarted, Scope, Watch

__all__ = ["ChangedPart", "ObjectRef", "WatchPool"]

MOST_WATCHES: Final = 200
LINGER_S: Final = 60.0  # so that an owner that is replaced soon reuses the open watch

_log = get_logger(__name__)
_encode = msgspec.json.Encoder(order="deterministic").encode


class ChangedPart(Enum):
    """Which part of an object a watch event changed."""

    CONTENT = auto()
    STATUS = auto()
    GONE = auto()


class ObjectRef(NamedTuple):
    """The resource, namespace and name of an object in a cluster."""

    resource: Resource[Untyped]
    key: Key


# Owner, reference, change, and the object of the event; None if only its absence is known
OnChange: TypeAlias = Callable[[str, ObjectRef, ChangedPart, Untyped | None], None]


@dataclass(slots=True)
class _WatchedObject:
    """Last known state of a watched object; `fingerprint` is None while it does not exist."""

    owners: set[str] = field(default_factory=set)
    version: int = 0
    changed_at: int = 0  # version of the last change that was more than one of status
    fingerprint: int | None = None


@dataclass(slots=True, eq=False)
class _WatchedResource:
    """The objects of one resource that owners need, and the watch of that resource."""

    resource: Resource[Untyped]
    objects: dict[Key, _WatchedObject] = field(default_factory=dict)
    namespaces: Counter[str] = field(default_factory=Counter)
    scope: str | None = None  # the namespace that is watched; "" for all, None for no watch
    task: asyncio.Task[None] | None = None
    has_listed: bool = False
    unneeded_since: float | None = None

    @property
    def wanted_scope(self) -> str:
        """Namespace to watch if all needed objects are in one; else "", for all namespaces. Once
        the watch covers all namespaces, it is not narrowed again.
        """
        one = self.scope != "" and len(self.namespaces) == 1
        return next(iter(self.namespaces)) if one else ""


class WatchPool:
    """Watches the objects that owners need, and reports their changes.

    `on_change(owner, ref, change, obj)` is called on the event loop for each owner of a changed
    object; it must be quick.
    """

    def __init__(
        self,
        client: Client,
        on_change: OnChange,
        *,
        most_watches: int = MOST_WATCHES,
        linger_s: float = LINGER_S,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._most_watches = most_watches
        self._linger_s = linger_s
        self._clock = clock or RealClock()
        self._metrics = metrics or Metrics()
        self._resources: dict[Resource[Untyped], _WatchedResource] = {}
        self._needs: dict[str, frozenset[ObjectRef]] = {}
        self._adjust = asyncio.Event()
        self._is_full = False
        self._metrics.gauge(
            "kubeocean_fleet_pool_watches", "Open watches of placed kinds", ["cluster"]
        ).labels(client.cluster).set_function(lambda: sum(1 for _ in self._open()))

    # Owners

    def need(self, owner: str, refs: Collection[ObjectRef]) -> None:
        """Set the objects that `owner` depends on; earlier ones are forgotten."""
        before, after = self._needs.get(owner, frozenset()), frozenset(refs)
        if before == after:
            return
        for ref in before - after:
            self._remove(owner, ref)
        for ref in after - before:
            self._add(owner, ref)
        if after:
            self._needs[owner] = after
        else:
            self._needs.pop(owner, None)
        self._adjust.set()

    def saw(self, ref: ObjectRef, metadata: Meta | None) -> None:
        """Record the metadata of an object that its owner read or wrote; None: no such object."""
        watched = self._watched(ref)
        if watched is None:
            return
        if metadata is None:
            watched.fingerprint = None
        elif (version := _number(metadata.resource_version)) > watched.version:
            watched.version, watched.fingerprint = version, _fingerprint(metadata)

    def is_current(self, ref: ObjectRef, version: str, *, with_status: bool) -> bool:
        """Whether a watch shows that an object has not changed since this resourceVersion.

        Changes of status count only if `with_status` is true.
        """
        watched = self._resources.get(ref.resource)
        if watched is None or not watched.has_listed or ref.key not in watched.objects:
            return False
        if watched.scope not in ("", ref.key.namespace):
            return False  # the watch is about to be widened
        return not self.has_changed(ref, version, with_status=with_status)

    def has_changed(self, ref: ObjectRef, version: str, *, with_status: bool) -> bool:
        """Whether a watch shows that an object has changed since this resourceVersion."""
        watched = self._watched(ref)
        if watched is None:
            return False
        return (watched.version if with_status else watched.changed_at) > _number(version)

    # Watches

    async def run(self) -> None:
        """Open and close watches as owners need them, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._adjust.clear()
                    wait_s = self._adjust_watches(group)
                    await self._until_adjusted(wait_s)
        finally:
            for watched in self._resources.values():
                watched.task, watched.scope, watched.has_listed = None, None, False

    async def _until_adjusted(self, wait_s: float | None) -> None:
        if wait_s is None:
            await self._adjust.wait()
            return
        with suppress(TimeoutError):  # the time at which an unneeded watch is due to be closed
            await within(self._clock, wait_s, self._adjust.wait)

    def _adjust_watches(self, group: asyncio.TaskGroup) -> float | None:
        """Open, widen and close watches; return the seconds until one is due to be closed."""
        now = self._clock.monotonic()
        waits = []
        for watched in list(self._resources.values()):
            if not watched.objects:
                if watched.unneeded_since is None:
                    watched.unneeded_since = now
                wait_s = watched.unneeded_since + self._linger_s - now
                if wait_s <= 0:
                    self._close(watched)
                    del self._resources[watched.resource]
                else:
                    waits.append(wait_s)
                continue
            watched.unneeded_since = None
            if watched.task is None or watched.scope != watched.wanted_scope:
                self._open_watch(watched, group)
        return min(waits, default=None)

    def _open(self) -> Iterator[_WatchedResource]:
        return (each for each in self._resources.values() if each.task is not None)

    def _open_watch(self, watched: _WatchedResource, group: asyncio.TaskGroup) -> None:
        scope = watched.wanted_scope
        self._close(watched)
        if sum(1 for _ in self._open()) >= self._most_watches:
            if not self._is_full:
                _log.warning(
                    "Reached the limit of watches, polled objects of further kinds",
                    cluster=self._client.cluster, limit=self._most_watches,
                )  # fmt: skip
            self._is_full = True
            return
        watched.scope = scope
        watched.task = group.create_task(self._follow(watched, scope))

    def _close(self, watched: _WatchedResource) -> None:
        if watched.task is not None:
            watched.task.cancel()
        watched.task, watched.scope, watched.has_listed = None, None, False

    async def _follow(self, watched: _WatchedResource, namespace: str) -> None:
        metadata_only = watched.resource.type is Untyped
        scope = Scope(watched.resource, namespace, metadata_only=metadata_only)
        watch = Watch(self._client, scope, clock=self._clock, metrics=self._metrics)
        unlisted: set[Key] | None = None  # while listing: objects that were not listed yet
        async with aclosing(watch.follow()) as account:
            async for news in account:
                match news:
                    case Restarted():
                        unlisted = set(watched.objects)
                        watched.has_listed = False
                    case Changed():
                        for fate, obj in news.events:
                            if unlisted is not None:
                                unlisted.discard(obj.key)
                            self._take(watched, fate == "DELETED", obj)
                    case Listed():
                        watched.has_listed = True
                        for key in unlisted or ():
                            self._lose(watched, key, _number(news.version))
                        unlisted = None

    def _take(self, watched: _WatchedResource, gone: bool, new: Untyped) -> None:
        obj = watched.objects.get(new.key)
        version = _number(new.resource_version)
        if obj is None:
            return
        if gone:
            self._lose(watched, new.key, version, new)
            return
        if version <= obj.version:
            return
        fingerprint = _fingerprint(new.metadata)
        is_status = bool(new.metadata.generation) and fingerprint == obj.fingerprint
        obj.version, obj.fingerprint = version, fingerprint
        if not is_status:
            obj.changed_at = version
        change = ChangedPart.STATUS if is_status else ChangedPart.CONTENT
        self._report(ObjectRef(watched.resource, new.key), obj, change, new)

    def _lose(
        self, watched: _WatchedResource, key: Key, version: int, last: Untyped | None = None
    ) -> None:
        """Record that the object does not exist as of `version`, unless a newer version is known.

        Recorded also if the pool has not seen the object: its owner may be about to report an
        older read.
        """
        obj = watched.objects.get(key)
        if obj is None or version < obj.version:
            return
        was_known = obj.fingerprint is not None
        obj.version = obj.changed_at = version
        obj.fingerprint = None
        if was_known:
            self._report(ObjectRef(watched.resource, key), obj, ChangedPart.GONE, last)

    def _report(
        self, ref: ObjectRef, watched: _WatchedObject, change: ChangedPart, obj: Untyped | None
    ) -> None:
        for owner in tuple(watched.owners):
            self._on_change(owner, ref, change, obj)

    # Needs

    def _watched(self, ref: ObjectRef) -> _WatchedObject | None:
        watched = self._resources.get(ref.resource)
        return None if watched is None else watched.objects.get(ref.key)

    def _add(self, owner: str, ref: ObjectRef) -> None:
        watched = self._resources.get(ref.resource)
        if watched is None:
            watched = self._resources[ref.resource] = _WatchedResource(ref.resource)
        obj = watched.objects.get(ref.key)
        if obj is None:
            obj = watched.objects[ref.key] = _WatchedObject()
            watched.namespaces[ref.key.namespace] += 1
        obj.owners.add(owner)

    def _remove(self, owner: str, ref: ObjectRef) -> None:
        watched = self._resources[ref.resource]
        obj = watched.objects[ref.key]
        obj.owners.discard(owner)
        if obj.owners:
            return
        del watched.objects[ref.key]
        watched.namespaces[ref.key.namespace] -= 1
        if not watched.namespaces[ref.key.namespace]:
            del watched.namespaces[ref.key.namespace]


def _fingerprint(metadata: Meta) -> int:
    """Return a hash of the metadata that a change of status alone does not change."""
    return hash(_encode(msgspec.structs.replace(metadata, resource_version="")))


def _number(version: str) -> int:
    """Return a resourceVersion as a number; -1, which is never current, if it is not one."""
    return int(version) if version.isdecimal() and version.isascii() else -1
