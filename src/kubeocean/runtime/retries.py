"""Retry rules of requests, classification of connection failures, and a token bucket.

Reads are retried. A write is retried only if the server cannot have executed the request: the
connection was not established, or the server answered 429 before processing. An apply is idempotent
and is retried, too. In all other cases the caller decides, after reading the objects again.

`explain` describes a failure of sockets, TLS or HTTP in one sentence, for pooled connections and
tunnels alike; `never_sent` returns whether the request cannot have reached the server.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
from dataclasses import dataclass
from typing import Final

import aiohttp

from kubeocean.errors import (
    ApiError,
    ConfigError,
    InternalError,
    ResponseTooLarge,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)
from kubeocean.runtime.clock import Clock

__all__ = [
    "RetryPolicy",
    "TokenBucket",
    "backoff_s",
    "explain",
    "jittered",
    "never_sent",
    "repeatable",
]

_CONNECT: Final = "Connect call failed"  # in errors of asyncio
_ERROR_NUMBER: Final = re.compile(r"\[Errno (\d{1,9})\]")
_DOUBLINGS: Final = 64  # beyond any cap, below the limit of floats


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of a request: number of attempts and delays between them."""

    attempts: int = 4
    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, attempt: int, error: ApiError) -> float:
        """Return the delay after failed attempt `attempt` (from 1); a server's Retry-After wins."""
        if error.retry_after_s is not None:
            return error.retry_after_s
        return jittered(backoff_s(attempt, self.base_s, self.cap_s))


def repeatable(error: ApiError, *, idempotent: bool) -> bool:
    """Whether the same request may be sent again after this error."""
    if isinstance(error, TooManyRequests):
        # An eviction that a disruption budget refuses is a final answer, not congestion.
        return not any(cause.reason == "DisruptionBudget" for cause in error.causes)
    if isinstance(error, Unreachable):
        return (idempotent or not error.sent) and not isinstance(error, ResponseTooLarge)
    passing = isinstance(error, ServiceUnavailable | ServerTimeout) or (
        isinstance(error, InternalError) and error.status in (500, 502)
    )
    return idempotent and passing


def backoff_s(failures: int, first_s: float, last_s: float) -> float:
    """Return the delay after this number of consecutive failures (from 1)."""
    return min(last_s, first_s * 2.0 ** min(failures - 1, _DOUBLINGS))


def jittered(seconds: float) -> float:
    """Return a random delay of half to all of `seconds`, to spread simultaneous retries."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreading load is not cryptography


def explain(error: Exception) -> str:
    """Describe a failure of sockets, TLS or HTTP, as the end of a sentence about the server."""
    # An error of TLS has a reason only if OpenSSL itself raised the error.
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        why = str(getattr(error, "verify_message", "") or error)
        return f"its certificate is not trusted ({why.rstrip('.')})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refused to connect ({error.status} {error.message})"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its answer is not HTTP ({error.message.partition(':')[0]})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer is broken or not whole"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({getattr(error, 'reason', '') or error})"
    if isinstance(error, aiohttp.ClientConnectorError):
        host = f"[{error.host}]" if ":" in error.host else error.host
        return f"{_system_text(error.os_error)} ({host}:{error.port})"
    if isinstance(error, OSError) and _CONNECT in str(error):
        return _system_text(error)
    return str(error) or type(error).__name__


def _system_text(error: OSError) -> str:
    """Return the operating system's text about a connection that failed.

    asyncio replaces the text by the address, and joins the errors of several addresses.
    """
    message = str(error)
    numbers = map(int, _ERROR_NUMBER.findall(message)) if _CONNECT in message else ()
    texts = list(dict.fromkeys(map(os.strerror, numbers)))
    texts = texts or [error.strerror or message or type(error).__name__]
    return ", ".join(f"{text[:1].lower()}{text[1:]}" for text in texts)


def never_sent(error: Exception) -> bool:
    """Return whether the connection was not established, so that the server cannot have received
    the request."""
    return isinstance(
        error,
        aiohttp.ClientConnectorError
        | aiohttp.ConnectionTimeoutError
        | aiohttp.ClientHttpProxyError
        | aiohttp.InvalidURL,
    )


class TokenBucket:
    """Rate limit: `rate` calls per second on average, and `burst` at once after a pause.

    Callers are served in order: each takes its token at once, possibly a future one, and sleeps
    until the time of that token. A cancelled caller returns its token.
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
        """Wait until the rate limit allows the next call."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        if self._tokens < 0:
            try:
                await self._clock.sleep(-self._tokens / self._rate)
            except asyncio.CancelledError:
                self._tokens += 1
                raise
