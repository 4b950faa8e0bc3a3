"""A computing cluster and a worker with simulated nodes, and a syncer between them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo

from crossings import Wrap, crossing
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, PolicyStatus
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import EVENTS, NODES, PODS, SECRETS, Node, Pod
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.settings import Given
from running import running

__all__ = ["Sea"]


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

    def neighbour(self) -> Sea:
        """Another binding between the same clusters."""
        return replace(self, name=f"b{uuid.uuid4().hex[:8]}")

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

    async def add_node(
        self,
        name: str,
        *,
        ready: bool = True,
        labels: dict[str, str] | None = None,
        **status: object,
    ) -> Node:
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
            "metadata": {"name": f"{self.name}-{name}", "labels": self.label | (labels or {})},
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

    async def guest(self, namespace: str, name: str, node: str, **spec: object) -> Pod:
        """A pod that was scheduled to a virtual node, and runs as far as anybody can see."""
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "none"}],
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }
        await self.above.create(PODS, body, namespace=namespace)
        ready = {"type": "Ready", "status": "True"}  # a budget does not protect what does not run
        status = MergePatch({"status": {"phase": "Running", "conditions": [ready]}})
        return await self.above.patch(PODS, name, status, namespace, subresource="status")

    async def is_gone(self, pod: Pod) -> bool:
        """Whether a pod was made to leave."""
        try:
            found = await self.above.get(PODS, pod.name, pod.namespace)
        except NotFound:
            return True
        return found.uid != pod.uid or found.deleting

    async def binding(self) -> ClusterBinding:
        return await self.above.get(CLUSTER_BINDINGS, self.name)

    async def condition(self, type_: str) -> tuple[str, str, str]:
        """Status, reason and message of one of the binding's conditions, if it has it."""
        found = find_condition((await self.binding()).status.conditions, type_)
        return (found.status, found.reason, found.message) if found else ("", "", "")

    async def unbind(self) -> None:
        """Delete the binding."""
        await self.above.delete(CLUSTER_BINDINGS, self.name, uid=(await self.binding()).uid)

    async def is_unbound(self) -> bool:
        """Whether the binding is gone."""
        try:
            await self.binding()
        except NotFound:
            return True
        return False

    async def status(self, policy: str) -> PolicyStatus:
        """What a policy says of itself."""
        return (await self.below.get(RESOURCE_LEASING_POLICIES, policy)).status

    async def events(self, about: str) -> set[str]:
        """The reasons of all events about a cluster-scoped object, above and below."""
        fields = f"involvedObject.name={about}"
        found = [await each.list(EVENTS, "default", fields=fields) for each in self.clients]
        return {event.reason for listing in found for event in listing.items}

    @property
    def clients(self) -> tuple[Client, Client]:
        return self.above, self.below

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
        mount: str = "",
        given: Given | None = None,
    ) -> AsyncIterator[Syncer]:
        """A syncer at work; pods run if it knows where (`mount`) and how (`given`)."""
        async with crossing(
            self, above=above, below=below, clock=clock, zone=zone, mount_namespace=mount
        ) as world:
            syncer = Syncer(world, given)
            async with running(syncer):
                yield syncer
