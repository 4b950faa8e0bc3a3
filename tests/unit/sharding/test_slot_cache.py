"""Slot caches: objects whose slot cannot be computed, and lists and watches in any order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Json, Key, Object
from kubeocean.runtime.transport import Request, Response
from kubeocean.sharding.placement import ShardComputation
from kubeocean.sharding.selection import Everything, SlotLabel
from kubeocean.sharding.slot_cache import SlotCache
from support.background import running
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.wait import until

SLOTS, SLOT = 4, "slot"


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
    return {"metadata": meta | {"labels": {SLOT: str(slot_of_name(name))}}}


def slot_of_name(name: str) -> int:
    return int(name[1:]) % SLOTS


class Names:
    """Code of a user: the slot of an object is the number in its name."""

    broken = False

    def slot_of(self, obj: Object) -> int:
        if self.broken:
            raise LookupError(obj.name)
        return slot_of_name(obj.name)


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


CHANGES = [
    ("DELETED", object_of("o1", 101)),
    ("MODIFIED", object_of("o2", 102)),
    ("MODIFIED", object_of("o0", 103)),
    ("MODIFIED", object_of("o0", 104)),
    ("ADDED", object_of("o4", 105)),
]


@pytest.mark.parametrize("together", [False, True])
async def test_a_change_during_the_list_of_a_gained_slot_is_seen(together: bool) -> None:
    server = Server()
    client = Client(server)
    selection: SlotLabel[ConfigMap] = SlotLabel(client, SLOTS, SLOT)
    cache = SlotCache(client, CONFIG_MAPS, selection)
    shown: list[str] = []
    cache.on_change(lambda old, new: shown.append(new.resource_version if new else "gone"))
    async with running(cache):
        server.list(90, object_of("o0", 80))
        await cache.add([0])
        await until(lambda: len(server.watches) == 1)
        adding = asyncio.create_task(cache.add([1, 2]))
        # The API server reads its objects for the list, and answers late. Meanwhile the watch of
        # slot 0 goes on.
        await until(lambda: len(server.requests) == 2)
        if together:
            server.list(100, object_of("o1", 81), object_of("o2", 82))
        server.event(*CHANGES[2])
        if not together:
            await until(lambda: cache.version == "103")
            server.list(100, object_of("o1", 81), object_of("o2", 82))
        await adding
        await until(lambda: len(server.watches) == 2)
        since = int(server.watches[-1][0])
        for kind, obj in CHANGES:
            if int(obj["metadata"]["resourceVersion"]) > since:
                server.event(kind, obj)
        await until(lambda: cache.version == "105")
    versions = {obj.name: obj.resource_version for obj in cache.items()}
    assert versions == {"o0": "104", "o2": "102", "o4": "105"}
    assert sorted(shown) == ["102", "103", "104", "105", "80", "81", "82", "gone"]  # each once


async def test_changes_after_a_restore_from_a_backup_are_seen() -> None:
    server = Server()
    cache = cache_of(server, Names())
    async with running(cache):
        server.list(90, object_of("o0", 80))
        await cache.add([0])
        await until(lambda: len(server.watches) == 1)
        server.watches[-1][1].feed(
            b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
        )
        await until(lambda: len(server.watches) == 2)
        assert server.watches[-1][0] == ""
        server.event("ADDED", object_of("o0", 30))
        server.event(
            "BOOKMARK",
            {
                "metadata": {
                    "resourceVersion": "50",
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
            },
        )
        server.event("MODIFIED", object_of("o0", 51))
        await until(lambda: cache.version == "51")
        cached = cache.get(Key("n", "o0"))
        assert cached is not None
        assert cached.resource_version == "51"
