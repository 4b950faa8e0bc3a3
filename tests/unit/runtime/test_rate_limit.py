from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.retries import TokenBucket


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="qps: must be positive"):
        TokenBucket(rate, 1, clock=VirtualClock())


def test_a_burst_must_be_at_least_one() -> None:
    with pytest.raises(ConfigError, match="burst: must be at least 1"):
        TokenBucket(1, 0, clock=VirtualClock())


async def passing(bucket: TokenBucket, clock: VirtualClock, callers: int) -> list[float]:
    """Return when each call was let through."""
    times: list[float] = []

    async def call() -> None:
        await bucket.take()
        times.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())
        group.create_task(clock.advance(1000))
    return times


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate() -> None:
    clock = VirtualClock()
    times = await passing(TokenBucket(4, 3, clock=clock), clock, 7)
    assert times == [0, 0, 0, 0.25, 0.5, 0.75, 1.0]


async def test_a_pause_saves_no_more_than_a_burst() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 2, clock=clock)
    await passing(bucket, clock, 5)  # and a thousand seconds of rest
    began = clock.monotonic()
    times = await passing(bucket, clock, 4)
    assert [at - began for at in times] == [0, 0, 1, 2]


async def test_callers_go_in_the_order_they_came() -> None:
    clock, order = VirtualClock(), []
    bucket = TokenBucket(1, 1, clock=clock)

    async def call(name: int) -> None:
        await bucket.take()
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name in range(10):
            group.create_task(call(name))
        group.create_task(clock.advance(20))
    assert order == list(range(10))


async def test_who_gives_up_gives_back() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1, 1, clock=clock)
    await bucket.take()
    waiting = [asyncio.create_task(bucket.take()) for _ in range(100)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert await passing(bucket, clock, 2) == [1, 2]


@given(
    st.integers(1, 50),
    st.integers(1, 5),
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
)
async def test_no_second_ever_sees_more_than_the_rate_and_a_burst(
    rate: int, burst: int, pauses: list[int]
) -> None:
    clock = VirtualClock()
    bucket = TokenBucket(rate, burst, clock=clock)
    times: list[float] = []

    async def call() -> None:
        await bucket.take()
        times.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        for pause in pauses:
            group.create_task(call())
            await clock.advance(pause / 100)
        await clock.advance(100)
    assert len(times) == len(pauses)
    for begin in times:
        within = sum(begin <= at < begin + 1 - 1e-9 for at in times)
        assert within <= rate + burst
