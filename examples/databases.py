"""Keep a ConfigMap with the address of every Database, a custom resource, until it is deleted.

Start as many replicas as you like: each works on a part of the Databases, and a deletion is handled
even if the replica that created the ConfigMap has crashed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from kubeocean.sharding import (
    CONFIG_MAPS,
    ApplyPatch,
    NotFound,
    Object,
    Resource,
    ResourceHandler,
    Ring,
    ShardedController,
    connect,
    load,
    run_program,
    serve,
)


class Database(Object, frozen=True, kw_only=True):
    """The part of the custom resource that this controller reads."""

    spec: dict[str, str] | None = None


DATABASES = Resource("example.com", "v1", "databases", "Database", True, Database)


class Addresses(ResourceHandler[Database]):
    """Handler that keeps one ConfigMap for each Database."""

    controller: ShardedController[Database]

    async def handle_add(self, database: Database) -> None:
        name, namespace = f"{database.name}-address", database.namespace
        engine = (database.spec or {}).get("engine", "none")
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {"address": f"{engine}://{database.name}.{namespace}"},
        }
        stamped = self.controller.stamped(body)  # adds the shard and the epoch of its grant
        patch = ApplyPatch(stamped, force=True)
        await self.controller.client.patch(CONFIG_MAPS, name, patch, namespace)

    async def handle_update(self, old: Database, new: Database) -> None:
        await self.handle_add(new)

    async def handle_delete(self, database: Database) -> None:
        name, namespace = f"{database.name}-address", database.namespace
        with suppress(NotFound):  # the object was deleted by an earlier call
            await self.controller.client.delete(CONFIG_MAPS, name, namespace, uid=None)


async def main() -> int:
    config = load(os.environ)
    config.logging.apply()
    client = connect()
    try:
        ring = Ring(client, config)
        handler = Addresses()
        handler.controller = ShardedController(
            "databases", ring, client, DATABASES, handler=handler, deletions="guaranteed"
        )
        return await serve("databases", ring, [handler.controller])
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run_program(main))
