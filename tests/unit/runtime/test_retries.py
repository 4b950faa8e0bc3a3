from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InternalError,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    StatusCause,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeocean.runtime.retries import RetryPolicy, backoff_s, jittered, repeatable

BUDGET = StatusCause(reason="DisruptionBudget", message="needs 1 healthy pod")


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        (Unreachable("refused", sent=False), True, True),
        (Unreachable("reset", sent=True), True, False),
        (TooManyRequests("slow", status=429), True, True),
        (TooManyRequests("budget", status=429, causes=(BUDGET,)), False, False),
        (ServiceUnavailable("not now", status=503), True, False),
        (ServerTimeout("slow storage", status=504), True, False),
        (InternalError("webhook", status=500), True, False),
        (InternalError("bad gateway", status=502), True, False),
        (InternalError("a redirect", status=302), False, False),
        (InternalError("cannot be read"), False, False),
        (NotFound("no", status=404), False, False),
        (Conflict("no", status=409), False, False),
        (Forbidden("no", status=403), False, False),
        (Unauthorized("no", status=401), False, False),
    ],
)
def test_what_may_be_sent_again(error: ApiError, read: bool, write: bool) -> None:
    assert repeatable(error, idempotent=True) is read
    assert repeatable(error, idempotent=False) is write


def test_the_server_knows_best_when_to_come_back() -> None:
    policy = RetryPolicy()
    assert policy.delay_s(1, TooManyRequests("x", retry_after_s=7.0)) == 7.0
    assert policy.delay_s(4, TooManyRequests("x", retry_after_s=0.5)) == 0.5


@given(st.integers(1, 10**9))
def test_the_wait_doubles_up_to_its_cap_however_many_failures(failures: int) -> None:
    wait = backoff_s(failures, 0.2, 5.0)
    assert wait == min(5.0, 0.2 * 2 ** min(failures - 1, 30))
    assert wait <= backoff_s(failures + 1, 0.2, 5.0)


@given(st.integers(1, 2000), st.floats(0.001, 10), st.floats(0.001, 100))
def test_a_policy_waits_between_half_and_all_of_its_step(
    attempt: int, base_s: float, cap_s: float
) -> None:
    wait = RetryPolicy(base_s=base_s, cap_s=cap_s).delay_s(attempt, NotFound("x"))
    step = backoff_s(attempt, base_s, cap_s)
    assert step / 2 <= wait <= step


def test_simultaneous_failures_are_retried_at_different_times() -> None:
    waits = {jittered(1.0) for _ in range(50)}
    assert len(waits) > 40
    assert all(0.5 <= wait <= 1.0 for wait in waits)
