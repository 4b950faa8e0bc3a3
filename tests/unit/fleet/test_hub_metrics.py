"""Metrics of a hub: reconciles, scheduling cycles and the states of placements."""

from __future__ import annotations

import pytest

from kubeocean.errors import ApiError, Conflict
from kubeocean.fleet.metrics import PlacementMetrics, SchedulingMetrics, measured
from kubeocean.runtime.clock import RealClock, VirtualClock, instant_of
from kubeocean.runtime.controller import After, Done, Outcome, Stuck
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Key
from unit.fleet.placements.builders import NOW

TIMES = "fleet_workload_placement_status_last_timestamp_seconds"
LATER = "2026-01-01T00:00:09Z"
TYPES = ("Scheduled", "Applied")


def condition(type_: str, status: str = "True", since: str | None = NOW, gen: int = 1) -> Condition:
    return Condition(type_, status, f"{type_}{status}", "", since, gen)


def time_of(text: str) -> float:
    instant = instant_of(text)
    assert instant is not None
    return instant.timestamp()


def series(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the times of the only placement by generation, type, status and reason."""
    (family,) = [each for each in metrics.collect() if each.name == TIMES]
    names = ("generation", "conditionType", "status", "reason")
    return {tuple(each.labels[name] for name in names): each.value for each in family.samples}


def test_a_placement_shows_the_first_condition_that_is_not_true_and_then_completed() -> None:
    metrics = Metrics()
    placements = PlacementMetrics(metrics, RealClock())
    key = Key("team", "app")
    waiting = [condition("Scheduled"), condition("Applied", "False", LATER)]
    placements.reported(key, 1, TYPES, waiting)
    labels = {"namespace": "team", "name": "app", "generation": "1", "conditionType": "Applied"}
    labels |= {"status": "False", "reason": "AppliedFalse"}
    assert metrics.value(TIMES, labels) == time_of(LATER)
    done = [condition("Scheduled"), condition("Applied", since=LATER)]
    placements.reported(key, 1, TYPES, done)
    assert series(metrics)["1", "Completed", "True", "Completed"] == time_of(LATER)
    assert len(series(metrics)) == 2
    placements.forget(key)
    assert series(metrics) == {}


async def test_a_new_generation_replaces_the_series_of_the_old_one() -> None:
    metrics = Metrics()
    clock = VirtualClock()
    placements = PlacementMetrics(metrics, clock)
    done = [condition("Scheduled"), condition("Applied")]
    placements.reported(Key("", "app"), 1, TYPES, done)
    placements.reported(Key("", "app"), 2, TYPES, done)
    first = series(metrics)
    assert set(first) == {("2", "Scheduled", "nil", "nil")}
    await clock.advance(60)
    placements.reported(Key("", "app"), 2, TYPES, done)
    assert series(metrics) == first  # the time at which the state was reached


@pytest.mark.parametrize(
    ("outcome", "result", "errors"),
    [
        (Done(), "success", 0.0),
        (Stuck("Reason", "message"), "success", 0.0),
        (After(5), "requeue_after", 0.0),
        (Conflict("lost a race"), "requeue", 0.0),
        (ApiError("refused"), "error", 1.0),
    ],
)
async def test_reconciles_are_counted_by_result(
    outcome: Outcome | Exception, result: str, errors: float
) -> None:
    metrics = Metrics()

    async def reconcile(key: str) -> Outcome:
        active = metrics.value("fleet_workload_active_workers", {"controller": "c"})
        assert active == 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    run = measured("c", 4, reconcile, metrics, RealClock())
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            await run("key")
    else:
        assert await run("key") is outcome
    name = "fleet_workload_reconcile"
    of_controller = {"controller": "c"}
    assert metrics.value(f"{name}_total", of_controller | {"result": result}) == 1
    assert metrics.value(f"{name}_errors_total", of_controller) == errors
    assert metrics.value(f"{name}_time_seconds_count", of_controller) == 1
    assert metrics.value("fleet_workload_active_workers", of_controller) == 0
    assert metrics.value("fleet_workload_max_concurrent_reconciles", of_controller) == 4


async def test_cycles_are_measured_in_milliseconds() -> None:
    metrics, clock = Metrics(), VirtualClock()
    scheduling = SchedulingMetrics(metrics, clock)
    with scheduling.cycle():
        assert metrics.value("scheduling_active_workers") == 1
        await clock.advance(0.25)
    with pytest.raises(ApiError), scheduling.cycle():
        raise ApiError("refused")
    name = "scheduling_cycle_duration_milliseconds"
    done = {"is_failed": "false", "needs_requeue": "false"}
    failed = {"is_failed": "true", "needs_requeue": "true"}
    assert metrics.value(f"{name}_sum", done) == pytest.approx(250)
    assert metrics.value(f"{name}_count", failed) == 1
    assert metrics.value("scheduling_active_workers") == 0
