"""Metrics of a replica of a ring, the page that serves them, and the measured load of slots.

The names are `sharded_controller_*`; every series has the label `ring`, so that a program may take
part in several rings.

The load of a slot is the share of time that its reconciles take, averaged over some minutes, plus a
small amount for each object in the slot. The load is measured at intervals, not at each event. The
first period of a gained slot is not reported, since all of its objects are reconciled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiohttp import web

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.server import Server
from kubeocean.sharding.config import Config
from kubeocean.sharding.members import MemberState

__all__ = ["Loads", "MetricsPage", "RingMetrics", "WorkMetrics"]


class RingMetrics:
    """Metrics of one replica in one ring (the replicas that share a controller's keys)."""

    def __init__(self, metrics: Metrics, ring: str) -> None:
        label = ["ring"]
        self._ring = ring
        self.shard_count = metrics.gauge(
            "sharded_controller_shard_count", "Shards that this replica works on", label
        ).labels(ring)
        self.rebalances = metrics.counter(
            "sharded_controller_rebalances_total",
            "Tables written by this replica as the planner",
            label,
        ).labels(ring)
        self.moves = metrics.counter(
            "sharded_controller_moves_total",
            "Shards that this replica moved as the planner",
            label,
        ).labels(ring)
        self.shard_changes = metrics.counter(
            "sharded_controller_shard_changes_total",
            "Shards that this replica gained or lost",
            label,
        ).labels(ring)
        self.node_count = metrics.gauge(
            "sharded_controller_node_count", "Replicas that have a Lease", label
        ).labels(ring)
        self._health = metrics.gauge(
            "sharded_controller_node_health",
            "Replicas by status: Joining, Healthy, Unhealthy, Leaving",
            ["ring", "status"],
        )
        self.epoch = metrics.gauge(
            "sharded_controller_epoch", "Epoch of the table that this replica has seen", label
        ).labels(ring)
        self.is_planner = metrics.gauge(
            "sharded_controller_assigner", "1 on the replica whose planner is elected", label
        ).labels(ring)
        self.handover = metrics.histogram(
            "sharded_controller_handover_seconds",
            "From the request to hand over a shard until no work ran on it",
            label,
        ).labels(ring)
        self.lapses = metrics.counter(
            "sharded_controller_lapses_total",
            "Times that this replica lost its Lease and joined the ring again",
            label,
        ).labels(ring)
        self.seen({})

    def seen(self, states: dict[str, MemberState]) -> None:
        """Set the metric of the number of replicas in each state, as the planner sees them."""
        self.node_count.set(len(states))
        for state in MemberState:
            count = sum(each is state for each in states.values())
            self._health.labels(self._ring, state.value).set(count)


class WorkMetrics:
    """Metrics of one controller in a ring."""

    def __init__(self, metrics: Metrics, ring: str, controller: str) -> None:
        names, values = ["ring", "controller"], (ring, controller)
        self.processed = metrics.counter(
            "sharded_controller_processed_resources_total", "Reconciles that ended", names
        ).labels(*values)
        self.latency = metrics.histogram(
            "sharded_controller_processing_latency_seconds", "Seconds of a reconcile", names
        ).labels(*values)
        self.errors = metrics.counter(
            "sharded_controller_processing_errors_total", "Reconciles that failed", names
        ).labels(*values)
        self.unplaced = metrics.gauge(
            "sharded_controller_unplaced_resources",
            "Objects whose shard this replica cannot compute",
            names,
        ).labels(*values)


class MetricsPage:
    """Service part that serves `metrics.path` on `metrics.port`, unless metrics are disabled."""

    name = "metrics"

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._section = config.metrics
        self._metrics = metrics
        self.address: BindAddress | None = None  # the address and port that the page listens on

    async def run(self) -> None:
        if not self._section.enabled:
            await asyncio.Event().wait()
        app = web.Application()
        app.router.add_get(self._section.path, self._page)
        wanted = BindAddress("", self._section.port, "metrics.port")
        async with Server(app, wanted) as server:
            self.address = server.address
            await asyncio.Event().wait()

    async def _page(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        body = await asyncio.to_thread(self._metrics.render, accept)
        return web.Response(body=body, headers={"Content-Type": self._metrics.content_type(accept)})


_NEW: Final = 0.3  # weight of a measurement in the moving average
_OBJECT: Final = 0.0001  # load of an idle object: one reconcile of 10 ms in 100 s


class Loads:
    """Measured loads of the slots of one workload; a measurement is made every `every_s`."""

    def __init__(self, clock: Clock, *, every_s: float = 10.0) -> None:
        self._clock = clock
        self._every_s = every_s
        self._since = clock.monotonic()
        self._known: set[int] = set()  # slots that this replica owned for a whole period
        self._spent: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._loads: dict[int, float] = {}

    def spent(self, slot: int, seconds: float) -> None:
        """Add the duration of a reconcile to the load of its slot."""
        self._spent[slot] = self._spent.get(slot, 0.0) + seconds

    def measure(self, slots: Collection[int], objects: Callable[[int], int]) -> Mapping[int, float]:
        """Return the loads of these slots, as of the last measurement; empty before the first."""
        now = self._clock.monotonic()
        passed = now - self._since
        if passed >= self._every_s:
            for slot in slots:
                if slot not in self._known:
                    self._known.add(slot)
                    continue
                share = self._spent.get(slot, 0.0) / passed
                before = self._busy.get(slot, share)
                self._busy[slot] = before + _NEW * (share - before)
                self._loads[slot] = self._busy[slot] + _OBJECT * objects(slot)
            self._since = now
            self._spent.clear()
        return self._loads

    def drop(self, slots: Collection[int]) -> None:
        """Forget the loads of slots that another replica owns now."""
        self._known.difference_update(slots)
        for slot in slots:
            for memory in (self._spent, self._busy, self._loads):
                memory.pop(slot, None)
