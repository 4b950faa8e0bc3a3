"""Our kinds on a server, for tests."""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import WeakSet

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.crds import definitions
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Resource
from support.wait import until

__all__ = ["install_our_kinds"]

_served: WeakSet[Client] = WeakSet()  # clusters that have the definitions


async def install_our_kinds(client: Client) -> None:
    """Create our definitions, and wait until the server serves them; later calls send no
    request."""
    if client in _served:
        return
    for definition in definitions():
        name = definition["metadata"]["name"]
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, ApplyPatch(definition, force=True))

        async def served(name: str = name) -> bool:
            actual = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
            conditions = actual.content().get("status", {}).get("conditions") or []
            held = {c["type"] for c in conditions if c["status"] == "True"}
            assert "NonStructuralSchema" not in held, conditions
            return "Established" in held

        await until(served)
    for resource in (CLUSTER_BINDINGS, RESOURCE_LEASING_POLICIES):

        async def answers(resource: Resource[Any] = resource) -> bool:
            with contextlib.suppress(NotFound):
                await client.list(resource, page=1)
                return True
            return False

        await until(answers)
    _served.add(client)
