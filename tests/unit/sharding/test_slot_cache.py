"""Slot caches: objects whose slot cannot be computed, and lists and watches in any order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Json, Key, Object
from kubeocean.runtime.transport import Request, Response
from kubeocean.sharding.placement import ShardComputation
from kubeocean.sharding.selection import Everything
from kubeocean.sharding.slot_cache import SlotCache
from support.background import running
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.wait import until

SLOTS = 4


class Server(Scripted):
    """API server whose lists and watches a test answers by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: asyncio.Queue[Response] = asyncio.Queue()
        self.watches: list[tuple[str, ScriptedStream]] = []

    def list(self, version: int, *objects: Json) -> None:
        listing = {"metadata": {"resourceVersion": str(version)}, "items": objects}
        self.lists.put_nowait(answer(body=json.dumps(listing).encode()))

    def event(self, kind: str, obj: Json) -> None:
        event = {"type": kind, "object": obj}
        self.watches[-1][1].feed(json.dumps(event).encode() + b"\n")

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        return await self.lists.get()

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[ScriptedStream]:
        stream = ScriptedStream()
        self.watches.append((dict(request.query).get("resourceVersion", ""), stream))
        yield stream


def object_of(name: str, version: int) -> Json:
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta}


class Names:
    """Code of a user: the slot of an object is the number in its name."""

    broken = False

    def slot_of(self, obj: Object) -> int:
        if self.broken:
            raise LookupError(obj.name)
        return int(obj.name[1:]) % SLOTS


def cache_of(server: Server, names: Names) -> SlotCache[ConfigMap]:
    client = Client(server)
    placement = ShardComputation("maps", names.slot_of)
    return SlotCache(client, CONFIG_MAPS, Everything(client, CONFIG_MAPS, placement.shard_of))


async def test_an_object_that_was_deleted_does_not_return_when_its_slot_can_be_computed() -> None:
    server, names = Server(), Names()
    cache = cache_of(server, names)
    async with running(cache):
        server.list(90)
        await cache.add([1])
        await until(lambda: len(server.watches) == 1)
        names.broken = True
        server.event("ADDED", object_of("o1", 91))
        await until(lambda: Key("n", "o1") in cache.unplaced)
        names.broken = False
        server.event("DELETED", object_of("o1", 92))
        await until(lambda: cache.version == "92")
        assert not cache.unplaced
        cache.place_again(Key("n", "o1"))
        assert len(cache) == 0
