"""Reads placements from a hub, and the objects that the hub creates for one of them."""

from __future__ import annotations

from typing import Any

from kubeocean.api.fleet import names
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED, scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import ApiError, ConfigError, NotFound
from kubeocean.fleet.works.views import placement_of_work
from kubeocean.inspect.fleet.tree import PlacementObjects
from kubeocean.inspect.snapshot import NotRead, SnapshotPart, read_part
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Key, ObjectT, Resource, Untyped

__all__ = ["get_served", "list_served", "read_placements", "read_tree"]


async def read_placements(
    client: Client, namespace: str = ""
) -> list[SnapshotPart[tuple[Placement, ...]]]:
    """List the placements of both scopes, or the ResourcePlacements of one namespace."""
    scopes = (NAMESPACED,) if namespace else (CLUSTER, NAMESPACED)
    return [
        await read_part(str(each.placements), list_served(client, each.placements, namespace))
        for each in scopes
    ]


async def read_tree(client: Client, key: Key) -> PlacementObjects:
    """Read a placement and its children; a key with a namespace is a ResourcePlacement's.

    :raises ConfigError: there is no such placement.
    :raises ApiError: the placement cannot be read.
    """
    scope = scope_of(key)
    try:
        placement = await get_served(client, scope.placements, key)
    except NotFound:
        kind = scope.placements.kind
        message = f"is not a {kind} of the hub; list them with: kubeocean fleet placements"
        raise ConfigError(message, field="NAME", value=str(key)) from None
    children: dict[str, Any] = {
        "namespace": key.namespace,
        "labels": f"{names.LABEL_PARENT_PLACEMENT}={key.name}",
    }
    metadata = Resource(
        scope.resource_snapshots.group,
        scope.resource_snapshots.version,
        scope.resource_snapshots.plural,
        scope.resource_snapshots.kind,
        scope.resource_snapshots.namespaced,
        Untyped,
    )
    works = await read_part(str(WORKS), list_served(client, WORKS, labels=str(children["labels"])))
    if not isinstance(works, NotRead):
        works = tuple(work for work in works if placement_of_work(work) == key)
    return PlacementObjects(
        placement,
        await read_part(
            str(scope.policy_snapshots), list_served(client, scope.policy_snapshots, **children)
        ),
        await read_part(str(metadata), _metadata(client, metadata, **children)),
        await read_part(str(scope.bindings), list_served(client, scope.bindings, **children)),
        works,
    )


async def list_served(
    client: Client,
    resource: Resource[ObjectT],
    namespace: str = "",
    *,
    labels: str = "",
    fields: str = "",
) -> tuple[ObjectT, ...]:
    """List the objects of a kind, which the cluster has to serve.

    :raises ApiError: they cannot be read, or the cluster does not serve the kind.
    """
    try:
        return tuple((await client.list(resource, namespace, labels=labels, fields=fields)).items)
    except NotFound:
        raise _not_served(resource) from None


async def get_served(client: Client, resource: Resource[ObjectT], key: Key) -> ObjectT:
    """Get an object of a kind, which the cluster has to serve.

    :raises NotFound: the cluster serves the kind, and there is no such object.
    :raises ApiError: the object cannot be read, or the cluster does not serve the kind.
    """
    try:
        return await client.get(resource, key.name, key.namespace)
    except NotFound as error:
        if error.is_status:
            raise
        raise _not_served(resource) from None


def _not_served(resource: Resource[ObjectT]) -> ApiError:
    message = "this cluster does not serve the kind, so it is not the hub of a fleet"
    return ApiError(f"could not read {resource}: {message}", status=404)


async def _metadata(
    client: Client, resource: Resource[Untyped], namespace: str, labels: str
) -> tuple[Untyped, ...]:
    """List the metadata of objects alone: resource snapshots hold all objects of a placement."""
    items: list[Untyped] = []
    pages = client.pages(resource, namespace, labels=labels, metadata_only=True)
    async for page in pages:
        if page.begins:
            items.clear()
        items += page.items
    return tuple(items)
