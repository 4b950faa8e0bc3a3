"""Access reviews: the API server's decision whether an account may do something."""

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
    """Return whether `who`, or this client's own account, may do this, or may GET the URL.

    :raises ApiError: the server did not say; Forbidden, where we may not ask for others.
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
    """Return whether a review allows the request; anything but a plain yes means no."""
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True
