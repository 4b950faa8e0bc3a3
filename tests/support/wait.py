"""Waiting in tests: for a state, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

T = TypeVar("T")
PATIENCE_S = 90.0  # long, so that a busy machine is no reason to fail
_EVERY_S = 0.05
_GROWTH, _RAREST_S = 1.2, 0.4  # the interval grows with the time waited


async def until(
    probe: Callable[[], T | Awaitable[T]],
    *,
    within: float = PATIENCE_S,
    every: float | None = None,
    waiting_for: str = "",
) -> T:
    """Return the result of `probe` once it is true; `probe` may be a coroutine function.

    `probe` is called every `every` seconds; without `every`, often at first and then less often, so
    that waiting tests leave the CPU to others. `waiting_for` describes the state in the error. An
    AssertionError of `probe` counts as not yet, and is shown when time is up.
    """
    deadline = time.monotonic() + within
    pause = every or _EVERY_S
    while True:
        failed: AssertionError | None = None
        answer: object = None
        try:
            answer = probe()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return answer
        except AssertionError as error:
            failed = error
        if time.monotonic() > deadline:
            label = waiting_for or getattr(probe, "__name__", "the condition")
            raise AssertionError(
                f"waited {within:g} s for {label}; last answer: {answer!r}"
            ) from failed
        await asyncio.sleep(pause)
        if every is None:
            pause = min(pause * _GROWTH, _RAREST_S)
