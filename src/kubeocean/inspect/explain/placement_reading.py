"""Reads a placement from the hub, and the objects that its scheduling depends on."""

from __future__ import annotations

from typing import Any

from kubeocean.api.fleet import names
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.inspect.explain.placement import PlacementDetails
from kubeocean.inspect.snapshot import NotRead, read_object, read_part
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Key, ObjectT, Resource

__all__ = ["read_placement"]


async def read_placement(client: Client, key: Key, clock: Clock | None = None) -> PlacementDetails:
    """Read a placement: a ResourcePlacement if the key has a namespace, else a cluster-wide one."""
    scope, now = scope_of(key), (clock or RealClock()).now()
    placement = await read_object(
        f"{scope.placements} {key}", client.get(scope.placements, key.name, key.namespace)
    )
    if placement is None or isinstance(placement, NotRead):
        return PlacementDetails(key, now, placement)

    async def listed(resource: Resource[ObjectT], **options: Any) -> tuple[ObjectT, ...]:
        return tuple((await client.list(resource, **options)).items)

    children = {
        "namespace": key.namespace,
        "labels": f"{names.LABEL_PARENT_PLACEMENT}={key.name}",
    }
    return PlacementDetails(
        key,
        now,
        placement,
        await read_part(str(scope.policy_snapshots), listed(scope.policy_snapshots, **children)),
        await read_part(str(MEMBER_CLUSTERS), listed(MEMBER_CLUSTERS)),
        await read_part(str(scope.bindings), listed(scope.bindings, **children)),
    )
