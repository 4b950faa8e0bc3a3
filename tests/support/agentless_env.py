"""A fleet whose hub is a computing cluster, and bindings whose workers are members without agents.

The syncers run as processes under the account of an installation, and reach the worker with the
credential that `kubeocean join` makes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import PolicySpec
from kubeocean.errors import NotFound
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.fleet import agentless_objects
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.values import Values, WorkerValues
from kubeocean.local.cluster import Programs
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Condition, Json, find_condition
from support.control_planes import applier
from support.fleet_env import HUB_COMPONENTS, FleetEnv
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

__all__ = ["AgentlessEnv"]

FLEET = DEFAULT.fleet
_AMOUNTS = {"cpu": "8", "memory": "32Gi", "pods": "110"}


@dataclass
class AgentlessEnv:
    """Bindings between the hub and the one member control plane of a fleet."""

    fleet: FleetEnv
    syncer_account: Path  # the kubeconfig of the syncers' account in the hub

    @classmethod
    @asynccontextmanager
    async def start(cls, assets: Programs, roots: Path) -> AsyncIterator[AgentlessEnv]:
        """Start both control planes, with an installation and one node in the worker."""
        async with FleetEnv.start(assets, roots, member_components=HUB_COMPONENTS) as fleet:
            async with applier(fleet.hub_cluster) as installing:
                await installing.apply_all(computing_objects(Values()))
            node = {
                "metadata": {"name": "n1"},
                "status": {
                    "capacity": _AMOUNTS,
                    "allocatable": _AMOUNTS,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            await fleet.member.create(NODES, node)
            account = await fleet.hub_cluster.service_account("kubeocean-system", DEFAULT.syncer)
            yield cls(fleet, account)

    def of_test(self) -> AgentlessEnv:
        """Return the same control planes, for the members of one test."""
        return replace(self, fleet=self.fleet.of_test())

    async def bind(
        self, name: str = "", *, fleet_rights: bool = True, lease: PolicySpec | None = None
    ) -> str:
        """Join a worker as `kubeocean join` does; return the name of the binding."""
        name = name or self.fleet.new_name()
        worker = WorkerValues(namespace=f"mount-{name}")
        access = load_kubeconfig(self.fleet.member_cluster.kubeconfig)
        request = JoinRequest(name=name, worker=worker, lease=lease)
        async with (
            applier(self.fleet.hub_cluster) as hub,
            applier(self.fleet.member_cluster) as member,
        ):
            await Join(request, hub, member, access).run()
            if fleet_rights:
                await member.apply_all(agentless_objects(worker))
        self.fleet.joined.append(name)
        return name

    @asynccontextmanager
    async def syncing(
        self, name: str, directory: Path, *flags: str, kubeconfig: Path | None = None
    ) -> AsyncIterator[SyncerProcess]:
        """Run the syncer of a binding until the block ends, under the account of syncers."""
        async with syncer(
            f"syncer-{name}",
            f"--cluster-binding-name={name}",
            "--leader-election-namespace=kubeocean-system",
            *flags,
            kubeconfig=kubeconfig or self.syncer_account,
            directory=directory,
        ) as process:
            yield process

    # Bindings

    async def binding(self, name: str) -> ClusterBinding:
        return await self.fleet.hub.get(CLUSTER_BINDINGS, name)

    async def annotate(self, name: str, value: str | None = "member", **more: str) -> None:
        """Set or remove the annotation of a member, and others under our domain."""
        heartbeat = {DEFAULT.fleet_heartbeat: "1"} if value == "member" else {}
        others = {f"{DEFAULT.name}/{key}": text for key, text in more.items()}
        metadata: Json = {"annotations": {FLEET: value, **heartbeat, **others}}
        patch = MergePatch({"metadata": metadata})
        await self.fleet.hub.patch(CLUSTER_BINDINGS, name, patch)

    async def wait_for_binding(self, name: str, status: str, reason: str) -> Condition:
        """Wait until the condition FleetMember of a binding has this status and reason."""

        async def reached() -> Condition:
            conditions = (await self.binding(name)).status.conditions
            condition = find_condition(conditions, "FleetMember")
            assert condition is not None, "FleetMember is absent"
            assert (condition.status, condition.reason) == (status, reason), condition.message
            return condition

        return await until(reached, waiting_for=f"FleetMember {status} {reason} of {name}")

    async def is_unbound(self, name: str) -> bool:
        try:
            await self.binding(name)
        except NotFound:
            return True
        return False

    async def clear(self) -> None:
        """Remove all bindings and members of this test, in any state."""
        patch = MergePatch({"metadata": {"finalizers": None}})
        for name in self.fleet.joined:
            if not await self.is_unbound(name):
                await self.fleet.hub.patch(CLUSTER_BINDINGS, name, patch)
                await self.fleet.hub.delete(CLUSTER_BINDINGS, name, uid=None)
        await self.fleet.clear()
