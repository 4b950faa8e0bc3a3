"""Rate limit: a token bucket on the injected clock."""

from __future__ import annotations

import asyncio

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import Clock

__all__ = ["TokenBucket"]


class TokenBucket:
    """Lets `rate` through a second on average, and `burst` at once after a pause.

    Callers are served in the order they came: each takes its token at once, possibly one that is
    not there yet, and sleeps until it is. Who is cancelled gives it back.
    """

    def __init__(self, rate: float, burst: int, *, clock: Clock) -> None:
        if not rate > 0:
            raise ConfigError("must be positive", field="qps", value=rate)
        if burst < 1:
            raise ConfigError("must be at least 1", field="burst", value=burst)
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock.monotonic()

    async def take(self) -> None:
        """Return when the caller may go on."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        if self._tokens < 0:
            try:
                await self._clock.sleep(-self._tokens / self._rate)
            except asyncio.CancelledError:
                self._tokens += 1
                raise
