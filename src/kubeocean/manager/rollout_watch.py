"""Ownership of rolled-out objects, and informers that watch these objects.

    owned by this binding, or rolled out for it                   ours
    without an owner, with labels that name this binding          ours (adopted)
    owned by another binding, or an earlier one of that name      foreign
    anything else                                                 foreign

In a management cluster, where no binding exists that could own them, an annotation names the
binding for which objects were rolled out, and stands for an owner reference.

Objects of the earlier implementation have the same owner or labels. Foreign objects are never
written and never deleted.

There is one informer for each kind and namespace that the templates name, because the manager may
have permissions in some namespaces only. Objects that are not watched yet are read when needed.
Each change is reported with the key of the binding that owns the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import APP_MANAGED_BY, Domain
from kubeocean.errors import NotFound
from kubeocean.manager.rendering import AnyResource
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, OwnerReference

__all__ = ["Place", "RolloutInformers", "RolloutOwner", "binding_of", "ownership_of", "read_fresh"]


@dataclass(frozen=True, slots=True)
class RolloutOwner:
    """Whether the manager may write an object, and if not, a description of its owner."""

    ours: bool
    owner: str = ""


def ownership_of(stored: Object, binding: ClusterBinding, domain: Domain) -> RolloutOwner:
    """Return whether the object belongs to this binding."""
    owners = stored.metadata.owner_references or ()
    if any(_is_binding(owner) and owner.uid == binding.uid for owner in owners):
        return RolloutOwner(True)
    for owner in (*owners, *_rolled_out_for(stored, domain)):
        if owner not in owners and owner.name == binding.name:
            # No garbage collection deletes those of an earlier binding of that name.
            return RolloutOwner(True)
        if _is_binding(owner) and owner.name == binding.name:
            return RolloutOwner(False, "belongs to an earlier ClusterBinding of that name")
        if _is_binding(owner):
            return RolloutOwner(False, f"belongs to ClusterBinding {owner.name}")
        if owner.controller:
            return RolloutOwner(False, f"belongs to {owner.kind} {owner.name}")
    named = {stored.labels.get(group.APP_INSTANCE), stored.labels.get(domain.cluster_binding)}
    named.discard(None)
    if named == {naming.label_value(binding.name)}:
        return RolloutOwner(True)
    message = "neither its owner nor its labels name this ClusterBinding"
    return RolloutOwner(False, f"{message} (label {group.APP_INSTANCE} or an owner would)")


def binding_of(stored: Object, domain: Domain) -> OwnerReference | None:
    """Return the owner reference to a ClusterBinding, or one made from the annotation; None without
    either.
    """
    owners = (*(stored.metadata.owner_references or ()), *_rolled_out_for(stored, domain))
    return next((owner for owner in owners if _is_binding(owner)), None)


def _rolled_out_for(stored: Object, domain: Domain) -> Iterator[OwnerReference]:
    name, slash, uid = stored.annotations.get(domain.rolled_out_for, "").partition("/")
    if name and slash and uid:
        yield OwnerReference(
            api_version=CLUSTER_BINDINGS.api_version,
            kind=CLUSTER_BINDINGS.kind,
            name=name,
            uid=uid,
        )


def _is_binding(owner: OwnerReference) -> bool:
    # Any version: a later one may be served by the same group.
    same = owner.api_version.partition("/")[0] == group.GROUP
    return same and owner.kind == CLUSTER_BINDINGS.kind


async def read_fresh(client: Client, resource: AnyResource, key: Key) -> Object | None:
    """Return the object with its bytes as the API server has it now, or None."""
    try:
        stored: Object = await client.get(resource, key.name, key.namespace, keep_raw=True)
    except NotFound:
        return None
    return stored


Place: TypeAlias = tuple[AnyResource, str]  # kind and namespace
_Handler: TypeAlias = Callable[[Key], None]

_OWNER: Final = "owner"
_SYNC_TIMEOUT_S: Final = 10.0

_log = get_logger(__name__)


class RolloutInformers:
    """Informers of all rolled-out objects."""

    def __init__(self, client: Client, *, domain: Domain, clock: Clock, metrics: Metrics) -> None:
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._domain = domain
        self._selector = f"{APP_MANAGED_BY}={domain.manager}"
        self._informers: dict[Place, Informer[Any]] = {}
        self._new: asyncio.Queue[Informer[Any]] = asyncio.Queue()
        self._handlers: list[_Handler] = []
        self._waiting: dict[tuple[AnyResource, Key], set[Key]] = {}

    @property
    def selector(self) -> str:
        """The label selector of all rolled-out objects."""
        return self._selector

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self._informers)

    def on_change(self, handler: _Handler) -> None:
        """Call `handler` with the key of a binding after an object of that binding changed."""
        self._handlers.append(handler)

    def watch(self, places: Iterable[Place]) -> None:
        """Start informers for these kinds and namespaces."""
        for place in places:
            if place not in self._informers:
                self._informers[place] = informer = self._informer(place)
                self._new.put_nowait(informer)

    def notify(self, resource: AnyResource, key: Key, binding: Key) -> None:
        """Report the next change of a foreign object with the key of this binding, too."""
        self._waiting.setdefault((resource, key), set()).add(binding)

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task((await self._new.get()).run())

    async def synced(self) -> None:
        """Return once all informers have synced, or after a time-out.

        After a time-out, objects can still be read one by one.
        """

        async def all_synced() -> None:
            for informer in list(self._informers.values()):
                await informer.synced()

        try:
            await within(self._clock, _SYNC_TIMEOUT_S, all_synced)
        except TimeoutError:
            missing = [f"{r} in {n}" for (r, n), i in self._informers.items() if not i.has_synced]
            _log.warning("Caches of rolled-out objects did not sync in time", missing=missing)

    async def read(self, resource: AnyResource, key: Key) -> Object | None:
        """Return the object with its bytes, from the cache or else from the API server."""
        informer = self._informers.get((resource, key.namespace))
        if informer is not None and informer.has_synced and await informer.caught_up(key):
            cached: Object | None = informer.get(key)
            if cached is not None:
                return cached
        # An object without our labels is not in the cache.
        return await self.read_fresh(resource, key)

    async def read_fresh(self, resource: AnyResource, key: Key) -> Object | None:
        """Return the object as the API server has it now, or None."""
        return await read_fresh(self._client, resource, key)

    def wrote(self, resource: AnyResource, obj: Object) -> None:
        """Pass an object that the API server returned after a write to the cache of its kind."""
        if (informer := self._informers.get((resource, obj.namespace))) is not None:
            informer.wrote(obj)

    def owned_by(self, uid: str) -> Iterator[tuple[AnyResource, Object]]:
        """Yield the watched objects that a binding owns."""
        for (resource, _), informer in self._informers.items():
            for obj in informer.by(_OWNER, uid):
                yield resource, obj

    def _informer(self, place: Place) -> Informer[Any]:
        resource, namespace = place
        informer: Informer[Any] = Informer(
            self._client,
            resource,
            namespace=namespace,
            labels=self._selector,
            indexes={_OWNER: self._owner_uids},
            keep_raw=True,
            clock=self._clock,
            metrics=self._metrics,
        )
        informer.on_change(lambda old, new: self._changed(resource, old, new))
        return informer

    def _changed(self, resource: AnyResource, old: Object | None, new: Object | None) -> None:
        bindings: set[Key] = set()
        for obj in (old, new):
            if obj is not None:
                if (owner := binding_of(obj, self._domain)) is not None:
                    bindings.add(Key("", owner.name))
                bindings |= self._waiting.get((resource, obj.key), set())
        if new is None and old is not None:
            self._waiting.pop(
                (resource, old.key), None
            )  # a binding that still waits registers again
        for binding in bindings:
            for handler in self._handlers:
                handler(binding)

    def _owner_uids(self, obj: Object) -> tuple[str, ...]:
        owner = binding_of(obj, self._domain)
        return (owner.uid,) if owner is not None else ()
