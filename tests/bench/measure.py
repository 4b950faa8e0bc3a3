"""Measuring: CPU and memory of this process or another, and the longest stall of a loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

__all__ = ["Stalls", "cpu_s_of", "cpu_us", "peak_mib_of", "resident", "resident_mib_of", "scrape"]


async def cpu_us(work: Callable[[], Awaitable[int]], *, rounds: int) -> float:
    """Return the CPU microseconds of one unit of `work`, which returns its number of units; the
    best round counts."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        units = await work()
        best = min(best, (time.process_time() - began) / units * 1e6)
    return best


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds that another process has used so far, its threads included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_mib_of(pid: int) -> float:
    """Return the peak memory of another process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    actual = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert actual is not None
    return int(actual[1]) / 1024


def resident_mib_of(pid: int) -> float:
    """Return the memory that another process holds."""
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


async def scrape(url: str, pid: int) -> dict[str, float]:
    """Return the CPU time that a process needs to render its metrics."""
    before = cpu_s_of(pid)
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    series = sum(not line.startswith("#") for line in lines)
    return {"scrape_cpu_s": cpu_s_of(pid) - before, "scrape_series": series}


class Stalls:
    """Longest delay of a 5 ms heartbeat of the event loop."""

    BEAT_S = 0.005

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0  # CPU of this process in that time, without other processes

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            expected, spent = loop.time() + self.BEAT_S, time.process_time()
            await asyncio.sleep(self.BEAT_S)
            self.longest_s = max(self.longest_s, loop.time() - expected)
            self.longest_cpu_s = max(self.longest_cpu_s, time.process_time() - spent)
