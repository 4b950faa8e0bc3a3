"""Retries: when a request may be sent again, and how long to wait first.

A read may be repeated. A write is repeated only when the server cannot have carried it out: the
connection was never made, or the server said "too many requests" before it looked. An apply says
the same twice, so it may be repeated too. Everything else is the caller's decision, who reads the
world again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import (
    ApiError,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)

__all__ = ["RetryPolicy", "backoff_s", "jittered", "repeatable"]

_DOUBLINGS: Final = 64  # beyond any cap, below what a float can hold


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently."""

    attempts: int = 4
    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, attempt: int, error: ApiError) -> float:
        """How long to wait after failed attempt `attempt` (from 1); the server's word wins."""
        if error.retry_after_s is not None:
            return error.retry_after_s
        return jittered(backoff_s(attempt, self.base_s, self.cap_s))


def repeatable(error: ApiError, *, idempotent: bool) -> bool:
    """Whether the same request may be sent again after this error."""
    if isinstance(error, TooManyRequests):
        # An eviction that a disruption budget refuses is an answer, not congestion.
        return not any(cause.reason == "DisruptionBudget" for cause in error.causes)
    if isinstance(error, Unreachable):
        return idempotent or not error.sent
    passing = isinstance(error, ServiceUnavailable | ServerTimeout) or (
        isinstance(error, InternalError) and error.status in (500, 502)
    )
    return idempotent and passing


def backoff_s(failures: int, first_s: float, last_s: float) -> float:
    """How long to wait after so many failures in a row (from 1), however many they are."""
    return min(last_s, first_s * 2.0 ** min(failures - 1, _DOUBLINGS))


def jittered(seconds: float) -> float:
    """Between half and all of it, so that many who failed together do not come back together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreading load is not cryptography
