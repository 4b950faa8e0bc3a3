"""Reads the hub of a fleet for doctor, if the computing cluster is one."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    InternalMemberCluster,
)
from kubeocean.api.fleet.definitions import hub_definitions
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.fleet.placements import Placement
from kubeocean.errors import ApiError, NotFound
from kubeocean.inspect.fleet.progress import NOT_REPORTED, placement_problem
from kubeocean.inspect.fleet.reading import list_served, read_placements
from kubeocean.inspect.reader import concurrently
from kubeocean.inspect.snapshot import FleetSnapshot, NotRead, SnapshotPart, known, read_part
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, LEASES, Lease
from kubeocean.runtime.objects import Json, Resource

__all__ = ["read_fleet"]

_AT_ONCE: Final = 8  # definitions that are read at one time


async def read_fleet(client: Client, clock: Clock, pause_s: float) -> FleetSnapshot | None:
    """Return the fleet of a hub; None if the cluster is not a hub.

    A hub serves the kinds that its users write; a member serves the kind AppliedWork only.

    `pause_s` is the time between two reads of placements on which the hub has not reported.
    """
    kinds = (MEMBER_CLUSTERS, CLUSTER.placements, NAMESPACED.placements)
    if not any([await _is_served(client, each) for each in kinds]):
        return None
    async with asyncio.TaskGroup() as group:
        definitions = group.create_task(read_part("definitions of the hub", _definitions(client)))
        elections = group.create_task(
            read_part(f"leases in {SYSTEM_NAMESPACE}", _elections(client))
        )
        members = group.create_task(
            read_part(str(MEMBER_CLUSTERS), list_served(client, MEMBER_CLUSTERS))
        )
        internals = group.create_task(read_part(str(INTERNAL_MEMBER_CLUSTERS), _internals(client)))
        placements = group.create_task(_placements(client))
    return FleetSnapshot(
        definitions=definitions.result(),
        elections=elections.result(),
        members=members.result(),
        internals=internals.result(),
        placements=placements.result(),
        unseen=await _unseen(client, placements.result(), clock, pause_s),
    )


async def _is_served(client: Client, resource: Resource[Any]) -> bool:
    """Whether the cluster serves a kind; True if the API server does not answer."""
    try:
        listing = await client.request_json("GET", f"/apis/{resource.group}/{resource.version}")
    except NotFound:
        return False
    except ApiError:
        return True  # the reads of its kinds report the error
    return any(each.get("name") == resource.plural for each in listing.get("resources") or ())


async def _definitions(client: Client) -> dict[str, Json | None]:
    """Return the CustomResourceDefinitions of a hub as its API server stores them.

    :raises ApiError: one of them cannot be read.
    """

    async def read(name: str) -> Json | None:
        try:
            installed = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
        except NotFound:
            return None
        return installed.content()

    names = [each["metadata"]["name"] for each in hub_definitions()]
    return dict(zip(names, await concurrently(names, read, limit=_AT_ONCE), strict=True))


async def _elections(client: Client) -> dict[str, Lease]:
    return {each.name: each for each in (await client.list(LEASES, SYSTEM_NAMESPACE)).items}


async def _internals(client: Client) -> dict[str, InternalMemberCluster]:
    return {each.name: each for each in await list_served(client, INTERNAL_MEMBER_CLUSTERS)}


async def _placements(client: Client) -> SnapshotPart[tuple[Placement, ...]]:
    placements: list[Placement] = []
    for part in await read_placements(client):
        if isinstance(part, NotRead):
            return part
        placements += part
    return tuple(placements)


async def _unseen(
    client: Client, first: SnapshotPart[tuple[Placement, ...]], clock: Clock, pause_s: float
) -> SnapshotPart[frozenset[str]]:
    """Return the UIDs of placements on whose spec the hub has not reported in two reads."""
    candidates = _unreported(known(first, ()))
    if not candidates:
        return candidates
    await clock.sleep(pause_s)
    second = await _placements(client)
    return second if isinstance(second, NotRead) else candidates & _unreported(second)


def _unreported(placements: tuple[Placement, ...]) -> frozenset[str]:
    problems = ((each, placement_problem(each)) for each in placements if not each.deleting)
    return frozenset(
        placement.uid
        for placement, problem in problems
        if problem is not None and problem.reason == NOT_REPORTED
    )
