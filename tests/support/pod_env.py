"""Environment for tests of pods: virtual nodes, and simulated kubelets in the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import AlreadyExists, Forbidden, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Event
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.transport import Request
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.pods.controller import PodController
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.syncer.settings import Address, Given
from support.background import running
from support.controller_env import ControllerEnv
from support.faults import Faults
from support.wait import until

__all__ = ["GIVEN", "PodEnv", "make_namespace", "matters", "settled", "usable", "writes"]

GIVEN = Given(server=Address("10.9.9.9", 443), dns=Address("10.9.9.10"))


@dataclass
class PodEnv(ControllerEnv):
    """A binding with a mount namespace of its own, and virtual nodes of simulated ones."""

    namespace: str = ""
    pnodes: list[str] = field(default_factory=list)
    mount_name: str = ""
    opened_at: int = 0  # in the worker's audit log

    @property
    def mount(self) -> str:
        return self.mount_name or f"m-{self.name}"

    def vnode_key(self, node: int) -> Key:
        return Key("", self.vnode(self.pnodes[node]))

    async def open(self, *, direct: bool = True, **spec: object) -> None:
        """Create the binding, its namespaces in both clusters, and a virtual node for each node."""
        self.namespace = f"v-{self.name}"
        self.opened_at = self.worker.audit.mark()
        await self.computing_api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await make_namespace(self.worker_api, self.mount)
        await self.bind(direct=direct, **spec)
        for pnode in self.pnodes:
            await self.lend(pnode)
        await usable(self.computing_api, self.namespace)

    async def bind(self, *, direct: bool = True, **spec: object) -> None:
        body = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": "ClusterBinding",
            "metadata": {"name": self.name},
            "spec": {
                "clusterID": self.cluster_id,
                "secretRef": {"name": "none", "namespace": "default"},
                "mountNamespace": self.mount,
                "directScheduling": direct,
                **spec,
            },
        }
        await self.computing_api.create(CLUSTER_BINDINGS, body)

    async def rebind(self, **spec: object) -> None:
        """Change the binding."""
        await self.computing_api.patch(CLUSTER_BINDINGS, self.name, MergePatch({"spec": spec}))

    # Virtual pods

    async def run(self, name: str = "web", *, node: int = 0, **more: Any) -> VirtualPod:
        """Create a pod that is bound to a virtual node."""
        return await self.computing_api.create(VIRTUAL_PODS, self.body(name, node=node, **more))

    def body(
        self,
        name: str,
        *,
        node: int = 0,
        metadata: Json | None = None,
        grace_s: int = 30,
        **spec: object,
    ) -> Json:
        bound = {"nodeName": self.vnode(self.pnodes[node])} if self.pnodes else {}
        return {
            "metadata": {"name": name, "namespace": self.namespace} | (metadata or {}),
            "spec": {
                "containers": [{"name": "c", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": grace_s,
                **bound,
                **spec,
            },
        }

    async def vpod(self, name: str = "web") -> VirtualPod | None:
        try:
            return await self.computing_api.get(VIRTUAL_PODS, name, self.namespace, keep_raw=True)
        except NotFound:
            return None

    async def shows(self, name: str = "web", phase: str = "Running") -> VirtualPod:
        pod = await self.vpod(name)
        assert pod is not None
        assert pod.status.phase == phase, pod.content()["status"]
        return pod

    async def runs(self, name: str = "web") -> VirtualPod:
        """Wait until a virtual pod and its only physical pod run and name each other; return the
        former."""
        pod = await self.shows(name)
        (worker_api,) = await self.ppods(name)
        domain = self.domain
        assert pod.annotations.get(domain.physical_pod_uid) == worker_api.uid
        assert pod.annotations.get(domain.physical_pod_name) == worker_api.name
        assert worker_api.annotations[domain.virtual_pod_uid] == pod.uid
        assert worker_api.status.phase == "Running"
        return pod

    async def delete(self, pod: VirtualPod, grace_s: int | None = None) -> None:
        with suppress(NotFound):
            await self.computing_api.delete(
                VIRTUAL_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=grace_s
            )

    async def gone(self, name: str = "web") -> bool:
        """Whether neither a virtual nor a physical pod of this name is left."""
        return await self.vpod(name) is None and not await self.ppods(name)

    async def told_of(self, name: str, reason: str) -> list[Event]:
        fields = f"involvedObject.name={name},reason={reason}"
        return (await self.computing_api.list(EVENTS, self.namespace, fields=fields)).items

    # Physical pods

    async def ppods(self, name: str = "") -> list[PhysicalPod]:
        """Return the physical pods of this binding, or of one virtual pod."""
        ppods = (await self.worker_api.list(PHYSICAL_PODS, self.mount, keep_raw=True)).items
        key = self.domain.virtual_pod_name
        return [ppod for ppod in ppods if not name or ppod.annotations.get(key) == name]

    async def ppod(self, name: str = "web") -> PhysicalPod:
        (pod,) = await self.ppods(name)
        return pod

    def ppod_name(self, name: str = "web") -> str:
        return naming.physical_name(name, self.namespace)

    async def patch_below(self, pod: PhysicalPod, subresource: str = "", **body: object) -> None:
        await self.worker_api.patch(
            PHYSICAL_PODS, pod.name, MergePatch(body), pod.namespace, subresource=subresource
        )

    async def patch_above(self, pod: VirtualPod, subresource: str = "", **body: object) -> None:
        await self.computing_api.patch(
            VIRTUAL_PODS, pod.name, MergePatch(body), pod.namespace, subresource=subresource
        )

    # The syncer

    @asynccontextmanager
    async def pods(
        self,
        *,
        computing_api: Faults | None = None,
        worker_api: Faults | None = None,
        clock: Clock | None = None,
    ) -> AsyncIterator[PodController]:
        """Run the pod controller until the block ends."""
        async with self.clusters(
            computing_api=computing_api, worker_api=worker_api, clock=clock
        ) as clusters:
            endpoints = ClusterEndpoints(clusters, GIVEN)
            pod_copies = PodCopies(clusters, linger_s=1.0)
            pods = PodController(clusters, pod_copies, endpoints)
            caches = (clusters.bindings, clusters.vnodes, clusters.vpods, clusters.ppods)
            parts = (*endpoints.parts, *pod_copies.parts, *pods.parts)
            async with running(clusters.events, clusters.worker_health, *caches, *parts):
                yield pods

    @asynccontextmanager
    async def syncer(self) -> AsyncIterator[Syncer]:
        """Run a whole syncer until the block ends."""
        async with self.clusters() as clusters:
            syncer = Syncer(clusters, GIVEN)
            async with running(syncer):
                yield syncer


async def make_namespace(client: Client, name: str) -> None:
    """Create a namespace with a default service account; the cluster may have no controllers."""
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    with suppress(AlreadyExists):
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)


async def usable(client: Client, namespace: str) -> None:
    """Wait until pods can be created in a namespace."""
    probe = {
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }

    async def accepts() -> bool:
        try:
            await client.create(PODS, probe, namespace=namespace, dry_run=True)
        except Forbidden:
            return False
        return True

    await until(accepts)


def matters(request: Request) -> bool:
    """Whether a request is a write, and not of an Event."""
    return request.writes and "/events" not in request.path


def writes(*plans: Faults) -> list[str]:
    """Return the writes in short, such as `PATCH pods/status`."""
    requests = [request for plan in plans for request in plan.requests if matters(request)]
    return [f"{r.method} {_kind(r.path)}" for r in requests]


def _kind(path: str) -> str:
    parts = path.split("/namespaces/")[-1].split("/")[1:]
    return "/".join([parts[0], *parts[2:]])


async def settled(*plans: Faults, rest_s: float = 1.5) -> None:
    """Wait until nothing is written for a while."""
    counts = [-1]
    while counts[-1] != (now := len(writes(*plans))):
        counts.append(now)
        assert len(counts) < 20, writes(*plans)[-8:]
        await asyncio.sleep(rest_s)  # the test needs this time to pass
