"""A thousand nodes of a worker, lent: what it takes to register them, and then to do nothing.

Two control planes with audit logs, kwok for the worker's nodes, and `kubeocean syncer` as its users
run it, each under a user of its own: what the audit logs say of that user is what the syncer costs.

The election's own Lease is renewed every two seconds, which is a setting of the user's, and is
counted apart from everything else. (The Go implementation was measured without an election.)
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.measure import cpu_s_of, peak_mib_of, scrape
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.local.assets import ensure
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, SECRETS, Node
from ourkinds import install_our_kinds
from syncers import SyncerProcess
from waiting import until

__all__ = ["bars_of", "lend"]

USER: Final = "syncer"
BINDING: Final = "bench"
NODE_LEASES: Final = "kube-node-lease"
READS: Final = ("get", "list", "watch")
MINUTE_S: Final = 60.0
PATIENCE_S: Final = 300.0


async def lend(directory: Path, nodes: int, idle_s: float, progress: Progress) -> dict[str, float]:
    """All figures of one worker with so many nodes."""
    async with _ocean(directory, nodes, progress) as ocean, ocean.syncer() as syncer:
        print(f"bench: lend {nodes} nodes", file=sys.stderr)
        pid = syncer.process.pid
        assert pid is not None, syncer.process.tail()
        figures = await _register(ocean, pid, nodes)
        print(f"bench: idle with {nodes} virtual nodes, {idle_s:g} s", file=sys.stderr)
        figures |= await _idle(ocean, pid, idle_s)
        address = (await syncer.says("Started service"))["metrics"]
        figures |= await scrape(f"http://{address}/metrics", pid)
        return figures | {"peak_mib": peak_mib_of(pid)}


def bars_of(figures: dict[str, float]) -> list[Bar]:
    """The promises about a thousand nodes."""
    return [
        Bar(
            "requests for each virtual node", figures["requests_per_node"], 3.2, "", go="4.1 to 6.4"
        ),
        Bar("until all are Ready", figures["ready_s"], 11, "s", "<", go="11.4 s"),
        Bar(
            "idle: requests besides node leases",
            figures["others_per_minute"],
            3,
            "a minute",
            "<",
            go="12 to 17",
        ),
        Bar("idle: the worst minute", figures["others_worst_minute"], 10, "", go="2,000"),
        Bar("idle: writes besides leases", figures["writes"], 0, "", go="2,000 in 5 min"),
        Bar(
            "idle: renewals of a lease",
            figures["renewals_per_node_minute"],
            6.1,
            "a minute",
            go="6",
        ),
        Bar("idle: CPU", figures["cpu_s_per_minute"], 4.5, "s a minute", go="4.5"),
        Bar("peak memory", figures["peak_mib"], 170, "MiB", go="170"),
    ]


# The world


@dataclass
class _Ocean:
    """Two clusters, bound; the worker has its nodes, and no policy lends them yet."""

    computing: Cluster
    worker: Cluster
    above: Client
    below: Client

    def requests(self, since: tuple[int, int]) -> list[AuditedRequest]:
        """What the syncer asked of both servers."""
        audits = (self.computing.audit, self.worker.audit)
        return [
            request
            for audit, mark in zip(audits, since, strict=True)
            for request in audit.requests(user=USER, since=mark)
        ]

    def mark(self) -> tuple[int, int]:
        return self.computing.audit.mark(), self.worker.audit.mark()

    def servers_cpu_s(self) -> float:
        """What both control planes have used so far: on a busy machine they set the pace."""
        pids = [c.process(name).pid for c in (self.computing, self.worker) for name in c.components]
        return sum(cpu_s_of(pid) for pid in pids if pid is not None)

    @asynccontextmanager
    async def syncer(self) -> AsyncIterator[SyncerProcess]:
        """The program with its default settings, ready."""
        process = Process(
            "syncer",
            [
                *(sys.executable, "-m", "kubeocean", "syncer"),
                f"--kubeconfig={self.computing.user(USER, ['system:masters'])}",
                f"--cluster-binding-name={BINDING}",
                "--leader-election-namespace=default",
                "--metrics-bind-address=127.0.0.1:0",
                "--health-probe-bind-address=127.0.0.1:0",
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
async def _ocean(directory: Path, nodes: int, progress: Progress) -> AsyncIterator[_Ocean]:
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
            "worker", directory / "worker", assets, components=servers, audit=True, ephemeral=True
        ) as worker,
        SimulatedNodes(worker, assets) as simulated,
    ):
        above, below = computing.client(), worker.client()
        try:
            with progress.task("add worker nodes"):
                await simulated.add(nodes)
            await install_our_kinds(above)
            await install_our_kinds(below)
            await _bind(above, worker)
            yield _Ocean(computing, worker, above, below)
        finally:
            await above.close()
            await below.close()


async def _bind(above: Client, worker: Cluster) -> None:
    kubeconfig = worker.user(USER, ["system:masters"]).read_bytes()
    secret = {
        "metadata": {"name": BINDING, "namespace": "default"},
        "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
    }
    await above.create(SECRETS, secret)
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
    await above.create(CLUSTER_BINDINGS, body)


async def _apply_policy(below: Client) -> None:
    limits = [{"resource": "cpu", "percent": 50}, {"resource": "memory", "percent": 50}]
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": BINDING},
        "spec": {"cluster": BINDING, "resourceLimits": limits},
    }
    await below.create(RESOURCE_LEASING_POLICIES, body)


# Registering


async def _register(ocean: _Ocean, pid: int, nodes: int) -> dict[str, float]:
    observer = Informer(ocean.above, NODES)
    ready: set[str] = set()
    all_ready = asyncio.Event()

    def note(old: Node | None, new: Node | None) -> None:
        if new is not None and _is_ready(new):
            ready.add(new.name)
            if len(ready) == nodes:
                all_ready.set()

    observer.on_change(note)
    watching = asyncio.create_task(observer.run())
    await observer.synced()
    since, began = ocean.mark(), time.monotonic()
    ours, theirs = cpu_s_of(pid), ocean.servers_cpu_s()
    await _apply_policy(ocean.below)
    async with asyncio.timeout(PATIENCE_S):
        await all_ready.wait()
    took = {
        "ready_s": time.monotonic() - began,
        "ready_cpu_s": cpu_s_of(pid) - ours,
        "ready_servers_cpu_s": ocean.servers_cpu_s() - theirs,
    }
    watching.cancel()
    await asyncio.wait([watching])
    asked = await _settled(ocean, since, nodes)
    _tell("registering", asked)
    return took | {"requests_per_node": len(asked) / nodes}


async def _settled(ocean: _Ocean, since: tuple[int, int], nodes: int) -> list[AuditedRequest]:
    """What registering took, once every node has its lease and nothing but renewals goes on."""
    seen = -1
    while True:
        asked = [r for r in ocean.requests(since) if not (_renews(r) or _elects(r))]
        leased = sum(_is_lease(r) for r in asked)
        if len(asked) == seen and leased >= nodes:
            return asked
        seen = len(asked)
        await asyncio.sleep(5)


# Doing nothing


async def _idle(ocean: _Ocean, pid: int, idle_s: float) -> dict[str, float]:
    """Minute by minute, so that what comes back now and then shows."""
    await asyncio.sleep(15)  # whatever still follows from registering
    cpu, began, worst, everything = cpu_s_of(pid), time.monotonic(), 0, list[AuditedRequest]()
    while (left := idle_s - (time.monotonic() - began)) > 0.5:
        since = ocean.mark()
        await asyncio.sleep(min(MINUTE_S, left))
        asked = ocean.requests(since)
        worst = max(worst, len(_others(asked)))
        everything += asked
    minutes = (time.monotonic() - began) / MINUTE_S
    cpu = cpu_s_of(pid) - cpu
    others = _others(everything)
    _tell("idle", everything)
    virtual = (await ocean.above.list(NODES)).items
    renewals = sum(_renews(request) for request in everything)
    return {
        "others_per_minute": len(others) / minutes,
        "others_worst_minute": worst,
        "writes": sum(request.verb not in READS for request in others),
        "renewals_per_node_minute": renewals / len(virtual) / minutes,
        "election_per_minute": sum(map(_elects, everything)) / minutes,
        "cpu_s_per_minute": cpu / minutes,
    }


# Reading audit logs


def _is_lease(request: AuditedRequest) -> bool:
    return request.resource == "leases" and request.namespace == NODE_LEASES


def _renews(request: AuditedRequest) -> bool:
    return _is_lease(request) and request.verb in ("patch", "update")


def _elects(request: AuditedRequest) -> bool:
    return request.resource == "leases" and request.namespace != NODE_LEASES


def _others(asked: Iterable[AuditedRequest]) -> list[AuditedRequest]:
    return [request for request in asked if not (_renews(request) or _elects(request))]


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())


def _tell(what: str, asked: Iterable[AuditedRequest]) -> None:
    """What was asked for, and how often."""
    counted = Counter(
        f"{request.verb} {request.resource or request.uri}"
        + (f"/{request.subresource}" if request.subresource else "")
        + (f" ({request.code})" if request.code >= 300 else "")
        for request in asked
    )
    said = ", ".join(f"{count} {name}" for name, count in counted.most_common())
    print(f"bench: {what}: {said}", file=sys.stderr)
