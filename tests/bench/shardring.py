"""A ring on a real kube-apiserver, each replica a process: moves, caches, fail-over, capacity.

- *Moves*: from one replica to four. All writes meanwhile, renewals of Leases included, for few
  objects and for many: both numbers must be the same.
- *Cache*: how many objects each of the four holds, against a quarter. The server filters.
- *Fail-over*: from kill -9 of a replica until others have reconciled its last object, with the
  periods of a leader election, and with shorter ones.
- *Capacity*: how long a burst of changes takes one replica, and four. Two cores cannot run four
  busy replicas beside an API server. So a core is simulated: each reconcile keeps its process busy
  for a time without using any. That shows that shares are even and that replicas do not wait for
  each other, not how far an API server scales. The same with real work, each replica held to a
  fifth of a core by the kernel, is a figure without a bar: it holds only on a quiet machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.measure import cpu_s_of, resident_mib_of
from bench.quotas import Quota
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster
from kubeocean.sharding.timing import Timing
from support.sharding_proof import Proof
from support.wait import until

__all__ = ["measure_ring", "ring_bars"]

REPLICAS: Final = 4
SLOTS: Final = 1024
BURST, BURN_MS, CORES = 400, 8, 0.2
COST_MS = 200  # so that also on a busy machine four replicas cannot do all work at once
IDLE_S: Final = 20.0
LOADS_S: Final = 2.0
OBJECT: Final = 0.0001  # cost of one idle object, as in `loads`
READS: Final = ("get", "list", "watch")


async def measure_ring(directory: Path, objects: int) -> dict[str, float]:
    """Return all measurements; moves are measured with this number of objects and with a tenth."""
    figures: dict[str, float] = {}
    for count in (objects // 10, objects):
        async with _stage(directory, count, SHARD_CHILDREN="no") as proof:
            figures |= await _moves(proof)
    for name, lease_s in (("default", Timing().lease_s), ("fast", 6.0)):
        async with _stage(directory, 300, lease_s=lease_s) as proof:
            figures[f"fail-over, {name} s"] = await _fail_over(proof)
    async with _stage(directory, BURST, SHARD_COST_MS=str(COST_MS)) as proof:
        figures |= await _capacity(proof, "simulated")
    if Quota.possible():
        with Quota(CORES) as quota:
            async with _stage(directory, BURST, SHARD_BURN_MS=str(BURN_MS)) as proof:
                figures |= await _capacity(proof, "real", quota)
    return figures


def ring_bars(figures: dict[str, float], objects: int) -> list[Bar]:
    """Return the bars of the ring, with the numbers of other systems for comparison."""
    return [
        Bar(
            f"writes to move {objects * 3 // 4:,} objects",
            figures[f"writes, {objects} objects"],
            300,
            "",
            go="20,000",
        ),
        Bar("objects written to move them", figures[f"object writes, {objects} objects"], 0, ""),
        Bar(
            "the same for a tenth of them",
            figures[f"writes, {objects} objects"] / figures[f"writes, {objects // 10} objects"],
            1.5,
            "x",
            go="10",
        ),
        Bar("cache of a replica", figures["cache off %"], 3, "% off 1/N", go="-4 to +8"),
        Bar("fail-over", figures["fail-over, default s"], 16, "s", go="30"),
        Bar("fail-over, fast", figures["fail-over, fast s"], 8, "s", go="30"),
        Bar("CPU of an idle replica", figures["idle cores"], 0.05, "cores", go="0.05 (sharder)"),
        Bar(
            "requests at rest",
            figures[f"requests a minute at rest, {objects} objects"],
            70,
            "a minute and replica",
        ),
        Bar("capacity of 4, simulated", figures["capacity, simulated x"], 3.6, "x", "≥", go="2.75"),
    ]


@asynccontextmanager
async def _stage(
    directory: Path, objects: int, *, lease_s: float = 15.0, **environ: str
) -> AsyncIterator[Proof]:
    """Yield a proof on a new server with `objects` objects that are labelled with their slots."""
    assets = await ensure()
    with tempfile.TemporaryDirectory(prefix="ring-", dir=directory) as name:
        root = Path(name)
        components = ("etcd", "kube-apiserver")
        cluster = Cluster(
            "ring", root / "cluster", assets, components=components, audit=True, ephemeral=True
        )
        async with cluster:
            client = cluster.client()
            proof = Proof(cluster, client, "default", root, objects, lease_s)
            proof.slots, proof.labelled = SLOTS, True
            proof.environ = {"SHARD_LOADS": f"{LOADS_S:g}s", **environ}
            try:
                await proof.prepare()
                yield proof
            finally:
                await proof.close()
                await client.close()


async def _moves(proof: Proof) -> dict[str, float]:
    """Go from one replica to four; return the writes, and the objects that each then caches."""
    await proof.start(1)
    await proof.settled(within=120)
    await _measured(proof)
    mark = proof.cluster.audit.mark()
    await proof.start(REPLICAS - 1)
    await proof.settled(within=120)
    table, objects = _written(proof, mark)
    held = await _held(proof)
    fair = proof.objects / REPLICAS
    off = max(abs(count / fair - 1) for count in held)
    idle = await _idle(proof)
    count = proof.objects
    return {
        f"writes, {count} objects": table,
        f"object writes, {count} objects": objects,
        "objects in the largest cache": max(held),
        "cache off %": 100 * off,
        "idle cores": idle[0],
        "resident MiB": idle[1],
        f"requests a minute at rest, {count} objects": idle[2],
    }


async def _measured(proof: Proof) -> None:
    """Wait until the cost of idle objects is known, by which a new replica gets its slots."""
    rest = proof.objects * OBJECT * 1.01

    async def received() -> bool:
        loads = [each.record.loads for each in (await proof.overseer.state()).members]
        return sum(map(len, loads)) == proof.slots and sum(map(sum, map(dict.values, loads))) < rest

    await until(received, within=240, every=0.5, waiting_for="loads")


def _written(proof: Proof, mark: int) -> tuple[float, float]:
    """Return the number of writes of all replicas, heartbeats included, and of these the writes of
    objects."""
    requests = proof.cluster.audit.requests(since=mark)
    ours = [each for each in requests if _by_replica(each.user) and each.verb not in READS]
    maps = [each for each in ours if each.resource == "configmaps"]
    objects = [each for each in maps if not each.name.endswith("-table")]
    return float(len(ours)), float(len(objects))


async def _held(proof: Proof) -> list[int]:
    """Return the number of cached objects per replica, once each object is in one cache."""
    files = [Path(f"{proof.file}.{name}") for name in proof.replicas]

    def received() -> list[int]:
        for process in proof.replicas.values():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGUSR2)
        texts = [file.read_text() if file.exists() else "" for file in files]
        counts = [int(text or 0) for text in texts]
        return counts if sum(counts) == proof.objects else []

    return await until(received, within=60, every=0.5, waiting_for="all objects in a cache")


async def _idle(proof: Proof) -> tuple[float, float, float]:
    """Return CPU, memory and requests per minute of an idle replica, on average."""
    pids = [process.pid for process in proof.replicas.values() if process.pid is not None]
    await asyncio.sleep(2 * LOADS_S)  # until the work of the move is done
    mark = proof.cluster.audit.mark()
    before, began = sum(map(cpu_s_of, pids)), time.monotonic()
    await asyncio.sleep(IDLE_S)  # the time over which requests are counted
    passed = time.monotonic() - began
    spent = (sum(map(cpu_s_of, pids)) - before) / passed
    sent = [each for each in proof.cluster.audit.requests(since=mark) if _by_replica(each.user)]
    requests = len(sent) * 60 / passed
    return spent / len(pids), sum(map(resident_mib_of, pids)) / len(pids), requests / len(pids)


def _by_replica(user: str) -> bool:
    return user.startswith("shard-")


async def _fail_over(proof: Proof) -> float:
    """Kill one of three that does not assign; the seconds until all of its objects have another."""
    names = await proof.start(3)
    await proof.settled(within=120)
    await proof.synced(within=120)
    assigner = await proof.assigner()
    return await proof.taken_over(next(name for name in names if name != assigner))


async def _capacity(proof: Proof, how: str, quota: Quota | None = None) -> dict[str, float]:
    """Measure one burst of changes with one replica and with four, each with the same CPU."""
    await proof.start(1)
    await proof.settled(within=120)
    await proof.synced(within=300)
    await _measured(proof)
    alone_s = await _burst(proof, quota)
    await _measured(proof)
    await proof.start(REPLICAS - 1)
    await proof.settled(within=120)
    await _measured(proof)
    fullest = max(await _held(proof)) * REPLICAS / proof.objects
    together_s = await _burst(proof, quota)
    return {
        f"burst, 1 replica, {how} s": alone_s,
        f"burst, {REPLICAS} replicas, {how} s": together_s,
        f"peak of objects, {how}": fullest,
        f"capacity, {how} x": alone_s / together_s,
    }


async def _burst(proof: Proof, quota: Quota | None) -> float:
    """Return the seconds until simultaneous changes of all objects are carried out."""
    for process in proof.replicas.values():
        assert process.pid is not None
        if quota is not None:
            quota.hold(process.pid)
    began = time.monotonic()
    await proof.touch(proof.objects)
    await proof.synced(within=300)
    spent = time.monotonic() - began
    if quota is not None:
        quota.release()
    return spent
