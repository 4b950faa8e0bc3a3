"""Access reviews: the API server's decision whether an account may send a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json

__all__ = ["is_allowed", "may"]

_GROUP: Final = "authorization.k8s.io/v1"


async def may(
    client: Client,
    attributes: Mapping[str, str],
    *,
    who: Mapping[str, object] | None = None,
    url: str = "",
) -> bool:
    """Return whether an account may send a request, by an access review of the API server.

    The request has these `attributes`, or is a GET of `url`. The account is `who`, or the client's
    own.

    :raises ApiError: the server did not answer; Forbidden if the client may not review other
        accounts.
    """
    kind = "SelfSubjectAccessReview" if who is None else "SubjectAccessReview"
    requested: Json = {"resourceAttributes": dict(attributes)}
    if url:
        requested = {"nonResourceAttributes": {"path": url, "verb": "get"}}
    spec = {**requested, **(who or {})}
    body: Json = {"apiVersion": _GROUP, "kind": kind, "spec": spec}
    path = f"/apis/{_GROUP}/{kind.lower()}s"
    return is_allowed(await client.request_json("POST", path, body=body, idempotent=True))


def is_allowed(answer: Json) -> bool:
    """Return whether an access review allows the request; anything but `allowed: true` means no."""
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True
