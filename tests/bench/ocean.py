"""An ocean to measure: two control planes with audit logs, simulated nodes, a syncer as a process.

The syncer is a user of its own in both clusters: the requests of that user in the audit logs are
the cost of the syncer.
"""

from __future__ import annotations

import base64
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.measure import cpu_s_of
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.local.assets import ensure
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import SECRETS
from support.crds import install_our_kinds
from support.syncer_process import SyncerProcess
from support.wait import until

__all__ = [
    "MINUTE_S",
    "PATIENCE_S",
    "Ocean",
    "apply_policy",
    "elects",
    "is_lease",
    "ocean_of",
    "others",
    "renews",
    "tell",
]

USER: Final = "syncer"
BINDING: Final = "bench"
NODE_LEASES: Final = "kube-node-lease"
MINUTE_S: Final = 60.0
PATIENCE_S: Final = 300.0
_FOR_PODS: Final = ("kube-scheduler", "kube-controller-manager")


@dataclass
class Ocean:
    """Two clusters, bound; the worker has its nodes, and no policy lends them yet."""

    computing: Cluster
    worker: Cluster
    computing_api: Client
    worker_api: Client

    def requests(self, since: tuple[int, int]) -> list[AuditedRequest]:
        """Return the requests of the syncer to both API servers."""
        audits = (self.computing.audit, self.worker.audit)
        return [
            request
            for audit, mark in zip(audits, since, strict=True)
            for request in audit.requests(user=USER, since=mark)
        ]

    def mark(self) -> tuple[int, int]:
        return self.computing.audit.mark(), self.worker.audit.mark()

    def servers_cpu_s(self) -> float:
        """Return the CPU seconds of both control planes, which bound the speed on a busy
        machine."""
        pids = [c.process(name).pid for c in (self.computing, self.worker) for name in c.components]
        return sum(cpu_s_of(pid) for pid in pids if pid is not None)

    @asynccontextmanager
    async def syncer(self, *flags: str) -> AsyncIterator[SyncerProcess]:
        """Yield the program with its default settings but for these flags, ready."""
        process = Process(
            "syncer",
            [
                *(sys.executable, "-m", "kubeocean", "syncer"),
                f"--kubeconfig={self.computing.user(USER, ['system:masters'])}",
                f"--cluster-binding-name={BINDING}",
                "--leader-election-namespace=default",
                "--metrics-bind-address=127.0.0.1:0",
                "--health-probe-bind-address=127.0.0.1:0",
                *flags,
            ],
            log=self.computing.root / "logs" / "syncer.log",
            env={"TZ": "UTC"}
            | {n: os.environ[n] for n in ("PATH", "PYTHONPATH") if n in os.environ},
        )
        await process.start()
        syncer = SyncerProcess(process)
        try:
            await until(syncer.is_ready, within=PATIENCE_S)
            yield syncer
        finally:
            await process.stop()


@asynccontextmanager
async def ocean_of(
    directory: Path, nodes: int, progress: Progress, *, pods: bool = False
) -> AsyncIterator[Ocean]:
    """Yield the ocean, as long as the block lasts; its worker is a whole one if pods are to run
    there."""
    assets = await ensure(progress=progress)
    servers = ("etcd", "kube-apiserver")
    async with (
        Cluster(
            "computing",
            directory / "computing",
            assets,
            components=(*servers, "kube-controller-manager"),
            audit=True,
            ephemeral=True,
        ) as computing,
        Cluster(
            "worker",
            directory / "worker",
            assets,
            components=(*servers, *_FOR_PODS) if pods else servers,
            audit=True,
            ephemeral=True,
        ) as worker,
        SimulatedNodes(worker, assets) as simulated,
    ):
        computing_api, worker_api = computing.client(), worker.client()
        try:
            with progress.task("add worker nodes"):
                await simulated.add(nodes)
            await install_our_kinds(computing_api)
            await install_our_kinds(worker_api)
            await _bind(computing_api, worker)
            yield Ocean(computing, worker, computing_api, worker_api)
        finally:
            await computing_api.close()
            await worker_api.close()


async def _bind(computing_api: Client, worker: Cluster) -> None:
    kubeconfig = worker.user(USER, ["system:masters"]).read_bytes()
    secret = {
        "metadata": {"name": BINDING, "namespace": "default"},
        "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
    }
    await computing_api.create(SECRETS, secret)
    spec = {
        "clusterID": "bench",
        "secretRef": {"name": BINDING, "namespace": "default"},
        "mountNamespace": "default",
    }
    body = {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": "ClusterBinding",
        "metadata": {"name": BINDING},
        "spec": spec,
    }
    await computing_api.create(CLUSTER_BINDINGS, body)


async def apply_policy(worker_api: Client) -> None:
    limits = [{"resource": "cpu", "percent": 50}, {"resource": "memory", "percent": 50}]
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": BINDING},
        "spec": {"cluster": BINDING, "resourceLimits": limits},
    }
    await worker_api.create(RESOURCE_LEASING_POLICIES, body)


# Reading audit logs


def is_lease(request: AuditedRequest) -> bool:
    return request.resource == "leases" and request.namespace == NODE_LEASES


def renews(request: AuditedRequest) -> bool:
    return is_lease(request) and request.verb in ("patch", "update")


def elects(request: AuditedRequest) -> bool:
    return request.resource == "leases" and request.namespace != NODE_LEASES


def others(requested: Iterable[AuditedRequest]) -> list[AuditedRequest]:
    return [request for request in requested if not (renews(request) or elects(request))]


def tell(what: str, requested: Iterable[AuditedRequest]) -> None:
    """Print the requests by verb and resource, with their counts."""
    counted = Counter(
        f"{request.verb} {request.resource or request.uri}"
        + (f"/{request.subresource}" if request.subresource else "")
        + (f" ({request.code})" if request.code >= 300 else "")
        for request in requested
    )
    message = ", ".join(f"{count} {name}" for name, count in counted.most_common())
    print(f"bench: {what}: {message}", file=sys.stderr)
