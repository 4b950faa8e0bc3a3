"""Rings whose objects were changed by hand: no replica fails, and none makes wrong decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES
from kubeocean.sharding import table_operations
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.ring import GaveUp
from support.ring_env import (
    MANY,
    SHORT_DRAINS,
    SHORT_LEASES,
    SLOTS,
    Deaf,
    Replica,
    RingEnv,
    make_objects,
)
from support.wait import until


def _fewer(state: dict[str, Any]) -> str:
    table = state["table"]
    groups = [[-1, -1, table["epoch"] + 5, "0-7"]]
    table |= {"slots": 8, "groups": groups, "epoch": table["epoch"] + 5, "history": []}
    return msgspec.json.encode(state).decode()


def _older(state: dict[str, Any]) -> str:
    state["table"] |= {"epoch": 1, "groups": [[0, -1, 1, f"0-{SLOTS - 1}"]], "history": []}
    return msgspec.json.encode(state).decode()


def _with(**changes: Any) -> Callable[[dict[str, Any]], str]:
    return lambda state: msgspec.json.encode({**state, **changes}).decode()


def _table(**changes: Any) -> Callable[[dict[str, Any]], str]:
    def edit(state: dict[str, Any]) -> str:
        return msgspec.json.encode({**state, "table": {**state["table"], **changes}}).decode()

    return edit


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(lambda state: "{", id="no JSON"),
        pytest.param(lambda state: "{}", id="no table"),
        pytest.param(_fewer, id="fewer slots"),
        pytest.param(_table(ring="other"), id="another ring"),
        pytest.param(_table(members=[]), id="no members"),
        pytest.param(_table(slots=1 << 40), id="more slots than memory"),
        pytest.param(_older, id="an old one"),
        pytest.param(_with(grants=5), id="grants that are none"),
        pytest.param(_table(frozen=True, members=["x_1", "y_1"]), id="owners that are not there"),
    ],
)
async def test_a_table_that_makes_no_sense_is_written_anew(
    nonsense: Callable[[dict[str, Any]], str], cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b")
        held = a.slots
        found = await client.get(CONFIG_MAPS, a.ring.names.table, namespace)
        state = nonsense(msgspec.json.decode((found.data or {})["state"]))
        patch = MergePatch({"data": {"state": state}})
        await client.patch(CONFIG_MAPS, a.ring.names.table, patch, namespace)
        overseer = RingAdmin(client, a.ring.names, namespace=namespace)

        async def mended() -> bool:
            try:
                table = (await overseer.state()).table
            except ConfigError:
                return False
            return (table.slots, table.owners) == (SLOTS, {a.ring.id, b.ring.id})

        await until(mended)
        assert (a.slots, b.slots) == (held, frozenset(range(SLOTS)) - held)
        # The ring goes on: a replica that joins gets its share.
        c = ring_env.join("c")
        await ring_env.share([a, b, c])
        ring_env.check_exclusive()


async def test_who_cuts_keys_otherwise_ends_before_it_works(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        # It begins when there is no table yet, and the other one is elected.
        other = Replica(ring_env, "b", sharding={"slots": 2 * SLOTS})
        other.faults.answer(503, times=1000, when=lambda request: "assigner" in request.path)
        ring_env.replicas.append(other)
        other.start()
        await until(other.ring.healthy.is_set)
        a = ring_env.join("a")
        with pytest.raises(ConfigError, match=r"sharding\.slots: .* '32'"):
            await asyncio.wait_for(asyncio.shield(other._tasks[0]), 60)
        other._tasks = other._tasks[1:]
        assert not other.notes.gained
        await until(lambda: len(a.slots) == SLOTS)


async def test_a_shard_that_is_released_from_who_cannot_end_its_work_is_served_again(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    short = {"state": SHORT_LEASES, "sharding": SHORT_DRAINS}
    await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env, Deaf("a") as deaf:
        a = ring_env.join("a", reconcile=deaf, workers=MANY, **short)
        await until(lambda: len(ring_env.acts) == MANY)
        overseer = RingAdmin(client, a.ring.names, namespace=namespace)
        await overseer.change(lambda state: table_operations.release(state.table, range(SLOTS)))
        with pytest.raises(GaveUp, match="did not end its work"):
            await asyncio.wait_for(asyncio.shield(a._tasks[0]), 90)
        deaf.free.set()
        a._tasks = a._tasks[1:]
        await a.crash()
        b = ring_env.join("b", **short)
        await until(lambda: len(b.slots) == SLOTS)


async def test_a_shard_that_is_released_while_the_layer_above_hangs_is_served_again(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work([], "a", "b", state=SHORT_LEASES, sharding=SHORT_DRAINS)
        a.notes.hold = asyncio.Event()
        released = sorted(a.slots)[:2]
        overseer = RingAdmin(client, a.ring.names, namespace=namespace)
        await overseer.change(lambda state: table_operations.release(state.table, released))
        await until(lambda: not {*released} & a.slots)
        await until(lambda: {*released} <= a.slots | b.slots)


@pytest.mark.parametrize("holder", [None, "copy"])
async def test_a_lease_that_no_replica_wrote_gets_no_shards(
    holder: str | None, cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", state=SHORT_LEASES)
        await until(lambda: len(a.slots) == SLOTS)
        names = a.ring.names
        lease = await client.get(LEASES, names.member(a.ring.id), namespace)
        spec = {"holderIdentity": a.ring.id} if holder else {}
        meta = {"name": "zz-copy", "labels": lease.labels, "annotations": lease.annotations}
        body = {"metadata": meta, "spec": {**spec, "leaseDurationSeconds": 3000}}
        await client.create(LEASES, body, namespace=namespace)
        b = ring_env.join("b", state=SHORT_LEASES)
        await ring_env.share([a, b])
        # Nor does the copy of its Lease count as a sign of life.
        await a.crash()
        await until(lambda: len(b.slots) == SLOTS)


async def test_people_who_steer_at_the_same_time_do_not_meet_the_assigner(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        replicas = await ring_env.at_work(keys, "a", "b", "c")
        overseer = RingAdmin(client, replicas[0].ring.names, namespace=namespace)

        async def steer(to: str, slots: range) -> None:
            for _ in range(6):
                await overseer.change(
                    lambda state: table_operations.move(state.table, slots, state.member(to))
                )

        async with asyncio.TaskGroup() as group:
            group.create_task(steer("a", range(16)))
            group.create_task(steer("b", range(8, 24)))
        await ring_env.share(replicas)
        ring_env.check_exclusive()


async def test_an_assigner_is_elected_whatever_its_lease_said(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work([], "a", "b", state=SHORT_LEASES)
        for spec in (
            None,
            {
                "holderIdentity": 'nobody\n"',
                "leaseDurationSeconds": 1,
                "leaseTransitions": (1 << 31) - 1,
                "renewTime": "2999-01-01T00:00:00.000000Z",
            },
        ):
            patch = MergePatch({"spec": spec})
            await client.patch(LEASES, a.ring.names.assigner, patch, namespace)

            async def elected() -> bool:
                lease = await client.get(LEASES, a.ring.names.assigner, namespace)
                holders = {each.ring.election.identity for each in (a, b)}
                return lease.spec.holder_identity in holders

            await until(elected)
        c = ring_env.join("c")
        await ring_env.share([a, b, c])
