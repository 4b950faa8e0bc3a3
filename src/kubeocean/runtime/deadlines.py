"""Deadlines: a limit in the time of a `Clock`.

`asyncio.timeout` measures with the event loop's clock, which no test can move. `within` measures
with ours. When it returns or raises, the work has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kubeocean.runtime.clock import Clock

__all__ = ["within"]

_T = TypeVar("_T")
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed


async def within(clock: Clock, seconds: float, work: Callable[[], Awaitable[_T]]) -> _T:
    """What `work` gives; it is cancelled, awaited and answered with TimeoutError at the limit."""
    result: _T
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        # The group would wrap an error of the work, so the error is carried around it.
        try:
            async with asyncio.timeout(None) as limit:
                alarm = group.create_task(_expire(clock, seconds, limit))
                try:
                    result = await work()
                finally:
                    alarm.cancel()
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            failure = TimeoutError(f"took longer than {seconds:g} s") if late else error
    if failure is not None:
        raise failure
    return result


async def _expire(clock: Clock, seconds: float, limit: asyncio.Timeout) -> None:
    await clock.sleep(seconds)
    # The limit still stands: `within` cancels this task before it leaves the limit's context.
    limit.reschedule(_NOW)
