"""Cache of bounded size with entries that expire."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from kubeocean.runtime.clock import Clock

__all__ = ["TtlCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Cache of values by key, each with its own time to live; the oldest are dropped at `limit`."""

    def __init__(self, limit: int, *, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is missing or has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_at, value = entry
        if expires_at <= self._clock.monotonic():
            del self._entries[key]
            return None
        return value

    def put(self, key: K, value: V, ttl_s: float) -> None:
        self._entries[key] = (self._clock.monotonic() + ttl_s, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)
