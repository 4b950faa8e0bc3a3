"""Ocean: a computing cluster and its workers, all real control planes on this machine.

`start` starts all clusters, with nodes in every worker, and writes one kubeconfig with a context
for each cluster: `computing`, `worker-1`, `worker-2`, …. A later `start` on the same root starts
the same clusters with the same data, and with the numbers of nodes of that call. All processes end
with the process that called `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import yaml

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError, LocalError, NotFound
from kubeocean.local.cache import disk_full
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.progress import Progress, Silence, readable_bytes
from kubeocean.local.readiness import failure
from kubeocean.local.real_nodes.config import MACHINE_ADDRESS
from kubeocean.local.real_nodes.node import RealNode, available
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.components import Lifespan
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.runtime.selectors import check_subdomain

__all__ = ["COMPUTING", "Ocean", "Shape", "merge_kubeconfigs"]

COMPUTING: Final = "computing"
_SIMULATED: Final = "sim"
_REAL: Final = "real"
_CLUSTER_BYTES: Final = 200_000_000  # etcd allocates two logs of 64 MB at its start
_NODES_S: Final = 120.0
_POLL_S: Final = 0.1
_WATCH_EVERY_S: Final = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of an ocean: numbers of workers and nodes, and the installed parts.

    `product`: whether Kubeocean is installed (`local.demo`); `fleet`: whether the workers are
    members of a fleet (`local.fleet`); `port`: port of the computing cluster's API server, 0 for
    any; `label_domain`: domain of Kubeocean's labels and names.
    """

    workers: int = 2
    nodes: int = 3
    real_nodes: bool = False
    port: int = 0
    product: bool = False
    label_domain: str = group.DEFAULT.name
    fleet: bool = False

    def __post_init__(self) -> None:
        check_subdomain(self.label_domain, field="label domain")
        for field, highest in (("workers", 99), ("nodes", 10_000), ("port", 65_535)):
            value = getattr(self, field)
            if not 0 <= value <= highest:
                raise ConfigError(f"must be between 0 and {highest}", field=field, value=value)

    def __str__(self) -> str:
        kind = "real" if self.real_nodes else "simulated"
        port = f", port {self.port}" if self.port else ""
        if not self.workers:
            return f"no worker{port}"
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        nodes = f"{self.nodes} {kind} node{'' if self.nodes == 1 else 's'}"
        each = " each" if self.workers > 1 else ""
        domain = f", labels of {self.label_domain}" if self.domain != group.DEFAULT else ""
        return f"{workers} with {nodes}{each}{port}{domain}"

    @property
    def domain(self) -> Domain:
        """The domain of Kubeocean's labels and names."""
        return Domain(self.label_domain)


class Ocean(Lifespan):
    """A computing cluster and workers under one root; `async with` starts and stops them all.

    With `ephemeral`, data may be lost when the machine crashes.
    """

    def __init__(
        self,
        root: Path,
        assets: Programs,
        shape: Shape | None = None,
        *,
        ephemeral: bool = False,
        progress: Progress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.root = root.absolute()
        self.shape = shape = shape or Shape()
        self.kubeconfig = self.root / "kubeconfig"
        self.assets = assets
        self._progress = progress or Silence()
        self._clock = clock or RealClock()
        self._ephemeral = ephemeral
        self.computing = self._new_cluster(COMPUTING, port=shape.port, verify=shape.product)
        self.workers = [
            self._new_cluster(f"worker-{n}", verify=shape.real_nodes)
            for n in range(1, shape.workers + 1)
        ]
        self.simulated = {
            worker.name: SimulatedNodes(worker, assets, clock=self._clock)
            for worker in ([] if shape.real_nodes else self.workers)
        }
        self.real = {
            worker.name: [
                RealNode(name, worker, assets, clock=self._clock) for name in self._node_names()
            ]
            for worker in (self.workers if shape.real_nodes else [])
        }

    def _new_cluster(self, name: str, *, port: int = 0, verify: bool) -> Cluster:
        """Return a cluster; with `verify`, it verifies kubelets' certificates with its own CA."""
        root = self.root / name
        authority = f"--kubelet-certificate-authority={root / 'pki' / 'ca.crt'}"
        return Cluster(
            name,
            root,
            self.assets,
            port=port,
            ephemeral=self._ephemeral,
            sans=(MACHINE_ADDRESS,) if verify else (),
            extra_args={"kube-apiserver": [authority]} if verify else None,
            clock=self._clock,
        )

    def _node_names(self) -> list[str]:
        kind = _REAL if self.shape.real_nodes else _SIMULATED
        return [f"{kind}-{number}" for number in range(self.shape.nodes)]

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters: the computing cluster and then the workers."""
        return [self.computing, *self.workers]

    # Start and stop.

    async def start(self) -> None:
        """Start all clusters; return when they serve and all nodes are Ready.

        :raises LocalError: a cluster does not become ready; started clusters are stopped again.
        """
        if self.shape.real_nodes and (reason := available()) is not None:
            raise LocalError(f"could not start real nodes: {reason}")
        needed = _CLUSTER_BYTES * len(self.clusters)
        try:
            with disk_full("start the clusters", self.root, needed=needed):
                private_directory(self.root)
                self._check_space(needed)
                await self._start()
        except BaseException:
            await self.stop()
            raise

    def _check_space(self, needed: int) -> None:
        """Raise if the disk has less than `needed` bytes free, before the first start only.

        Later the data already exists.
        """
        free = shutil.disk_usage(self.root).free
        if free < needed and not self.kubeconfig.exists():
            raise LocalError(
                f"could not start the clusters: too little space in {self.root}: "
                f"{readable_bytes(free)} are free, about {readable_bytes(needed)} are needed"
            )

    async def _start(self) -> None:
        # Starting more clusters at a time than there are cores only slows each of them down.
        turns = asyncio.Semaphore(max(2, os.cpu_count() or 1))

        async def start(cluster: Cluster) -> None:
            async with turns:
                with self._progress.task(f"starting {cluster.name}"):
                    await cluster.start()
            if cluster is not self.computing:
                await self._start_nodes(cluster)

        await _together(start, self.clusters)
        self._open_computing()
        for cluster in self.clusters:  # a component may have ended while other clusters started
            cluster.check()
        self._check_simulated()
        write_private(self.kubeconfig, merge_kubeconfigs(self.clusters))

    def _open_computing(self) -> None:
        """Let pods of real nodes reach the computing cluster's API server on the loopback."""
        port = urlsplit(self.computing.server).port
        for node in (node for nodes in self.real.values() for node in nodes):
            if port is not None and self.shape.product:
                node.reach(port)

    async def _start_nodes(self, worker: Cluster) -> None:
        with self._progress.task(f"starting nodes of {worker.name}"):
            async with _client(worker) as client:
                missing = await self._fit_nodes(client)
                for node in self.real.get(worker.name, ()):
                    await node.start()
                if simulated := self.simulated.get(worker.name):
                    await simulated.start()
                    await simulated.add(missing, prefix=_SIMULATED)
                await self._until_ready(client, worker)

    async def _fit_nodes(self, client: Client) -> int:
        """Delete Nodes that the shape does not have; return how many of its nodes are missing."""
        names = set(self._node_names())
        existing = {node.name for node in (await client.list(NODES)).items}
        for name in existing - names:
            if name.rpartition("-")[0] in (_SIMULATED, _REAL):
                with contextlib.suppress(NotFound):
                    await client.delete(NODES, name, uid=None)
        return len(names - existing)

    async def _until_ready(self, client: Client, worker: Cluster) -> None:
        """Wait until all nodes of a worker are Ready, also those of an earlier start.

        :raises LocalError: a node is not Ready in time.
        """
        deadline = self._clock.monotonic() + _NODES_S
        names = set(self._node_names())
        while late := names - await _ready_nodes(client):
            if self._clock.monotonic() > deadline:
                raise LocalError(
                    f"nodes of {worker.name} were not Ready within {_NODES_S:g} s: "
                    f"{', '.join(sorted(late)[:5])}"
                )
            await self._clock.sleep(_POLL_S)

    async def stop(self) -> None:
        """Stop the nodes, then the clusters."""
        real = [node for nodes in self.real.values() for node in nodes]
        await _together(lambda node: node.stop(), real)
        await _together(lambda nodes: nodes.stop(), self.simulated.values())
        await _together(lambda cluster: cluster.stop(), self.clusters)

    async def watch(self) -> None:
        """Wait until a process ends unexpectedly, and raise; never return.

        :raises LocalError: a process ended; the text has the end of its log.
        """
        watchers: list[Callable[[], Awaitable[None]]] = [
            *(cluster.watch for cluster in self.clusters),
            *(node.watch for nodes in self.real.values() for node in nodes),
            self._watch_simulated,
        ]
        await _together(lambda watch: watch(), watchers)

    async def _watch_simulated(self) -> None:
        while True:
            self._check_simulated()
            await self._clock.sleep(_WATCH_EVERY_S)

    def _check_simulated(self) -> None:
        for name, simulated in self.simulated.items():
            if not simulated.process.running:
                what = f"kwok of cluster {name}"
                code = simulated.process.returncode
                raise failure(simulated.process, f"{what} ended with exit code {code}")


def merge_kubeconfigs(clusters: Iterable[Cluster]) -> bytes:
    """Return one kubeconfig with an administrator's context for each cluster; the current context
    is that of the first cluster."""
    merged: Json = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": []}
    contexts: list[Json] = []
    for cluster in clusters:
        own: Json = yaml.safe_load(cluster.kubeconfig.read_bytes())
        user = f"{cluster.name}-admin"
        merged["clusters"].append(own["clusters"][0])
        merged["users"].append({**own["users"][0], "name": user})
        context = {**own["contexts"][0]["context"], "user": user}
        contexts.append({"name": cluster.name, "context": context})
    merged["contexts"] = contexts
    merged["current-context"] = contexts[0]["name"]
    return yaml.safe_dump(merged, sort_keys=False).encode()


@asynccontextmanager
async def _client(cluster: Cluster) -> AsyncIterator[Client]:
    client = cluster.client()
    try:
        yield client
    finally:
        await client.close()


async def _ready_nodes(client: Client) -> set[str]:
    ready: set[str] = set()
    for node in (await client.list(NODES)).items:
        condition = find_condition(node.status.conditions, "Ready")
        if condition is not None and condition.status == "True":
            ready.add(node.name)
    return ready


async def _together(act: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    """Await `act` for all `things` concurrently; the first error cancels the others."""

    async def run(thing: T) -> None:
        await act(thing)

    try:
        async with asyncio.TaskGroup() as group:
            for thing in things:
                group.create_task(run(thing))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # of several errors the first is enough
