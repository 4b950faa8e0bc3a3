"""Custom resources for tests."""

from __future__ import annotations

import contextlib

from kubeocean.errors import AlreadyExists
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Resource, Untyped
from support.wait import until

__all__ = ["LARGE_THINGS", "define"]

LARGE_THINGS = Resource("kubeocean.test", "v1", "largethings", "LargeThing", True, Untyped)


async def define(client: Client, resource: Resource[Untyped], *, with_status: bool = False) -> None:
    """Create the definition of the resource, and wait until the server serves it.

    `with_status`: the status is a subresource, whose changes leave the generation as it is.
    """
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    singular = resource.kind.lower()
    body = {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "singular": singular, "kind": resource.kind},
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}} if with_status else {},
                }
            ],
        },
    }
    with contextlib.suppress(AlreadyExists):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)

    async def established() -> bool:
        name = f"{resource.plural}.{resource.group}"
        definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
        conditions = definition.content().get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await until(established)
