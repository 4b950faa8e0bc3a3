"""Metrics: what a replica of a ring counts.

The names are `sharded_controller_*`; every series has the label `ring`, so that a program may take
part in several.
"""

from __future__ import annotations

from kubeocean.runtime.metrics import Metrics
from kubeocean.sharding.members import MemberState

__all__ = ["RingMetrics", "WorkMetrics"]


class RingMetrics:
    """The figures of one replica in one ring."""

    def __init__(self, metrics: Metrics, ring: str) -> None:
        label = ["ring"]
        self._ring = ring
        self.shard_count = metrics.gauge(
            "sharded_controller_shard_count", "Shards that this replica works on", label
        ).labels(ring)
        self.rebalances = metrics.counter(
            "sharded_controller_rebalances_total",
            "Tables written by this replica as the assigner",
            label,
        ).labels(ring)
        self.moves = metrics.counter(
            "sharded_controller_moves_total",
            "Shards that this replica moved as the assigner",
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
        self.is_assigner = metrics.gauge(
            "sharded_controller_assigner", "1 on the replica that assigns", label
        ).labels(ring)
        self.handover = metrics.histogram(
            "sharded_controller_handover_seconds",
            "From being asked for a shard until nothing worked on it any more",
            label,
        ).labels(ring)
        self.lapses = metrics.counter(
            "sharded_controller_lapses_total",
            "Times that this replica had to stop everything and join anew",
            label,
        ).labels(ring)
        self.seen({})

    def seen(self, states: dict[str, MemberState]) -> None:
        """The replicas as the assigner judges them."""
        self.node_count.set(len(states))
        for state in MemberState:
            count = sum(each is state for each in states.values())
            self._health.labels(self._ring, state.value).set(count)


class WorkMetrics:
    """The figures of one controller in a ring."""

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
