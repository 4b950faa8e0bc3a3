"""Locks: one process at a time, by a file.

The kernel holds the lock and drops it when its holder ends, however it ends: nothing is ever stale.
The file itself stays; removing it would let two holders lock two files of one name.
"""

from __future__ import annotations

import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from kubeocean.local.progress import Progress
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["exclusive", "try_lock"]

_POLL_S: Final = 0.1


@asynccontextmanager
async def exclusive(
    path: Path, *, waiting: str, progress: Progress, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Hold the lock; `waiting` is shown while another process has it."""
    clock = clock or RealClock()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not try_lock(file.fileno()):
            with progress.task(waiting):
                while not try_lock(file.fileno()):
                    await clock.sleep(_POLL_S)
        yield


def try_lock(handle: int) -> bool:
    """Take the lock on an open file if nobody has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
