"""Permission: whether we may do something, asked before it is tried.

Rights that only who shares needs are not given to everybody; and whoever tries without them is a
line in somebody's audit log each time.
"""

from __future__ import annotations

from typing import Any, Final

from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json, Resource

__all__ = ["may"]

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def may(client: Client, verb: str, kind: Resource[Any], namespace: str) -> bool:
    """Whether the API server would let us.

    :raises ApiError: it does not say.
    """
    attributes = {
        "group": kind.group,
        "resource": kind.plural,
        "verb": verb,
        "namespace": namespace,
    }
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request_json("POST", _REVIEWS, body=body, idempotent=True)
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True
