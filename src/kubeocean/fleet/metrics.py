"""Metrics of a hub, with KubeFleet's names and labels.

`fleet_workload_reconcile_…` repeats `controller_runtime_…` for the controllers of placements, which
in KubeFleet are not built with controller-runtime: KubeFleet's dashboards query these names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from kubeocean.errors import Conflict
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.steps import first_unfinished, fresh
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import After, Outcome, Reconcile
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Key

__all__ = ["PlacementMetrics", "SchedulingMetrics", "measured"]

_RESULTS: Final = ("success", "error", "requeue", "requeue_after")
_MILLISECONDS: Final = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 50_000)
_ABSENT: Final = "nil"  # status and reason of a condition that is not about this generation
_COMPLETED: Final = "Completed"

K = TypeVar("K", bound=Hashable)


def measured(
    name: str, workers: int, reconcile: Reconcile[K], metrics: Metrics | None, clock: Clock
) -> Reconcile[K]:
    """Return a `reconcile` whose runs are counted and timed under the controller's `name`."""
    metrics, label = metrics or Metrics(), ["controller"]
    totals = metrics.counter(
        "fleet_workload_reconcile_total", "Reconciles by result", [*label, "result"]
    )
    by_result = {result: totals.labels(name, result) for result in _RESULTS}
    errors = metrics.counter(
        "fleet_workload_reconcile_errors_total", "Reconciles that failed", label
    ).labels(name)
    seconds = metrics.histogram(
        "fleet_workload_reconcile_time_seconds", "Seconds of a reconcile", label
    ).labels(name)
    active = metrics.gauge(
        "fleet_workload_active_workers", "Workers that reconcile now", label
    ).labels(name)
    metrics.gauge("fleet_workload_max_concurrent_reconciles", "Workers in all", label).labels(
        name
    ).set(workers)

    async def run(key: K) -> Outcome:
        began, result = clock.monotonic(), "error"
        active.inc()
        try:
            outcome = await reconcile(key)
            result = "requeue_after" if isinstance(outcome, After) else "success"
        except Conflict:
            result = "requeue"
            raise
        finally:
            active.dec()
            seconds.observe(clock.monotonic() - began)
            by_result[result].inc()
            if result == "error":
                errors.inc()
        return outcome

    return run


class SchedulingMetrics:
    """Metrics of the scheduler: durations of cycles, and cycles that run now."""

    def __init__(self, metrics: Metrics | None, clock: Clock) -> None:
        metrics, self._clock = metrics or Metrics(), clock
        cycles = metrics.histogram(
            "scheduling_cycle_duration_milliseconds",
            "Milliseconds of a scheduling cycle with its writes",
            ["is_failed", "needs_requeue"],
            _MILLISECONDS,
        )
        # Exactly the failed cycles are requeued.
        self._succeeded = cycles.labels("false", "false")
        self._failed = cycles.labels("true", "true")
        self._active = metrics.gauge("scheduling_active_workers", "Cycles that run now")

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Measure the scheduling cycle that runs inside the `with` block."""
        began, series = self._clock.monotonic(), self._failed
        self._active.inc()
        try:
            yield
            series = self._succeeded
        finally:
            self._active.dec()
            series.observe((self._clock.monotonic() - began) * 1_000)


class PlacementMetrics:
    """Metric of the time at which each placement reached its state.

    The state is the first condition that is not True, or `Completed`. Its time is the stored
    transition time, so that a restart of the hub does not change it. Only the series of a
    placement's present generation are exported.
    """

    def __init__(self, metrics: Metrics | None, clock: Clock) -> None:
        self._clock = clock
        self._times = (metrics or Metrics()).gauge(
            "fleet_workload_placement_status_last_timestamp_seconds",
            "When a placement reached a state, in seconds since 1970",
            ["namespace", "name", "generation", "conditionType", "status", "reason"],
        )
        self._series: dict[Key, set[tuple[str, ...]]] = {}

    def reported(
        self, key: Key, generation: int, types: Sequence[str], conditions: Sequence[Condition]
    ) -> None:
        """Export the state of a placement; `types` are its expected conditions, in order."""
        unfinished = first_unfinished(conditions, types, generation)
        if unfinished is None:
            times = [
                instant
                for type_ in types
                if (condition := fresh(conditions, type_, generation)) is not None
                and (instant := stored_instant(condition.last_transition_time)) is not None
            ]
            state, reached = (_COMPLETED, "True", _COMPLETED), max(times, default=None)
        else:
            type_, condition = unfinished
            reached = stored_instant(condition.last_transition_time) if condition else None
            status, reason = (condition.status, condition.reason) if condition else (_ABSENT,) * 2
            state = (type_, status, reason)
        labels = (key.namespace, key.name, str(generation), *state)
        known = self._series.setdefault(key, set())
        for old in [each for each in known if each[2] != str(generation)]:
            self._times.remove(*old)
            known.discard(old)
        if reached is None and labels in known:
            return  # the first time counts
        known.add(labels)
        self._times.labels(*labels).set((reached or self._clock.now()).timestamp())

    def forget(self, key: Key) -> None:
        """Drop the series of a deleted placement."""
        for labels in self._series.pop(key, ()):
            self._times.remove(*labels)
