"""Writes of a fleet's controllers: whole statuses, finalizers, deletions, and parallel requests.

Each write names the resourceVersion or the UID of the object that the controller read. If the
object has changed since, the server answers with a conflict, and the controller reconciles again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from kubeocean.api.fleet.schema import document
from kubeocean.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.objects import Json, Object, ObjectT, Resource

__all__ = [
    "delete",
    "finalizers_patch",
    "in_parallel",
    "in_thread",
    "is_refusal",
    "replace_status",
    "status_document",
    "write_status",
]

_IN_FLIGHT: Final = 32  # requests of one reconcile at a time

T = TypeVar("T")


async def write_status(
    client: Client, resource: Resource[ObjectT], obj: ObjectT, status: msgspec.Struct
) -> ObjectT | None:
    """Replace the status of an object if it differs; return the object as written, else None.

    :raises Conflict: the object has changed since it was read.
    :raises NotFound: the object does not exist.
    """
    has_status: Any = obj
    if has_status.status == status:
        return None
    return await replace_status(client, resource, obj, status)


async def replace_status(
    client: Client, resource: Resource[ObjectT], obj: ObjectT, status: msgspec.Struct
) -> ObjectT:
    """Replace the status of an object, also by an equal one; return the object as written.

    The status is replaced, not merged: no field of the old status stays.

    :raises Conflict: the object has changed since it was read.
    :raises NotFound: the object does not exist.
    """
    body = status_document(resource, obj, status)
    return await client.update(resource, body, subresource="status")


def status_document(resource: Resource[Any], obj: Object, status: msgspec.Struct) -> Json:
    """Return the document that replaces the status of this version of an object."""
    metadata: Json = {"name": obj.name, "resourceVersion": obj.resource_version, "uid": obj.uid}
    if obj.namespace:
        metadata["namespace"] = obj.namespace
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "status": document(status),
    }


def finalizers_patch(obj: Object, finalizers: Sequence[str]) -> MergePatch:
    """Return the patch that gives this version of an object exactly these finalizers."""
    metadata: Json = {"resourceVersion": obj.resource_version, "finalizers": list(finalizers)}
    return MergePatch({"metadata": metadata})


def is_refusal(error: ApiError) -> bool:
    """Whether a server refused an object because of its content, so that a retry is useless."""
    if isinstance(error, InternalError):
        return "request is too large" in str(error)  # etcd's limit, not that of the API server
    return isinstance(error, BadRequest | Forbidden | Invalid | NotFound | RequestTooLarge)


async def delete(client: Client, resource: Resource[Any], obj: Object) -> bool:
    """Delete the object with this UID; return False if it is gone or was replaced."""
    try:
        await client.delete(resource, obj.name, obj.namespace, uid=obj.uid)
    except (Conflict, NotFound):
        return False  # gone, or another object has the name
    return True


async def in_thread(compute: Callable[[], T], *, many: bool) -> T:
    """Return the result of a pure function, run in a thread if `many` is true."""
    return await asyncio.to_thread(compute) if many else compute()


async def in_parallel(
    write: Callable[[T], Awaitable[object]], subjects: Iterable[T], limit: int = _IN_FLIGHT
) -> None:
    """Call `write` for each subject, `limit` at a time.

    All calls end before the first error is raised: a refused write does not prevent others.
    """
    listed = list(subjects)
    waiting = iter(listed)
    errors: list[Exception] = []

    async def work() -> None:
        for subject in waiting:
            try:
                await write(subject)
            except Exception as error:  # raised below, when all calls have ended
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(limit, len(listed))):
            group.create_task(work())
    if errors:
        raise errors[0]
