"""Paces: how often one caller may ask.

Much for an API server, which asks for everybody; not enough to make us ask the clusters without
end. Callers that have been silent are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["Paces"]

_RATE: Final = 100.0
_BURST: Final = 500.0
_MOST: Final = 1_024


class Paces:
    """A bucket of tokens for each caller."""

    def __init__(
        self, *, rate: float = _RATE, burst: float = _BURST, clock: Clock | None = None
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock or RealClock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, as of when

    def allows(self, who: str) -> bool:
        """Whether this request may go on; counts it."""
        now = self._clock.monotonic()
        tokens, at = self._buckets.pop(who, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        allowed = tokens >= 1.0
        self._buckets[who] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        return allowed
