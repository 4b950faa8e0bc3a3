"""Retries: when a request may be sent again, and how long to wait first.

A read may be repeated. A write is repeated only when the server cannot have carried it out: the
connection was never made, or the server said "too many requests" before it looked. An apply says
the same twice, so it may be repeated too. Everything else is the caller's decision, who reads the
world again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kubeocean.errors import (
    ApiError,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)

__all__ = ["RetryPolicy", "jittered", "repeatable"]


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
        return jittered(min(self.cap_s, self.base_s * 2.0 ** (attempt - 1)))


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


def jittered(seconds: float) -> float:
    """Between half and all of it, so that many who failed together do not come back together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreading load is not cryptography
