"""Answers that are remembered for a short while, and never more than a number of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from kubeocean.runtime.clock import Clock

__all__ = ["Remembered"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key, each for its own time; the oldest go when there are too many."""

    def __init__(self, most: int, *, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._held: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: K) -> V | None:
        """What is remembered, if its time is not over."""
        held = self._held.get(key)
        if held is None:
            return None
        until, value = held
        if until <= self._clock.monotonic():
            del self._held[key]
            return None
        return value

    def put(self, key: K, value: V, seconds: float) -> None:
        self._held[key] = (self._clock.monotonic() + seconds, value)
        self._held.move_to_end(key)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
