"""Access to the hub with a token that a Secret of the member holds.

The Secret is read again when half of the token's life has passed, and at once when the hub answers
401; a failed read is repeated after 1 to 30 seconds. A token without an expiry is read every hour.
While no token could be read, requests are sent without one, and the hub answers 401.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, urlsafe_b64decode
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography import x509

from kubeocean.errors import ApiError, ConfigError
from kubeocean.runtime.access import Access, token_problem
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret

__all__ = ["SecretTokenAccess", "TokenLife", "refused_credential", "token_life"]

_FIELD: Final = "token"
_HOUR_S: Final = 3600.0
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 30.0
_SHORTEST_S: Final = 1.0  # between two reads, also if a token expires sooner or the hub answers 401

_log = get_logger(__name__)


class _TokenTimes(msgspec.Struct, frozen=True):
    exp: float | None = None
    iat: float | None = None
    nbf: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLife:
    """Validity of a token: from when, and until when."""

    begin: datetime
    end: datetime

    def renew_in(self, now: datetime) -> float:
        """Return the seconds until half of the token's life has passed."""
        middle = self.begin + (self.end - self.begin) / 2
        return (middle - now).total_seconds()


def token_life(token: str, now: datetime) -> TokenLife | None:
    """Return the validity of a JSON Web Token; None if it is not one, or never expires."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = msgspec.json.decode(urlsafe_b64decode(padded), type=_TokenTimes)
        if claims.exp is None:
            return None
        issued = claims.iat if claims.iat is not None else claims.nbf
        begin = now if issued is None else datetime.fromtimestamp(issued, UTC)
        return TokenLife(begin, datetime.fromtimestamp(claims.exp, UTC))
    except (binascii.Error, msgspec.DecodeError, ValueError, OverflowError, OSError):
        return None


def refused_credential(access: Access, now: datetime) -> str:
    """Return a text about the credential that the hub refused, with the reason and a remedy."""
    end: datetime | None
    if access.token is not None:
        kind, life = "token", token_life(access.token.reveal(), now)
        end = life.end if life is not None else None
    elif access.certificate is not None:
        kind = "client certificate"
        end = x509.load_pem_x509_certificate(access.certificate).not_valid_after_utc
    else:
        return f"no token could be read from {access.origin}; store one there"
    if end is None:
        reason = "is not accepted"
    elif end <= now:
        reason = f"expired at {text_of(end)}"
    else:
        reason = f"is not accepted, although it is valid until {text_of(end)}"
    return f"the {kind} of {access.origin} {reason}; replace it, and the agent reads the new one"


class SecretTokenAccess:
    """Access to the hub with the token in the field `token` of a Secret in the member.

    `base` has the server and the certificate authority of the hub.
    """

    def __init__(
        self, base: Access, member: Client, secret: Key, *, clock: Clock | None = None
    ) -> None:
        self._access = replace(base, origin=f"secret {secret}")
        self._member = member
        self._secret = secret
        self._clock = clock or RealClock()
        self._read_at = float("-inf")
        self._renew_at = float("-inf")
        self._failures = 0
        self._flight = asyncio.Lock()

    @property
    def interval_s(self) -> float:
        return max(self._renew_at - self._clock.monotonic(), 0.0)

    @property
    def refresh_first(self) -> bool:
        return self._access.token is None

    def current(self) -> Access:
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self._access
        async with self._flight:
            now = self._clock.monotonic()
            is_due = rejected or now >= self._renew_at
            if self._access is before and is_due and now - self._read_at >= _SHORTEST_S:
                await self._read()
        return self._access is not before

    async def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            token = await self._token()
        except (ApiError, ConfigError) as error:
            wait_s = min(_FIRST_S * 2**self._failures, _LONGEST_S)
            self._failures += 1
            self._renew_at = self._clock.monotonic() + wait_s
            _log.warning(
                "Failed to read token for the hub",
                secret=str(self._secret),
                error=str(error),
                retry_in_s=wait_s,
            )
            return
        self._failures = 0
        now = self._clock.now()
        life = token_life(token, now)
        useful_s = _HOUR_S if life is None else max(life.renew_in(now), _FIRST_S)
        self._renew_at = self._clock.monotonic() + useful_s
        access = replace(self._access, token=Secret(token))
        if access != self._access:
            self._access = access

    async def _token(self) -> str:
        stored = await self._member.get(
            SECRETS, self._secret.name, self._secret.namespace, keep_raw=True
        )
        encoded = (stored.content().get("data") or {}).get(_FIELD)
        source = f"secret {self._secret}"
        if not encoded:
            raise ConfigError("is missing or empty", source=source, field=_FIELD)
        try:
            token = b64decode(encoded, validate=True).decode("utf-8", "replace").strip()
        except binascii.Error:
            raise ConfigError("is not base64", source=source, field=_FIELD) from None
        if problem := token_problem(token):
            raise ConfigError(problem, source=source, field=_FIELD)
        return token
