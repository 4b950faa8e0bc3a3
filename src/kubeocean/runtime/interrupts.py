"""Interrupts: what a polite signal does before there is a service that takes care of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["SIGNALLED", "cancelled_by_signals"]

SIGNALLED: Final = 128  # and the number of the signal: the exit code of who was ended by one
_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def cancelled_by_signals(received: list[int]) -> Iterator[None]:
    """Let signals cancel this task, and note them. In a container nobody else would: the kernel
    spares the first process."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(number: int) -> None:
        received.append(number)
        task.cancel()

    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number in _NUMBERS:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    finally:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
