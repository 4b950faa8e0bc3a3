"""Contents of resource snapshots, read on demand.

The cache of snapshots has metadata only. The content of a snapshot does not change, so that one
read serves all bindings of a placement, and its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import ResourceIdentifier
from kubeocean.api.fleet.schema import Part
from kubeocean.fleet.caches import RecentContents
from kubeocean.fleet.selection.rules import GroupVersionKind
from kubeocean.fleet.snapshots.plan import Group
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Meta, Object, Resource, Untyped

__all__ = ["SnapshotContent", "SnapshotContents", "identifiers"]


class _RawSpec(Part, frozen=True):
    selected_resources: tuple[msgspec.Raw, ...] = ()


class _RawSnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A resource snapshot whose objects are kept encoded, as JSON."""

    spec: _RawSpec = _RawSpec()


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: Meta = Meta()


_decode_identity = msgspec.json.Decoder(_Identity).decode


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """The objects of one resource snapshot, encoded as JSON."""

    objects: tuple[msgspec.Raw, ...]
    identifiers: tuple[ResourceIdentifier, ...]


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

    def keep(self, snapshot: Object, objects: tuple[msgspec.Raw, ...]) -> None:
        """Keep the content of a resource snapshot that this program wrote."""
        content = SnapshotContent(objects, identifiers(objects))
        size = sum(len(bytes(raw)) for raw in objects)
        self._recent.put(snapshot.uid, str(snapshot.metadata.generation), content, size)

    async def of(self, snapshot: Untyped) -> SnapshotContent:
        """Return the content of a resource snapshot, read from the hub unless it is kept.

        :raises NotFound: the snapshot does not exist any more.
        """
        version = str(snapshot.metadata.generation)
        content = self._recent.get(snapshot.uid, version)
        if content is not None:
            return content
        resource = _raw(scope_of(snapshot.key).resource_snapshots)
        stored = await self._client.get(resource, snapshot.name, snapshot.namespace)
        self.keep(stored, stored.spec.selected_resources)
        return SnapshotContent(
            stored.spec.selected_resources, identifiers(stored.spec.selected_resources)
        )

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
