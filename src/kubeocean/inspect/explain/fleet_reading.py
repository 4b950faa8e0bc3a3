"""Reads a placement, a Work or a member from the hub, with the objects that explain its state."""

from __future__ import annotations

from typing import Any

from kubeocean.api.fleet import names
from kubeocean.api.fleet.clusters import INTERNAL_MEMBER_CLUSTERS, MEMBER_CLUSTERS
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import ConfigError
from kubeocean.inspect.explain.member import MemberDetails
from kubeocean.inspect.explain.placement import PlacementDetails
from kubeocean.inspect.explain.work import WorkDetails
from kubeocean.inspect.fleet.reading import get_served, list_served
from kubeocean.inspect.snapshot import NotRead, read_object, read_part
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Key

__all__ = ["find_work", "read_member", "read_placement", "read_work"]


async def find_work(client: Client, name: str) -> Key:
    """Return the key of the only Work of a name, in the namespace of any member.

    If there is none, the key has no namespace.

    :raises ConfigError: several members have a Work of that name.
    :raises ApiError: Works cannot be listed.
    """
    works = await list_served(client, WORKS, fields=f"metadata.name={name}")
    if len(works) > 1:
        members = sorted(names.member_of_namespace(work.namespace) or "" for work in works)
        message = f"exists for the members {', '.join(members)}; choose one with --member"
        raise ConfigError(message, field="NAME", value=name)
    return works[0].key if works else Key("", name)


async def read_work(client: Client, key: Key, clock: Clock | None = None) -> WorkDetails:
    """Read a Work and the MemberCluster in whose namespace it is."""
    now = (clock or RealClock()).now()
    if not key.namespace:
        return WorkDetails(key, now, None)
    work = await read_object(f"Work {key}", get_served(client, WORKS, key))
    member = names.member_of_namespace(key.namespace) or ""
    if not member:
        return WorkDetails(key, now, work)
    read = await read_object(
        f"MemberCluster {member}", get_served(client, MEMBER_CLUSTERS, Key("", member))
    )
    return WorkDetails(key, now, work, read)


async def read_member(client: Client, name: str, clock: Clock | None = None) -> MemberDetails:
    """Read a MemberCluster, its InternalMemberCluster and its Works."""
    now = (clock or RealClock()).now()
    namespace = names.member_namespace(name)
    member = await read_object(
        f"MemberCluster {name}", get_served(client, MEMBER_CLUSTERS, Key("", name))
    )
    internal = await read_object(
        f"InternalMemberCluster {name}",
        get_served(client, INTERNAL_MEMBER_CLUSTERS, Key(namespace, name)),
    )
    works = await read_part(f"Works in {namespace}", list_served(client, WORKS, namespace))
    return MemberDetails(name, now, member, internal, works)


async def read_placement(client: Client, key: Key, clock: Clock | None = None) -> PlacementDetails:
    """Read a placement: a ResourcePlacement if the key has a namespace, else a cluster-wide one."""
    scope, now = scope_of(key), (clock or RealClock()).now()
    placement = await read_object(
        f"{scope.placements} {key}", get_served(client, scope.placements, key)
    )
    if placement is None or isinstance(placement, NotRead):
        return PlacementDetails(key, now, placement)

    children: dict[str, Any] = {
        "namespace": key.namespace,
        "labels": f"{names.LABEL_PARENT_PLACEMENT}={key.name}",
    }
    return PlacementDetails(
        key,
        now,
        placement,
        await read_part(
            str(scope.policy_snapshots), list_served(client, scope.policy_snapshots, **children)
        ),
        await read_part(str(MEMBER_CLUSTERS), list_served(client, MEMBER_CLUSTERS)),
        await read_part(str(scope.bindings), list_served(client, scope.bindings, **children)),
    )
