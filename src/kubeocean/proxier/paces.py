"""Paces: how often one caller may ask.

Much for an API server, which asks for everybody; not enough to make us ask the clusters without
end. As it asks for everybody, nobody behind it may use up what is everybody's: of what one caller
asks for, one part gets half. Callers that have been silent are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["Paces"]

_RATE: Final = 100.0
_BURST: Final = 500.0
_MOST: Final = 1_024
_PART: Final = 2.0  # what a request counts in the bucket of its part


class Paces:
    """A bucket of tokens for each caller."""

    def __init__(
        self, *, rate: float = _RATE, burst: float = _BURST, clock: Clock | None = None
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock or RealClock()
        # Tokens, as of when; of a caller, and of the parts of what it asks for.
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def allows(self, who: str, part: str = "") -> bool:
        """Whether this request may go on; counts it if it may."""
        costs = {(who, ""): 1.0} | ({(who, part): _PART} if part else {})
        if any(self._tokens(key) < cost for key, cost in costs.items()):
            return False
        for key, cost in costs.items():
            self._take(key, cost)
        return True

    def _take(self, key: tuple[str, str], cost: float) -> None:
        self._buckets[key] = (self._tokens(key) - cost, self._clock.monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)

    def _tokens(self, key: tuple[str, str]) -> float:
        now = self._clock.monotonic()
        tokens, at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - at) * self._rate)
