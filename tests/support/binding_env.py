"""A computing cluster and a worker with simulated nodes, and a syncer between them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicyStatus
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import EVENTS, NODES, PODS, SECRETS, Node, Pod
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.settings import Given
from support.background import running
from support.syncer_context import Wrap, crossing

__all__ = ["BindingEnv"]


@dataclass
class BindingEnv:
    """Two clusters and one binding of a test's own, which selects nodes by a label of its own."""

    computing: Cluster
    worker: Cluster
    computing_api: Client
    worker_api: Client
    name: str = field(default_factory=lambda: f"b{uuid.uuid4().hex[:8]}")

    @property
    def cluster_id(self) -> str:
        return f"id{self.name}"[:24]

    def neighbour(self) -> BindingEnv:
        """Return another binding between the same clusters."""
        return replace(self, name=f"b{uuid.uuid4().hex[:8]}")

    @property
    def label(self) -> dict[str, str]:
        """The label of this test's nodes."""
        return {"test": self.name}

    def selector(self, **labels: str) -> Json:
        wanted = labels or self.label
        terms = [{"key": k, "operator": "In", "values": [v]} for k, v in wanted.items()]
        return {"nodeSelectorTerms": [{"matchExpressions": terms}]}

    async def bind(self, *, kubeconfig: bytes = b"", **spec: object) -> None:
        """Create the binding and its Secret, with the worker's kubeconfig or this one."""
        content = kubeconfig or self.worker.kubeconfig.read_bytes()
        secret = {
            "metadata": {"name": self.name, "namespace": "default"},
            "data": {"kubeconfig": base64.b64encode(content).decode()},
        }
        await self.computing_api.create(SECRETS, secret)
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
        await self.computing_api.create(CLUSTER_BINDINGS, body)

    async def lend(self, name: str = "", **spec: object) -> str:
        """Create a policy; return its name."""
        name = name or f"{self.name}-policy"
        body = {
            "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
            "kind": "ResourceLeasingPolicy",
            "metadata": {"name": name},
            "spec": {"cluster": self.name, **spec},
        }
        await self.worker_api.create(RESOURCE_LEASING_POLICIES, body)
        return name

    async def add_node(
        self,
        name: str,
        *,
        ready: bool = True,
        labels: dict[str, str] | None = None,
        **status: object,
    ) -> Node:
        """Create a node of the worker, without a simulated kubelet."""
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
        return await self.worker_api.create(NODES, body)

    async def vnodes(self) -> list[Node]:
        """Return the virtual nodes of this binding, read from the API server."""
        listing = await self.computing_api.list(
            NODES, labels=f"kubeocean.io/cluster-binding={self.name}", keep_raw=True
        )
        return sorted(listing.items, key=lambda node: node.name)

    async def create_bound_pod(self, namespace: str, name: str, node: str, **spec: object) -> Pod:
        """Create a pod that is bound to a virtual node and has the status of a running one."""
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "none"}],
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }
        await self.computing_api.create(PODS, body, namespace=namespace)
        ready = {"type": "Ready", "status": "True"}  # a budget protects only pods that are ready
        status = MergePatch({"status": {"phase": "Running", "conditions": [ready]}})
        return await self.computing_api.patch(PODS, name, status, namespace, subresource="status")

    async def is_gone(self, pod: Pod) -> bool:
        """Whether a pod was evicted or deleted."""
        try:
            stored = await self.computing_api.get(PODS, pod.name, pod.namespace)
        except NotFound:
            return True
        return stored.uid != pod.uid or stored.deleting

    async def binding(self) -> ClusterBinding:
        return await self.computing_api.get(CLUSTER_BINDINGS, self.name)

    async def condition(self, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of the binding; empty if it has none."""
        has = find_condition((await self.binding()).status.conditions, type_)
        return (has.status, has.reason, has.message) if has else ("", "", "")

    async def unbind(self) -> None:
        """Delete the binding."""
        await self.computing_api.delete(CLUSTER_BINDINGS, self.name, uid=(await self.binding()).uid)

    async def is_unbound(self) -> bool:
        """Whether the binding is gone."""
        try:
            await self.binding()
        except NotFound:
            return True
        return False

    async def status(self, policy: str) -> PolicyStatus:
        """Return the status of a policy."""
        return (await self.worker_api.get(RESOURCE_LEASING_POLICIES, policy)).status

    async def events(self, about: str) -> set[str]:
        """Return the reasons of all events about a cluster-scoped object, in both clusters."""
        fields = f"involvedObject.name={about}"
        listings = [await each.list(EVENTS, "default", fields=fields) for each in self.clients]
        return {event.reason for listing in listings for event in listing.items}

    @property
    def clients(self) -> tuple[Client, Client]:
        return self.computing_api, self.worker_api

    async def patch_policy(self, name: str, **spec: object) -> None:
        await self.worker_api.patch(RESOURCE_LEASING_POLICIES, name, MergePatch({"spec": spec}))

    @asynccontextmanager
    async def syncing(
        self,
        *,
        computing_api: Wrap | None = None,
        worker_api: Wrap | None = None,
        clock: Clock | None = None,
        zone: tzinfo = UTC,
        mount: str = "",
        given: Given | None = None,
    ) -> AsyncIterator[Syncer]:
        """Run a syncer, which runs pods if `mount` (a namespace) and `given` (endpoints) are
        set."""
        async with crossing(
            self,
            computing_api=computing_api,
            worker_api=worker_api,
            clock=clock,
            zone=zone,
            mount_namespace=mount,
        ) as clusters:
            syncer = Syncer(clusters, given)
            async with running(syncer):
                yield syncer
