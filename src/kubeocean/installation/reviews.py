"""Reviews: what a credential may really do, asked of the server that decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kubeocean.installation.rights import Permission
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json

__all__ = ["granted", "granted_to", "is_allowed"]

_AT_ONCE: Final = 16
_PATH: Final = "/apis/authorization.k8s.io/v1"


async def granted(client: Client, permissions: Iterable[Permission]) -> list[Permission]:
    """Those of the permissions that the client's own credential has.

    :raises ApiError: the server did not say.
    """
    return await _allowed(client, "SelfSubjectAccessReview", {}, permissions)


async def granted_to(
    client: Client, account: str, permissions: Iterable[Permission]
) -> list[Permission]:
    """Those of the permissions that a ServiceAccount (`namespace:name`) has.

    :raises ApiError: the server did not say; Forbidden, where we may not ask for others.
    """
    namespace = account.partition(":")[0]
    kind = "system:serviceaccount"
    whose: Json = {
        "user": f"{kind}:{account}",
        "groups": [f"{kind}s", f"{kind}s:{namespace}", "system:authenticated"],
    }
    return await _allowed(client, "SubjectAccessReview", whose, permissions)


async def _allowed(
    client: Client, kind: str, whose: Json, permissions: Iterable[Permission]
) -> list[Permission]:
    asked = list(dict.fromkeys(permissions))
    slots = asyncio.Semaphore(_AT_ONCE)
    path = f"{_PATH}/{kind.lower()}s"

    async def ask(permission: Permission) -> bool:
        body: Json = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {"resourceAttributes": permission.attributes(), **whose},
        }
        async with slots:
            answer = await client.request_json("POST", path, body=body, idempotent=True)
        return is_allowed(answer)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(each)) for each in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # what fails for one fails for all of them
    return [each for each, task in zip(asked, tasks, strict=True) if task.result()]


def is_allowed(answer: Json) -> bool:
    """What a review says; anything but a plain yes is no."""
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True
