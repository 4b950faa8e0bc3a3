"""A computing cluster and a worker with simulated nodes, and a syncer between them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import NODES, SECRETS, Node
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.transport import Transport
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.world import World, identity_of
from running import running

__all__ = ["Sea"]

Wrap = Callable[[Transport], Transport]


@dataclass
class Sea:
    """Two clusters and one binding of a test's own; nodes are chosen by a label of its own."""

    computing: Cluster
    worker: Cluster
    above: Client
    below: Client
    name: str = field(default_factory=lambda: f"b{uuid.uuid4().hex[:8]}")

    @property
    def cluster_id(self) -> str:
        return f"id{self.name}"[:24]

    @property
    def label(self) -> dict[str, str]:
        """What this test's nodes are known by."""
        return {"test": self.name}

    def selector(self, **labels: str) -> Json:
        wanted = labels or self.label
        terms = [{"key": k, "operator": "In", "values": [v]} for k, v in wanted.items()]
        return {"nodeSelectorTerms": [{"matchExpressions": terms}]}

    async def bind(self, **spec: object) -> None:
        """The binding and its Secret."""
        secret = {
            "metadata": {"name": self.name, "namespace": "default"},
            "data": {"kubeconfig": base64.b64encode(self.worker.kubeconfig.read_bytes()).decode()},
        }
        await self.above.create(SECRETS, secret)
        body = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": "ClusterBinding",
            "metadata": {"name": self.name},
            "spec": {
                "clusterID": self.cluster_id,
                "secretRef": {"name": self.name, "namespace": "default"},
                "mountNamespace": "default",
                "nodeSelector": self.selector(),
                **spec,
            },
        }
        await self.above.create(CLUSTER_BINDINGS, body)

    async def lend(self, name: str = "", **spec: object) -> str:
        """A policy; its name."""
        name = name or f"{self.name}-policy"
        body = {
            "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
            "kind": "ResourceLeasingPolicy",
            "metadata": {"name": name},
            "spec": {"cluster": self.name, **spec},
        }
        await self.below.create(RESOURCE_LEASING_POLICIES, body)
        return name

    async def add_node(self, name: str, *, ready: bool = True, **status: object) -> Node:
        """A node of the worker, without anything that plays a kubelet."""
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady",
            "message": "ready",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        body = {
            "metadata": {"name": f"{self.name}-{name}", "labels": self.label},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [condition],
                "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
                **status,
            },
        }
        return await self.below.create(NODES, body)

    async def vnodes(self) -> list[Node]:
        """The virtual nodes of this binding, read fresh."""
        listing = await self.above.list(
            NODES, labels=f"kubeocean.io/cluster-binding={self.name}", keep_raw=True
        )
        return sorted(listing.items, key=lambda node: node.name)

    async def patch_policy(self, name: str, **spec: object) -> None:
        await self.below.patch(RESOURCE_LEASING_POLICIES, name, MergePatch({"spec": spec}))

    @asynccontextmanager
    async def syncing(
        self,
        *,
        above: Wrap | None = None,
        below: Wrap | None = None,
        clock: Clock | None = None,
        zone: tzinfo = UTC,
    ) -> AsyncIterator[Syncer]:
        """A syncer at work."""
        reach = Reach(clock=clock)

        def listening(transport: Transport) -> Transport:
            return reach.wrap(below(transport) if below else transport)

        computing = self.computing.client(wrap=above)
        worker = self.worker.client(wrap=listening)
        world = World(
            binding_name=self.name,
            cluster_id=self.cluster_id,
            computing_id=await identity_of(self.above),
            computing=computing,
            worker=worker,
            reach=reach,
            events=EventRecorder(computing, component="kubeocean-syncer"),
            worker_events=EventRecorder(worker, component="kubeocean-syncer"),
            clock=clock or RealClock(),
            zone=zone,
        )
        syncer = Syncer(world)
        try:
            async with running(syncer):
                yield syncer
        finally:
            await computing.close()
            await worker.close()
