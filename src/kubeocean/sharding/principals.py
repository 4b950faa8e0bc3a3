"""Principals: as whom an API server knows a replica.

Replicas of one Deployment share a service account, but their tokens are bound to their pods, and
the API server tells them apart by the pod's UID. Where there is no pod, the user name has to do.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kubeocean.errors import ApiError
from kubeocean.runtime.client import Client
from kubeocean.runtime.logs import get_logger

__all__ = ["POD_UID", "own_principal", "principal_of"]

POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_PATH: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_BODY: Final = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

_log = get_logger(__name__)


async def own_principal(client: Client) -> str:
    """Ours, as the API server says; "" if it does not say."""
    try:
        answer = await client.request("POST", _PATH, body=_BODY, idempotent=True)
        return principal_of(msgspec.json.decode(answer)["status"]["userInfo"])
    except (ApiError, msgspec.DecodeError, KeyError, TypeError) as error:
        _log.warning("Failed to learn who we are", error=str(error))
        return ""


def principal_of(user: dict[str, Any]) -> str:
    """The pod's UID if the token is bound to one, else the user's name."""
    bound = (user.get("extra") or {}).get(POD_UID) or [""]
    return bound[0] or str(user.get("username", ""))
