"""Caches of a hub's objects for its members, read as one.

Of Namespaces, Roles and RoleBindings only those of members are kept. A change of any object is
reported as the key of the MemberCluster that the object belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    InternalMemberCluster,
    MemberCluster,
)
from kubeocean.api.fleet.names import (
    member_namespace,
    member_of_namespace,
    member_role,
    member_role_binding,
)
from kubeocean.fleet.membership.forge import ROLE_BINDINGS, ROLES, HubObjects, Role, RoleBinding
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, Namespace
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object

__all__ = ["MembershipCaches"]


class MembershipCaches:
    """Caches of MemberClusters, and of the hub's objects for each of them."""

    def __init__(self, client: Client, *, clock: Clock, metrics: Metrics) -> None:
        self.members: Informer[MemberCluster] = Informer(
            client, MEMBER_CLUSTERS, clock=clock, metrics=metrics
        )
        self.internals: Informer[InternalMemberCluster] = Informer(
            client, INTERNAL_MEMBER_CLUSTERS, clock=clock, metrics=metrics
        )
        self._namespaces: Informer[Namespace] = Informer(
            client, NAMESPACES, keep=_is_member_namespace, clock=clock, metrics=metrics
        )
        self._roles: Informer[Role] = Informer(
            client, ROLES, keep=_is_member_role, clock=clock, metrics=metrics
        )
        self._role_bindings: Informer[RoleBinding] = Informer(
            client, ROLE_BINDINGS, keep=_is_member_role_binding, clock=clock, metrics=metrics
        )
        self._informers: tuple[Informer[Any], ...] = (
            self._namespaces,
            self._roles,
            self._role_bindings,
            self.internals,
            self.members,
        )
        self._by_kind: dict[str, Informer[Any]] = {
            each.scope.resource.kind: each for each in self._informers
        }

    async def run(self) -> None:
        """Run the informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    @property
    def has_synced(self) -> bool:
        """Whether all caches are filled."""
        return all(informer.has_synced for informer in self._informers)

    async def synced(self) -> None:
        """Return when all caches are filled."""
        for informer in self._informers:
            await informer.synced()

    def on_change(self, handler: Callable[[Key], object]) -> None:
        """Call `handler` with a MemberCluster's key when it or an object of it changes."""

        def changed(old: Object | None, new: Object | None) -> None:
            obj = new or old
            assert obj is not None
            member = member_of_namespace(obj.namespace or obj.name)
            if member is not None:
                handler(Key("", member))

        def member_changed(old: MemberCluster | None, new: MemberCluster | None) -> None:
            if new is not None:
                handler(new.key)

        self._namespaces.on_change(changed)
        self._roles.on_change(changed)
        self._role_bindings.on_change(changed)
        self.internals.on_change(changed)
        self.members.on_change(member_changed)

    def objects(self, member: str) -> HubObjects:
        """Return the hub's objects for a member."""
        namespace = member_namespace(member)
        return HubObjects(
            self._namespaces.get(Key("", namespace)),
            self._roles.get(Key(namespace, member_role(member))),
            self._role_bindings.get(Key(namespace, member_role_binding(member))),
            self.internals.get(Key(namespace, member)),
        )

    def wrote(self, kind: str, obj: Object) -> None:
        """Record an object as the server returned it after a write of this program."""
        self._by_kind[kind].wrote(obj)

    async def caught_up(self, key: Key) -> bool:
        """Return whether the caches show this program's last writes for a MemberCluster."""
        namespace = member_namespace(key.name)
        return (
            await self.members.caught_up(key)
            and await self._namespaces.caught_up(Key("", namespace))
            and await self._roles.caught_up(Key(namespace, member_role(key.name)))
            and await self._role_bindings.caught_up(Key(namespace, member_role_binding(key.name)))
            and await self.internals.caught_up(Key(namespace, key.name))
        )


def _is_member_namespace(namespace: Namespace) -> bool:
    return member_of_namespace(namespace.name) is not None


def _is_member_role(role: Role) -> bool:
    member = member_of_namespace(role.namespace)
    return member is not None and role.name == member_role(member)


def _is_member_role_binding(binding: RoleBinding) -> bool:
    member = member_of_namespace(binding.namespace)
    return member is not None and binding.name == member_role_binding(member)
