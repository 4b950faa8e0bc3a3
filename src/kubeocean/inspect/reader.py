"""Reads the parts of a snapshot that several commands need.

`StatusReader`, `ExplainReader` and `DoctorReader` add the parts of their own command. Each part
that cannot be read is a `NotRead`; an error is raised only if the bindings cannot be listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT, SYSTEM_NAMESPACE, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.ownership import Ids
from kubeocean.errors import NotFound
from kubeocean.inspect.snapshot import (
    NotRead,
    ServerSnapshot,
    SnapshotPart,
    known,
    read_object,
    read_part,
)
from kubeocean.inspect.workers import (
    PATIENCE_S,
    Connect,
    Workers,
    connect_to_worker,
    read_server,
)
from kubeocean.leasing.requests import COUNTED_PODS
from kubeocean.manager.preflight import review
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import DEPLOYMENTS, LEASES, NODES, Deployment, Lease, Node
from kubeocean.runtime.objects import Key, Resource
from kubeocean.worker_access.identity import identity_of

__all__ = ["SnapshotReader", "concurrently", "exists"]

_CONCURRENT: Final = 64  # workers that are asked at one time

T = TypeVar("T")
U = TypeVar("U")


class SnapshotReader:
    """Reads one installation: a computing cluster and its workers.

    `close` closes the clients of workers; the caller closes the client of the computing cluster.
    """

    def __init__(
        self,
        computing: Client,
        *,
        domain: Domain = DEFAULT,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
        connect: Connect = connect_to_worker,
    ) -> None:
        self.computing = computing
        self.domain = domain
        self.clock = clock or RealClock()
        self.workers = Workers(computing, patience_s=patience_s, connect=connect)
        self._server: ServerSnapshot | None = None
        self._identity: SnapshotPart[str] | None = None

    async def close(self) -> None:
        """Close the connections to workers."""
        await self.workers.close()

    async def server(self) -> ServerSnapshot:
        """Return version and clock of the computing cluster's API server, read once."""
        if self._server is None:
            self._server = await read_server(self.computing, "computing cluster", self.clock)
        return self._server

    async def now(self) -> datetime:
        """Return the time of the computing cluster's API server; this machine's if not read.

        Leases in the computing cluster are judged by the API server's time, not by this machine's.
        """
        return self.clock.now() + known((await self.server()).skew, timedelta())

    async def identity(self) -> SnapshotPart[str]:
        """Return the identity of the computing cluster."""
        if self._identity is None:
            what = f"namespace {SYSTEM_NAMESPACE}"
            self._identity = await read_part(what, identity_of(self.computing))
        return self._identity

    async def ids_of(self, binding: ClusterBinding) -> SnapshotPart[Ids]:
        """Return the binding's name, its clusterID and the computing cluster's ID, by which the
        labels of its objects in the worker identify it."""
        identity = await self.identity()
        if isinstance(identity, NotRead):
            return identity
        return Ids(binding.name, binding.spec.cluster_id, identity)

    def mount_of(self, binding: ClusterBinding) -> str:
        """Return the namespace in which pods of a binding run in its worker."""
        return binding.spec.mount_namespace or self.domain.worker_namespace

    async def missing_rights(
        self, worker: Client, mount: str, what: str
    ) -> SnapshotPart[tuple[str, ...]]:
        """Return the rights that the credential of a worker needs and lacks."""
        rights = await read_part(what, review(worker, mount, self.domain))
        return rights if isinstance(rights, NotRead) else rights.missing

    async def all_bindings(self) -> tuple[ClusterBinding, ...]:
        """List all bindings of the computing cluster.

        :raises ApiError: they cannot be listed.
        """
        try:
            return tuple((await self.computing.list(CLUSTER_BINDINGS)).items)
        except NotFound:
            raise NotFound(
                "could not list ClusterBindings: Kubeocean is not installed in this cluster;"
                " do it with: kubeocean install"
            ) from None

    async def nodes(self, binding: str = "") -> SnapshotPart[tuple[Node, ...]]:
        """List the virtual nodes of all bindings, or of the named one."""
        return await read_part("nodes", self._nodes(binding))

    async def leases(self, namespace: str, what: str = "leases") -> SnapshotPart[dict[str, Lease]]:
        """List the leases of a namespace, by name."""
        return await read_part(what, self._leases(namespace))

    async def deployments(
        self, cluster: Client | None = None
    ) -> SnapshotPart[dict[str, Deployment]]:
        """List the Deployments of the system namespace, by name.

        `cluster` is the cluster in which our programs run, by default the computing cluster.
        """
        return await read_part("deployments", self._deployments(cluster or self.computing))

    # Names that a shell completes

    async def names(self) -> list[str]:
        """Return the names of all bindings.

        :raises ApiError: they cannot be listed.
        """
        return sorted(binding.name for binding in await self.all_bindings())

    async def node_names(self) -> list[str]:
        """Return the names of all virtual nodes.

        :raises ApiError: they cannot be listed.
        """
        return sorted(node.name for node in await self._nodes())

    async def pod_names(self, namespace: str) -> list[str]:
        """Return the names of all pods of a namespace.

        :raises ApiError: they cannot be listed.
        """
        pods = (await self.computing.list(COUNTED_PODS, namespace)).items
        return sorted(pod.name for pod in pods)

    async def _nodes(self, binding: str = "") -> tuple[Node, ...]:
        labels = f"{self.domain.managed_by}={self.domain.product}"
        if binding:
            labels += f",{self.domain.cluster_binding}={label_value(binding)}"
        return tuple((await self.computing.list(NODES, labels=labels)).items)

    async def _leases(self, namespace: str) -> dict[str, Lease]:
        return {each.name: each for each in (await self.computing.list(LEASES, namespace)).items}

    async def _deployments(self, cluster: Client) -> dict[str, Deployment]:
        namespace = self.domain.system_namespace
        listing = await cluster.list(DEPLOYMENTS, namespace, keep_raw=True)
        return {each.name: each for each in listing.items}


async def exists(client: Client, resource: Resource[Any], key: Key) -> SnapshotPart[bool]:
    """Return whether an object exists, or a NotRead."""
    what = f"{resource.kind} {key}" if key.namespace else f"{resource.kind} {key.name}"
    part = await read_object(what, client.get(resource, key.name, key.namespace))
    return part if isinstance(part, NotRead) else part is not None


async def concurrently(
    items: Iterable[U], work: Callable[[U], Awaitable[T]], *, limit: int = _CONCURRENT
) -> list[T]:
    """Return the results of `work` for each item, at most `limit` of them at one time."""
    slots = asyncio.Semaphore(limit)

    async def bounded(item: U) -> T:
        async with slots:
            return await work(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bounded(item)) for item in items]
    return [task.result() for task in tasks]
