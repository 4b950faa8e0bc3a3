"""Token reviews: the API server's answer to which user a bearer token belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json

__all__ = ["MAX_TOKEN", "Caller", "bearer_token", "review_token"]

MAX_TOKEN: Final = 12 * 1024  # characters; tokens of service accounts have about one thousand
_VERSION: Final = "authentication.k8s.io/v1"
_REVIEWS: Final = f"/apis/{_VERSION}/tokenreviews"


@dataclass(frozen=True, slots=True)
class Caller:
    """User that was authenticated by a token or certificate; `by` is the method of
    authentication."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    by: str = "certificate"

    def subject(self) -> Json:
        """Return the fields of a SubjectAccessReview's spec that describe the caller."""
        return {
            "user": self.user,
            "groups": list(self.groups),
            "uid": self.uid,
            "extra": {name: list(values) for name, values in self.extra},
        }


def bearer_token(authorization: str) -> str:
    """Return the token of an Authorization header; "" if the header has no token of a usable
    length."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and len(token) <= MAX_TOKEN else ""


async def review_token(client: Client, token: str) -> Caller | None:
    """Return the user of a token; None if the cluster does not accept the token.

    :raises ApiError: the review failed.
    """
    body: Json = {"apiVersion": _VERSION, "kind": "TokenReview", "spec": {"token": token}}
    # A review changes nothing in the cluster, so the request is repeated if its answer was lost.
    answer = await client.request_json("POST", _REVIEWS, body=body, idempotent=True)
    status = answer.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    return Caller(
        user=user["username"],
        groups=tuple(user.get("groups") or ()),
        uid=user.get("uid") or "",
        extra=_extra(user.get("extra") or {}),
        by="token",
    )


def _extra(extra: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(values)) for name, values in sorted(extra.items()))
