"""Services: those of the namespaces that the binding names are mirrored into the worker.

The key is a Service of the computing cluster. Its mirror lives in the mount namespace, under a name
made from its own; it selects nothing, and has copies of the original's EndpointSlices. So pods in
the worker reach the same pods as pods of the computing cluster do, as far as the network between
the clusters lets them.

A mirror goes with its original, and with the namespace's place in the binding; the server is asked
about either before anything is removed. Nothing is watched while no namespace is named, once what
may be left over from earlier is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import LABEL_SERVICE_NAME
from kubeocean.api.ownership import Ids, ownership
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, ObjectT, Resource, Untyped
from kubeocean.runtime.outcomes import Done, Outcome, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.filedwrites import FiledWrites
from kubeocean.syncer.forge import services as forge
from kubeocean.syncer.forge.services import Mirror
from kubeocean.syncer.serviceviews import ENDPOINT_SLICES, SERVICE_VIEWS, Service
from kubeocean.syncer.topdown.surroundings import Surroundings
from kubeocean.syncer.topdown.watching import Fills, Namespaced, Switched, synced
from kubeocean.syncer.world import World

__all__ = ["Services"]

WORKERS: Final = 4
_ASK_AGAIN_S: Final = 60.0
_SERVICE: Final = "service"
_VIRTUAL: Final = "virtual"

_log = get_logger(__name__)


class Services:
    """The mirrors of one binding."""

    def __init__(self, world: World, surroundings: Surroundings) -> None:
        self.world = world
        self._ids = Ids(world.binding_name, world.cluster_id, world.computing_id)
        self._originals = surroundings.services_cache
        self._slices = Namespaced(self._slices_of)
        self.mirrors = self._below(SERVICE_VIEWS, keep_raw=False)
        self.copies = self._below(ENDPOINT_SLICES, keep_raw=True)
        self._switch = Switched(self.mirrors, self.copies, self._slices)
        self._writes = FiledWrites()  # by original
        self.controller: Controller[Key] = Controller(
            f"service-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            on_stuck=self._tell,
            clock=world.clock,
            metrics=world.metrics,
        )
        self._named: frozenset[str] = frozenset()  # namespaces whose Services are wanted
        self._asked = asyncio.Event()
        self._asked.set()
        self.parts: tuple[Runnable, ...] = (self, self._switch, self.controller)
        surroundings.stand_in(self.address_of)
        self._follow()

    def remaining(self) -> int:
        """How many mirrors there are, as far as we know."""
        return len(self.mirrors)

    def address_of(self, service: Key) -> str:
        """The address in the worker of a Service's mirror; empty if it has none."""
        mirrors = self.mirrors.by(_VIRTUAL, str(service))
        return next((each.address for each in mirrors if each.address and not each.deleting), "")

    def _below(self, resource: Resource[ObjectT], *, keep_raw: bool) -> Informer[ObjectT]:
        world = self.world
        return Informer(
            world.worker,
            resource,
            namespace=world.mount_namespace,
            labels=self._labels,
            indexes={_VIRTUAL: self._virtual_of, _SERVICE: _service_of},
            keep_raw=keep_raw,
            clock=world.clock,
            metrics=world.metrics,
        )

    @property
    def _labels(self) -> str:
        ours = ownership(self._ids, self.world.domain)
        return ",".join(f"{key}={value}" for key, value in ours.items())

    def _slices_of(self, namespace: str) -> Informer[Untyped]:
        world = self.world
        slices = Informer(
            world.computing,
            ENDPOINT_SLICES,
            namespace=namespace,
            labels=LABEL_SERVICE_NAME,
            indexes={_SERVICE: _service_of},
            keep_raw=True,
            clock=world.clock,
            metrics=world.metrics,
        )
        slices.on_change(self._slice_changed)
        return slices

    # What makes us look

    def _follow(self) -> None:
        self.world.bindings.on_change(self._binding_changed)
        self.world.reach.on_change(self._reached)
        self._originals.on_change(self._original_changed)
        self.mirrors.on_change(self._copy_changed)
        self.copies.on_change(self._copy_changed)

    def _binding_changed(self, _: ClusterBinding | None, new: ClusterBinding | None) -> None:
        before, now = self._named, _namespaces(new)
        self._named = now
        self._slices.want(now)
        if now - before:
            self._asked.set()
        for namespace in before ^ now:
            self._enqueue(each.key for each in self._originals.by("namespace", namespace))
        self._enqueue(forge.virtual_of(each, self.world.domain) for each in self.mirrors.items())

    def _original_changed(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        assert service is not None
        if service.namespace in self._named or self.mirrors.by(_VIRTUAL, str(service.key)):
            self._enqueue([service.key])

    def _slice_changed(self, old: Untyped | None, new: Untyped | None) -> None:
        slices = [each for each in (old, new) if each is not None]
        self._enqueue({Key(s.namespace, s.labels.get(LABEL_SERVICE_NAME, "")) for s in slices})

    def _copy_changed(self, old: Object | None, new: Object | None) -> None:
        for copy in (old, new):
            if isinstance(copy, Service):
                self._enqueue([forge.virtual_of(copy, self.world.domain)])
            elif isinstance(copy, Untyped):
                self._enqueue(self._originals_of(copy))

    def _originals_of(self, copy: Untyped) -> Iterable[Key]:
        """The Service that a copied slice belongs to: that of the mirror which it names."""
        name = Key(copy.namespace, copy.labels.get(LABEL_SERVICE_NAME, ""))
        mirror = self.mirrors.get(name)
        if mirror is not None:
            yield forge.virtual_of(mirror, self.world.domain)

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue(forge.virtual_of(m, self.world.domain) for m in self.mirrors.items())
            self._enqueue_named()

    def _enqueue_named(self) -> None:
        for namespace in self._named:
            self._enqueue(each.key for each in self._originals.by("namespace", namespace))

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key.name:
                self.controller.enqueue(key)

    async def run(self) -> None:
        """Ask the worker what is there, at the start and whenever more namespaces are named."""
        await self.world.bindings.synced()
        while True:
            await self._asked.wait()
            self._asked.clear()
            if not await self._ask():
                await self.world.clock.sleep(_ASK_AGAIN_S)
                self._asked.set()

    async def _ask(self) -> bool:
        """Watch if there is a reason to, and the worker lets us; whether that is settled.

        A reason is also what is left of a time when namespaces were named.
        """
        world, left = self.world, 0
        try:
            for resource in (SERVICE_VIEWS, ENDPOINT_SLICES) if self._named else (SERVICE_VIEWS,):
                path = resource.path(world.mount_namespace)
                query = (("labelSelector", self._labels), ("limit", "1"))
                found = await world.worker.request_json("GET", path, query=query)
                left += len(found.get("items") or ())
        except Forbidden as error:
            self._complain(str(error))
            self._switch.turn(False)
            return not self._named
        except ApiError as error:
            _log.warning("Could not look for mirrored Services", error=str(error))
            return False
        if self._named or left:
            self._switch.turn(True)
            self._enqueue_named()
        return True

    def _complain(self, error: str) -> None:
        binding = self.world.binding
        if binding is not None and self._named:
            said = f"Services of {', '.join(sorted(self._named))} are not mirrored: {error}"
            target = reference(CLUSTER_BINDINGS, binding)
            self.world.events.emit(target, "Warning", BindingEvent.SERVICE_NOT_MIRRORED, said)

    async def _caught_up(self, key: Key) -> bool:
        if not self._switch.on:
            return True
        caches: list[Fills] = [self.world.bindings, self._originals, self.mirrors, self.copies]
        slices = self._slices.get(key.namespace)
        if slices is not None:
            caches.append(slices)
        if not await synced(self.world.clock, caches):
            return False
        return await self._writes.shown(key, self.mirrors, self.copies)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        if not world.reach.answers or not self._switch.on:
            return Done()  # we are called again when that changes
        original = self._originals.get(key)
        mirrors = self.mirrors.by(_VIRTUAL, str(key))
        slices = self._slices.get(key.namespace)
        if original is None or original.deleting or slices is None:
            return await self._ensure_gone(key, mirrors)
        try:
            return await self._ensure(original, mirrors, slices)
        except (Invalid, Forbidden) as error:
            return Stuck(BindingEvent.SERVICE_NOT_MIRRORED, str(error))

    async def _ensure(
        self, original: Service, mirrors: list[Service], slices: Informer[Untyped]
    ) -> Outcome:
        there = await self._ensure_mirror(original, mirrors)
        if isinstance(there, Stuck):
            return there
        if there is None:
            return Done()  # it makes room first; the cache will show
        mirror = self._mirror(original, there.name)
        wanted = forge.mirrored_slices(slices.by(_SERVICE, original.name))
        kept: set[str] = set()
        for each in wanted:
            kept.add(await self._ensure_slice(each, mirror, there.uid))
        for copy in self._copies_for(there):
            if copy.name not in kept:
                await self._delete(ENDPOINT_SLICES, self.copies, copy, original.key)
        return Done()

    async def _ensure_mirror(
        self, original: Service, mirrors: list[Service]
    ) -> Service | Stuck | None:
        there = min(mirrors, key=lambda each: each.name, default=None)
        if there is None:
            return await self._create_mirror(original)
        mirror = self._mirror(original, there.name)
        if there.deleting:
            return None
        if forge.must_be_replaced(there, mirror):
            await self._delete(SERVICE_VIEWS, self.mirrors, there, original.key)
            return None
        change = forge.service_changes(there, mirror)
        if change:
            return await self._patch(SERVICE_VIEWS, self.mirrors, there, change, original.key)
        return there

    async def _create_mirror(self, original: Service) -> Service | Stuck:
        world = self.world
        for name in forge.names(original.key, self._ids):
            body = forge.forge_service(self._mirror(original, name))
            try:
                made = await world.worker.create(SERVICE_VIEWS, body)
            except AlreadyExists:
                made = await world.worker.get(SERVICE_VIEWS, name, world.mount_namespace)
                if not forge.is_ours(made, original.key, ids=self._ids, domain=world.domain):
                    continue
            else:
                _log.info("Mirrored Service", service=str(original.key), mirror=name)
            self._writes.wrote(original.key, self.mirrors, made)
            return made
        message = f"Service {original.key} is not mirrored: somebody else has both of its names"
        return Stuck(BindingEvent.SERVICE_NOT_MIRRORED, message)

    async def _ensure_slice(self, original: Untyped, mirror: Mirror, uid: str) -> str:
        """Make the copy of a slice what it should be; its name."""
        name = Key(mirror.namespace, forge.slice_name(original.key, mirror))
        service, there = mirror.service.key, self.copies.get(name)
        if there is None:
            body = forge.forge_slice(original, mirror, uid)
            try:
                made = await self.world.worker.create(ENDPOINT_SLICES, body)
            except AlreadyExists:
                there = await self.world.worker.get(
                    ENDPOINT_SLICES, name.name, name.namespace, keep_raw=True
                )
                domain = self.world.domain
                if not forge.is_ours(there, original.key, ids=self._ids, domain=domain):
                    _log.warning("Left foreign EndpointSlice alone", slice=str(name))
                    return name.name
            else:
                self._writes.wrote(service, self.copies, made)
                return name.name
        change = forge.slice_changes(there, original, mirror, uid)
        if change:
            await self._patch(ENDPOINT_SLICES, self.copies, there, change, service)
        return name.name

    async def _ensure_gone(self, key: Key, mirrors: list[Service]) -> Outcome:
        if not mirrors:
            self._rest()
            return Done()
        if await self._is_wanted(key):
            return Done()  # the cache is behind, and will show
        for mirror in mirrors:
            for copy in self._copies_for(mirror):
                await self._delete(ENDPOINT_SLICES, self.copies, copy, key)
            await self._delete(SERVICE_VIEWS, self.mirrors, mirror, key)
            _log.info("Removed mirror of Service", service=str(key), mirror=mirror.name)
        return Done()

    def _rest(self) -> None:
        """Stop watching when nothing is wanted and nothing is left."""
        if not self._named and not len(self.mirrors) and not len(self.copies):
            self._switch.turn(False)

    # Small questions and writes

    def _mirror(self, original: Service, name: str) -> Mirror:
        world = self.world
        return Mirror(original, name, world.mount_namespace, self._ids, world.domain)

    def _copies_for(self, mirror: Service) -> list[Untyped]:
        """The slices that we made for a mirror."""
        return self.copies.by(_SERVICE, mirror.name)

    async def _is_wanted(self, key: Key) -> bool:
        """Ask the server about what the caches do not show, before removing for it."""
        world = self.world
        try:
            binding = await world.computing.get(CLUSTER_BINDINGS, world.binding_name)
            if key.namespace not in _namespaces(binding):
                return False
            return not (await world.computing.get(SERVICE_VIEWS, key.name, key.namespace)).deleting
        except NotFound:
            return False

    async def _patch(
        self,
        resource: Resource[ObjectT],
        cache: Informer[ObjectT],
        there: ObjectT,
        change: Json,
        original: Key,
    ) -> ObjectT:
        precondition = {"uid": there.uid, "resourceVersion": there.resource_version}
        patch = MergePatch(change | {"metadata": change.get("metadata", {}) | precondition})
        written = await self.world.worker.patch(resource, there.name, patch, there.namespace)
        self._writes.wrote(original, cache, written)
        return written

    async def _delete(
        self, resource: Resource[ObjectT], cache: Informer[ObjectT], there: ObjectT, original: Key
    ) -> None:
        if there.deleting:
            return
        with suppress(NotFound, Conflict):  # it is gone, or another one: the cache will show
            await self.world.worker.delete(resource, there.name, there.namespace, uid=there.uid)
            self._writes.deleted(original, cache, there)

    def _virtual_of(self, copy: Object) -> tuple[str, ...]:
        return (str(forge.virtual_of(copy, self.world.domain)),)

    def _tell(self, key: Key, stuck: Stuck) -> None:
        original = self._originals.get(key)
        if original is not None:
            target = reference(SERVICE_VIEWS, original)
            self.world.events.emit(target, "Warning", stuck.reason, stuck.message)


def _service_of(each: Object) -> tuple[str, ...]:
    """The Service that a slice belongs to."""
    return (each.labels.get(LABEL_SERVICE_NAME, ""),)


def _namespaces(binding: ClusterBinding | None) -> frozenset[str]:
    if binding is None or binding.deleting:
        return frozenset()
    return frozenset(filter(None, binding.spec.service_namespaces or ()))
