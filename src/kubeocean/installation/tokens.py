"""Tokens: what a ServiceAccount's token says of itself.

Its middle part can be read by anybody; whether it is genuine only its own server knows.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

__all__ = ["Told", "read_token"]


class _Bound(msgspec.Struct, frozen=True):
    uid: str = ""


class _Kubernetes(msgspec.Struct, frozen=True):
    secret: _Bound = _Bound()


class _Claims(msgspec.Struct, frozen=True):
    iat: int = 0
    exp: int = 0
    kubernetes: _Kubernetes = msgspec.field(default=_Kubernetes(), name="kubernetes.io")


@dataclass(frozen=True, slots=True)
class Told:
    """From when to when it is good, and the Secret that it is bound to."""

    begins: datetime
    ends: datetime
    secret_uid: str


def read_token(token: str) -> Told | None:
    """What the token says; None if it is not such a token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
    if not claims.exp:
        return None
    begins, ends = (datetime.fromtimestamp(each, UTC) for each in (claims.iat, claims.exp))
    return Told(begins, ends, claims.kubernetes.secret.uid)
