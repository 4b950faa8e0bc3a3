"""The cache of reviews and addresses."""

from __future__ import annotations

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.ttl_cache import TtlCache


async def test_a_cached_value_expires_and_the_oldest_is_dropped_at_the_limit() -> None:
    clock = VirtualClock()
    cache: TtlCache[str, int] = TtlCache(2, clock=clock)
    cache.put("a", 1, 5.0)
    cache.put("b", 2, 50.0)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, 2, None)
    await clock.advance(5.0)
    assert (cache.get("a"), cache.get("b")) == (None, 2)
    cache.put("c", 3, 50.0)
    cache.put("d", 4, 50.0)
    assert (cache.get("b"), cache.get("c"), cache.get("d")) == (None, 3, 4)
    assert len(cache) == 2
