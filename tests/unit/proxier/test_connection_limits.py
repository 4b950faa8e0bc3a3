"""Limits on the rate of requests; limits on connections are tested on a running server."""

from __future__ import annotations

from kubeocean.proxier.connection_limits import RateLimits
from kubeocean.runtime.clock import VirtualClock


async def test_one_caller_does_not_use_up_the_requests_of_another() -> None:
    clock = VirtualClock()
    limits = RateLimits(rate=1.0, burst=2.0, clock=clock)
    greedy, modest = "greedy", "modest"
    assert [limits.allows(greedy) for _ in range(3)] == [True, True, False]
    assert limits.allows(modest)
    await clock.advance(1.0)
    assert [limits.allows(greedy) for _ in range(2)] == [True, False]


async def test_one_namespace_does_not_use_up_the_requests_of_its_caller() -> None:
    clock = VirtualClock()
    limits = RateLimits(rate=2.0, burst=8.0, clock=clock)
    assert [limits.allows("server", "greedy") for _ in range(5)] == [True] * 4 + [False]
    # A refused request is not counted for the caller.
    assert [limits.allows("server", "modest") for _ in range(4)] == [True] * 4
    assert not limits.allows("server", "third")
    assert limits.allows("another server", "greedy")
    await clock.advance(1.0)
    assert [limits.allows("server", "greedy") for _ in range(2)] == [True, False]
    assert limits.allows("server")
