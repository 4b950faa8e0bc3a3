"""Caches of the hub's controllers: objects of placements, and the fields of members they read.

ClusterResourcePlacements and ResourcePlacements have objects of different kinds that decode to the
same structs. A `ScopedCache` holds both kinds of one struct and is read as one; a key with a
namespace means the namespaced kind. Objects that belong to a placement carry its name in a label.
Objects in the namespaces of members are left out, since members may write there.

Of resource snapshots only metadata is cached, of Works everything but the manifests and the status
entries of manifests that are applied, available and without differences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    InternalMemberCluster,
    MemberCluster,
)
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED
from kubeocean.api.fleet.placements import (
    CLUSTER_RESOURCE_PLACEMENT_STATUSES,
    ClusterResourcePlacementStatus,
    Placement,
)
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.fleet.steps import shared
from kubeocean.fleet.works.views import CACHED_WORKS, CachedWork, binding_of_work, prune_work
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.informer import Handler, Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped

__all__ = [
    "HubCaches",
    "RecentContents",
    "ScopedCache",
    "parent_of",
    "prune_binding",
    "prune_placement",
]

ContentT = TypeVar("ContentT")

_BY_PARENT: Final = "placement"
_BY_BINDING: Final = "binding"


def parent_of(obj: Object) -> Key | None:
    """Return the placement that a snapshot or binding belongs to; None if its label is missing."""
    name = obj.labels.get(names.LABEL_PARENT_PLACEMENT)
    return Key(obj.namespace, name) if name else None


def _is_of_the_hub(obj: Object) -> bool:
    """Whether an object is outside of the namespaces of members.

    Members may write all kinds of the fleet in their own namespaces; a binding or snapshot there
    could place objects on other members.
    """
    return names.member_of_namespace(obj.namespace) is None


class RecentContents(Generic[ContentT]):
    """Contents of objects by UID and resourceVersion; the least recently used are dropped."""

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, str], tuple[ContentT, int]] = OrderedDict()

    def get(self, uid: str, version: str) -> ContentT | None:
        """Return the content of this version of an object; None if it is not kept."""
        entry = self._entries.get((uid, version))
        if entry is None:
            return None
        self._entries.move_to_end((uid, version))
        return entry[0]

    def put(self, uid: str, version: str, content: ContentT, size: int) -> None:
        """Keep a content of `size` bytes, unless it is larger than the limit."""
        if (uid, version) in self._entries or size > self._most_bytes:
            return
        self._entries[uid, version] = content, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped


class _Unseen:
    """Keys of objects that this program wrote and whose writes the cache may not show yet.

    The keys are kept by owner: the placement or binding whose reconcile has to see the writes.
    """

    def __init__(self) -> None:
        self._keys: dict[Key, set[Key]] = {}

    def add(self, owner: Key, key: Key) -> None:
        self._keys.setdefault(owner, set()).add(key)

    async def all_shown(self, owner: Key, caught_up: Callable[[Key], Awaitable[bool]]) -> bool:
        """Return whether the cache shows all writes for an owner, after waiting briefly."""
        for key in list(self._keys.get(owner, ())):
            if not await caught_up(key):
                return False
            keys = self._keys.get(owner)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[owner]
        return True


class ScopedCache(Generic[ObjectT]):
    """Cache of two kinds, cluster-scoped and namespaced, that decode to the same struct."""

    def __init__(
        self,
        client: Client,
        cluster: Resource[ObjectT],
        namespaced: Resource[ObjectT],
        *,
        prune: Callable[[ObjectT], ObjectT] | None = None,
        metadata_only: bool = False,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        indexes = {_BY_PARENT: lambda obj: [str(parent)] if (parent := parent_of(obj)) else []}
        self._cluster, self._namespaced = (
            Informer(
                client,
                resource,
                indexes=indexes,
                prune=prune,
                keep=_is_of_the_hub,
                metadata_only=metadata_only,
                clock=clock,
                metrics=metrics,
            )
            for resource in (cluster, namespaced)
        )
        self._unseen = _Unseen()  # by placement

    @property
    def informers(self) -> tuple[Informer[ObjectT], Informer[ObjectT]]:
        return self._cluster, self._namespaced

    def get(self, key: Key) -> ObjectT | None:
        """Return the cached object with this key; None if there is none."""
        return self._informer(key).get(key)

    def items(self) -> Iterator[ObjectT]:
        """Yield all cached objects of both kinds."""
        yield from self._cluster.items()
        yield from self._namespaced.items()

    def of(self, placement: Key) -> list[ObjectT]:
        """Return the objects that belong to a placement, sorted by name."""
        owned = self._informer(placement).by(_BY_PARENT, str(placement))
        return sorted(owned, key=lambda obj: obj.name)

    def on_change(self, handler: Handler[ObjectT]) -> None:
        """Call `handler(old, new)` for each change of an object of either kind."""
        for informer in self.informers:
            informer.on_change(handler)

    def wrote(self, obj: ObjectT) -> None:
        """Record an object as the server returned it after a write of this program."""
        self._informer(obj.key).wrote(obj)
        self._note(obj)

    def deleted(self, obj: ObjectT) -> None:
        """Record that the server accepted a delete of this object."""
        self._informer(obj.key).deleted(obj)
        self._note(obj)

    async def caught_up(self, placement: Key) -> bool:
        """Return whether the cache shows all own writes for a placement, after waiting briefly."""
        return await self._unseen.all_shown(placement, self.shows)

    async def shows(self, key: Key) -> bool:
        """Return whether the cache shows the last own write to an object, after waiting briefly."""
        return await self._informer(key).caught_up(key)

    def _note(self, obj: ObjectT) -> None:
        self._unseen.add(parent_of(obj) or obj.key, obj.key)

    def _informer(self, key: Key) -> Informer[ObjectT]:
        return self._namespaced if key.namespace else self._cluster


class HubCaches:
    """Caches of all objects that the controllers of placements read.

    `members` and `internal_members` are informers to share with other controllers of the hub:
    each heartbeat changes their objects.
    """

    def __init__(
        self,
        client: Client,
        *,
        members: Informer[MemberCluster] | None = None,
        internal_members: Informer[InternalMemberCluster] | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        def scoped(
            cluster: Resource[ObjectT],
            namespaced: Resource[ObjectT],
            *,
            prune: Callable[[ObjectT], ObjectT] | None = None,
            metadata_only: bool = False,
        ) -> ScopedCache[ObjectT]:
            return ScopedCache(
                client,
                cluster,
                namespaced,
                prune=prune,
                metadata_only=metadata_only,
                clock=clock,
                metrics=metrics,
            )

        own: list[Informer[Any]] = []
        if members is None:  # not `or`: an informer without objects is false
            members = Informer(client, MEMBER_CLUSTERS, clock=clock, metrics=metrics)
            own.append(members)
        if internal_members is None:
            internal_members = Informer(
                client, INTERNAL_MEMBER_CLUSTERS, metadata_only=True, clock=clock, metrics=metrics
            )
            own.append(internal_members)
        self.members, self.internal_members = members, internal_members
        self.placements: ScopedCache[Placement] = scoped(
            CLUSTER.placements, NAMESPACED.placements, prune=prune_placement
        )
        self.policy_snapshots: ScopedCache[PolicySnapshot] = scoped(
            CLUSTER.policy_snapshots, NAMESPACED.policy_snapshots
        )
        self.resource_snapshots: ScopedCache[Untyped] = scoped(
            _untyped(CLUSTER.resource_snapshots),
            _untyped(NAMESPACED.resource_snapshots),
            metadata_only=True,
        )
        self.bindings: ScopedCache[Binding] = scoped(
            CLUSTER.bindings, NAMESPACED.bindings, prune=prune_binding
        )
        self.works: Informer[CachedWork] = Informer(
            client,
            CACHED_WORKS,
            indexes={
                _BY_BINDING: lambda work: [str(key)] if (key := binding_of_work(work)) else []
            },
            prune=prune_work,
            clock=clock,
            metrics=metrics,
        )
        self.mirrors: Informer[ClusterResourcePlacementStatus] = Informer(
            client, CLUSTER_RESOURCE_PLACEMENT_STATUSES, clock=clock, metrics=metrics
        )
        self._unseen_works = _Unseen()  # by binding
        scoped_informers = (
            *self.placements.informers,
            *self.policy_snapshots.informers,
            *self.resource_snapshots.informers,
            *self.bindings.informers,
        )
        rest: tuple[Informer[Any], ...] = (*scoped_informers, self.works, self.mirrors)
        self._all: tuple[Informer[Any], ...] = (members, internal_members, *rest)
        self.parts: tuple[Informer[Any], ...] = (*own, *rest)

    async def synced(self) -> None:
        """Return once every cache has its first listing."""
        for informer in self._all:
            await informer.synced()

    def works_of(self, binding: Binding) -> list[CachedWork]:
        """Return the Works of a binding in the namespace of its cluster, sorted by name."""
        namespace = names.member_namespace(binding.spec.target_cluster)
        return [work for work in self.works_naming(binding.key) if work.namespace == namespace]

    def works_naming(self, binding: Key) -> list[CachedWork]:
        """Return all Works whose labels name a binding, sorted by name.

        Labels alone prove nothing: a member may label a Work of its own with any binding.
        """
        return sorted(self.works.by(_BY_BINDING, str(binding)), key=lambda work: work.name)

    def wrote_work(self, binding: Key, work: CachedWork) -> None:
        """Record a Work of a binding as the server returned it after a write."""
        self.works.wrote(work)
        self._unseen_works.add(binding, work.key)

    def deleted_work(self, binding: Key, work: CachedWork) -> None:
        """Record that the server accepted the deletion of a Work of a binding."""
        self.works.deleted(work)
        self._unseen_works.add(binding, work.key)

    async def works_caught_up(self, binding: Key) -> bool:
        """Return whether the cache shows all own writes of a binding's Works, waiting briefly."""
        return await self._unseen_works.all_shown(binding, self.works.caught_up)

    def gate(self, *caches: Callable[[Key], Awaitable[bool]]) -> Callable[[Key], Awaitable[bool]]:
        """Return a gate for a Controller: whether all `caches` show the own writes for a key."""

        async def caught_up(key: Key) -> bool:
            await self.synced()
            return all([await cache(key) for cache in caches])

        return caught_up


def prune_binding(binding: Binding) -> Binding:
    """Return an equal binding whose conditions share memory with equal ones of other objects."""
    conditions = shared(binding.status.conditions)
    status = msgspec.structs.replace(binding.status, conditions=conditions)
    return msgspec.structs.replace(binding, status=status)


def prune_placement(placement: Placement) -> Placement:
    """Return the placement with equal conditions of clusters stored once, to save memory."""
    entries = tuple(
        msgspec.structs.replace(entry, conditions=shared(entry.conditions))
        for entry in placement.status.placement_statuses
    )
    status = msgspec.structs.replace(placement.status, placement_statuses=entries)
    return msgspec.structs.replace(placement, status=status)


def _untyped(resource: Resource[Any]) -> Resource[Untyped]:
    """Return the resource with objects decoded as `Untyped`, for reading metadata only."""
    return Resource(
        resource.group,
        resource.version,
        resource.plural,
        resource.kind,
        resource.namespaced,
        Untyped,
    )
