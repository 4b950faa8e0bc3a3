"""Times of changes in a fleet: until a placement's status shows them, and whether it then stays.

    times = ChangeTimes(hub)
    async with running(times):
        await times.measure("scale", key, act, is_shown)   # fails if it never shows
        await times.stays(key, is_shown, read_objects)     # fails if anything changes
        times.check()                                      # fails if a change took too long

A machine that runs other things as well takes longer for the same work. A limit is therefore
multiplied by the number of runnable threads per processor while the change was under way, if that
is more than 1: with six threads for two processors, each of them gets a third of the time that it
could use.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Json, Key
from support.wait import until

__all__ = ["ChangeTimes", "Measured"]

STABLE_S = 15.0
_POLL_S = 0.1
_LOAD_POLL_S = 0.2
_PATIENCE_S = 240.0  # after which a change never shows; no limit of any change
_LOAD = Path("/proc/loadavg")
# A member reports an open drift again and again; the time of the last observation is all that moves
_MOVING = "observationTime"


@dataclass(frozen=True, slots=True)
class Measured:
    """How long a change took, and how many runnable threads each processor had meanwhile."""

    name: str
    seconds: float
    limit_s: float
    load: float

    @property
    def is_late(self) -> bool:
        return self.seconds > self.limit_s * max(1.0, self.load)

    def __str__(self) -> str:
        return f"{self.name:48} {self.seconds:6.2f} s of {self.limit_s:2g} s, load {self.load:.1f}"


class ChangeTimes:
    """Measures changes of ClusterResourcePlacements; `run` follows their statuses and the load."""

    def __init__(self, hub: Client) -> None:
        self.measured: list[Measured] = []
        self._placements: Informer[Placement] = Informer(hub, CLUSTER.placements)
        self._placements.on_change(self._record)
        self._statuses: dict[Key, list[Json]] = {}
        self._loads: list[tuple[float, float]] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._placements.run())
            while True:
                runnable = int(_LOAD.read_text().split()[3].partition("/")[0])
                self._loads.append((time.monotonic(), runnable / (os.cpu_count() or 1)))
                await asyncio.sleep(_LOAD_POLL_S)

    def _record(self, old: Placement | None, new: Placement | None) -> None:
        if new is None:
            return
        statuses = self._statuses.setdefault(new.key, [])
        status = _without_times(document(new.status))
        if not statuses or statuses[-1] != status:
            statuses.append(status)

    async def measure(
        self,
        name: str,
        placement: Key,
        change: Callable[[], Awaitable[Any]],
        is_shown: Callable[[Placement | None], Awaitable[None]],
        *,
        limit_s: float,
    ) -> None:
        """Make a change and wait until `is_shown` no longer fails for the placement."""
        began = time.monotonic()
        await change()

        async def shown() -> bool:
            await is_shown(self._placements.get(placement))
            return True

        await until(shown, within=_PATIENCE_S, every=_POLL_S, waiting_for=name)
        ended = time.monotonic()
        loads = [load for at, load in self._loads if at >= began] or [0.0]
        self.measured.append(Measured(name, ended - began, limit_s, fmean(loads)))

    async def stays(
        self,
        placement: Key,
        is_shown: Callable[[Placement | None], Awaitable[None]],
        read: Callable[[], Awaitable[Any]],
    ) -> None:
        """Check for a while that neither the status nor the result of `read` changes."""
        statuses = self._statuses[placement]
        count, before = len(statuses), await read()
        await asyncio.sleep(STABLE_S)
        assert statuses[count - 1 :] == [statuses[count - 1]], "the status has changed"
        assert await read() == before
        await is_shown(self._placements.get(placement))

    def check(self) -> None:
        """Print all times, and fail if one exceeds its limit."""
        table = "\n".join(map(str, self.measured))
        print(table)
        late = [each.name for each in self.measured if each.is_late]
        assert not late, f"late: {', '.join(late)}\n{table}"


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_times(value) for name, value in content.items() if name != _MOVING}
    if isinstance(content, list):
        return [_without_times(each) for each in content]
    return content
