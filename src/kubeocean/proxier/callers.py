"""Callers: who it is that asks.

A caller is known by a client certificate, which TLS has verified against the computing cluster's
authority before a byte of HTTP is read, or by a bearer token, which the computing cluster is asked
about. Nobody else is anybody: there is no anonymous caller. A certificate comes first, as with a
kubelet. How often strangers can make us ask is limited by where they come from.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.errors import ApiError, Refusal
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.remembered import Remembered
from kubeocean.proxier.rooms import network_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Json

__all__ = ["Caller", "Callers", "from_certificate"]

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_KNOWN_S: Final = 30.0
_UNKNOWN_S: Final = 5.0
_MOST: Final = 4_096
_LONGEST_TOKEN: Final = 12 * 1024
_STRANGE_RATE: Final = 20.0
_STRANGE_BURST: Final = 200.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody, as Kubernetes knows them."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    by: str = "certificate"


def from_certificate(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Whom a verified certificate names: its common name, and organizations as groups."""
    if not certificate:
        return None
    parts = [pair for part in certificate.get("subject", ()) for pair in part]
    users = [value for name, value in parts if name == "commonName"]
    if len(users) != 1 or not users[0]:
        return None
    groups = tuple(value for name, value in parts if name == "organizationName")
    return Caller(users[0], (*groups, "system:authenticated"))


class Callers:
    """Finds out who asks; what the computing cluster says of a token is remembered shortly."""

    def __init__(self, computing: Client, *, clock: Clock | None = None) -> None:
        self._computing = computing
        self._clock = clock or RealClock()
        # Apart, so that nobody can have good tokens forgotten by showing many bad ones.
        self._known: Remembered[bytes, Caller] = Remembered(_MOST, clock=self._clock)
        self._unknown: Remembered[bytes, str] = Remembered(_MOST, clock=self._clock)
        self._strangers = Paces(rate=_STRANGE_RATE, burst=_STRANGE_BURST, clock=self._clock)

    async def identify(
        self, certificate: Mapping[str, Any] | None, authorization: str, peer: str = ""
    ) -> Caller:
        """The caller.

        :raises Refusal: it is nobody that the computing cluster knows, or it could not be asked; or
            too many come from there whom nobody knows.
        """
        caller = from_certificate(certificate)
        if caller is not None and certificate is not None:
            self._check_time(certificate)
            return caller
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        # The token itself is not kept: a dump of our memory must not be a bunch of keys.
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is not None and scheme.lower() == "bearer":
            return known
        if not self._strangers.allows(network_of(peer)):
            raise Refusal(429, "too many requests without a name from there")
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            raise Refusal(401, "neither a client certificate nor a bearer token")
        return await self._by_token(token, key)

    def _check_time(self, certificate: Mapping[str, Any]) -> None:
        """TLS has looked at the time once; connections stay."""
        ends = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        if ends <= self._clock.now().timestamp():
            raise Refusal(401, "the client certificate has ended")

    async def _by_token(self, token: str, key: bytes) -> Caller:
        said = self._unknown.get(key)
        if said is None:
            found = await self._review(token)
            if isinstance(found, Caller):
                self._known.put(key, found, _KNOWN_S)
                return found
            self._unknown.put(key, found, _UNKNOWN_S)
            said = found
        raise Refusal(401, f"the token is not good: {said}")

    async def _review(self, token: str) -> Caller | str:
        body: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        try:
            answer = await self._computing.request_json("POST", _REVIEWS, body=body)
        except ApiError as error:
            why = f"could not have the token reviewed: {error.reason}"
            raise Refusal(503, why) from error
        status = answer.get("status") or {}
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return "the cluster does not know it"
        return Caller(
            user=user["username"],
            groups=tuple(user.get("groups") or ()),
            uid=user.get("uid") or "",
            extra=_extra(user.get("extra") or {}),
            by="token",
        )


def _extra(extra: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(values)) for name, values in sorted(extra.items()))
