"""Measures a hub with a thousand members: its cost at rest, of placements, and of a restart.

One control plane with an audit log, `kubeocean fleet hub` as its users run it, and hollow members
in a process of their own. Hub and members are different users: the requests of the hub's account in
the audit log are the cost of the hub. The Lease of the election is counted apart.

1. All members join, and the hub does nothing but copy their heartbeats.
2. The hub is started again while no heartbeat comes: it must find everything as it should be.
3. Placements are created one after another, each for as many clusters. Half of them pick all
   clusters with a label, half of them a number of clusters with a preference.
4. The second step again, with all placements in place.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.bars import Bar
from bench.living import together
from bench.measure import cpu_s_of, peak_mib_of, resident_mib_of
from bench.ocean import elects, tell
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.fleet.conditions import AVAILABLE, MemberCondition
from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS
from kubeocean.install.fleet import HUB_ACCOUNT, hub_objects
from kubeocean.local.assets import ensure
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, find_condition
from support.control_planes import applier, plane
from support.etcd import stored_bytes
from support.fleet_process import fleet_process
from support.syncer_process import SyncerProcess
from support.wait import until

__all__ = ["FleetSize", "bars_of_fleet", "measure_fleet"]

PATIENCE_S: Final = 600.0
SETTLES_S: Final = 10.0  # a hub that was just started reads discovery several times
READS: Final = ("get", "list", "watch")
HOLLOW: Final = "hollow-members"
HUB_USER: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{HUB_ACCOUNT}"
GROUP: Final = "bench/group"
# Objects of which each placed cluster has its own; all others belong to the placement as a whole
OF_A_CLUSTER: Final = ("clusterresourcebindings", "works")
# Members that report nothing for as long as a restart is measured must not count as lost
FLAGS: Final = ("--cluster-unhealthy-threshold=10m",)


@dataclass(frozen=True)
class FleetSize:
    """Sizes of a measured fleet: members, placements, objects."""

    members: int = 1000
    clusters: int = 100  # of each placement
    placements: int = 100
    heartbeat_s: int = 60
    idle_s: float = 180.0
    quiet_s: float = 3.0  # without a write of the hub, after which it has nothing left to do

    @property
    def groups(self) -> int:
        """Number of groups of members, of as many as a placement has."""
        return self.members // self.clusters


@dataclass
class Fleet:
    """A hub, and the process that plays its members."""

    cluster: Cluster
    client: Client  # an administrator's
    account: Path
    hollow: Process
    size: FleetSize

    def requests(self, since: int) -> list[AuditedRequest]:
        """Return the requests of the hub, without those of its election."""
        requests = self.cluster.audit.requests(user=HUB_USER, since=since)
        return [request for request in requests if not elects(request)]

    def writes(self, since: int) -> list[AuditedRequest]:
        return [each for each in self.requests(since) if _is_write(each)]

    def heartbeats(self, since: int) -> int:
        return sum(
            request.resource == "internalmemberclusters" and request.subresource == "status"
            for request in self.cluster.audit.requests(user=HOLLOW, since=since)
        )

    @asynccontextmanager
    async def hub(self, name: str) -> AsyncIterator[SyncerProcess]:
        """Yield the hub as a process with a log of this name, until the block ends."""
        async with fleet_process(
            "hub", name, *FLAGS, kubeconfig=self.account, directory=self.cluster.root / "logs"
        ) as hub:
            yield hub
            await hub.process.stop()


async def measure_fleet(
    directory: Path, size: FleetSize, progress: Progress
) -> dict[str, dict[str, float]]:
    """Return all measurements of a fleet of this size."""
    figures: dict[str, dict[str, float]] = {}
    async with _fleet(directory, size, progress) as fleet:
        async with fleet.hub("first") as hub:
            await until(hub.is_ready, within=PATIENCE_S)
            _say(f"{size.members} members join")
            figures["fleet: join"] = await _join(fleet, _pid(hub))
            await asyncio.sleep(max(size.heartbeat_s, SETTLES_S))
            _say(f"{size.members} members at rest, {size.idle_s:g} s")
            figures["fleet: at rest"] = await _idle(fleet, _pid(hub))
            await _silence(fleet)
        expected = {"membercluster": size.members, "clusterprofile": size.members}
        async with fleet.hub("second") as hub:
            figures["fleet: restart"] = await _restart(fleet, hub, expected)
            fleet.hollow.resume()
            _say(f"{size.placements} placements, each to {size.clusters} of {size.members}")
            figures["fleet: placing"] = await _place(fleet, _pid(hub))
            await asyncio.sleep(size.heartbeat_s)
            _say(f"{size.placements} placements at rest, {size.idle_s:g} s")
            figures["fleet: placed, at rest"] = await _idle(fleet, _pid(hub))
            figures["fleet: stored"] = await _stored(fleet)
            await _silence(fleet)
        expected |= {
            "fleet-works": size.placements * size.clusters,
            "fleet-snapshots": size.placements,
            "fleet-scheduler": size.placements,
            "fleet-rollout": size.placements,
            "fleet-status": size.placements,
        }
        async with fleet.hub("third") as hub:
            figures["fleet: placed, restart"] = await _restart(fleet, hub, expected)
    return figures


def bars_of_fleet(figures: dict[str, dict[str, float]]) -> list[Bar]:
    """Return the promises about a fleet."""
    rest, placing = figures["fleet: at rest"], figures["fleet: placing"]
    first, second = figures["fleet: restart"], figures["fleet: placed, restart"]
    placed = figures["fleet: placed, at rest"]
    return [
        Bar("at rest: CPU", rest["millicores"], 100, "m", go="93"),
        Bar("at rest: memory", rest["peak_mib"], 250, "MiB", go="234"),
        Bar("at rest: requests for each heartbeat", rest["requests_per_heartbeat"], 1, ""),
        Bar("restart: time", first["done_s"], 15, "s"),
        Bar("restart: writes", first["writes"], 0, ""),
        Bar("placing: p50", placing["p50_s"], 2, "s", go="18"),
        Bar("placing: p90", placing["p90_s"], 3, "s", go="20"),
        Bar("placing: writes for each cluster", placing["writes_per_cluster"], 4, ""),
        Bar("placed: binding and Work", figures["fleet: stored"]["both_bytes"], 8192, "bytes"),
        Bar("placed: memory", max(placed["peak_mib"], second["peak_mib"]), 400, "MiB"),
        Bar("placed: CPU at rest", placed["millicores"], 100, "m"),
        Bar("placed: time of a restart", second["done_s"], 15, "s", go="600 at 1,000 placements"),
        Bar("placed: writes of a restart", second["writes"], 0, ""),
    ]


# The hub and its members


@asynccontextmanager
async def _fleet(directory: Path, size: FleetSize, progress: Progress) -> AsyncIterator[Fleet]:
    assets = await ensure(progress=progress)
    async with plane("hub", assets, directory, audit=True) as cluster:
        client = cluster.client()
        async with applier(cluster) as installing:
            await installing.apply_all(hub_objects())
        account = await cluster.service_account(SYSTEM_NAMESPACE, HUB_ACCOUNT)
        tests = Path(__file__).parent.parent
        kubeconfig = cluster.user(HOLLOW, ["system:masters"])
        hollow = Process(
            HOLLOW,
            [sys.executable, "-m", "bench.hollow", kubeconfig],
            log=cluster.root / "logs" / "hollow.log",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tests)},
        )
        await hollow.start()
        try:
            yield Fleet(cluster, client, account, hollow, size)
        finally:
            await hollow.kill()
            await client.close()


def _is_write(request: AuditedRequest) -> bool:
    """Whether something is stored; a review of own rights is created, and not stored."""
    return request.verb not in READS and request.resource != "selfsubjectaccessreviews"


def _pid(hub: SyncerProcess) -> int:
    pid = hub.process.pid
    assert pid is not None, hub.process.tail()
    return pid


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)


async def _join(fleet: Fleet, pid: int) -> dict[str, float]:
    size, joined = fleet.size, set[str]()
    observer: Informer[MemberCluster] = Informer(fleet.client, MEMBER_CLUSTERS)

    def note(old: MemberCluster | None, new: MemberCluster | None) -> None:
        condition = find_condition(new.status.conditions, MemberCondition.JOINED) if new else None
        if new is not None and condition is not None and condition.status == "True":
            joined.add(new.name)

    async def create(number: int) -> None:
        body = {
            "apiVersion": MEMBER_CLUSTERS.api_version,
            "kind": MEMBER_CLUSTERS.kind,
            "metadata": {
                "name": f"member-{number:04}",
                "labels": {GROUP: f"g{number % size.groups}"},
            },
            "spec": {
                "identity": {"kind": "User", "name": f"agent-{number:04}"},
                "heartbeatPeriodSeconds": size.heartbeat_s,
            },
        }
        await fleet.client.create(MEMBER_CLUSTERS, body)

    observer.on_change(note)
    since, began, cpu = fleet.cluster.audit.mark(), time.monotonic(), cpu_s_of(pid)
    async with _following(observer):
        await together(create, range(size.members))
        await until(lambda: len(joined) == size.members, within=PATIENCE_S)
    took = time.monotonic() - began
    await _quiet(fleet)
    requested = fleet.writes(since)
    tell("join", requested)
    return {
        "joined_s": took,
        "cpu_s": cpu_s_of(pid) - cpu,
        "writes_per_member": len(requested) / size.members,
    }


@asynccontextmanager
async def _following(
    observer: Informer[MemberCluster] | Informer[Placement],
) -> AsyncIterator[None]:
    task = asyncio.create_task(observer.run())
    await observer.synced()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


# At rest


async def _idle(fleet: Fleet, pid: int) -> dict[str, float]:
    await _silence(fleet)  # so that each heartbeat and its copy are counted, or neither
    since, cpu, began = fleet.cluster.audit.mark(), cpu_s_of(pid), time.monotonic()
    fleet.hollow.resume()
    await asyncio.sleep(fleet.size.idle_s)
    cpu, took = cpu_s_of(pid) - cpu, time.monotonic() - began
    await _silence(fleet)
    requested, heartbeats = fleet.requests(since), fleet.heartbeats(since)
    fleet.hollow.resume()
    tell(f"{heartbeats} heartbeats", requested)
    return {
        "millicores": cpu / took * 1000,
        "cpu_ms_per_heartbeat": cpu / heartbeats * 1000,
        "heartbeats_per_s": heartbeats / took,
        "requests_per_heartbeat": _without_watches(requested) / heartbeats,
        "mib": resident_mib_of(pid),
        "peak_mib": peak_mib_of(pid),
    }


def _without_watches(requested: Iterable[AuditedRequest]) -> int:
    """Return the number of requests without watches, which the server ends and agents restart."""
    return sum(request.verb != "watch" for request in requested)


# Starting again


async def _silence(fleet: Fleet) -> None:
    """Stop all heartbeats, and wait until the hub has nothing to write."""
    fleet.hollow.pause()
    await _quiet(fleet, of_heartbeats=True)


async def _quiet(fleet: Fleet, *, of_heartbeats: bool = False) -> None:
    """Wait until the hub writes nothing for a while but the copies of heartbeats."""
    while True:
        since = fleet.cluster.audit.mark()
        await asyncio.sleep(fleet.size.quiet_s)
        writes = fleet.writes(since)
        if not [each for each in writes if of_heartbeats or each.subresource != "status"]:
            return


async def _restart(fleet: Fleet, hub: SyncerProcess, expected: dict[str, int]) -> dict[str, float]:
    """Wait until a hub that was just started has reconciled everything, and count its writes."""
    since, began = fleet.cluster.audit.mark(), time.monotonic()
    pid = _pid(hub)

    async def is_done() -> bool:
        return await hub.is_ready() and await _is_idle(hub, expected)

    await until(is_done, within=PATIENCE_S, every=0.1)
    took, cpu = time.monotonic() - began, cpu_s_of(pid)
    await _quiet(fleet, of_heartbeats=True)
    requested = fleet.requests(since)
    tell("restart", requested)
    return {
        "done_s": took,
        "cpu_s": cpu,
        "writes": sum(map(_is_write, requested)),
        "peak_mib": peak_mib_of(pid),
    }


async def _is_idle(hub: SyncerProcess, expected: dict[str, int]) -> bool:
    """Whether each controller has reconciled so many keys, and has nothing left to do."""
    _, text = await hub.page("metrics", "/metrics")
    done, waiting = dict.fromkeys(expected, 0.0), 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "controller_runtime_reconcile_total":
                name = sample.labels["controller"]
                if name in done:
                    done[name] += sample.value
            elif sample.name in ("workqueue_depth", "controller_runtime_active_workers"):
                waiting += sample.value
    return not waiting and all(done[name] >= number for name, number in expected.items())


# Placing


async def _place(fleet: Fleet, pid: int) -> dict[str, float]:
    size = fleet.size
    await together(lambda number: _furnish(fleet.client, number), range(size.placements))
    complete: dict[str, float] = {}
    observer: Informer[Placement] = Informer(fleet.client, CLUSTER.placements)

    def note(old: Placement | None, new: Placement | None) -> None:
        if new is not None and _is_complete(new, size.clusters):
            complete.setdefault(new.name, time.monotonic())

    observer.on_change(note)
    took: list[float] = []
    since, cpu = fleet.cluster.audit.mark(), cpu_s_of(pid)
    async with _following(observer):
        for number in range(size.placements):
            body = _placement(number, size)
            name, began = body["metadata"]["name"], time.monotonic()
            await fleet.client.create(CLUSTER.placements, body)
            await until(lambda name=name: name in complete, within=PATIENCE_S, every=0.02)
            took.append(complete[name] - began)
    cpu = cpu_s_of(pid) - cpu
    await _quiet(fleet)
    written = [each for each in fleet.writes(since) if each.resource not in _OF_MEMBERS]
    tell("placing", written)
    placed = size.placements * size.clusters
    per_cluster = sum(each.resource in OF_A_CLUSTER for each in written)
    return {
        "p50_s": statistics.median(took),
        "p90_s": sorted(took)[len(took) * 9 // 10],
        "slowest_s": max(took),
        "writes_per_cluster": per_cluster / placed,
        "writes_per_placement": (len(written) - per_cluster) / size.placements,
        "refused": sum(each.code >= 400 for each in written),
        "cpu_ms_per_cluster": cpu / placed * 1000,
        "peak_mib": peak_mib_of(pid),
    }


_OF_MEMBERS: Final = ("memberclusters", "clusterprofiles", "events")


def _is_complete(placement: Placement, clusters: int) -> bool:
    name = f"{CLUSTER.prefix}{AVAILABLE.name}"
    available = find_condition(placement.status.conditions, name)
    if available is None or available.status != "True":
        return False
    return len(placement.status.placement_statuses) == clusters


async def _furnish(client: Client, number: int) -> None:
    """Create a namespace with a ConfigMap, which are placed."""
    namespace = f"app-{number:03}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    settings = {"metadata": {"name": "settings"}, "data": {"url": "https://example.com/"}}
    await client.create(CONFIG_MAPS, settings, namespace=namespace)


def _placement(number: int, size: FleetSize) -> Json:
    """Return a placement of one namespace on the clusters of one group."""
    term = {"labelSelector": {"matchLabels": {GROUP: f"g{number % size.groups}"}}}
    if number % 2:
        preferred = [{"weight": 100, "preference": term}]
        affinity: Json = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        policy: Json = {"placementType": "PickN", "numberOfClusters": size.clusters}
    else:
        required = {"clusterSelectorTerms": [term]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        policy = {"placementType": "PickAll"}
    selector = {"group": "", "version": "v1", "kind": "Namespace", "name": f"app-{number:03}"}
    return {
        "apiVersion": CLUSTER.placements.api_version,
        "kind": CLUSTER.placements.kind,
        "metadata": {"name": f"placement-{number:03}"},
        "spec": {
            "resourceSelectors": [selector],
            "policy": policy | {"affinity": {"clusterAffinity": affinity}},
        },
    }


async def _stored(fleet: Fleet) -> dict[str, float]:
    binding = await stored_bytes(fleet.cluster, CLUSTER.bindings)
    work = await stored_bytes(fleet.cluster, WORKS)
    return {"binding_bytes": binding, "work_bytes": work, "both_bytes": binding + work}
