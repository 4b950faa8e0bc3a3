"""Namespaces in which the account of a syncer may read Secrets, and the caches of these Secrets.

The account of a binding's syncer has no right to Secrets of the whole cluster. The syncer requests
namespaces in the status of its binding: those of Secrets that its pods or their volumes need. The
manager verifies a request, binds a role in the namespace, and lists the namespace as granted. For
each granted namespace there is a cache of marked Secrets. The syncer withdraws the request some
time after the last pod, copy and marked Secret of the namespace is gone.

Namespaces are independent of each other: one that is refused, or cannot be listed, delays only the
pods that need its Secrets. Replicas that share a binding all request and withdraw namespaces: they
have the same caches, and each write has the version of the binding that it was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol

from kubeocean.api import naming
from kubeocean.api.bindings import (
    CLUSTER_BINDINGS,
    SECRET_NAMESPACES_MOST,
    ClusterBinding,
    SecretNamespaces,
)
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.informer import Handler, Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, ObjectT
from kubeocean.runtime.watch import Scope
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.on_demand_caches import NamespacedCaches

__all__ = ["GRANT_S", "RELEASE_S", "NamespaceRequests", "NamespacedSources", "SourceCache"]

GRANT_S: Final = 3.0  # for which a pod waits for the manager, before it shows a condition
RELEASE_S: Final = 60.0  # from the last use of a namespace until the request is withdrawn
LISTING_S: Final = 10.0  # for which the end of a binding waits for a namespace to be listed

_log = get_logger(__name__)


class SourceCache(Protocol[ObjectT]):
    """A cache of the sources of one kind: an informer, or one for each namespace."""

    @property
    def scope(self) -> Scope[ObjectT]: ...

    def __len__(self) -> int: ...

    def get(self, key: Key) -> ObjectT | None: ...

    def items(self) -> Iterable[ObjectT]: ...

    def by(self, index: str, value: str) -> list[ObjectT]: ...

    def on_change(self, handler: Handler[ObjectT]) -> None: ...

    def wrote(self, obj: ObjectT) -> None: ...

    async def caught_up(self, key: Key) -> bool: ...

    @property
    def has_synced(self) -> bool: ...

    async def synced(self) -> None: ...

    async def run(self) -> None: ...


class NamespacedSources(Generic[ObjectT]):
    """A cache of objects in several namespaces; `make` builds the cache of a namespace.

    A namespace without a cache has no objects here, which proves nothing about the namespace.
    """

    def __init__(
        self, scope: Scope[ObjectT], make: Callable[[str], Informer[ObjectT]], clock: Clock
    ) -> None:
        self.scope = scope
        self._make = make
        self._clock = clock
        self._caches = NamespacedCaches(self._start)
        self._started_at: dict[str, float] = {}
        self._handlers: list[Handler[ObjectT]] = []
        self._listed_handlers: list[Callable[[str], None]] = []

    def _start(self, namespace: str) -> Informer[ObjectT]:
        cache = self._make(namespace)
        for handler in self._handlers:
            cache.on_change(handler)
        cache.on_listed(lambda: self._listed(namespace))
        self._started_at[namespace] = self._clock.monotonic()
        return cache

    def _listed(self, namespace: str) -> None:
        for handler in self._listed_handlers:
            handler(namespace)

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that have a cache."""
        return frozenset(self._started_at)

    def set_namespaces(self, namespaces: Iterable[str]) -> None:
        """Start the caches of new namespaces, and drop those of namespaces not listed."""
        needed = set(namespaces)
        for namespace in self._started_at.keys() - needed:
            cache = self._caches.get(namespace)
            del self._started_at[namespace]
            for obj in tuple(cache.items()) if cache is not None else ():
                for handler in self._handlers:
                    handler(obj, None)
        self._caches.set_namespaces(needed)

    def _all(self) -> Iterator[Informer[ObjectT]]:
        return (cache for each in self._started_at if (cache := self._caches.get(each)))

    @property
    def has_synced(self) -> bool:
        """Always true; `has_synced_in` returns whether the cache of one namespace is complete."""
        return True

    async def synced(self) -> None:
        """Return at once, as `has_synced` is always true."""

    def has_synced_in(self, namespace: str) -> bool:
        """Whether the cache of a namespace exists and is complete."""
        cache = self._caches.get(namespace)
        return cache is not None and cache.has_synced

    def unlisted(self) -> int:
        """Return how many namespaces are not listed yet, without those that take too long."""
        since = self._clock.monotonic() - LISTING_S
        return sum(
            at > since and not self.has_synced_in(each) for each, at in self._started_at.items()
        )

    def __len__(self) -> int:
        return sum(map(len, self._all()))

    def get(self, key: Key) -> ObjectT | None:
        cache = self._caches.get(key.namespace)
        return cache.get(key) if cache is not None else None

    def items(self) -> Iterable[ObjectT]:
        return [obj for cache in self._all() for obj in cache.items()]

    def items_in(self, namespace: str) -> Iterable[ObjectT]:
        """Return the cached objects of one namespace."""
        cache = self._caches.get(namespace)
        return cache.items() if cache is not None else ()

    def by(self, index: str, value: str) -> list[ObjectT]:
        return [obj for cache in self._all() for obj in cache.by(index, value)]

    def on_change(self, handler: Handler[ObjectT]) -> None:
        self._handlers.append(handler)
        for cache in self._all():
            cache.on_change(handler)

    def on_listed(self, handler: Callable[[str], None]) -> None:
        """Call the handler with each namespace whose objects were listed."""
        self._listed_handlers.append(handler)

    def wrote(self, obj: ObjectT) -> None:
        cache = self._caches.get(obj.namespace)
        if cache is not None:
            cache.wrote(obj)

    async def caught_up(self, key: Key) -> bool:
        cache = self._caches.get(key.namespace)
        return cache is None or await cache.caught_up(key)

    async def run(self) -> None:
        await self._caches.run()


class NamespaceRequests(Generic[ObjectT]):
    """Requests namespaces in the binding's status, and starts caches in those that are granted.

    `is_needed` returns whether pods, volumes, copies or marked Secrets need a namespace; None while
    the caches do not show that.
    """

    def __init__(
        self,
        clusters: Clusters,
        sources: NamespacedSources[ObjectT],
        is_needed: Callable[[str], bool | None],
    ) -> None:
        self._clusters = clusters
        self._sources = sources
        self._is_needed = is_needed
        self._asked: dict[str, float] = {}  # when this process first needed it, by namespace
        self._checked: dict[str, float] = {}  # when to decide whether it is needed, by namespace
        self._handlers: list[Callable[[str], None]] = []
        self.controller: Controller[Key] = Controller(
            f"secret-namespaces-{clusters.binding_name}",
            self.reconcile,
            gate=clusters.bindings.caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        gauge = clusters.metrics.gauge(
            "kubeocean_syncer_secret_namespaces",
            "Namespaces in which the syncer needs Secrets, by the answer of the manager",
            ["state"],
        )
        for state, count in (
            ("granted", lambda: len(self._state.granted or ())),
            ("refused", lambda: len(self._state.refused or ())),
            ("waiting", lambda: len(self._asked.keys() - self._refused)),
        ):
            gauge.labels(state=state).set_function(count)
        clusters.bindings.on_change(self._binding_changed)

    @property
    def _state(self) -> SecretNamespaces:
        binding = self._clusters.binding
        return binding.status.secret_namespaces if binding is not None else SecretNamespaces()

    @property
    def _refused(self) -> set[str]:
        return {each.namespace for each in self._state.refused or ()}

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call the handler with each namespace that was refused, or lost its grant."""
        self._handlers.append(handler)

    def request(self, namespace: str) -> None:
        """Request a namespace, unless it was requested before.

        A volume may name any text as a namespace. An API server refuses a status with a text that
        is too long, and with it all other requests.
        """
        if not naming.is_namespace(namespace):
            return
        if namespace not in self._asked and namespace not in self._sources.namespaces:
            self._asked[namespace] = self._clusters.clock.monotonic()
            self._enqueue()

    def check(self, namespace: str) -> None:
        """Withdraw the request for a namespace after a while, if it is not needed then."""
        if namespace and namespace not in self._checked:
            self._checked[namespace] = self._clusters.clock.monotonic() + RELEASE_S
            self._enqueue()

    def waits_s(self, namespace: str) -> float:
        """Return for how long a pod may still wait for the grant of a namespace."""
        asked_at = self._asked.get(namespace)
        if asked_at is None or self._refusal(namespace):
            return 0.0
        return max(0.0, asked_at + GRANT_S - self._clusters.clock.monotonic())

    def obstacle(self, namespace: str) -> str:
        """Return why Secrets of a namespace cannot be read."""
        if not naming.is_namespace(namespace):
            return f"{namespace!r} is not the name of a namespace"
        if namespace in self._sources.namespaces:
            return f"Secrets of namespace {namespace} could not be listed"
        stored = self._state.requested or ()
        if namespace not in stored and len(stored) >= SECRET_NAMESPACES_MOST:
            return f"the pods of the binding need Secrets of more than {len(stored)} namespaces"
        reason = self._refusal(namespace) or "the manager has not granted that yet"
        return f"the syncer may not read Secrets in namespace {namespace}: {reason}"

    def _refusal(self, namespace: str) -> str:
        refused = self._state.refused or ()
        return next((each.reason for each in refused if each.namespace == namespace), "")

    def _enqueue(self) -> None:
        self.controller.enqueue(Key("", self._clusters.binding_name))

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        before = old.status.secret_namespaces if old is not None else SecretNamespaces()
        after = new.status.secret_namespaces if new is not None else SecretNamespaces()
        if old is None:
            for namespace in after.requested or ():
                self.check(namespace)  # its last use may have ended while no syncer ran
        if before == after:
            return
        granted, was_granted = frozenset(after.granted or ()), frozenset(before.granted or ())
        self._sources.set_namespaces(granted)
        for namespace in granted:
            self._asked.pop(namespace, None)
        refused = {each.namespace for each in after.refused or ()}
        for namespace in (was_granted - granted) | refused:
            for handler in self._handlers:
                handler(namespace)
        self._enqueue()

    async def reconcile(self, key: Key) -> Outcome:
        """Write the requested namespaces to the binding's status, if they changed."""
        binding, now = self._clusters.binding, self._clusters.clock.monotonic()
        if binding is None:
            return Done()
        stored = set(self._state.requested or ())
        for namespace in tuple(self._asked):
            if self._is_needed(namespace) is False:
                del self._asked[namespace]
                self.check(namespace)
        unneeded = self._release(now) & stored
        added = sorted(self._asked.keys() - stored)
        requested = sorted(stored - unneeded)
        requested += added[: max(0, SECRET_NAMESPACES_MOST - len(requested))]
        if set(requested) != stored:
            await self._write(binding, sorted(requested))
        next_s = min(self._checked.values(), default=None)
        return Done() if next_s is None else After(max(0.1, next_s - now))

    def _release(self, now: float) -> set[str]:
        """Return the namespaces that were to be checked until `now` and are not needed.

        Those of which that is not known are checked again later. A refused namespace is checked at
        once: there is no grant to keep, and a new request is verified sooner than an old one.
        """
        refused, unneeded = self._refused, set[str]()
        for namespace in [
            each for each, at in self._checked.items() if at <= now or each in refused
        ]:
            del self._checked[namespace]
            match self._is_needed(namespace):
                case None:
                    self._checked[namespace] = now + RELEASE_S
                case False:
                    unneeded.add(namespace)
        return unneeded

    async def _write(self, binding: ClusterBinding, requested: list[str]) -> None:
        body = {
            "metadata": {"uid": binding.uid, "resourceVersion": binding.resource_version},
            "status": {"secretNamespaces": {"requested": requested or None}},
        }
        try:
            written = await self._clusters.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource="status"
            )
        except NotFound:
            return
        self._clusters.bindings.wrote(written)
        _log.info("Requested access to Secrets of namespaces", namespaces=len(requested))
