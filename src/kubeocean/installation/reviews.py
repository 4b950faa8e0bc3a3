"""Reviews: what a credential may really do, asked of the server that decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kubeocean.installation.rights import Permission
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json
from kubeocean.runtime.reviews import may

__all__ = ["granted", "granted_to"]

_AT_ONCE: Final = 16


async def granted(client: Client, permissions: Iterable[Permission]) -> list[Permission]:
    """Those of the permissions that the client's own credential has.

    :raises ApiError: the server did not say.
    """
    return await _allowed(client, None, permissions)


async def granted_to(
    client: Client, account: str, permissions: Iterable[Permission]
) -> list[Permission]:
    """Those of the permissions that a ServiceAccount (`namespace:name`) has.

    :raises ApiError: the server did not say; Forbidden, where we may not ask for others.
    """
    namespace = account.partition(":")[0]
    kind = "system:serviceaccount"
    who: Json = {
        "user": f"{kind}:{account}",
        "groups": [f"{kind}s", f"{kind}s:{namespace}", "system:authenticated"],
    }
    return await _allowed(client, who, permissions)


async def _allowed(
    client: Client, who: Json | None, permissions: Iterable[Permission]
) -> list[Permission]:
    asked = list(dict.fromkeys(permissions))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(permission: Permission) -> bool:
        async with slots:
            return await may(client, permission.attributes(), who=who)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(each)) for each in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # what fails for one fails for all of them
    return [each for each, task in zip(asked, tasks, strict=True) if task.result()]
