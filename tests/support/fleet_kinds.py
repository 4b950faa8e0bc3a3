"""The kinds of a fleet on a server, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from kubeocean.api.fleet.definitions import definitions
from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json
from support.wait import until

__all__ = ["install_fleet_kinds"]

# Names of the definitions that the server of a client is known to serve
_served: WeakKeyDictionary[Client, set[str]] = WeakKeyDictionary()


async def install_fleet_kinds(client: Client, wanted: Sequence[Json] | None = None) -> None:
    """Install definitions of a fleet's kinds, all by default, and wait until they are served."""
    served = _served.setdefault(client, set())
    missing = [
        each
        for each in (definitions() if wanted is None else wanted)
        if each["metadata"]["name"] not in served
    ]
    for definition in missing:
        with contextlib.suppress(AlreadyExists):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    # A server delays the first request for a new kind by a second, so all are sent at once
    async with asyncio.TaskGroup() as tasks:
        for definition in missing:
            tasks.create_task(_wait_until_served(client, definition))
    served.update(each["metadata"]["name"] for each in missing)


async def _wait_until_served(client: Client, definition: Json) -> None:
    await until(lambda: _is_established(client, definition))
    await until(lambda: _is_served(client, definition))


async def _is_established(client: Client, definition: Json) -> bool:
    name = definition["metadata"]["name"]
    stored = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
    conditions = stored.content().get("status", {}).get("conditions") or []
    held = {each["type"] for each in conditions if each["status"] == "True"}
    assert "NonStructuralSchema" not in held, conditions
    return {"Established", "NamesAccepted"} <= held


async def _is_served(client: Client, definition: Json) -> bool:
    spec = definition["spec"]
    for version in spec["versions"]:
        path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
        try:
            await client.request_json("GET", path)
        except NotFound:
            return False
    return True
