"""The work queue, by hand and against a naive model."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeocean.errors import InvariantError
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.workqueue import QueueClosed, WorkQueue


@asynccontextmanager
async def running(queue: WorkQueue[str]) -> AsyncIterator[None]:
    """Run the queue's timer until the block ends."""
    async with asyncio.TaskGroup() as group:
        timer = group.create_task(queue.run())
        yield
        timer.cancel()


async def take(queue: WorkQueue[str]) -> str:
    """Return the next key, which must be there already."""
    assert len(queue) > 0
    return await queue.get()


async def take_all(queue: WorkQueue[str]) -> list[str]:
    return [await take(queue) for _ in range(len(queue))]


async def test_keys_come_out_in_the_order_in_which_they_went_in() -> None:
    queue = WorkQueue[str]()
    for key in "cab":
        queue.add(key)
    assert await take_all(queue) == ["c", "a", "b"]


async def test_a_key_added_many_times_comes_out_once() -> None:
    queue = WorkQueue[str]()
    for _ in range(5):
        queue.add("a")
    assert await take_all(queue) == ["a"]


async def test_a_key_added_while_in_work_comes_again_only_after_done() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    await take(queue)
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await take_all(queue) == ["a"]
    queue.done("a")
    assert len(queue) == 0


async def test_done_without_get_is_a_bug() -> None:
    queue = WorkQueue[str]("pods")
    with pytest.raises(InvariantError, match=r"queue='pods', key='a'"):
        queue.done("a")


async def test_higher_priorities_come_first_and_in_order() -> None:
    queue = WorkQueue[str]()
    queue.add("low", priority=-10)
    queue.add("normal")
    queue.add("high", priority=5)
    queue.add("high too", priority=5)
    assert await take_all(queue) == ["high", "high too", "normal", "low"]


async def test_a_waiting_key_is_raised_and_never_lowered() -> None:
    queue = WorkQueue[str]()
    queue.add("a", priority=-1)
    queue.add("b")
    queue.add("a", priority=7)
    queue.add("a", priority=-7)
    assert await take_all(queue) == ["a", "b"]
    assert queue.priority("a") == 7
    assert queue.priority("nobody") == 0


async def test_a_key_in_work_is_raised_for_its_next_turn() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    await take(queue)
    queue.add("a")
    queue.add("a", priority=3)
    queue.add("b")
    queue.done("a")
    assert await take_all(queue) == ["a", "b"]


async def test_a_delayed_key_comes_when_its_time_has_come() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add_after("later", 10)
        queue.add_after("sooner", 5)
        await clock.advance(4.9)
        assert len(queue) == 0
        await clock.advance(0.2)
        assert await take_all(queue) == ["sooner"]
        await clock.advance(5)
        assert await take_all(queue) == ["later"]


async def test_delays_given_before_the_timer_runs_are_kept() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    queue.add_after("a", 1)
    await clock.advance(5)
    async with running(queue):
        await clock.advance(0)
        assert await take_all(queue) == ["a"]


async def test_the_shorter_delay_counts() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add_after("a", 10)
        queue.add_after("a", 1)
        queue.add_after("a", 100, priority=9)
        await clock.advance(1)
        assert await take_all(queue) == ["a"]
        assert queue.priority("a") == 9
        queue.done("a")
        await clock.advance(1000)
        assert len(queue) == 0


async def test_an_immediate_add_ends_a_delay() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add_after("a", 10, priority=4)
        queue.add("a")
        assert await take_all(queue) == ["a"]
        assert queue.priority("a") == 4
        queue.done("a")
        await clock.advance(20)
        assert len(queue) == 0


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_delay_is_now(seconds: float) -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", seconds)
    assert await take_all(queue) == ["a"]


async def test_a_delay_is_no_news_for_a_key_that_waits() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add("a")
        queue.add_after("a", 10)
        assert await take(queue) == "a"
        queue.add("a")
        queue.add_after("a", 10)
        queue.done("a")
        assert await take(queue) == "a"
        queue.done("a")
        await clock.advance(20)
        assert len(queue) == 0


async def test_a_delay_that_ends_while_the_key_is_in_work_waits_for_done() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add("a")
        await take(queue)
        queue.add_after("a", 1)
        await clock.advance(2)
        assert len(queue) == 0
        queue.done("a")
        assert await take_all(queue) == ["a"]


async def test_backoff_doubles_to_five_minutes_and_forget_starts_it_over() -> None:
    queue = WorkQueue[str]()
    delays = [queue.retry("a") for _ in range(18)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[-2:] == [300, 300]
    assert queue.failures("a") == 18
    assert queue.retry("b") == 0.005
    queue.forget("a")
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 0.005
    assert queue.retry("a", at_least=7) == 7
    for _ in range(5000):
        assert queue.retry("a") <= 300


async def test_a_retried_key_comes_back_with_the_priority_that_it_had() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        queue.add("a", priority=-5)
        await take(queue)
        queue.retry("a")
        queue.done("a")
        await clock.advance(1)
        assert await take_all(queue) == ["a"]
        assert queue.priority("a") == -5


async def test_waiting_consumers_get_one_key_each() -> None:
    queue = WorkQueue[str]()
    async with asyncio.TaskGroup() as group:
        consumers = [group.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in "abc":
            queue.add(key)
    assert [consumer.result() for consumer in consumers] == ["a", "b", "c"]


async def test_a_cancelled_consumer_loses_no_key() -> None:
    queue = WorkQueue[str]()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(queue.get())
        second = group.create_task(queue.get())
        third = group.create_task(queue.get())
        await asyncio.sleep(0)
        third.cancel()
        queue.add("a")  # wakes the first, which is cancelled before it runs
        first.cancel()
        assert await second == "a"
        await asyncio.sleep(0)
        queue.add("b")
        assert await queue.get() == "b"


async def test_a_consumer_that_is_cancelled_while_it_waits_leaves_the_line() -> None:
    queue = WorkQueue[str]()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(queue.get())
        second = group.create_task(queue.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        queue.add("a")
        assert await second == "a"


async def test_a_dead_consumer_is_passed_over() -> None:
    queue = WorkQueue[str]()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(queue.get())
        second = group.create_task(queue.get())
        await asyncio.sleep(0)
        first.cancel()  # its future is cancelled, and its task has not run since
        queue.add("a")
        assert await second == "a"


async def test_close_drops_what_waits_and_ends_consumers() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str]("pods", clock=clock)
    async with asyncio.TaskGroup() as group:
        timer = group.create_task(queue.run())
        queue.add("held")
        await take(queue)
        queue.add("held")
        blocked = group.create_task(_ends(queue))
        await asyncio.sleep(0)
        queue.add_after("later", 1)
        queue.close()
        assert await blocked
        await timer
    queue.add("a")
    queue.add_after("a", 5)
    queue.add_after("a", 0)
    assert queue.retry("a") == 0.005
    assert queue.failures("a") == 0
    queue.done("held")
    assert len(queue) == 0
    with pytest.raises(QueueClosed, match="'pods'"):
        await queue.get()
    await queue.drain()


async def _ends(queue: WorkQueue[str]) -> bool:
    try:
        await queue.get()
    except QueueClosed:
        return True
    return False


async def test_drain_ends_when_all_that_waited_is_done() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    queue.add("b", priority=1)
    assert await take(queue) == "b"
    queue.add("b")
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(queue.drain())
        await asyncio.sleep(0)
        queue.add("late")
        queue.done("b")
        assert await take_all(queue) == ["a", "b"]
        queue.done("a")
        await asyncio.sleep(0)
        assert not draining.done()
        queue.done("b")
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_drain_of_a_quiet_queue_ends_at_once() -> None:
    queue = WorkQueue[str]()
    await queue.drain()
    queue.close()


async def test_close_ends_a_drain() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.drain())
        await asyncio.sleep(0)
        queue.close()


async def test_dead_timers_are_not_kept() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    for turn in range(10_000):
        queue.add_after("a", 10_000 - turn)
        queue.add_after("b", 5)
        queue.add("b")
    assert len(queue._timers) < 100
    async with running(queue):
        await clock.advance(2)
        assert sorted(await take_all(queue)) == ["a", "b"]


async def test_vanished_keys_leave_nothing_behind() -> None:
    clock = VirtualClock()
    queue = WorkQueue[str](clock=clock)
    async with running(queue):
        for number in range(1000):
            key = f"pod-{number}"
            queue.add(key, priority=number % 7)
            await take(queue)
            queue.retry(key)
            queue.done(key)
        await clock.advance(1)
        for _ in range(len(queue)):
            key = await take(queue)
            queue.forget(key)
            queue.done(key)
    kept = (queue._ready, queue._processing, queue._again, queue._delayed, queue._failures)
    assert not any(kept)
    assert queue._order == [0]
    assert len(queue._timers) == 0


async def test_metrics_have_the_usual_names_and_start_at_zero() -> None:
    clock = VirtualClock()
    metrics = Metrics()
    queue = WorkQueue[str]("pods", clock=clock, metrics=metrics)
    names = (
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
        "workqueue_retries_total",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    )

    def values() -> list[float | None]:
        return [metrics.value(name, {"name": "pods"}) for name in names]

    assert values() == [0] * 7
    queue.add("a")
    queue.add("a")
    queue.add("b")
    queue.add("c")
    await clock.advance(2)
    await take(queue)
    await clock.advance(3)
    await take(queue)
    await clock.advance(1)
    queue.add("a")
    assert values() == [1, 4, 2, 0, 0, 5, 4]
    queue.retry("b")
    queue.done("b")
    assert values() == [1, 4, 2, 1, 1, 4, 4]
    waited = metrics.value("workqueue_queue_duration_seconds_sum", {"name": "pods"})
    worked = metrics.value("workqueue_work_duration_seconds_sum", {"name": "pods"})
    assert (waited, worked) == (2 + 5, 1)
    del queue
    gc.collect()
    assert values()[0] == 0


@pytest.mark.parametrize("raised", [0, 5])
async def test_a_key_added_while_it_is_processed_waits_from_that_moment(raised: int) -> None:
    clock = VirtualClock()
    metrics = Metrics()
    queue = WorkQueue[str]("pods", clock=clock, metrics=metrics)
    queue.add("a")
    await take(queue)
    await clock.advance(10)
    queue.add("a")
    await clock.advance(3)
    queue.add("a", priority=raised)
    await clock.advance(2)
    queue.done("a")
    await clock.advance(1)
    await take(queue)
    assert queue.priority("a") == raised
    assert metrics.value("workqueue_queue_duration_seconds_sum", {"name": "pods"}) == 3 + 2 + 1


@pytest.mark.parametrize("raised", [0, 5])
async def test_a_waiting_key_of_raised_priority_waits_since_it_was_first_added(raised: int) -> None:
    clock = VirtualClock()
    metrics = Metrics()
    queue = WorkQueue[str]("pods", clock=clock, metrics=metrics)
    queue.add("a")
    await clock.advance(4)
    queue.add("a", priority=raised)
    await clock.advance(1)
    await take(queue)
    assert metrics.value("workqueue_queue_duration_seconds_sum", {"name": "pods"}) == 4 + 1


@dataclass
class Model:
    """The same promises, as slow and as plain as they can be written."""

    clock: VirtualClock
    order: int = 0
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)  # -> (-priority, order)
    working: dict[str, int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    delayed: dict[str, tuple[float, int]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, priority: int) -> None:
        if key in self.delayed:
            priority = max(priority, self.delayed.pop(key)[1])
        if key in self.working:
            self.again[key] = max(priority, self.again.get(key, priority))
        elif key not in self.waiting or -priority < self.waiting[key][0]:
            self.order += 1
            self.waiting[key] = (-priority, self.order)

    def add_after(self, key: str, seconds: float, priority: int) -> None:
        if key in self.waiting or key in self.again:
            self.add(key, priority)
            return
        due, before = self.delayed.get(key, (float("inf"), priority))
        self.delayed[key] = (min(due, self.clock.monotonic() + seconds), max(before, priority))

    def retry(self, key: str) -> float:
        self.failures[key] = self.failures.get(key, 0) + 1
        delay = float(min(0.005 * 2 ** (self.failures[key] - 1), 300.0))
        self.add_after(key, delay, self.working.get(key, 0))
        return delay

    def get(self) -> str:
        key = min(self.waiting, key=lambda k: self.waiting[k])
        self.working[key] = -self.waiting.pop(key)[0]
        return key

    def done(self, key: str) -> None:
        del self.working[key]
        if key in self.again:
            self.add(key, self.again.pop(key))

    def pass_delays(self) -> None:
        now = self.clock.monotonic()
        # Keys that are due in one step become ready in the order of their deadlines.
        for key, (due, priority) in sorted(self.delayed.items(), key=lambda item: item[1][0]):
            if due <= now:
                self.add(key, priority)


KEYS = st.sampled_from("abcd")
PRIORITIES = st.integers(-1, 1)
DELAYS = st.sampled_from([0.0137, 0.113, 1.0009, 17.0011])


class WorkQueueMachine(RuleBasedStateMachine):
    """Every rule is done to the queue and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.model = Model(self.clock)
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.queue = WorkQueue[str](clock=self.clock)
        self.timer = self.runner.get_loop().create_task(self.queue.run())

    def teardown(self) -> None:
        self.queue.close()
        self.runner.run(asyncio.wait_for(self.timer, 5))
        self.runner.close()

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key: str, priority: int) -> None:
        self.queue.add(key, priority=priority)
        self.model.add(key, priority)

    @rule(key=KEYS, seconds=DELAYS, priority=PRIORITIES)
    def add_after(self, key: str, seconds: float, priority: int) -> None:
        self._tick()
        self.queue.add_after(key, seconds, priority=priority)
        self.model.add_after(key, seconds, priority)

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        self._tick()
        assert self.queue.retry(key) == self.model.retry(key)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.model.failures.pop(key, None)

    @precondition(lambda self: self.model.waiting)
    @rule()
    def get(self) -> None:
        assert self.runner.run(self.queue.get()) == self.model.get()

    @precondition(lambda self: self.model.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.working)))
        self.queue.done(key)
        self.model.done(key)

    @rule(seconds=st.sampled_from([0.01, 0.5, 5.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))
        self.model.pass_delays()

    def _tick(self) -> None:
        # A little time between two delays keeps their deadlines, and so their order, apart.
        self.runner.run(self.clock.advance(0.00001))
        self.model.pass_delays()

    @invariant()
    def they_agree(self) -> None:
        assert len(self.queue) == len(self.model.waiting)
        for key in "abcd":
            assert self.queue.failures(key) == self.model.failures.get(key, 0)
            assert self.queue.priority(key) == self.model.working.get(key, 0)


TestWorkQueueMachine = WorkQueueMachine.TestCase
TestWorkQueueMachine.settings = settings(stateful_step_count=40)
