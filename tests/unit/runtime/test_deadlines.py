"""Limits in the time of a clock that a test moves."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.errors import NotFound
from kubeocean.runtime.clock import VirtualClock, within


async def test_work_that_ends_in_time_gives_its_result() -> None:
    clock = VirtualClock()

    async def work() -> str:
        await clock.sleep(9)
        return "done"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(within(clock, 10, work))
        await clock.advance(9)
        assert task.done()
        assert task.result() == "done"


async def test_work_that_takes_too_long_has_ended_when_the_timeout_is_raised() -> None:
    clock = VirtualClock()
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await clock.sleep(1)  # time for cleaning up, which the caller waits for
            ended = True

    async with asyncio.TaskGroup() as group:
        task = group.create_task(_times_out(clock, 10, work))
        await clock.advance(10)
        assert not task.done()
        await clock.advance(1)
        assert ended
        assert await task == "took longer than 10 s"


async def _times_out(clock: VirtualClock, seconds: float, work: object) -> str:
    assert callable(work)
    try:
        await within(clock, seconds, work)
    except TimeoutError as error:
        return str(error)
    return ""


async def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise NotFound("no such pod")

    with pytest.raises(NotFound, match="no such pod"):
        await within(VirtualClock(), 10, work)


async def test_a_timeout_of_the_work_itself_keeps_its_own_words() -> None:
    async def work() -> None:
        raise TimeoutError("the other side is slow")

    with pytest.raises(TimeoutError, match="the other side is slow"):
        await within(VirtualClock(), 10, work)


async def test_an_error_after_the_limit_is_more_telling_than_the_limit() -> None:
    clock = VirtualClock()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise NotFound("could not clean up")

    async def fails() -> None:
        with pytest.raises(NotFound, match="could not clean up"):
            await within(clock, 10, work)

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await clock.advance(10)


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    clock = VirtualClock()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(within(clock, 10, work))
        await clock.advance(1)
        task.cancel()
        await ended.wait()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_a_cancelled_future_under_the_work_is_no_timeout() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()

    async def work() -> None:
        await future

    with pytest.raises(asyncio.CancelledError):
        await within(VirtualClock(), 10, work)
