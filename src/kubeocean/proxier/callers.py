"""Callers: who it is that asks.

A caller is known by a client certificate, which TLS has verified against the computing cluster's
authority before a byte of HTTP is read, or by a bearer token, which the computing cluster is asked
about. Nobody else is anybody: there is no anonymous caller. A certificate comes first, as with a
kubelet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.errors import ApiError, Refusal
from kubeocean.proxier.remembered import Remembered
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Json

__all__ = ["Caller", "Callers", "from_certificate"]

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_KNOWN_S: Final = 30.0
_UNKNOWN_S: Final = 5.0
_MOST: Final = 4_096
_LONGEST_TOKEN: Final = 12 * 1024


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
        self._known: Remembered[bytes, Caller | str] = Remembered(_MOST, clock=clock or RealClock())

    async def identify(self, certificate: Mapping[str, Any] | None, authorization: str) -> Caller:
        """The caller.

        :raises Refusal: it is nobody that the computing cluster knows, or it could not be asked.
        """
        caller = from_certificate(certificate)
        if caller is not None:
            return caller
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            raise Refusal(401, "neither a client certificate nor a bearer token")
        return await self._by_token(token)

    async def _by_token(self, token: str) -> Caller:
        # The token itself is not kept: a dump of our memory must not be a bunch of keys.
        key = hashlib.sha256(token.encode()).digest()
        found = self._known.get(key)
        if found is None:
            found = await self._review(token)
            self._known.put(key, found, _KNOWN_S if isinstance(found, Caller) else _UNKNOWN_S)
        if isinstance(found, Caller):
            return found
        raise Refusal(401, f"the token is not good: {found}")

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
