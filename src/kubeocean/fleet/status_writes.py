"""Writes of whole statuses: replaced, never merged, so that nothing of an old status stays.

A write carries the resourceVersion of the object that the status was computed from. If the object
has changed meanwhile the API server answers 409, and the caller computes the status again.
"""

from __future__ import annotations

import msgspec

from kubeocean.api.fleet.schema import document
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json, ObjectT, Resource

__all__ = ["replace_status"]


async def replace_status(
    client: Client, resource: Resource[ObjectT], obj: ObjectT, status: msgspec.Struct
) -> ObjectT:
    """Replace the status of an object; return the object as the server stored it.

    :raises Conflict: the object is not the version that `obj` is.
    :raises NotFound: the object does not exist.
    """
    metadata: Json = {"name": obj.name, "resourceVersion": obj.resource_version, "uid": obj.uid}
    if obj.namespace:
        metadata["namespace"] = obj.namespace
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "status": document(status),
    }
    return await client.update(resource, body, subresource="status")
