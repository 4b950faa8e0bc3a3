"""A fleet for tests: a hub, members that run agents, and the objects that both write.

    async with FleetEnv.start(assets, roots) as env:       # control planes of a hub and a member
        async with env.hub_running():                       # controllers of the hub
            await env.join("a")                              # a MemberCluster with an identity
            async with env.agent_running("a"):              # the agent of member `a`
                await env.wait_for("a", "Joined", "True")

Any number of agents can run in the one member control plane. Each identity is a user without
rights, so that an agent has the rights on the hub that the hub grants and no others. The hub runs
under its own account with the permissions of an installation.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    InternalMemberCluster,
    MemberCluster,
)
from kubeocean.api.fleet.inventory import CLUSTER_PROFILES, ClusterProfile
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace
from kubeocean.errors import NotFound
from kubeocean.fleet.agent.agent import MemberAgent
from kubeocean.fleet.agent.collector import Collector
from kubeocean.fleet.agent.nodes import AzureOptions, NodeProperties
from kubeocean.fleet.agent.protocols import NewApplier, PropertyProvider
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.hub import Hub
from kubeocean.install.fleet import HUB_ACCOUNT, hub_objects, member_objects
from kubeocean.install.object_parts import RBAC, granted
from kubeocean.install.permissions import Rights, Rule
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import ServicePart
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, Event
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Json, find_condition
from kubeocean.runtime.transport import HttpTransport, Transport
from support.background import running
from support.control_planes import SERVERS, applier, plane
from support.controller_env import Crash
from support.faults import Crashed, Faults
from support.wait import until

__all__ = ["HUB_COMPONENTS", "FleetEnv"]

# A hub needs controllers: of namespaces, which are deleted, and the garbage collector.
HUB_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")
_MEMBERS = Rule(("*",), ("patch", "update"), "cluster.kubernetes-fleet.io")
_EVENTS = Rule(("events",), ("create", "patch"))
FORCE_WAIT = timedelta(seconds=30)


@dataclass
class FleetEnv:
    """A hub and one member control plane; names of members are unique to a test."""

    hub_cluster: Cluster
    member_cluster: Cluster
    hub: Client  # an administrator's
    member: Client  # an administrator's
    hub_account: Path  # the kubeconfig of the hub's own account
    joined: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        assets: Programs,
        roots: Path,
        *,
        member_components: Sequence[str] = SERVERS,
        audit: bool = True,
    ) -> AsyncIterator[FleetEnv]:
        """Start both control planes, with the kinds of a fleet."""
        async with AsyncExitStack() as stack:
            hub_plane = plane("hub", assets, roots, components=HUB_COMPONENTS, audit=audit)
            member_plane = plane(
                "member", assets, roots, components=tuple(member_components), audit=audit
            )
            hub_cluster = await stack.enter_async_context(hub_plane)
            member_cluster = await stack.enter_async_context(member_plane)
            hub, member = hub_cluster.client(), member_cluster.client()
            stack.push_async_callback(hub.close)
            stack.push_async_callback(member.close)
            for cluster, objects in (
                (hub_cluster, hub_objects()),
                (member_cluster, member_objects()),
            ):
                async with applier(cluster) as installing:
                    await installing.apply_all(objects)
            account = await hub_cluster.service_account(SYSTEM_NAMESPACE, HUB_ACCOUNT)
            yield cls(hub_cluster, member_cluster, hub, member, account)

    def of_test(self) -> FleetEnv:
        """Return the same control planes, for the members of one test."""
        return replace(self, joined=[])

    @staticmethod
    def new_name() -> str:
        """Return the name of a member that no other test uses."""
        return f"m{uuid.uuid4().hex[:8]}"

    # Processes

    @asynccontextmanager
    async def hub_running(
        self,
        faults: Faults | None = None,
        *,
        kubeconfig: Path | None = None,
        extensions: Extensions = OURS,
        force_wait: timedelta = FORCE_WAIT,
        threshold: timedelta | None = None,
        new_parts: Callable[[Client], list[ServicePart]] | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> AsyncIterator[Hub]:
        """Run the controllers of the hub until the block ends."""
        wrap = faults.wrap if faults is not None else None
        client = self.hub_cluster.client(kubeconfig=kubeconfig or self.hub_account, wrap=wrap)
        hub = Hub(
            client,
            parts=new_parts(client) if new_parts is not None else (),
            extensions=extensions,
            force_wait=force_wait,
            threshold=threshold,
            clock=clock,
            **options,
        )
        try:
            async with running(hub):
                yield hub
        finally:
            await client.close()

    @asynccontextmanager
    async def hub_crashing(self, n: int, **options: Any) -> AsyncIterator[Crash]:
        """Run the hub until its n-th write, which is its last."""
        faults, crash = Faults(), Crash()
        faults.crash_after_write(n, by=crash.set)
        with suppress(Crashed, BaseExceptionGroup):
            async with self.hub_running(faults, **options):
                yield crash

    @asynccontextmanager
    async def agent_crashing(self, name: str, n: int) -> AsyncIterator[Crash]:
        """Run an agent until its n-th write to the hub, which is its last."""
        faults, crash = Faults(), Crash()
        faults.crash_after_write(n, by=crash.set)
        with suppress(Crashed, BaseExceptionGroup):
            async with self.agent_running(name, faults):
                yield crash

    @asynccontextmanager
    async def agent_running(
        self,
        name: str,
        hub_faults: Faults | None = None,
        member_faults: Faults | None = None,
        *,
        access: AccessSource | None = None,
        cluster: Cluster | None = None,
        new_applier: Callable[[Client, Client], NewApplier] | None = None,
        provider: Callable[[Client], PropertyProvider] | None = None,
        azure: AzureOptions | None = None,
        with_namespaces: bool = False,
        extensions: Extensions = OURS,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> AsyncIterator[MemberAgent]:
        """Run the agent of a member until the block ends.

        `access` is another way to the hub than a user's certificate. `new_applier` gets the clients
        of hub and member, and returns a factory of appliers.
        """
        cluster = cluster or self.member_cluster
        if access is not None:
            hub = Client(HttpTransport(access), cluster="hub")
        else:
            hub = self.hub_cluster.client(kubeconfig=self.identity(name), wrap=_wrap(hub_faults))
        member = cluster.client(wrap=_wrap(member_faults))
        certificate = cluster.authority.certificate.decode()
        built_in = NodeProperties(
            member,
            options=azure,
            with_namespaces=with_namespaces,
            extensions=extensions,
            certificate_authority=certificate,
        )
        chosen = built_in if azure is not None else provider(member) if provider else None
        agent = MemberAgent(
            hub,
            member,
            name,
            Collector(built_in, chosen),
            new_applier=new_applier(hub, member) if new_applier is not None else None,
            clock=clock,
            metrics=metrics,
        )
        try:
            async with running(agent):
                yield agent
        finally:
            await hub.close()
            await member.close()

    async def grant_partial_hub(self, user: str) -> None:
        """Let a user read everything and write MemberClusters, as a hub with too few rights."""
        rights = Rights((Rule(("*",), ("get", "list", "watch"), "*"), _MEMBERS, _EVENTS))
        async with applier(self.hub_cluster) as installing:
            for body in granted(user, rights, account=user, namespace="default", labels={}):
                if body["kind"] == "ClusterRoleBinding":
                    body["subjects"] = [{"kind": "User", "name": user, "apiGroup": RBAC}]
                await installing.apply(body)

    def identity(self, name: str) -> Path:
        """Return the kubeconfig of a member's identity on the hub, a user without other rights."""
        return self.hub_cluster.user(f"agent-of-{name}")

    # Members

    async def join(
        self, name: str = "", *, heartbeat_s: int = 1, identity: Json | None = None, **spec: Any
    ) -> MemberCluster:
        """Create a MemberCluster; without a name one that no other test uses."""
        name = name or self.new_name()
        body = {
            "apiVersion": MEMBER_CLUSTERS.api_version,
            "kind": "MemberCluster",
            "metadata": {"name": name},
            "spec": {
                "identity": identity or {"kind": "User", "name": f"agent-of-{name}"},
                "heartbeatPeriodSeconds": heartbeat_s,
                **spec,
            },
        }
        self.joined.append(name)
        return await self.hub.create(MEMBER_CLUSTERS, body)

    async def leave(self, name: str) -> None:
        """Delete a MemberCluster, without waiting for its end."""
        await self.hub.delete(MEMBER_CLUSTERS, name, uid=(await self.get(name)).uid)

    async def get(self, name: str) -> MemberCluster:
        return await self.hub.get(MEMBER_CLUSTERS, name)

    async def internal(self, name: str) -> InternalMemberCluster:
        return await self.hub.get(INTERNAL_MEMBER_CLUSTERS, name, member_namespace(name))

    async def internal_or_none(self, name: str) -> InternalMemberCluster | None:
        try:
            return await self.internal(name)
        except NotFound:
            return None

    async def profile(self, name: str) -> ClusterProfile:
        return await self.hub.get(CLUSTER_PROFILES, name, SYSTEM_NAMESPACE)

    async def condition(self, name: str, type_: str) -> Condition | None:
        return find_condition((await self.get(name)).status.conditions, type_)

    async def wait_for(
        self, name: str, type_: str, status: str, reason: str = "", *, within: float = 90.0
    ) -> Condition:
        """Wait until a condition of the MemberCluster has this status, and this reason if given."""

        async def reached() -> Condition:
            condition = await self.condition(name, type_)
            assert condition is not None, f"{type_} is absent"
            assert (condition.status, condition.reason) == (status, reason or condition.reason)
            return condition

        return await until(
            reached, within=within, waiting_for=f"{type_} {status} {reason} of {name}"
        )

    async def is_gone(self, name: str) -> bool:
        """Whether neither the MemberCluster nor its namespace nor its profile exists."""
        for read in (
            lambda: self.get(name),
            lambda: self.hub.get(NAMESPACES, member_namespace(name)),
            lambda: self.profile(name),
        ):
            with suppress(NotFound):
                await read()
                return False
        return True

    async def events(self, name: str) -> list[Event]:
        """Return the events about a MemberCluster."""
        fields = f"involvedObject.name={name},involvedObject.kind=MemberCluster"
        return (await self.hub.list(EVENTS, "default", fields=fields)).items

    async def clear(self) -> None:
        """Remove all MemberClusters of this test, in any state."""
        patch = MergePatch({"metadata": {"finalizers": None}})
        for name in self.joined:
            with suppress(NotFound):
                await self.hub.patch(MEMBER_CLUSTERS, name, patch)
                await self.hub.delete(MEMBER_CLUSTERS, name, uid=None)


def _wrap(faults: Faults | None) -> Callable[[Transport], Transport] | None:
    return None if faults is None else faults.wrap
