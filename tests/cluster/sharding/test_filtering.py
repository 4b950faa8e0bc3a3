"""Each way to receive one's part of the objects, and a cache whose slots come and go."""

from __future__ import annotations

import asyncio
import random

import pytest

from kubeocean.errors import ConfigError, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Key, Object
from kubeocean.sharding.selection import (
    Everything,
    Selection,
    ShardSelector,
    SlotLabel,
    choose,
    probe,
)
from kubeocean.sharding.slot_cache import SlotCache
from kubeocean.sharding.slots import slot_of, slot_of_uid
from support.background import running
from support.faults import Faults, watches
from support.ring_env import APP, SLOTS, RingEnv, make_objects
from support.shard_selectors import ShardFiltering
from support.wait import until

LABEL = "slot.example/ring"
TOTAL = 8


def slot_by_name(obj: Object) -> int:
    return slot_of(str(obj.key), TOTAL)


def selections(client: Client, filtering: Client) -> dict[str, Selection[ConfigMap]]:
    return {
        "label": SlotLabel(client, TOTAL, LABEL, APP),
        "metadata": Everything(client, CONFIG_MAPS, slot_by_name, among=APP),
        "shard-selector": ShardSelector(filtering, CONFIG_MAPS, TOTAL, APP),
    }


async def put(client: Client, namespace: str, name: str, text: str) -> None:
    """Create or change an object, with its slot on it."""
    slot = slot_of(f"{namespace}/{name}", TOTAL)
    labels = {LABEL: str(slot), **dict([APP.split("=")])}
    try:
        patch = MergePatch({"data": {"text": text}})
        await client.patch(CONFIG_MAPS, name, patch, namespace)
    except NotFound:
        body = {"metadata": {"name": name, "labels": labels}, "data": {"text": text}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)


@pytest.mark.parametrize("way", ["label", "metadata", "shard-selector"])
async def test_a_cache_has_its_slots_whatever_happens(
    cluster: Cluster, client: Client, namespace: str, way: str
) -> None:
    faults, chance = Faults(), random.Random(way)
    mine = cluster.client(wrap=faults.wrap)
    filtering = cluster.client(wrap=lambda inner: ShardFiltering(faults.wrap(inner)))
    selection = selections(mine, filtering)[way]
    cache = SlotCache(mine, CONFIG_MAPS, selection, namespace=namespace)
    names = [f"o{number}" for number in range(24)]

    async def shows_the_server() -> bool:
        listing = await client.list(CONFIG_MAPS, namespace, labels=APP)
        wanted = {o.key: o.resource_version for o in listing.items if slot(o) in cache.slots}
        return {o.key: o.resource_version for o in cache.items()} == wanted

    def slot(obj: ConfigMap) -> int:
        return slot_of_uid(obj.uid, TOTAL) if way == "shard-selector" else slot_by_name(obj)

    async def stir() -> None:
        for _ in range(6):
            name = chance.choice(names)
            if chance.random() < 0.7:
                await put(client, namespace, name, str(chance.random()))
            else:
                try:
                    found = await client.get(CONFIG_MAPS, name, namespace)
                    await client.delete(CONFIG_MAPS, name, namespace, uid=found.uid)
                except NotFound:
                    continue

    for name in names[:12]:
        await put(client, namespace, name, "first")
    async with running(cache):
        for turn in range(12):
            some = chance.sample(range(TOTAL), 3)
            async with asyncio.TaskGroup() as group:
                group.create_task(stir())
                if turn % 3 == 2:
                    cache.drop(some)
                    assert not {slot(obj) for obj in cache.items()} & set(some)
                else:
                    group.create_task(cache.add(some))
                if turn == 5:
                    faults.cut()
                if turn == 8:
                    faults.answer(410, when=watches)
            if turn % 3 != 2:
                assert set(some) <= cache.slots
            await until(shows_the_server)
    await mine.close()
    await filtering.close()


async def test_to_gain_slots_lists_only_these_and_to_lose_some_costs_nothing(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults = Faults()
    mine = cluster.client(wrap=faults.wrap)
    for number in range(24):
        await put(client, namespace, f"o{number}", "x")
    cache = SlotCache(mine, CONFIG_MAPS, SlotLabel(mine, TOTAL, LABEL), namespace=namespace)
    async with running(cache):
        await cache.add([0, 1, 2])
        await until(lambda: any(request.watches for request in faults.requests))
        mark = len(faults.requests)
        cache.drop([2])
        assert len(faults.requests) == mark
        await cache.add([5])
        await until(lambda: any(request.watches for request in faults.requests[mark:]))
        lists = [dict(r.query) for r in faults.requests[mark:] if not r.watches]
        streams = [dict(r.query) for r in faults.requests[mark:] if r.watches]
        assert [query["labelSelector"] for query in lists] == [f"{LABEL} in (5)"]
        assert [query["labelSelector"] for query in streams] == [f"{LABEL} in (0,1,5)"]
        assert all("sendInitialEvents" not in query for query in streams)
        assert all(query["resourceVersion"] for query in streams)
    await mine.close()


async def test_the_way_is_probed_and_a_wish_that_cannot_be_met_is_an_error(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    filtering = cluster.client(wrap=ShardFiltering)
    options = {"slots": TOTAL, "label": LABEL, "slot_of": slot_by_name, "namespace": namespace}
    newer = await probe(filtering, CONFIG_MAPS, namespace=namespace)
    assert newer
    # This server ignores the parameter, and its answer does not confirm a filter.
    if not await probe(client, CONFIG_MAPS, namespace=namespace):
        chosen = await choose(client, CONFIG_MAPS, configured="auto", **options)
        assert chosen.name == "label"
        with pytest.raises(ConfigError, match=r"sharding\.filter: the API server does not filter"):
            await choose(client, CONFIG_MAPS, configured="shard-selector", **options)
    chosen = await choose(filtering, CONFIG_MAPS, configured="auto", **options)
    assert chosen.name == "shard-selector"
    family = await choose(filtering, CONFIG_MAPS, configured="auto", family=True, **options)
    assert family.name == "label"
    with pytest.raises(ConfigError, match=r"sharding\.filter: cannot assign objects"):
        await choose(filtering, CONFIG_MAPS, configured="shard-selector", family=True, **options)
    chosen = await choose(filtering, CONFIG_MAPS, configured="metadata", **options)
    assert (chosen.name, chosen.whole) == ("metadata", False)
    await filtering.close()


async def test_with_metadata_only_nothing_is_written_and_objects_are_read_whole(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 12)
    await client.patch(CONFIG_MAPS, "o3", MergePatch({"data": {"a": "b"}}), namespace)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b", sharding={"filter": "metadata"})
        assert len(a.controller.objects) + len(b.controller.objects) == 12
        key = Key(namespace, "o3")
        owner = a if a.controller.get(key) is not None else b
        read = await owner.controller.read(key)
        assert read is not None
        assert read.data == {"a": "b"}
        assert await owner.controller.read(Key(namespace, "none")) is None
        listing = await client.list(CONFIG_MAPS, namespace, labels=APP)
        assert not any(a.ring.names.slot_label in item.labels for item in listing.items)
        ring_env.check_exclusive()


async def test_a_changed_label_is_corrected_and_two_replicas_never_work_on_one_key(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 6)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b")
        label, right = a.ring.names.slot_label, a.ring.shard_of(keys[0])
        other = next(iter((b if right in a.slots else a).slots))
        assert other != right

        async def labelled() -> bool:
            found = await client.get(CONFIG_MAPS, "o0", namespace)
            return found.labels.get(label) == str(right)

        for wrong in (str(other), None):
            patch = MergePatch({"metadata": {"labels": {label: wrong}}})
            await client.patch(CONFIG_MAPS, "o0", patch, namespace)
            await until(labelled)
        assert set(ring_env.by(keys[0])) == {"a" if right in a.slots else "b"}
        assert len(a.slots | b.slots) == SLOTS
