"""Handlers on a real API server: no deletion is lost in a hand-over, and none is invented."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.transport import Request
from kubeocean.sharding.handover import Handled, HandoverPages, SlotHandover
from kubeocean.sharding.names import Names
from kubeocean.sharding.slots import slot_of
from support.faults import Faults, writes
from support.ring_env import APP, MANY, SHORT_LEASES, SLOTS, Replica, RingEnv, make_objects
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
    keys = await make_objects(client, namespace, 6 * MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
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
            b = ring_env.join("b", handles=True)
            await until(lambda: len(b.slots) > SLOTS // 4)
            c = ring_env.join("c", handles=True)
            await until(lambda: len(c.slots) > SLOTS // 6)
            await a.leave()
            d = ring_env.join("d", handles=True)
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
            return not (await client.list(CONFIG_MAPS, namespace, labels=selector)).items

        await until(pages_were_read)
        await c.leave()
        await d.leave()


async def test_a_page_of_which_two_replicas_take_the_last_entries_at_a_time_is_deleted(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    names = Names("ring")
    # Both read the page before either of them has removed its entry.
    late = Faults()
    late.delay(1.0, when=writes)
    clients = [client, *(cluster.client(wrap=late.wrap) for _ in range(2))]
    old, one, other = (HandoverPages(each, namespace=namespace, names=names) for each in clients)
    handovers = {
        slot: SlotHandover(slot, {"ring": Handled({f"n/o{slot}": "uid"}, "1")}) for slot in (1, 2)
    }
    await asyncio.gather(*(old.put(slot, handover) for slot, handover in handovers.items()))
    selector = names.selects("handover")
    assert len((await client.list(CONFIG_MAPS, namespace, labels=selector)).items) == 1
    taken = await asyncio.gather(one.take(1), other.take(2))
    assert taken == [handovers[1], handovers[2]]
    assert not (await client.list(CONFIG_MAPS, namespace, labels=selector)).items
    # A replica that was killed in between leaves an empty page; the next one deletes it.
    meta = {"name": "empty", "labels": names.labels("handover")}
    await client.create(CONFIG_MAPS, {"metadata": meta}, namespace=namespace)
    assert await old.take(3) is None
    assert not (await client.list(CONFIG_MAPS, namespace, labels=selector)).items
    for each in clients[1:]:
        await each.close()


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
        assert [call.data for call in ring_env.calls if call.event == "delete"] == ["last"]


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
    short: dict[str, Any] = {"options": {"deletions": "guaranteed"}, "state": SHORT_LEASES}
    keys = await make_objects(client, namespace, 8)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True, **short)
        await added(ring_env, keys)
        await a.crash()
        gone = [await delete(client, namespace, key) for key in keys[:4]]
        ring_env.join("b", handles=True, **short)

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


FAILED = 12  # requests in a row that fail; the Lease is valid for longer
ROLES = ("new owner", "old owner", "leaving owner")
HOW = ("refused", "answer lost")
CASES = [(role, how, after) for after in range(0, 30, 2) for role in ROLES for how in HOW]


def fail(faults: Faults, how: str, after: int) -> None:
    """Let requests fail, from the one after so many on."""
    seen = 0

    def due(request: Request) -> bool:
        nonlocal seen
        seen += 1
        return seen > after

    if how == "refused":
        faults.refuse(times=FAILED, when=due)
    else:
        faults.lose_answer(times=FAILED, when=due)


@pytest.mark.parametrize("n", range(len(CASES)), ids=[" ".join(map(str, case)) for case in CASES])
@pytest.mark.sweep
async def test_a_hand_over_without_an_api_server_loses_and_repeats_no_deletion(
    cluster: Cluster, client: Client, namespace: str, n: int
) -> None:
    role, how, after = CASES[n]
    keys = await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
        await added(ring_env, keys)
        deleted: set[tuple[str, str]] = set()

        async def delete_all(some: list[str]) -> None:
            for key in some:
                deleted.add(await delete(client, namespace, key))
                await asyncio.sleep(0.005)

        if role == "old owner":
            fail(a.faults, how, after)
        b = ring_env.join("b", handles=True)
        if role == "new owner":
            fail(b.faults, how, after)
        async with asyncio.TaskGroup() as group:
            group.create_task(delete_all(keys[: MANY // 3]))
            await ring_env.share([a, b])
        if role == "leaving owner":
            fail(a.faults, how, after)
        async with asyncio.TaskGroup() as group:
            group.create_task(delete_all(keys[MANY // 3 : 2 * MANY // 3]))
            await a.leave()
        await until(lambda: len(b.slots) == SLOTS)
        await until(lambda: set(ring_env.handled("delete")) >= deleted)
        assert set(ring_env.handled("delete")) == deleted
        assert set(ring_env.handled("delete").values()) == {1}
        living = set(keys[2 * MANY // 3 :])
        await until(lambda: living <= {call.key for call in ring_env.calls if call.replica == "b"})


async def test_a_deletion_is_handled_though_the_version_of_the_hand_over_is_in_the_future(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    """As after the data of an API server was restored from a backup."""
    names = Names("ring")
    key, pages = f"{namespace}/gone", HandoverPages(client, namespace=namespace, names=names)
    handled = Handled({key: "uid-of-gone"}, version="99999999999")
    await pages.put(slot_of(key, SLOTS), SlotHandover(1, {"ring": handled}))
    async with RingEnv.open(cluster, namespace) as ring_env:
        ring_env.join("a", handles=True)
        await until(lambda: ring_env.handled("delete") == {(key, "uid-of-gone"): 1})


KILLED = [(role, after) for after in range(1, 9) for role in ROLES]


@pytest.mark.parametrize("n", range(len(KILLED)), ids=[f"{role} {after}" for role, after in KILLED])
@pytest.mark.sweep
async def test_a_replica_that_is_killed_in_a_hand_over_is_replaced_without_false_deletions(
    cluster: Cluster, client: Client, namespace: str, n: int
) -> None:
    role, after = KILLED[n]
    keys = await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True, state=SHORT_LEASES)
        await added(ring_env, keys)
        b = ring_env.join("b", handles=True, state=SHORT_LEASES)
        if role == "leaving owner":
            await ring_env.share([a, b])
        victim, survivor = (b, a) if role == "new owner" else (a, b)
        killed = asyncio.Event()
        victim.faults.crash_after_write(after, by=killed.set)
        leaving = asyncio.create_task(a.ring.stop()) if role == "leaving owner" else None
        deleted: set[tuple[str, str]] = set()
        async with asyncio.TaskGroup() as group:

            async def delete_some() -> None:
                for key in keys[: MANY // 3]:
                    deleted.add(await delete(client, namespace, key))

            group.create_task(delete_some())
            # A replica that needs fewer writes than `after` to leave is not killed.
            await until(lambda: killed.is_set() or (leaving is not None and leaving.done()))
            for task in victim._tasks:
                task.cancel()
            await asyncio.gather(*victim._tasks, return_exceptions=True)
            victim._tasks = []
            await victim.client.close()
        if leaving is not None:
            await leaving
        await until(lambda: len(survivor.slots) == SLOTS)
        living = set(keys[MANY // 3 :])
        own = survivor.name
        await until(lambda: living <= {call.key for call in ring_env.calls if call.replica == own})
        # A crash may lose deletions, but neither invents nor repeats one.
        assert set(ring_env.handled("delete")) <= deleted
        assert set(ring_env.handled("delete").values()) <= {1}
