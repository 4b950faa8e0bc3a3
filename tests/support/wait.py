"""Waiting in tests: for a state, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

T = TypeVar("T")
PATIENCE_S = 90.0  # a busy machine is no reason to fail, and what comes at all comes soon
_EVERY_S = 0.05
_GROWTH, _RAREST_S = 1.2, 0.4  # who has waited for long can wait a little longer


async def until(
    probe: Callable[[], T | Awaitable[T]],
    *,
    within: float = PATIENCE_S,
    every: float | None = None,
    what: str = "",
) -> T:
    """Return the result of `probe` once it is true; `probe` may be a coroutine function.

    It is asked `every` so many seconds, or often at first and then ever more rarely: servers that
    are asked for nothing leave the machine to those who have something to do.
    The assertion of a probe that fails counts as not yet, and is shown when time is up.
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
            label = what or getattr(probe, "__name__", "the condition")
            raise AssertionError(
                f"waited {within:g} s for {label}; last answer: {answer!r}"
            ) from failed
        await asyncio.sleep(pause)
        if every is None:
            pause = min(pause * _GROWTH, _RAREST_S)
