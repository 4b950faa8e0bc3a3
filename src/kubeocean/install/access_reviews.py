"""Checks which permissions a credential or a ServiceAccount has, with access reviews."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kubeocean.install.permissions import Permission
from kubeocean.runtime.access_reviews import may
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json

__all__ = ["granted", "granted_to"]

_MAX_CONCURRENT: Final = 16


async def granted(client: Client, permissions: Iterable[Permission]) -> list[Permission]:
    """Return those of `permissions` that the client's own credential has.

    :raises ApiError: a review failed.
    """
    return await _allowed(client, None, permissions)


async def granted_to(
    client: Client, account: str, permissions: Iterable[Permission]
) -> list[Permission]:
    """Return those of `permissions` that a ServiceAccount (`namespace:name`) has.

    :raises ApiError: a review failed; Forbidden if the client may not review other accounts.
    """
    namespace = account.partition(":")[0]
    kind = "system:serviceaccount"
    subject: Json = {
        "user": f"{kind}:{account}",
        "groups": [f"{kind}s", f"{kind}s:{namespace}", "system:authenticated"],
    }
    return await _allowed(client, subject, permissions)


async def _allowed(
    client: Client, subject: Json | None, permissions: Iterable[Permission]
) -> list[Permission]:
    unique = list(dict.fromkeys(permissions))
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def review(permission: Permission) -> bool:
        async with slots:
            return await may(client, permission.attributes(), who=subject)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(review(each)) for each in unique]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the first error is enough
    return [each for each, task in zip(unique, tasks, strict=True) if task.result()]
