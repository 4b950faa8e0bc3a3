"""Handlers on a real API server: no deletion is lost in a hand-over, and none is invented."""

from __future__ import annotations

import asyncio
import random

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from support.ring_env import APP, MANY, SLOTS, Replica, RingEnv, make_objects
from support.wait import until


async def delete(client: Client, namespace: str, key: str) -> tuple[str, str]:
    """Delete an object; return its key and UID."""
    name = key.rpartition("/")[2]
    obj = await client.get(CONFIG_MAPS, name, namespace)
    await client.delete(CONFIG_MAPS, name, namespace, uid=obj.uid)
    return key, obj.uid


async def added(ring_env: RingEnv, keys: list[str]) -> None:
    """Wait until each key was handled as an addition."""
    await until(lambda: {key for key, _ in ring_env.handled("add")} >= set(keys))


async def test_no_deletion_is_lost_or_repeated_while_replicas_come_and_go(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    chance = random.Random(5)
    # Long enough that no membership and no hand-over ends by force on a busy machine
    calm = {
        "state": {"leaseDuration": "30s", "renewDeadline": "20s"},
        "sharding": {"drainDeadline": "1m", "handoverDeadline": "2m"},
    }
    keys = await make_objects(client, namespace, 6 * MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True, **calm)
        await added(ring_env, keys)
        chance.shuffle(keys)
        deleted: set[tuple[str, str]] = set()
        ended = asyncio.Event()

        async def delete_all() -> None:
            while keys:
                deleted.add(await delete(client, namespace, keys.pop()))
                await asyncio.sleep(0.005)
            ended.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(delete_all())
            b = ring_env.join("b", handles=True, **calm)
            await until(lambda: len(b.slots) > SLOTS // 4)
            c = ring_env.join("c", handles=True, **calm)
            await until(lambda: len(c.slots) > SLOTS // 6)
            await a.leave()
            d = ring_env.join("d", handles=True, **calm)
            await b.leave()
            await until(lambda: len(d.slots) > SLOTS // 4)
            await ended.wait()

        def none_is_lost() -> bool:
            assert deleted - set(ring_env.handled("delete")) == set()
            return True

        await until(none_is_lost)
        assert set(ring_env.handled("delete")) == deleted
        assert set(ring_env.handled("delete").values()) == {1}

        async def pages_were_read() -> bool:
            selector = a.ring.names.selects("handover")
            return len((await client.list(CONFIG_MAPS, namespace, labels=selector)).items) <= 1

        await until(pages_were_read)
        await c.leave()
        await d.leave()


async def test_a_deletion_while_no_replica_runs_is_handled_by_the_next_one(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 8)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
        await added(ring_env, keys)
        await client.patch(CONFIG_MAPS, "o3", MergePatch({"data": {"text": "last"}}), namespace)
        await until(lambda: any(call.data == "last" for call in ring_env.calls))
        await a.leave()
        gone = await delete(client, namespace, keys[3])
        ring_env.join("b", handles=True)
        await until(lambda: ring_env.handled("delete"))
        assert ring_env.handled("delete") == {gone: 1}
        # The handler gets the whole object, though the new owner has never seen it.
        assert [call.data for call in ring_env.calls if call.what == "delete"] == ["last"]


async def labelled(client: Client, replica: Replica, namespace: str, name: str) -> bool:
    obj = await client.get(CONFIG_MAPS, name, namespace)
    right = str(replica.ring.shard_of(f"{namespace}/{name}"))
    return obj.labels.get(replica.ring.names.slot_label) == right


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("label", [None, "abc", "99999", "other"])
async def test_a_slot_label_that_was_changed_is_restored_and_is_no_deletion(
    cluster: Cluster, client: Client, namespace: str, label: str | None, replicas: int
) -> None:
    keys = await make_objects(client, namespace, 6)
    async with RingEnv.open(cluster, namespace) as ring_env:
        some = [ring_env.join(name, handles=True) for name in ("a", "b")[:replicas]]
        await ring_env.share(some)
        await added(ring_env, keys)
        a = some[0]
        right = a.ring.shard_of(keys[0])
        value = str((right + 1) % SLOTS) if label == "other" else label
        patch = MergePatch(
            {"metadata": {"labels": {a.ring.names.slot_label: value}}, "data": {"text": "new"}}
        )
        await client.patch(CONFIG_MAPS, "o0", patch, namespace)
        await until(lambda: labelled(client, a, namespace, "o0"))
        await until(lambda: any(call.data == "new" for call in ring_env.calls))
        gone = await delete(client, namespace, keys[0])
        await until(lambda: ring_env.handled("delete"))
        assert ring_env.handled("delete") == {gone: 1}


async def test_a_replaced_object_is_an_update_and_no_deletion(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 12)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = ring_env.join("a", handles=True), ring_env.join("b", handles=True)
        await ring_env.share([a, b])
        await added(ring_env, keys)
        label, value = APP.split("=")
        for number in range(12):
            # As `kubectl replace` of the user's file does: the slot label is not in it.
            name = f"o{number}"
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "labels": {label: value}},
                "data": {"text": "replaced"},
            }
            path = CONFIG_MAPS.path(namespace, name)
            await client.request("PUT", path, body=body)
        await until(lambda: {c.key for c in ring_env.calls if c.data == "replaced"} == set(keys))
        for number in range(12):
            await until(lambda n=number: labelled(client, a, namespace, f"o{n}"))
        assert not ring_env.handled("delete")


async def test_an_object_that_leaves_the_selection_is_no_deletion(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 4)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
        await added(ring_env, keys)
        label, value = APP.split("=")

        async def set_label(text: str | None) -> None:
            patch = MergePatch({"metadata": {"labels": {label: text}}})
            await client.patch(CONFIG_MAPS, "o1", patch, namespace)

        def has_record() -> bool:
            return keys[1] in a.controller.handled(a.ring.shard_of(keys[1])).uids

        await set_label(None)
        await until(lambda: not has_record())
        await set_label(value)
        await until(lambda: ring_env.handled("add").total() == 5)
        assert not ring_env.handled("delete")


async def test_lost_and_gained_shards_name_all_of_their_keys(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 2 * MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
        await added(ring_env, keys)
        b = ring_env.join("b", handles=True)
        await ring_env.share([a, b])
        moved = {key for key in keys if a.ring.shard_of(key) in b.slots}
        assert moved

        def named(by_slot: dict[int, list[str]]) -> set[str]:
            return {key for slot in b.slots for key in by_slot.get(slot, [])}

        assert named(a.notes.lost_resources) == named(b.notes.resources) == moved


# Guaranteed deletions


async def test_a_deletion_is_handled_though_its_owner_crashed(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    guaranteed = {"deletions": "guaranteed"}
    keys = await make_objects(client, namespace, 8)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True, options=guaranteed)
        await added(ring_env, keys)
        await a.crash()
        gone = [await delete(client, namespace, key) for key in keys[:4]]
        ring_env.join("b", handles=True, options=guaranteed)

        async def names() -> set[str]:
            listing = await client.list(CONFIG_MAPS, namespace, labels=APP)
            return {f"{namespace}/{obj.name}" for obj in listing.items}

        async def deleted() -> bool:
            return await names() == set(keys[4:])

        await until(deleted)
        assert ring_env.handled("delete") == dict.fromkeys(gone, 1)


async def test_an_object_that_leaves_the_selection_can_be_deleted(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 2)
    async with RingEnv.open(cluster, namespace) as ring_env:
        ring_env.join("a", handles=True, options={"deletions": "guaranteed"})
        await added(ring_env, keys)
        label = APP.split("=")[0]
        patch = MergePatch({"metadata": {"labels": {label: None}}})
        await client.patch(CONFIG_MAPS, "o1", patch, namespace)

        async def free() -> bool:
            return not (await client.get(CONFIG_MAPS, "o1", namespace)).metadata.finalizers

        await until(free)
        assert not ring_env.handled("delete")
