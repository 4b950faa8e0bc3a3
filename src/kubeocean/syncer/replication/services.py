"""Replicates the Services of the namespaces that the binding names.

The key is a Service of the computing cluster. Its copy is in the mount namespace, has no selector,
and has copies of the EndpointSlices of its source. So pods in the worker reach the same pods as
pods of the computing cluster do, as far as the network between the clusters permits.

A copy is deleted with its source, or when the binding does not name the namespace any more; before
that both are read from the server. Nothing is watched while the binding names no namespace and no
copy is left from earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import BindingEvent
from kubeocean.api.group import LABEL_SERVICE_NAME
from kubeocean.errors import ApiError, Forbidden, Invalid, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Done, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object, Untyped
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication import service_forge as forge
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.loop import ReplicationLoop
from kubeocean.syncer.replication.on_demand_caches import (
    NamespacedCaches,
    Switched,
    SyncedCache,
    synced,
)
from kubeocean.syncer.replication.service_forge import (
    ENDPOINT_SLICES,
    SERVICE_VIEWS,
    ServiceContext,
    ServiceView,
)
from kubeocean.syncer.replication.store import (
    CopyStore,
    is_copy_of,
    owned_by,
    virtual_object,
)

__all__ = ["Services"]

WORKERS: Final = 4
_PROBE_RETRY_S: Final = 60.0
_SERVICE: Final = "service"  # the index of slices by Service

_log = get_logger(__name__)


class Services(ReplicationLoop[ServiceView, ServiceView]):
    """Replicates the Services of the namespaces that one binding names."""

    def __init__(self, clusters: Clusters, endpoints: ClusterEndpoints) -> None:
        store = CopyStore(
            clusters,
            clusters.worker,
            SERVICE_VIEWS,
            lambda copy: virtual_object(copy, clusters.domain),
            labels=owned_by(clusters),
            namespace=clusters.mount_namespace,
        )
        super().__init__(clusters, "service", endpoints.services_cache, store, workers=WORKERS)
        self._slices = NamespacedCaches(self._slices_of)
        self._slice_store = CopyStore(
            clusters,
            clusters.worker,
            ENDPOINT_SLICES,
            lambda copy: virtual_object(copy, clusters.domain),
            labels=owned_by(clusters),
            namespace=clusters.mount_namespace,
            indexes={_SERVICE: _service_of},
            keep_raw=True,
            is_logged=False,
        )
        self.slice_copies = self._slice_store.cache
        self._switch = Switched(self.copies, self.slice_copies, self._slices)
        self._namespaces: frozenset[str] = frozenset()  # that the binding names
        self._probe_needed = asyncio.Event()
        self._probe_needed.set()
        self.parts: tuple[Runnable, ...] = (self, self._switch, self.controller)
        endpoints.use_copies(self.address_of)
        clusters.bindings.on_change(self._binding_changed)
        self.sources.on_change(self._source_changed)
        self.follow(self.copies, self.source_of)
        self.follow(self.slice_copies, self._service_of_slice_copy)

    def _slices_of(self, namespace: str) -> Informer[Untyped]:
        clusters = self.clusters
        slices = Informer(
            clusters.computing,
            ENDPOINT_SLICES,
            namespace=namespace,
            labels=LABEL_SERVICE_NAME,
            indexes={_SERVICE: _service_of},
            keep_raw=True,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self.follow(slices, lambda each: Key(each.namespace, *_service_of(each)))
        return slices

    @property
    def on(self) -> bool:
        """Whether the copies of Services are watched."""
        return self._switch.on

    def remaining(self) -> int:
        """Return how many copies of Services the cache shows."""
        return len(self.copies)

    def address_of(self, service: Key) -> str:
        """Return the address of the copy of a Service in the worker; empty if there is none."""
        copies = self._store.of(service)
        return next((each.address for each in copies if each.address and not each.deleting), "")

    # Changes

    def keys(self) -> Iterator[Key]:
        yield from (self.source_of(copy) for copy in self.copies.items())
        for namespace in self._namespaces:
            yield from self._sources_in(namespace)

    def _sources_in(self, namespace: str) -> Iterator[Key]:
        return (each.key for each in self.sources.by("namespace", namespace))

    def _binding_changed(self, _: ClusterBinding | None, new: ClusterBinding | None) -> None:
        before, now = self._namespaces, _named_namespaces(new)
        self._namespaces = now
        self._slices.set_namespaces(now)
        if now - before:
            self._probe_needed.set()
        for namespace in before ^ now:
            self.enqueue(self._sources_in(namespace))
        self.enqueue(self.source_of(copy) for copy in self.copies.items())

    def _source_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        service = new or old
        assert service is not None
        if service.namespace in self._namespaces or self._store.of(service.key):
            self.enqueue([service.key])

    def _service_of_slice_copy(self, copy: Untyped) -> Key:
        """Return the key of the source Service that the copy of an EndpointSlice belongs to."""
        service = self.copies.get(Key(copy.namespace, *_service_of(copy)))
        return Key("", "") if service is None else self.source_of(service)

    # Whether copies are watched at all

    async def run(self) -> None:
        """Probe the worker, at the start and whenever the binding names more namespaces."""
        await self.clusters.bindings.synced()
        while True:
            await self._probe_needed.wait()
            self._probe_needed.clear()
            if not await self._probe():
                await self.clusters.clock.sleep(_PROBE_RETRY_S)
                self._probe_needed.set()

    async def _probe(self) -> bool:
        """Start to watch copies if the binding names namespaces, or copies of earlier ones exist.

        The credential must be allowed to list copies in the worker. Return False if the probe has
        to be repeated.
        """
        clusters, copies = self.clusters, 0
        paths = [SERVICE_VIEWS.path(clusters.mount_namespace)]
        if self._namespaces:
            paths.append(ENDPOINT_SLICES.path(clusters.mount_namespace))
        try:
            for path in paths:
                query = (("labelSelector", owned_by(clusters)), ("limit", "1"))
                listing = await clusters.worker.request_json("GET", path, query=query)
                copies += len(listing.get("items") or ())
        except Forbidden as error:
            self._emit_forbidden(str(error))
            self._switch.turn(False)
            return not self._namespaces
        except ApiError as error:
            _log.warning("Could not list copies of Services", error=str(error))
            return False
        if self._namespaces or copies:
            self._switch.turn(True)
            for namespace in self._namespaces:
                self.enqueue(self._sources_in(namespace))
        return True

    def _emit_forbidden(self, error: str) -> None:
        binding = self.clusters.binding
        if binding is not None and self._namespaces:
            message = f"Services of {', '.join(sorted(self._namespaces))} are not mirrored: {error}"
            target = reference(CLUSTER_BINDINGS, binding)
            self.clusters.events.emit(target, "Warning", BindingEvent.SERVICE_NOT_MIRRORED, message)

    # The loop

    async def caught_up(self, key: Key) -> bool:
        if not self._switch.on:
            return True
        caches: list[SyncedCache] = [
            self.clusters.bindings,
            self.sources,
            self.copies,
            self.slice_copies,
        ]
        slices = self._slices.get(key.namespace)
        if slices is not None:
            caches.append(slices)
        if not await synced(self.clusters.clock, caches):
            return False
        return await self._store.caught_up(key) and await self._slice_store.caught_up(key)

    async def reconcile(self, key: Key) -> Outcome:
        if not self.clusters.worker_health.answers or not self._switch.on:
            return Done()  # the key is enqueued again when that changes
        source, copies = self.sources.get(key), self._store.of(key)
        slices = self._slices.get(key.namespace)
        if source is None or source.deleting or slices is None:
            return await self._ensure_deleted(key, copies)
        try:
            return await self._ensure(source, copies, slices)
        except (Invalid, Forbidden) as error:
            return Stuck(BindingEvent.SERVICE_NOT_MIRRORED, str(error))

    async def _ensure(
        self, source: ServiceView, copies: list[ServiceView], slices: Informer[Untyped]
    ) -> Outcome:
        copy = await self._ensure_service(source, copies)
        if isinstance(copy, Stuck):
            return copy
        if copy is None:
            return Done()  # the key is enqueued again when the old copy is gone
        context = self._context(source, copy.name)
        kept = {
            await self._ensure_slice(each, context, copy.uid)
            for each in forge.replicated_slices(slices.by(_SERVICE, source.name))
        }
        for slice_copy in self._slices_of_copy(copy):
            if slice_copy.name not in kept:
                await self._slice_store.delete(source.key, slice_copy)
        return Done()

    async def _ensure_service(
        self, source: ServiceView, copies: list[ServiceView]
    ) -> ServiceView | Stuck | None:
        """Create or update the copy of a Service; None while an old copy is being deleted."""
        copy = min(copies, key=lambda each: each.name, default=None)
        if copy is None:
            return await self._create_service(source)
        context = self._context(source, copy.name)
        if copy.deleting:
            return None
        if forge.must_be_replaced(copy, context):
            await self._store.delete(source.key, copy)
            return None
        change = forge.service_changes(copy, context)
        return await self._store.merge(source.key, copy, change) if change else copy

    async def _create_service(self, source: ServiceView) -> ServiceView | Stuck:
        for name in forge.names(source.key, self.clusters.ids):
            body = forge.forge_service(self._context(source, name))
            copy, created = await self._store.create_or_get(source.key, body)
            if created:
                return copy
            if self._is_copy_of(copy, source.key):
                self._store.expect(source.key, copy)
                return copy
        message = f"Service {source.key} is not mirrored: both of its names belong to another owner"
        return Stuck(BindingEvent.SERVICE_NOT_MIRRORED, message)

    async def _ensure_slice(self, source: Untyped, context: ServiceContext, uid: str) -> str:
        """Create or update the copy of an EndpointSlice; return its name."""
        service, name = context.service.key, forge.slice_name(source.key, context)
        copy = self.slice_copies.get(Key(context.namespace, name))
        if copy is None:
            body = forge.forge_slice(source, context, uid)
            copy, created = await self._slice_store.create_or_get(service, body)
            if created:
                return name
            if not self._is_copy_of(copy, source.key):
                _log.warning(
                    "Could not write copy, an object of another owner has its name",
                    kind=ENDPOINT_SLICES.kind,
                    name=name,
                )
                return name
        change = forge.slice_changes(copy, source, context, uid)
        if change:
            await self._slice_store.merge(service, copy, change)
        return name

    async def _ensure_deleted(self, key: Key, copies: list[ServiceView]) -> Outcome:
        if not copies:
            self._stop_watching_if_done()
            return Done()
        if await self._is_wanted(key):
            return Done()  # the caches are behind
        for copy in copies:
            for slice_copy in self._slices_of_copy(copy):
                await self._slice_store.delete(key, slice_copy)
            await self._store.delete(key, copy)
        return Done()

    def _stop_watching_if_done(self) -> None:
        if not self._namespaces and not len(self.copies) and not len(self.slice_copies):
            self._switch.turn(False)

    async def _is_wanted(self, key: Key) -> bool:
        """Whether the API server has the source, and a binding that names its namespace."""
        clusters = self.clusters
        try:
            binding = await clusters.computing.get(CLUSTER_BINDINGS, clusters.binding_name)
            if key.namespace not in _named_namespaces(binding):
                return False
            source = await clusters.computing.get(SERVICE_VIEWS, key.name, key.namespace)
            return not source.deleting
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return False

    def _context(self, source: ServiceView, name: str) -> ServiceContext:
        clusters = self.clusters
        return ServiceContext(source, name, clusters.mount_namespace, clusters.ids, clusters.domain)

    def _slices_of_copy(self, copy: ServiceView) -> list[Untyped]:
        return self.slice_copies.by(_SERVICE, copy.name)

    def _is_copy_of(self, copy: Object, source: Key) -> bool:
        return is_copy_of(copy, source, ids=self.clusters.ids, domain=self.clusters.domain)


def _service_of(each: Object) -> tuple[str]:
    """Return the name of the Service that an EndpointSlice belongs to."""
    return (each.labels.get(LABEL_SERVICE_NAME, ""),)


def _named_namespaces(binding: ClusterBinding | None) -> frozenset[str]:
    if binding is None or binding.deleting:
        return frozenset()
    return frozenset(filter(None, binding.spec.service_namespaces or ()))
