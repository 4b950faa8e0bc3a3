"""Measures the cost of pods on virtual nodes, from the creation of a pod to its end.

Two control planes with audit logs, a hundred simulated nodes, `kubeocean syncer` as its users run
it. Each pod has a token, a shared ConfigMap and a shared Secret; it is created, runs and is
deleted. Requests are counted in the audit logs; times are those at which an observer's watches saw
the pods; CPU is that of the syncer, less its CPU at rest.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from bench.bars import Bar
from bench.measure import cpu_s_of, peak_mib_of
from bench.ocean import MINUTE_S, PATIENCE_S, Ocean, apply_policy, ocean_of, others, tell
from kubeocean.api import group
from kubeocean.local.progress import Progress
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, NODES, SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from support.wait import until

__all__ = ["FLAGS", "Life", "bars_of_living", "furnish", "live", "together"]

T = TypeVar("T")

NODES_WANTED: Final = 100
SPACE: Final = "team"
REST_S: Final = 20.0
FLAGS: Final = ("--kubernetes-service-address=192.0.2.10:443", "--dns-service-address=192.0.2.11")
RATES: Final = (("at 5/s", 5.0), ("at 20/s", 20.0), ("in a burst", 0.0))


async def live(
    directory: Path, pods: int, quiet_s: float, progress: Progress
) -> dict[str, dict[str, float]]:
    """Return all measurements of this number of pods, at each rate."""
    figures: dict[str, dict[str, float]] = {}
    async with (
        ocean_of(directory, NODES_WANTED, progress, pods=True) as ocean,
        ocean.syncer(*FLAGS) as syncer,
    ):
        pid = syncer.process.pid
        assert pid is not None, syncer.process.tail()
        vnodes = await furnish(ocean, NODES_WANTED)
        rest = await _at_rest(pid)
        for name, rate in RATES:
            print(f"bench: {pods} pods {name}", file=sys.stderr)
            life = Life(ocean, vnodes, f"r{rate:g}")
            figures[f"pods {name}"] = await _measure(life, pid, pods, rate, rest)
        print(f"bench: {pods} running pods, {quiet_s:g} s", file=sys.stderr)
        figures["pods at rest"] = await _quiet(Life(ocean, vnodes, "still"), pods, quiet_s)
        figures["pods at rest"]["peak_mib"] = peak_mib_of(pid)
    return figures


def bars_of_living(figures: dict[str, dict[str, float]]) -> list[Bar]:
    """Return the promises about pods."""
    go = {"at 5/s": "21.5", "at 20/s": "23.8", "in a burst": "22.7"}
    bars = []
    for name, _ in RATES:
        actual = figures[f"pods {name}"]
        bars += [
            Bar(f"{name}: requests for each pod", actual["requests_per_pod"], 9, "", go=go[name]),
            Bar(f"{name}: refused", actual["refused_per_pod"], 0.2, "", "<", go="8 to 11"),
            Bar(f"{name}: CPU", actual["cpu_s_per_1000"], 15, "s for 1,000", go="21 to 25"),
        ]
    calm, brisk = figures["pods at 5/s"], figures["pods at 20/s"]
    return [
        *bars,
        Bar("at 5/s: until created, p50", calm["created_p50_s"], 0.04, "s", go="0.04"),
        Bar("at 5/s: until created, p90", calm["created_p90_s"], 0.08, "s", go="0.54"),
        Bar("at 20/s: until created, p50", brisk["created_p50_s"], 0.15, "s", go="0.6 to 3.4"),
        Bar("burst", figures["pods in a burst"]["pods_per_s"], 25, "pods/s", "≥", go="10"),
        Bar("at rest: requests", figures["pods at rest"]["requests"], 0, ""),
    ]


# The clusters


async def furnish(ocean: Ocean, nodes: int) -> list[str]:
    """Create the objects that pods refer to, and the nodes that pods are bound to."""
    computing_api = ocean.computing_api
    await apply_policy(ocean.worker_api)
    await computing_api.create(NAMESPACES, {"metadata": {"name": SPACE}})
    settings: Json = {"metadata": {"name": "shared"}, "data": {"k": "v"}}
    await computing_api.create(CONFIG_MAPS, settings, namespace=SPACE)
    await computing_api.create(
        SECRETS, {"metadata": {"name": "shared"}, "data": {}}, namespace=SPACE
    )

    async def furnished() -> list[str] | None:
        accounts = (await computing_api.list(SERVICE_ACCOUNTS, SPACE)).items
        names = [node.name for node in (await computing_api.list(NODES)).items]
        return names if accounts and len(names) == nodes else None

    return await until(furnished, within=PATIENCE_S) or []


async def _at_rest(pid: int) -> float:
    """Return the CPU seconds per second that heartbeats alone take."""
    await asyncio.sleep(REST_S / 2)
    before = cpu_s_of(pid)
    await asyncio.sleep(REST_S)
    return (cpu_s_of(pid) - before) / REST_S


# Pods from creation to end


@dataclass
class Life:
    """Pods of one measurement, and when they were seen on either side."""

    ocean: Ocean
    vnodes: list[str]
    name: str
    bound: dict[str, float] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        computing_api = Informer(
            self.ocean.computing_api, VIRTUAL_PODS, namespace=SPACE, labels=f"run={self.name}"
        )
        worker_api = Informer(self.ocean.worker_api, PHYSICAL_PODS, labels=f"run={self.name}")
        computing_api.on_change(self._above)
        worker_api.on_change(self._below)
        tasks = [asyncio.create_task(computing_api.run()), asyncio.create_task(worker_api.run())]
        await asyncio.gather(computing_api.synced(), worker_api.synced())
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _above(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        now = time.monotonic()
        if new is None and old is not None:
            self.gone.add(old.name)
        elif new is not None:
            self.bound.setdefault(new.name, now)
            if new.status.phase == "Running":
                self.running.setdefault(new.name, now)

    def _below(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if new is not None:
            message = new.annotations[group.DEFAULT.virtual_pod_name]
            self.created.setdefault(message, time.monotonic())

    async def make(self, number: int) -> None:
        vnode = self.vnodes[number % len(self.vnodes)]
        await self.ocean.computing_api.create(
            VIRTUAL_PODS, self._pod(number, vnode), namespace=SPACE
        )

    def _pod(self, number: int, vnode: str) -> Json:
        source = {"name": "shared"}
        container: Json = {
            "name": "main",
            "image": "example.com/app:1",
            "envFrom": [{"configMapRef": source}, {"secretRef": source}],
            "resources": {"requests": {"cpu": "1m"}},
        }
        return {
            "metadata": {"name": f"{self.name}-{number}", "labels": {"run": self.name}},
            "spec": {
                "nodeName": vnode,
                "containers": [container],
                "tolerations": [{"operator": "Exists"}],
            },
        }

    async def end(self, name: str) -> None:
        await self.ocean.computing_api.delete(VIRTUAL_PODS, name, SPACE, uid=None)


async def _measure(life: Life, pid: int, pods: int, rate: float, rest: float) -> dict[str, float]:
    since, cpu, servers = life.ocean.mark(), cpu_s_of(pid), life.ocean.servers_cpu_s()
    began = time.monotonic()
    async with life.watching():
        await _create(life, pods, rate)
        await until(lambda: len(life.running) == pods, within=PATIENCE_S)
        ran = max(life.running.values()) - began
        await together(life.end, [f"{life.name}-{n}" for n in range(pods)])
        await until(lambda: len(life.gone) == pods, within=PATIENCE_S)
    took = time.monotonic() - began
    await asyncio.sleep(2.0)  # for the last writes
    requested = others(life.ocean.requests(since))
    tell(life.name, requested)
    waited = sorted(life.created[name] - life.bound[name] for name in life.created)
    shown = sorted(life.running[name] - life.bound[name] for name in life.running)
    return {
        "requests_per_pod": len(requested) / pods,
        "refused_per_pod": sum(request.code >= 400 for request in requested) / pods,
        "cpu_s_per_1000": (cpu_s_of(pid) - cpu - rest * took) * 1000 / pods,
        "created_p50_s": statistics.median(waited),
        "created_p90_s": waited[len(waited) * 9 // 10],
        "running_p50_s": statistics.median(shown),
        "pods_per_s": pods / ran,
        "servers_cpu_share": (life.ocean.servers_cpu_s() - servers) / took,
        "took_s": took,
    }


async def _create(life: Life, pods: int, rate: float) -> None:
    if not rate:
        await together(life.make, range(pods))
        return
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(pods):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.create_task(life.make(number))


async def together(do: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Run the calls a few at a time, as fast as the server answers."""
    turn = asyncio.Semaphore(16)

    async def one(item: T) -> None:
        async with turn:
            await do(item)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(one(item))


async def _quiet(life: Life, pods: int, quiet_s: float) -> dict[str, float]:
    """Check that a quiet installation sends only heartbeats and restarted watches."""
    async with life.watching():
        await _create(life, pods, 20.0)
        await until(lambda: len(life.running) == pods, within=PATIENCE_S)
        await asyncio.sleep(REST_S)
        since = life.ocean.mark()
        await asyncio.sleep(quiet_s)
        requested = [r for r in others(life.ocean.requests(since)) if r.verb != "watch"]
        tell("at rest", requested)
    return {"requests": len(requested), "minutes": quiet_s / MINUTE_S}
