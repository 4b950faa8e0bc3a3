"""Measures a thousand lent nodes of a worker: the cost of registering them, and then at rest.

Two control planes with audit logs, kwok for the worker's nodes, and `kubeocean syncer` as its users
run it, each under a user of its own: the requests of that user in the audit logs are its cost.

The election's own Lease is renewed every two seconds, which is a setting of the user's, and is
counted apart from everything else. (The Go implementation was measured without an election.)
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.measure import cpu_s_of, peak_mib_of, scrape
from bench.ocean import (
    MINUTE_S,
    PATIENCE_S,
    Ocean,
    apply_policy,
    elects,
    is_lease,
    ocean_of,
    others,
    renews,
    tell,
)
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.progress import Progress
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node

__all__ = ["bars_of", "lend"]

READS: Final = ("get", "list", "watch")
# Time for requests that follow from registering. A watch that began with a list gets its second
# bookmark after two minutes, not one, so the syncer starts that watch again, once.
SETTLES_S: Final = 90.0


async def lend(directory: Path, nodes: int, idle_s: float, progress: Progress) -> dict[str, float]:
    """Return all measurements of one worker with this number of nodes."""
    async with ocean_of(directory, nodes, progress) as ocean, ocean.syncer() as syncer:
        print(f"bench: lend {nodes} nodes", file=sys.stderr)
        pid = syncer.process.pid
        assert pid is not None, syncer.process.tail()
        figures = await _register(ocean, pid, nodes)
        print(f"bench: idle with {nodes} virtual nodes, {idle_s:g} s", file=sys.stderr)
        figures |= await _idle(ocean, pid, idle_s)
        address = (await syncer.wait_for_output("Started service"))["metrics"]
        figures |= await scrape(f"http://{address}/metrics", pid)
        return figures | {"peak_mib": peak_mib_of(pid)}


def bars_of(figures: dict[str, float]) -> list[Bar]:
    """Return the promises about a thousand nodes."""
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


# Registering


async def _register(ocean: Ocean, pid: int, nodes: int) -> dict[str, float]:
    observer = Informer(ocean.computing_api, NODES)
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
    await apply_policy(ocean.worker_api)
    async with asyncio.timeout(PATIENCE_S):
        await all_ready.wait()
    took = {
        "ready_s": time.monotonic() - began,
        "ready_cpu_s": cpu_s_of(pid) - ours,
        "ready_servers_cpu_s": ocean.servers_cpu_s() - theirs,
    }
    watching.cancel()
    await asyncio.wait([watching])
    requested = await _settled(ocean, since, nodes)
    tell("registering", requested)
    return took | {"requests_per_node": len(requested) / nodes}


async def _settled(ocean: Ocean, since: tuple[int, int], nodes: int) -> list[AuditedRequest]:
    """Return the requests of registering nodes, once all nodes have Leases that are renewed."""
    seen = -1
    while True:
        requested = [r for r in ocean.requests(since) if not (renews(r) or elects(r))]
        leased = sum(is_lease(r) for r in requested)
        if len(requested) == seen and leased >= nodes:
            return requested
        seen = len(requested)
        await asyncio.sleep(5)


# Doing nothing


async def _idle(ocean: Ocean, pid: int, idle_s: float) -> dict[str, float]:
    """Measure minute by minute, so that requests that recur at intervals are visible."""
    await asyncio.sleep(SETTLES_S)
    cpu, began, worst, everything = cpu_s_of(pid), time.monotonic(), 0, list[AuditedRequest]()
    while (left := idle_s - (time.monotonic() - began)) > 0.5:
        since = ocean.mark()
        await asyncio.sleep(min(MINUTE_S, left))
        requested = ocean.requests(since)
        worst = max(worst, len(others(requested)))
        everything += requested
    minutes = (time.monotonic() - began) / MINUTE_S
    cpu = cpu_s_of(pid) - cpu
    rest = others(everything)
    tell("idle", everything)
    virtual = (await ocean.computing_api.list(NODES)).items
    renewals = sum(renews(request) for request in everything)
    return {
        "others_per_minute": len(rest) / minutes,
        "others_worst_minute": worst,
        "writes": sum(request.verb not in READS for request in rest),
        "renewals_per_node_minute": renewals / len(virtual) / minutes,
        "election_per_minute": sum(map(elects, everything)) / minutes,
        "cpu_s_per_minute": cpu / minutes,
    }


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
