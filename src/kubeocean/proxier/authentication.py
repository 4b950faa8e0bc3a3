"""Authentication of callers by client certificate or bearer token.

TLS has verified a client certificate with the computing cluster's CA before a byte of HTTP is read;
a bearer token is checked with a TokenReview. There is no anonymous access. A certificate takes
precedence, as with a kubelet. Requests that are not authenticated are limited by client network, so
that they cannot cause an unlimited number of TokenReviews.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from typing import Any, Final

from kubeocean.errors import ApiError, Refusal
from kubeocean.proxier.connection_limits import RateLimits, network_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.token_reviews import Caller, bearer_token, review_token
from kubeocean.runtime.ttl_cache import TtlCache

__all__ = ["Authenticator", "Caller", "from_certificate"]

_ACCEPTED_S: Final = 30.0
_REJECTED_S: Final = 5.0
_MAX_CACHED: Final = 4_096
_FAILURE_RATE: Final = 20.0
_FAILURE_BURST: Final = 200.0


def from_certificate(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Return the caller that a verified certificate names; its organizations are the groups.

    None without exactly one common name.
    """
    if not certificate:
        return None
    attributes = [pair for part in certificate.get("subject", ()) for pair in part]
    users = [value for name, value in attributes if name == "commonName"]
    if len(users) != 1 or not users[0]:
        return None
    groups = tuple(value for name, value in attributes if name == "organizationName")
    return Caller(users[0], (*groups, "system:authenticated"))


class Authenticator:
    """Authenticates callers; results of TokenReviews are cached for a short time."""

    def __init__(self, computing: Client, *, clock: Clock | None = None) -> None:
        self._computing = computing
        self._clock = clock or RealClock()
        # Two caches, so that many bad tokens cannot push good ones out.
        self._accepted: TtlCache[bytes, Caller] = TtlCache(_MAX_CACHED, clock=self._clock)
        self._rejected: TtlCache[bytes, str] = TtlCache(_MAX_CACHED, clock=self._clock)
        self._failures = RateLimits(rate=_FAILURE_RATE, burst=_FAILURE_BURST, clock=self._clock)

    async def authenticate(
        self, certificate: Mapping[str, Any] | None, authorization: str, peer: str = ""
    ) -> Caller:
        """Return the caller that sent a request.

        :raises Refusal: the caller is not authenticated (401), the computing cluster could not be
            asked (503), or its network has sent too many such requests (429).
        """
        caller = from_certificate(certificate)
        if caller is not None and certificate is not None:
            self._check_expiry(certificate)
            return caller
        token = bearer_token(authorization)
        # Caches hold hashes: a memory dump must not contain usable tokens.
        key = hashlib.sha256(token.encode()).digest()
        accepted = self._accepted.get(key)
        if accepted is not None and token:
            return accepted
        if not self._failures.allows(network_of(peer)):
            raise Refusal(429, "too many requests from this address that are not authenticated")
        if not token:
            raise Refusal(401, "neither a client certificate nor a bearer token")
        return await self._review_token(token, key)

    def _check_expiry(self, certificate: Mapping[str, Any]) -> None:
        """Refuse a certificate that has expired since the handshake."""
        not_after = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        if not_after <= self._clock.now().timestamp():
            raise Refusal(401, "the client certificate has expired")

    async def _review_token(self, token: str, key: bytes) -> Caller:
        reason = self._rejected.get(key)
        if reason is None:
            result = await self._review(token)
            if isinstance(result, Caller):
                self._accepted.put(key, result, _ACCEPTED_S)
                return result
            self._rejected.put(key, result, _REJECTED_S)
            reason = result
        raise Refusal(401, f"the token is not valid: {reason}")

    async def _review(self, token: str) -> Caller | str:
        """Send a TokenReview; return the caller, or why the token is not valid."""
        try:
            caller = await review_token(self._computing, token)
        except ApiError as error:
            message = f"could not review the bearer token: {error.reason}"
            raise Refusal(503, message) from error
        return caller or "the computing cluster does not accept the token"
