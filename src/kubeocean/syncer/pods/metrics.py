"""Metrics of pods: how far each cluster is behind the other, and attempts to create pods.

A delay is measured from the moment when a cache shows a change until the other cluster has the
change. Where several replicas share a binding, each measures the pods of its own shards, from when
it owns them.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.metrics import Counter, Metrics
from kubeocean.syncer.pods.record import PodRecord
from kubeocean.syncer.shard_filter import ALL, ShardFilter, of_pod

__all__ = ["PodMetrics"]

_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip


class PodMetrics:
    """The metrics of one binding's pods; the start of each delay is in a `PodRecord`."""

    def __init__(self, binding: str, clock: Clock, metrics: Metrics) -> None:
        def counter(name: str, doc: str) -> Counter:
            return metrics.counter(f"kubeocean_syncer_{name}", doc, ["clusterbinding"]).labels(
                binding
            )

        self._clock = clock
        self._shards: ShardFilter = ALL
        label = ["cluster_binding"]
        self._create_lag = metrics.histogram(
            "kubeocean_pod_create_lag_seconds",
            "From a pod that is bound to a virtual node until its physical pod is created",
            label,
            _BUCKETS,
        ).labels(binding)
        self._status_lag = metrics.histogram(
            "kubeocean_pod_status_lag_seconds",
            "From a change of a physical pod until its virtual pod shows it",
            label,
            _BUCKETS,
        ).labels(binding)
        self.attempts = counter("create_pod_total", "Attempts to create a physical pod")
        self.failures = counter(
            "create_pod_errors_total", "Attempts to create a physical pod that failed"
        )
        self.creations = counter("pod_created_total", "Virtual pods that got a physical pod")
        self.unscheduled = counter(
            "pod_created_failed_total", "Virtual pods whose physical pod was not scheduled in time"
        )

    def share(self, shards: ShardFilter) -> None:
        """Measure only the pods of these shards; call before the syncer runs."""
        self._shards = shards

    def bound(self, record: PodRecord) -> None:
        """Note that a virtual pod appeared in the cache and needs a physical pod."""
        if record.bound_at_s is None and self._shards.owns(of_pod(record.key)):
            record.bound_at_s = self._clock.monotonic()

    def created(self, record: PodRecord) -> None:
        """Observe the delay until a virtual pod's physical pod was created."""
        since_s, record.bound_at_s = record.bound_at_s, None
        if since_s is not None:
            self._create_lag.observe(self._clock.monotonic() - since_s)

    def exists(self, record: PodRecord) -> None:
        """Drop the start of the creation delay: the physical pod existed before the reconcile."""
        record.bound_at_s = None

    def changed(self, record: PodRecord) -> None:
        """Note that a physical pod changed, and that its status is to be reported."""
        if record.changed_at_s is None and self._shards.owns(of_pod(record.key)):
            record.changed_at_s = self._clock.monotonic()

    def reported(self, record: PodRecord, *, written: bool) -> None:
        """Observe the delay until a status was reported, if a patch was `written`."""
        since_s, record.changed_at_s = record.changed_at_s, None
        if since_s is not None and written:
            self._status_lag.observe(self._clock.monotonic() - since_s)
