"""An algorithm that fails on one replica alone: no key has two owners, and no change is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Key, Object
from kubeocean.sharding import ResourceHandler, Ring, ShardedController
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.placement import ShardComputation
from kubeocean.sharding.selection import Everything
from kubeocean.sharding.slot_cache import SlotCache
from support.background import running
from support.commands import Home
from support.faults import Faults, watches
from support.ring_env import APP, SLOTS, config, make_objects
from support.wait import until


class Numbered:
    """Algorithm by the number at the end of a key, which fails while `broken`."""

    def __init__(self) -> None:
        self.broken = False

    def get_shard(self, key: str, total: int) -> int:
        if self.broken:
            raise OSError("the file of shards cannot be read")
        return int(key.rpartition("/o")[2]) % total

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        return {node: list(range(at, total, len(nodes))) for at, node in enumerate(sorted(nodes))}


@dataclass
class Calls:
    """The calls of all replicas, in order; a key with two calls at a time is an error."""

    all: list[tuple[str, str, str, str]] = field(default_factory=list)
    inside: set[str] = field(default_factory=set)

    def of(self, *kinds: str) -> dict[str, tuple[str, str]]:
        """Return replica and text of the last call of these kinds for each object."""
        return {name: (who, text) for who, what, name, text in self.all if what in kinds}

    def count(self, what: str, name: str) -> int:
        return sum(each[1:3] == (what, name) for each in self.all)


class Handler(ResourceHandler[ConfigMap]):
    def __init__(self, who: str, calls: Calls) -> None:
        self.who, self.calls = who, calls

    async def handle_add(self, obj: ConfigMap) -> None:
        await self._note("add", obj)

    async def handle_update(self, old: ConfigMap, new: ConfigMap) -> None:
        await self._note("update", new)

    async def handle_delete(self, obj: ConfigMap) -> None:
        await self._note("delete", obj)

    async def _note(self, what: str, obj: ConfigMap) -> None:
        assert obj.name not in self.calls.inside, (self.who, obj.name)
        self.calls.inside.add(obj.name)
        await asyncio.sleep(0.01)
        self.calls.all.append((self.who, what, obj.name, (obj.data or {}).get("text", "")))
        self.calls.inside.discard(obj.name)


class Replica:
    """Replica with an algorithm of its own."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, calls: Calls, filter_: str
    ) -> None:
        self.algorithm = Numbered()
        self.client = cluster.client()
        self.ring = Ring(
            self.client,
            config(
                namespace,
                name=name,
                sharding={"filter": filter_},
                state={"syncInterval": "1s"},
            ),
            algorithm=self.algorithm,
        )
        self.controller = ShardedController(
            "numbered",
            self.ring,
            self.client,
            CONFIG_MAPS,
            handler=Handler(name, calls),
            namespace=namespace,
            labels=APP,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(self.controller, self.ring):
            yield
        await self.client.close()


async def write(client: Client, namespace: str, name: str, text: str) -> None:
    await client.patch(CONFIG_MAPS, name, MergePatch({"data": {"text": text}}), namespace)


@pytest.mark.parametrize("filter_", ["label", "metadata"])
async def test_an_algorithm_that_fails_on_one_replica_gives_no_key_two_owners(
    cluster: Cluster,
    client: Client,
    namespace: str,
    filter_: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"o{number}" for number in range(8)]
    odd, even = names[1::2], names[::2]
    await make_objects(client, namespace, 8)
    calls = Calls()
    a, b = (Replica(cluster, namespace, name, calls, filter_) for name in ("a", "b"))
    admin = RingAdmin(client, a.ring.names, namespace=namespace)

    async def unplaced() -> dict[str, int]:
        members = (await admin.state()).members
        return {each.record.id[0]: each.record.unplaced for each in members}

    async with a.running():
        await until(lambda: set(calls.of("add")) == set(names))
        # The second replica, which gets the odd shards, cannot compute a single one.
        b.algorithm.broken = True
        with caplog.at_level(logging.ERROR):
            async with b.running():
                await until(lambda: len(b.ring.serving) == SLOTS / 2 == len(a.ring.serving))
                for name in names:
                    await write(client, namespace, name, "changed")
                gone = await client.get(CONFIG_MAPS, "o7", namespace)
                await client.delete(CONFIG_MAPS, "o7", namespace, uid=gone.uid)
                changed = dict.fromkeys(even, ("a", "changed"))
                await until(lambda: changed.items() <= calls.of("add", "update").items())

                async def shown() -> bool:
                    counts = await unplaced()
                    return counts["b"] > 0 == counts["a"]

                await until(shown)
                # The deletion may have been handled: `a` handed that object over with its shard.
                assert {who for who, what, *_ in calls.all if what != "delete"} == {"a"}
                errors = [line for line in caplog.text.splitlines() if f"{namespace}/o1'" in line]
                assert len(errors) == 1
                assert "OSError: the file of shards cannot be read" in errors[0]
                # As soon as it can, it has all changes, the deletion included.
                b.algorithm.broken = False
                left = dict.fromkeys(odd[:-1], ("b", "changed"))
                await until(lambda: left.items() <= calls.of("add", "update").items())
                await until(lambda: calls.of("delete").keys() == {"o7"})

                async def placed() -> bool:
                    return set((await unplaced()).values()) == {0}

                await until(placed)
                assert calls.count("delete", "o7") == 1
                await b.ring.stop()
        await until(lambda: len(a.ring.serving) == SLOTS)
        await write(client, namespace, "o3", "last")
        await until(lambda: calls.of("add", "update")["o3"] == ("a", "last"))
        assert sum(what == "delete" for _, what, *_ in calls.all) == 1


async def test_an_object_is_labelled_as_soon_as_its_shard_can_be_computed(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    calls, home = Calls(), Home(tmp_path / "home")
    where = ("--kubeconfig", str(cluster.kubeconfig), "-n", namespace)
    a = Replica(cluster, namespace, "a", calls, "label")
    label = a.ring.names.slot_label
    await make_objects(client, namespace, 1)
    async with a.running():
        await until(lambda: set(calls.of("add")) == {"o0"})
        a.algorithm.broken = True
        await make_objects(client, namespace, 1, start=1)
        await until(lambda: a.controller.unplaced() == 1)
        assert label not in (await client.get(CONFIG_MAPS, "o1", namespace)).labels
        # An object that is deleted meanwhile is forgotten.
        await make_objects(client, namespace, 1, start=2)
        await until(lambda: a.controller.unplaced() == 2)
        gone = await client.get(CONFIG_MAPS, "o2", namespace)
        await client.delete(CONFIG_MAPS, "o2", namespace, uid=gone.uid)
        await until(lambda: a.controller.unplaced() == 1)

        async def shown() -> bool:
            shards = await home.run("shards", "list", *where)
            return "because it cannot compute their shard: 1 (see its log)" in shards.out

        await until(shown, every=1.0)
        a.algorithm.broken = False
        await until(lambda: set(calls.of("add")) == {"o0", "o1"})
        assert (await client.get(CONFIG_MAPS, "o1", namespace)).labels[label] == "1"
        await until(lambda: a.controller.unplaced() == 0)


async def test_a_cache_keeps_objects_apart_whose_slot_cannot_be_computed(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults, algorithm = Faults(), Numbered()
    mine = cluster.client(wrap=faults.wrap)

    def slot_of(obj: Object) -> int:
        return algorithm.get_shard(str(obj.key), SLOTS)

    placement = ShardComputation("numbered", slot_of)
    selection = Everything(mine, CONFIG_MAPS, placement.shard_of, among=APP)
    cache = SlotCache(mine, CONFIG_MAPS, selection, namespace=namespace)
    seen: list[tuple[str | None, str | None]] = []
    cache.on_change(lambda old, new: seen.append((old and old.name, new and new.name)))
    keys = [Key(namespace, f"o{number}") for number in range(6)]
    await make_objects(client, namespace, 4)
    async with running(cache):
        await cache.add([0, 1, 4])
        assert {obj.key for obj in cache.items()} == {keys[0], keys[1]}
        algorithm.broken = True
        # A cached object keeps its slot; others are kept apart, in their last version.
        await write(client, namespace, "o0", "changed")
        await make_objects(client, namespace, 2, start=4)
        await write(client, namespace, "o4", "changed")
        await until(lambda: {keys[4], keys[5]} <= set(cache.unplaced))
        await until(lambda: len(seen) == 3)
        assert cache.keys(0) == [keys[0]]
        assert cache.get(keys[4]) is None
        # A list in the meantime finds the same, and forgets what was deleted.
        gone = await client.get(CONFIG_MAPS, "o5", namespace)
        faults.partition()
        await client.delete(CONFIG_MAPS, "o5", namespace, uid=gone.uid)
        faults.answer(410, when=watches)
        faults.rejoin()
        await until(lambda: keys[5] not in cache.unplaced and keys[4] in cache.unplaced)
        assert {obj.key for obj in cache.items()} == {keys[0], keys[1]}
        removed = await client.get(CONFIG_MAPS, "o1", namespace)
        await client.delete(CONFIG_MAPS, "o1", namespace, uid=removed.uid)
        await until(lambda: cache.get(keys[1]) is None)
        assert cache.keys(1) == []
        algorithm.broken = False
        for key in list(cache.unplaced):
            cache.place_again(key)
        stored = await client.get(CONFIG_MAPS, "o4", namespace)
        cached = cache.get(keys[4])
        assert cached is not None
        assert cached.resource_version == stored.resource_version
        assert cache.keys(4) == [keys[4]]
        assert not cache.unplaced
        cache.drop([0, 1, 4])
        assert len(cache) == 0
    await mine.close()
