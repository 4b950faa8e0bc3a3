"""Contents of resource snapshots, read on demand.

The cache of snapshots has metadata only. The content of a snapshot does not change, so that one
read serves all bindings of a placement, and its status.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import ResourceIdentifier
from kubeocean.api.fleet.schema import Part
from kubeocean.fleet.caches import RecentContents
from kubeocean.fleet.snapshots.plan import Group
from kubeocean.fleet.works.views import objects_digest
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import GroupVersionKind, Meta, Object, Resource, Untyped

__all__ = ["SnapshotContent", "SnapshotContents", "identifiers"]


class _RawSpec(Part, frozen=True):
    selected_resources: tuple[msgspec.Raw, ...] = ()


class _RawSnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A resource snapshot whose objects are kept encoded, as JSON."""

    spec: _RawSpec = _RawSpec()


class _ObjectIdentity(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: Meta = Meta()


_decode_identity = msgspec.json.Decoder(_ObjectIdentity).decode


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """The objects of one resource snapshot, encoded as JSON."""

    objects: tuple[msgspec.Raw, ...]
    identifiers: tuple[ResourceIdentifier, ...]
    digest: str

    @classmethod
    def of(cls, objects: tuple[msgspec.Raw, ...]) -> SnapshotContent:
        return cls(objects, identifiers(objects), objects_digest(objects))


def identifiers(objects: tuple[msgspec.Raw, ...]) -> tuple[ResourceIdentifier, ...]:
    """Return the ResourceIdentifiers of encoded objects."""
    found = []
    for raw in objects:
        identity = _decode_identity(raw)
        kind = GroupVersionKind.of({"apiVersion": identity.api_version, "kind": identity.kind})
        found.append(
            ResourceIdentifier(
                group=kind.group,
                version=kind.version,
                kind=kind.kind,
                name=identity.metadata.name,
                namespace=identity.metadata.namespace,
            )
        )
    return tuple(found)


class SnapshotContents:
    """Reads the contents of resource snapshots from the hub, and keeps recent ones in memory."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._recent: RecentContents[SnapshotContent] = RecentContents()
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by UID

    def keep(self, snapshot: Object, objects: tuple[msgspec.Raw, ...]) -> None:
        """Keep the content of a resource snapshot that this program wrote."""
        self._keep(snapshot, SnapshotContent.of(objects))

    def _keep(self, snapshot: Object, content: SnapshotContent) -> None:
        size = sum(len(bytes(raw)) for raw in content.objects)
        self._recent.put(snapshot.uid, str(snapshot.metadata.generation), content, size)

    async def of(self, snapshot: Untyped) -> SnapshotContent:
        """Return the content of a resource snapshot, read from the hub unless it is kept.

        :raises NotFound: the snapshot does not exist any more.
        """
        version = str(snapshot.metadata.generation)
        if (content := self._recent.get(snapshot.uid, version)) is not None:
            return content
        # Many bindings ask for one snapshot at a time; the first one reads it for all
        async with self._reading.setdefault(snapshot.uid, asyncio.Lock()):
            if (content := self._recent.get(snapshot.uid, version)) is not None:
                return content
            resource = _raw(scope_of(snapshot.key).resource_snapshots)
            stored = await self._client.get(resource, snapshot.name, snapshot.namespace)
            content = SnapshotContent.of(stored.spec.selected_resources)
            self._keep(stored, content)
            return content

    async def identifiers_of(self, group: Group) -> tuple[ResourceIdentifier, ...]:
        """Return the ResourceIdentifiers of all objects in a group of snapshots, in their order."""
        listed: list[ResourceIdentifier] = []
        for snapshot in group.members:
            listed += (await self.of(snapshot)).identifiers
        return tuple(listed)


def _raw(resource: Resource[Any]) -> Resource[_RawSnapshot]:
    return Resource(
        resource.group,
        resource.version,
        resource.plural,
        resource.kind,
        resource.namespaced,
        _RawSnapshot,
    )
