"""Limits on concurrent connections, concurrent sessions and the rate of requests.

No caller can use up the connections of others: connections are limited in total, per client
network, per certificate subject, and before TLS is established. API servers connect under one
certificate for all of their users, so sessions and requests of one caller are limited per
namespace, too. As a tenant may have several namespaces, a part of the sessions and of the rate is
reserved for namespaces that use little: whatever some namespaces use, requests of another namespace
are still served. Large heads of requests are limited, too, because of the memory that they take.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.errors import Refusal
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["ConnectionLimits", "RateLimits", "SessionLimits", "network_of"]

MAX_CONNECTIONS: Final = 2_000
MAX_PER_SUBJECT: Final = 1_000  # of these, with certificates of one subject
MAX_SESSIONS_PER_NAMESPACE: Final = 500  # of one caller
MAX_SESSIONS_PER_CALLER: Final = 800  # beyond, only for namespaces with few sessions
FEW_SESSIONS: Final = 5
MAX_ANONYMOUS: Final = 500  # connections without a certificate
MAX_ANONYMOUS_PER_NETWORK: Final = 250
MAX_LARGE_HEADS: Final = 64  # requests with one that are read or served
MAX_LARGE_HEADS_PER_SUBJECT: Final = 48
MAX_HANDSHAKES: Final = 500  # connections on which TLS is not established yet
MAX_HANDSHAKES_PER_NETWORK: Final = 375  # which may be a gateway for many

_RATE: Final = 100.0  # requests a second of one caller
_BURST: Final = 500.0
_MAX_BUCKETS: Final = 1_024
_RESERVE: Final = 0.2  # share of a caller's bucket for namespaces that made few requests lately
_FEW_REQUESTS: Final = 0.1  # share of a namespace's bucket that counts as few
_NAMESPACE_COST: Final = 2.0  # tokens of a namespace's bucket: it gets half of the caller's rate


class ConnectionLimits:
    """Caps concurrent connections in total, per network, per subject and before authentication."""

    def __init__(self) -> None:
        self._handshakes = _Counts()
        self._anonymous = _Counts()
        self._certified = _Counts()
        self._large_heads = _Counts()

    def start_handshake(self, address: str) -> bool:
        """Reserve a handshake for `address`; False if a limit is reached."""
        return self._handshakes.add(network_of(address), MAX_HANDSHAKES, MAX_HANDSHAKES_PER_NETWORK)

    def end_handshake(self, address: str) -> None:
        """Release a handshake, whether it succeeded or not."""
        self._handshakes.remove(network_of(address))

    def admit(self, address: str, subject: str) -> bool:
        """Reserve a connection for a certificate's subject, or without a subject for `address`.

        False if a limit is reached.
        """
        if self._anonymous.total + self._certified.total >= MAX_CONNECTIONS:
            return False
        if subject:
            return self._certified.add(subject, MAX_CONNECTIONS, MAX_PER_SUBJECT)
        return self._anonymous.add(network_of(address), MAX_ANONYMOUS, MAX_ANONYMOUS_PER_NETWORK)

    def release(self, address: str, subject: str) -> None:
        """Release a connection that was admitted."""
        if subject:
            self._certified.remove(subject)
        else:
            self._anonymous.remove(network_of(address))

    def start_large_head(self, subject: str) -> bool:
        """Reserve the memory for a large head of a request; False if a limit is reached."""
        return self._large_heads.add(subject, MAX_LARGE_HEADS, MAX_LARGE_HEADS_PER_SUBJECT)

    def end_large_head(self, subject: str) -> None:
        """Release the memory of a large head, once its request was served or refused."""
        self._large_heads.remove(subject)


class SessionLimits:
    """Caps concurrent sessions by caller and namespace of the pod."""

    def __init__(self) -> None:
        self._open = _Counts()
        self._by_user = _Counts()

    @contextmanager
    def reserve(self, user: str, namespace: str) -> Iterator[None]:
        """Count a session of a user with a pod of a namespace, until the block ends.

        :raises Refusal: the caller has too many sessions with pods of this namespace.
        """
        key = f"{namespace}/{user}"  # no namespace has a slash in its name
        full = self._by_user.of(user) >= MAX_SESSIONS_PER_CALLER
        limit = FEW_SESSIONS if full else MAX_SESSIONS_PER_NAMESPACE
        if not self._open.add(key, MAX_CONNECTIONS, limit):
            raise Refusal(429, f"too many sessions with pods of namespace {namespace}")
        self._by_user.add(user, MAX_CONNECTIONS, MAX_CONNECTIONS)
        try:
            yield
        finally:
            self._open.remove(key)
            self._by_user.remove(user)


class _Counts:
    """Counts of connections or sessions by key, and in total."""

    def __init__(self) -> None:
        self.total = 0
        self._by_key: dict[str, int] = {}

    def of(self, key: str) -> int:
        return self._by_key.get(key, 0)

    def add(self, key: str, limit: int, limit_per_key: int) -> bool:
        count = self._by_key.get(key, 0)
        if self.total >= limit or count >= limit_per_key:
            return False
        self.total += 1
        self._by_key[key] = count + 1
        return True

    def remove(self, key: str) -> None:
        self.total -= 1
        count = self._by_key.pop(key) - 1
        if count:
            self._by_key[key] = count


def network_of(address: str) -> str:
    """Return the network of one machine: an IPv4 address, or 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.ipv4_mapped is not None:
        return address
    return f"{int(parsed) >> 64:x}"


class RateLimits:
    """A token bucket for each caller, and for each namespace that a caller requests.

    The buckets that were not used for longest are dropped first.
    """

    def __init__(
        self, *, rate: float = _RATE, burst: float = _BURST, clock: Clock | None = None
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock or RealClock()
        # By caller and namespace: tokens, and the time at which they were counted.
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, namespace: str = "") -> bool:
        """Count a request; return False, without counting, if a bucket has too few tokens."""
        costs = {(caller, ""): 1.0}
        reserve = 0.0
        if namespace:
            costs[caller, namespace] = _NAMESPACE_COST
            used = self._burst - self._tokens((caller, namespace))
            reserve = 0.0 if used <= self._burst * _FEW_REQUESTS else self._burst * _RESERVE
        if self._tokens((caller, "")) < reserve + 1.0:
            return False
        if any(self._tokens(key) < cost for key, cost in costs.items()):
            return False
        for key, cost in costs.items():
            self._take(key, cost)
        return True

    def _take(self, key: tuple[str, str], cost: float) -> None:
        self._buckets[key] = (self._tokens(key) - cost, self._clock.monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _tokens(self, key: tuple[str, str]) -> float:
        now = self._clock.monotonic()
        tokens, counted_at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - counted_at) * self._rate)
