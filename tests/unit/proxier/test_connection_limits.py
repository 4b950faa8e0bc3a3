"""Limits on the rate of requests; limits on connections are tested on a running server."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from kubeocean.errors import Refusal
from kubeocean.proxier.connection_limits import RateLimits, SessionLimits
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
    limits = RateLimits(rate=2.0, burst=80.0, clock=clock)
    assert [limits.allows("server", "greedy") for _ in range(41)] == [True] * 40 + [False]
    # A refused request is not counted for the caller.
    assert [limits.allows("server", "modest") for _ in range(24)] == [True] * 24
    assert limits.allows("another server", "greedy")
    await clock.advance(1.0)
    # The rest of the bucket is reserved for namespaces that made few requests.
    assert [limits.allows("server", "greedy") for _ in range(2)] == [True, False]
    assert limits.allows("server", "quiet")


async def test_several_namespaces_leave_requests_for_another_one() -> None:
    clock = VirtualClock()
    limits = RateLimits(rate=10.0, burst=100.0, clock=clock)
    served = dict.fromkeys(("first", "second", "quiet"), 0)
    for tick in range(300):  # 30 seconds
        for namespace in ("first", "second") * 10:
            served[namespace] += limits.allows("server", namespace)
        if tick % 10 == 0:
            served["quiet"] += limits.allows("server", "quiet")
        await clock.advance(0.1)
    assert served["quiet"] == 30, "a namespace with one request a second was refused"
    assert sum(served.values()) <= 100 + 30 * 10  # the caller's own limit holds


def test_several_namespaces_leave_sessions_for_another_one() -> None:
    limits = SessionLimits()
    with ExitStack() as sessions:

        def opened(namespace: str, user: str = "server") -> bool:
            try:
                sessions.enter_context(limits.reserve(user, namespace))
            except Refusal as refusal:
                assert refusal.status == 429
                return False
            return True

        greedy = [opened(f"greedy-{n % 2}") for n in range(1200)]
        assert sum(greedy) == 800
        assert [opened("quiet") for _ in range(6)] == [True] * 5 + [False]
        assert opened("quiet", user="another server")
    with limits.reserve("server", "greedy-0"):
        pass  # all sessions were released


def test_one_namespace_has_a_limit_of_its_own() -> None:
    limits = SessionLimits()
    with ExitStack() as sessions:
        for _ in range(500):
            sessions.enter_context(limits.reserve("server", "greedy"))
        with pytest.raises(Refusal):
            sessions.enter_context(limits.reserve("server", "greedy"))
