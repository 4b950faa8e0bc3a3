"""Clocks, deadlines on a clock, the local time zone, and Kubernetes' time format.

All code that waits or measures takes a `Clock`. `RealClock` reads the machine's clock;
`VirtualClock` advances only by a test's `advance`, and then wakes sleepers in the order of their
deadlines. Durations are measured with `monotonic`, which an administrator cannot set; `now` is for
calendars and for times shown to users.

`within` bounds a coroutine in the time of a `Clock`. (`asyncio.timeout` uses the event loop's
clock, which a test cannot advance.) When `within` returns or raises, the coroutine has ended.

`local_zone` finds the time zone as Go programs do: TZ names a zone of the tz database or a zone
file; an empty TZ is UTC; without TZ, /etc/localtime decides, or UTC if that does not exist.
Unlike Go, a TZ that is neither is an error: UTC instead would lend and reclaim nodes at the wrong
hour.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final, Protocol, TypeVar, overload
from zoneinfo import ZoneInfo

from kubeocean.errors import ConfigError, InvariantError

__all__ = [
    "LOCALTIME",
    "Clock",
    "RealClock",
    "VirtualClock",
    "ceil_second",
    "instant_of",
    "local_zone",
    "text_of",
    "within",
]


class Clock(Protocol):
    """Source of time: wall-clock time, monotonic time and sleep."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed instant; never decreases."""

    def now(self) -> datetime:
        """Return the time of the wall clock, aware, in UTC."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of this clock."""


class RealClock:
    """Clock of the machine."""

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """Clock of tests, which stands still until `advance`.

    After each passed deadline the event loop runs until no task is ready any more, so that tasks
    and sleeps which a sleeper starts are part of the same `advance`.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Advance the time and wake every sleeper whose deadline passes."""
        if seconds < 0:
            raise InvariantError("a virtual clock cannot be set back", seconds=seconds)
        await _settle()
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, wake = heapq.heappop(self._sleepers)
            if wake.cancelled():
                continue
            self._elapsed = max(self._elapsed, deadline)
            wake.set_result(None)
            await _settle()
        self._elapsed = max(
            self._elapsed, target
        )  # another task may have advanced the clock meanwhile
        await _settle()


_SETTLE_TURNS = 50  # longer than any chain of callbacks between two sleeps


async def _settle() -> None:
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)


_T = TypeVar("_T")
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed


async def within(clock: Clock, seconds: float, work: Callable[[], Awaitable[_T]]) -> _T:
    """Return the result of `work`; at the time limit, cancel and await `work`, then raise
    TimeoutError."""
    result: _T
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        # The group would wrap an error of the work, so the error is carried around the group.
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
    # The limit still stands: `within` cancels this task before leaving the limit's context.
    limit.reschedule(_NOW)


LOCALTIME: Final = Path("/etc/localtime")


def local_zone(environ: Mapping[str, str] = os.environ, *, localtime: Path = LOCALTIME) -> tzinfo:
    """Return the local time zone, named after its entry in the tz database or its file.

    :raises ConfigError: TZ is neither a zone nor a zone file.
    """
    setting = environ.get("TZ")
    if setting is None:
        return _read(str(localtime), str(localtime)) if localtime.exists() else UTC
    name = setting.removeprefix(":")
    return _read(name, "TZ") if name else UTC


def _read(name: str, source: str) -> tzinfo:
    try:
        if not name.startswith("/"):
            return ZoneInfo(name)
        with open(name, "rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (KeyError, ValueError, OSError):  # no such name, no such form, no such file
        raise ConfigError(
            "is not a time zone such as Europe/Berlin", source=source, value=name
        ) from None


@overload
def instant_of(text: str) -> datetime: ...
@overload
def instant_of(text: str | None) -> datetime | None: ...
def instant_of(text: str | None) -> datetime | None:
    """Parse a time in Kubernetes' format; None and an empty text yield None."""
    return datetime.fromisoformat(text) if text else None


@overload
def text_of(instant: datetime) -> str: ...
@overload
def text_of(instant: datetime | None) -> str | None: ...
def text_of(instant: datetime | None) -> str | None:
    """Format a time as Kubernetes does, in whole seconds; None yields None."""
    return None if instant is None else f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def ceil_second(instant: datetime) -> datetime:
    """Round a time up to a whole second, so that a promised time span is never shortened."""
    whole = instant.astimezone(UTC).replace(microsecond=0)
    return whole if instant == whole else whole + timedelta(seconds=1)
