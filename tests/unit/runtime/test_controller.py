"""The worker loop: the effect of each outcome and exception of a reconcile."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from kubeocean.errors import (
    ConfigError,
    Conflict,
    InvariantError,
    NotFound,
    TooManyRequests,
)
from kubeocean.runtime import logs
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.workqueue import WorkQueue

NAME = "pods"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Return the log messages so far."""
    stream = io.StringIO()
    restore = logs.configure("json", "debug", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    restore()


@asynccontextmanager
async def running(controller: Controller[str]) -> AsyncIterator[asyncio.Task[None]]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(controller.run())
        yield task
        task.cancel()


class Reconciler:
    """Returns the given outcomes in turn, and then Done; remembers which key came when."""

    def __init__(self, clock: VirtualClock, *answers: object) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.calls: list[tuple[str, float]] = []

    @property
    def times(self) -> list[float]:
        return [round(at, 3) for _, at in self.calls]

    async def __call__(self, key: str) -> Outcome:
        self.calls.append((key, self.clock.monotonic()))
        answer = self.answers.pop(0) if self.answers else Done()
        if isinstance(answer, BaseException):
            raise answer
        return cast(Outcome, answer)


def total(metrics: Metrics, result: str) -> float | None:
    return metrics.value(
        "controller_runtime_reconcile_total", {"controller": NAME, "result": result}
    )


def results(metrics: Metrics) -> dict[str, float | None]:
    names = ("success", "error", "requeue", "requeue_after")
    return {name: value for name in names if (value := total(metrics, name)) != 0}


def errors(metrics: Metrics) -> float | None:
    return metrics.value("controller_runtime_reconcile_errors_total", {"controller": NAME})


async def test_shared_it_works_on_its_own_keys_within_what_is_put_around(
    clock: VirtualClock, metrics: Metrics
) -> None:
    reconcile, around = Reconciler(clock), []

    async def put(key: str, inner: Callable[[str], Awaitable[Outcome]]) -> Outcome:
        around.append(key)
        return await inner(key)

    controller = Controller[str](NAME, reconcile, clock=clock, metrics=metrics)
    controller.share(lambda key: key != "theirs", put)
    async with running(controller):
        controller.enqueue("theirs")
        controller.enqueue("ours")
        await clock.advance(1)
    assert [key for key, _ in reconcile.calls] == around == ["ours"]


async def test_done_is_not_asked_again(clock: VirtualClock, metrics: Metrics) -> None:
    reconcile = Reconciler(clock)
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    controller.enqueue("a")
    async with running(controller):
        await clock.advance(1000)
    assert reconcile.calls == [("a", 0)]
    assert results(metrics) == {"success": 1}


async def test_after_is_asked_again_in_time(clock: VirtualClock, metrics: Metrics) -> None:
    reconcile = Reconciler(clock, After(30), After(0.5))
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1000)
    assert reconcile.times == [0, 30, 30.5]
    assert results(metrics) == {"requeue_after": 2, "success": 1}


async def test_a_change_comes_before_the_time_of_after(clock: VirtualClock) -> None:
    reconcile = Reconciler(clock, After(30), Done())
    controller = Controller(NAME, reconcile, clock=clock)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(10)
        controller.enqueue("a")
        await clock.advance(1000)
    assert reconcile.times == [0, 10]


async def test_stuck_tells_the_hook_and_backs_off_from_a_second(
    clock: VirtualClock, metrics: Metrics
) -> None:
    stuck = Stuck("NameTaken", "pod x belongs to someone else")
    reconcile = Reconciler(clock, *[stuck] * 5)
    received: list[tuple[str, Stuck]] = []
    controller = Controller(
        NAME,
        reconcile,
        on_stuck=lambda key, problem: received.append((key, problem)),
        clock=clock,
        metrics=metrics,
    )
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1000)
    assert received == [("a", stuck)] * 5
    assert reconcile.times == [0, 1, 3, 7, 15, 31]
    assert results(metrics) == {"requeue": 5, "success": 1}
    assert errors(metrics) == 0


async def test_stuck_never_waits_longer_than_five_minutes(clock: VirtualClock) -> None:
    reconcile = Reconciler(clock, *[Stuck("NameTaken", "not ours")] * 12)
    controller = Controller(NAME, reconcile, clock=clock)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(7200)
    assert len(reconcile.calls) == 13
    assert reconcile.times[-1] - reconcile.times[-2] == 300


async def test_a_hook_may_be_a_coroutine_and_its_failure_is_an_error(
    clock: VirtualClock, metrics: Metrics
) -> None:
    reconcile = Reconciler(clock, Stuck("NameTaken", "not ours"), Stuck("NameTaken", "not ours"))
    received = 0

    async def hook(key: str, stuck: Stuck) -> None:
        nonlocal received
        await asyncio.sleep(0)
        received += 1
        if received == 1:
            raise NotFound("object is gone")

    controller = Controller(NAME, reconcile, on_stuck=hook, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(10)
    assert received == 2
    assert results(metrics) == {"error": 1, "requeue": 1, "success": 1}


async def test_errors_are_counted_and_backed_off(
    clock: VirtualClock, metrics: Metrics, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    reconcile = Reconciler(clock, NotFound("no such node"), KeyError("bug"), TimeoutError())
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(10)
    assert reconcile.times == [0, 0.005, 0.015, 0.035]
    assert results(metrics) == {"error": 3, "success": 1}
    assert errors(metrics) == 3
    known, unknown, late = lines()
    assert (known["level"], known["error"]) == ("warning", "no such node")
    assert "exception" not in known
    assert (known["retry_in_s"], known["failures"]) == (0.005, 1)
    assert unknown["level"] == "error"
    assert "KeyError" in unknown["exception"]
    assert (late["level"], late["error"]) == ("warning", "TimeoutError")


async def test_success_forgives_earlier_failures(clock: VirtualClock) -> None:
    reconcile = Reconciler(clock, ValueError(), Done(), ValueError(), Done())
    controller = Controller(NAME, reconcile, clock=clock)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1)
        controller.enqueue("a")
        await clock.advance(1)
    assert reconcile.times == [0, 0.005, 1, 1.005]


async def test_a_server_that_says_when_to_come_back_is_obeyed(clock: VirtualClock) -> None:
    reconcile = Reconciler(clock, TooManyRequests("slow down", retry_after_s=7))
    controller = Controller(NAME, reconcile, clock=clock)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(10)
    assert reconcile.times == [0, 7]


async def test_a_conflict_is_quiet(
    clock: VirtualClock, metrics: Metrics, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    reconcile = Reconciler(clock, Conflict("the object has been modified"))
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1)
    assert results(metrics) == {"requeue": 1, "success": 1}
    assert errors(metrics) == 0
    assert [line["level"] for line in lines()] == ["debug"]


async def test_a_broken_invariant_is_logged_with_its_evidence(
    clock: VirtualClock, metrics: Metrics, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    reconcile = Reconciler(clock, InvariantError("two pods for one UID", uid="u-1"))
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1)
    assert reconcile.times == [0, 0.005]
    (line,) = lines()
    assert line["level"] == "error"
    assert line["evidence"] == {"uid": "u-1"}


async def test_an_answer_that_is_no_outcome_is_a_bug(
    clock: VirtualClock, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    controller = Controller(NAME, Reconciler(clock, "yes"), clock=clock)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1)
    (line,) = lines()
    assert line["evidence"] == {"controller": NAME, "gave": "yes"}


async def test_every_line_of_a_reconcile_says_whose_it_is(
    clock: VirtualClock, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    log = logs.get_logger("test")

    async def reconcile(key: str) -> Outcome:
        log.info("Looked at key")
        await asyncio.sleep(0)
        log.info("Looked again")
        return Done()

    controller = Controller(NAME, reconcile, workers=2, clock=clock)
    async with running(controller):
        controller.enqueue("a")
        controller.enqueue("b")
        await clock.advance(1)
        log.info("Outside")
    *inside, outside = lines()
    assert "reconcile" not in outside
    assert {line["controller"] for line in inside} == {NAME}
    ids = {key: {x["reconcile"] for x in inside if x["key"] == key} for key in "ab"}
    assert len(ids["a"]) == len(ids["b"]) == 1
    assert ids["a"] != ids["b"]
    assert all(re.fullmatch("[0-9a-f]{8}", x["reconcile"]) for x in inside)


async def test_a_reconcile_over_its_deadline_is_cancelled_and_an_error(
    clock: VirtualClock, metrics: Metrics, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    ended: list[float] = []

    async def reconcile(key: str) -> Outcome:
        if ended:
            return Done()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.monotonic())
        raise AssertionError

    controller = Controller(NAME, reconcile, deadline_s=5, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(20)
    assert ended == [5]
    assert results(metrics) == {"error": 1, "success": 1}
    assert lines()[0]["error"] == "took longer than 5 s"


async def test_a_key_waits_while_the_cache_is_behind(clock: VirtualClock, metrics: Metrics) -> None:
    reconcile = Reconciler(clock)
    answers = [False, False, True]

    async def gate(key: str) -> bool:
        await asyncio.sleep(0)
        return answers.pop(0)

    controller = Controller(NAME, reconcile, gate=gate, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a", priority=3)
        await clock.advance(10)
    assert reconcile.times == [2]
    assert results(metrics) == {"success": 1}


async def test_a_failing_gate_is_an_error(clock: VirtualClock, metrics: Metrics) -> None:
    reconcile = Reconciler(clock)
    failures = [ValueError("cannot tell")]

    async def gate(key: str) -> bool:
        if failures:
            raise failures.pop()
        return True

    controller = Controller(NAME, reconcile, gate=gate, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(10)
    assert results(metrics) == {"error": 1, "success": 1}


async def test_keys_of_others_are_dropped_when_their_turn_comes(
    clock: VirtualClock, metrics: Metrics
) -> None:
    reconcile = Reconciler(clock, ValueError("failed once"))
    ours = {"a", "b"}
    controller = Controller(
        NAME, reconcile, owns=lambda key: key in ours, clock=clock, metrics=metrics
    )
    async with running(controller):
        controller.enqueue("a")
        controller.enqueue("x")
        await clock.advance(0)
        ours.remove("a")
        await clock.advance(10)
        controller.enqueue("b")
        await clock.advance(10)
    assert [key for key, _ in reconcile.calls] == ["a", "b"]
    assert controller.queue.failures("a") == 0
    assert results(metrics) == {"error": 1, "success": 1}


async def test_workers_run_side_by_side_but_never_on_one_key(
    clock: VirtualClock, metrics: Metrics
) -> None:
    running_now: list[str] = []
    most = 0

    async def reconcile(key: str) -> Outcome:
        nonlocal most
        assert key not in running_now
        running_now.append(key)
        most = max(most, len(running_now))
        active = metrics.value("controller_runtime_active_workers", {"controller": NAME})
        assert active == len(running_now)
        await clock.sleep(1)
        running_now.remove(key)
        return Done()

    controller = Controller(NAME, reconcile, workers=3, clock=clock, metrics=metrics)
    async with running(controller):
        for _ in range(4):
            for key in "abcde":
                controller.enqueue(key)
            await clock.advance(0.5)
        await clock.advance(20)
    assert most == 3
    assert errors(metrics) == 0
    assert metrics.value("controller_runtime_active_workers", {"controller": NAME}) == 0


async def test_reconciles_that_never_wait_let_others_run(clock: VirtualClock) -> None:
    async def reconcile(key: str) -> Outcome:
        controller.enqueue(key)
        return Done()

    controller = Controller(NAME, reconcile, clock=clock)
    controller.enqueue("a")
    async with running(controller):
        for _ in range(100):
            await asyncio.sleep(0)


async def test_stop_takes_no_more_keys_and_lets_running_reconciles_end(
    clock: VirtualClock,
) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> Outcome:
        await clock.sleep(3)
        seen.append(key)
        return Done()

    controller = Controller(NAME, reconcile, workers=2, drain_s=5, clock=clock)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(controller.run())
        await clock.advance(0)  # both workers wait
        controller.enqueue("a")
        await clock.advance(1)
        stop = group.create_task(controller.stop())
        await clock.advance(0)
        controller.enqueue("b")
        await clock.advance(1)
        assert not stop.done()
        await clock.advance(1)
        assert run.done() and stop.done()
    assert seen == ["a"]
    assert len(controller.queue) == 1


async def test_stop_cancels_what_does_not_end_in_time_and_keeps_its_key(
    clock: VirtualClock, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    ended: list[float] = []

    async def reconcile(key: str) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            await clock.sleep(1)
            ended.append(clock.monotonic())
        raise AssertionError

    controller = Controller(NAME, reconcile, drain_s=5, clock=clock)
    controller.enqueue("a", priority=2)
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await clock.advance(1)
        stop = group.create_task(controller.stop())
        await clock.advance(5)
        assert not stop.done()
        await clock.advance(1)
        assert stop.done()
    assert ended == [7]
    assert lines()[0]["running"] == 1
    assert await controller.queue.get() == "a"
    assert controller.queue.priority("a") == 2


async def test_stop_of_a_controller_that_does_not_run_is_nothing(clock: VirtualClock) -> None:
    reconcile = Reconciler(clock)
    controller = Controller(NAME, reconcile, clock=clock)
    await controller.stop()
    controller.enqueue("a")
    async with running(controller):
        await clock.advance(1)
    assert reconcile.times == [0]


async def test_cancellation_ends_reconciles_at_once_and_the_next_run_does_them_again(
    clock: VirtualClock, metrics: Metrics
) -> None:
    begun: list[float] = []

    async def reconcile(key: str) -> Outcome:
        begun.append(clock.monotonic())
        if len(begun) == 1:
            await asyncio.Event().wait()
        return Done()

    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    controller.enqueue("a")
    async with running(controller):
        await clock.advance(1)
    async with running(controller):
        await clock.advance(1)
    assert begun == [0, 1]
    assert results(metrics) == {"success": 1}
    assert metrics.value("workqueue_unfinished_work_seconds", {"name": NAME}) == 0


async def test_a_swallowed_cancellation_still_ends_the_worker(clock: VirtualClock) -> None:
    async def reconcile(key: str) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            controller.enqueue("b")
        return Done()

    controller = Controller(NAME, reconcile, clock=clock)
    controller.enqueue("a")
    async with running(controller):
        await clock.advance(1)
    assert len(controller.queue) == 1


async def test_a_cancelled_future_under_a_reconcile_does_not_kill_the_worker(
    clock: VirtualClock, metrics: Metrics
) -> None:
    reconcile = Reconciler(clock, asyncio.CancelledError())
    controller = Controller(NAME, reconcile, clock=clock, metrics=metrics)
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(1)
    assert reconcile.times == [0, 0.005]
    assert results(metrics) == {"error": 1, "success": 1}


async def test_closing_the_queue_ends_the_controller(clock: VirtualClock) -> None:
    queue = WorkQueue[str]("shared", clock=clock)
    controller = Controller(NAME, Reconciler(clock), queue=queue, workers=3, clock=clock)
    assert controller.queue is queue
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await clock.advance(1)
        queue.close()


async def test_a_controller_runs_once_at_a_time(clock: VirtualClock) -> None:
    controller = Controller(NAME, Reconciler(clock), clock=clock)
    async with running(controller):
        await clock.advance(0)
        with pytest.raises(InvariantError, match="is already running"):
            await controller.run()


def test_a_controller_without_workers_is_refused(clock: VirtualClock) -> None:
    with pytest.raises(ConfigError, match="workers"):
        Controller(NAME, Reconciler(clock), workers=0)


async def test_metrics_have_the_usual_names_and_start_at_zero(
    clock: VirtualClock, metrics: Metrics
) -> None:
    async def reconcile(key: str) -> Outcome:
        await clock.sleep(2)
        return Done()

    controller = Controller(NAME, reconcile, workers=4, clock=clock, metrics=metrics)
    for result in ("success", "error", "requeue", "requeue_after"):
        assert total(metrics, result) == 0
    label = {"controller": NAME}
    assert errors(metrics) == 0
    assert metrics.value("controller_runtime_active_workers", label) == 0
    assert metrics.value("controller_runtime_max_concurrent_reconciles", label) == 4
    assert metrics.value("controller_runtime_reconcile_time_seconds_count", label) == 0
    assert metrics.value("workqueue_depth", {"name": NAME}) == 0
    async with running(controller):
        controller.enqueue("a")
        await clock.advance(5)
    assert metrics.value("controller_runtime_reconcile_time_seconds_sum", label) == 2
