"""Rings on a real API server: hand-over, fail-over, and never two owners of a slot."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request
from kubeocean.runtime.transport_layers import Fenced
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.ring import GaveUp, WakingClock
from support.faults import SkewedClock
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


async def test_one_replica_does_everything(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        alone = ring_env.join("a")
        await until(lambda: set(ring_env.done()) == set(keys))
        assert len(alone.slots) == SLOTS
        more = await make_objects(client, namespace, 5, start=100)
        await until(lambda: set(ring_env.done()) == {*keys, *more})
        ring_env.check_exclusive()


async def test_replicas_share_and_every_key_has_one_owner(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 40)
    async with RingEnv.open(cluster, namespace) as ring_env:
        replicas = await ring_env.at_work(keys, "a", "b", "c")
        cached = [len(replica.controller.objects) for replica in replicas]
        assert sum(cached) == 40
        assert all(cached)
        held = [replica.slots for replica in replicas]
        assert sorted(slot for slots in held for slot in slots) == list(range(SLOTS))
        ring_env.check_exclusive()


async def test_who_leaves_hands_over_and_nothing_is_done_twice(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b")
        mine = {key for key in keys if a.ring.shard_of(key) in a.slots}
        mark = len(ring_env.acts)
        await a.leave()
        await until(lambda: len(b.slots) == SLOTS)
        # Objects of gained slots are reconciled once, objects of kept slots not at all.
        await until(lambda: ring_env.done(mark).keys() == mine)
        assert set(ring_env.done(mark).values()) == {1}
        assert sorted(a.notes.lost) == sorted(a.notes.gained)

        async def only_one_lease() -> bool:
            leases = await client.list(LEASES, namespace, labels=a.ring.names.selects("member"))
            return [lease.spec.holder_identity for lease in leases.items] == [b.ring.id]

        await until(only_one_lease)
        ring_env.check_exclusive()


async def test_the_last_one_leaves_at_once(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        alone = ring_env.join("a")
        await until(lambda: len(alone.slots) == SLOTS)
        async with asyncio.timeout(60):  # half of the time for a hand-over
            await alone.leave()
        assert sorted(alone.notes.lost) == list(range(SLOTS))


async def test_the_notifier_is_awaited_before_another_replica_gets_the_shard(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: set(ring_env.done()) == set(keys))
        a.notes.hold = asyncio.Event()
        b = ring_env.join("b")
        table = await until(lambda: (t := a.ring.table) and t.draining() and t)
        going = set(table.draining())
        # The shards have to be handed over, but the controller has not finished its work on them.
        await until(lambda: not going & a.slots)
        # Meanwhile B has read the objects of the slots that it will get.
        await until(lambda: set(b.controller.objects.slots) == going)
        assert not b.slots
        assert not b.notes.gained
        a.notes.hold.set()
        await until(lambda: b.slots == going)
        assert sorted(a.notes.lost) == sorted(b.notes.gained) == sorted(going)
        notified = {key for slot in going for key in b.notes.resources[slot]}
        assert notified == {key for key in keys if b.ring.shard_of(key) in going}
        await until(lambda: {move[0] for move in a.notes.reassigned if move[1:] == ("a", "b")})


async def test_running_reconciles_end_before_the_hand_over(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    may_end = asyncio.Event()

    async def wait(replica: Replica, key: Key) -> None:
        if replica.name == "a":
            await may_end.wait()

    keys = await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", reconcile=wait, workers=MANY)
        await until(lambda: len(ring_env.acts) == len(keys))
        b = ring_env.join("b", reconcile=wait)
        busy = {a.ring.shard_of(key) for key in keys}
        # Shards without work go at once, the others wait.
        draining = await until(lambda: (t := a.ring.table) and set(t.draining()) & busy)
        await until(lambda: (t := a.ring.table) and set(t.draining()) <= busy)
        assert not b.slots & busy
        may_end.set()
        await until(lambda: draining <= b.slots)
        await until(lambda: set(ring_env.done()) == set(keys))
        ring_env.check_exclusive()


async def test_a_reconcile_that_takes_too_long_is_cancelled_and_done_by_the_next_owner(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async def stuck(replica: Replica, key: Key) -> None:
        if replica.name == "a":
            await asyncio.Event().wait()

    deadlines = {"drainDeadline": "2s", "cancelDeadline": "30s"}
    keys = await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", reconcile=stuck, workers=MANY, sharding=deadlines)
        await until(lambda: len(ring_env.acts) == len(keys))
        b = ring_env.join("b", reconcile=stuck, sharding=deadlines)
        await ring_env.share([a, b])
        moved = {key for key in keys if b.ring.shard_of(key) in b.slots}
        assert moved
        await until(lambda: {key for key in keys if "b" in ring_env.by(key)} == moved)
        ring_env.check_exclusive()


async def test_who_cannot_end_its_work_ends_itself(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    short = {"state": SHORT_LEASES, "sharding": SHORT_DRAINS}
    await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env, Deaf("a") as deaf:
        a = ring_env.join("a", reconcile=deaf, workers=MANY, **short)
        await until(lambda: len(ring_env.acts) == MANY)
        b = ring_env.join("b", reconcile=deaf, **short)
        with pytest.raises(GaveUp, match="did not end its work"):
            await asyncio.wait_for(asyncio.shield(a._tasks[0]), 90)
        deaf.free.set()
        a._tasks = a._tasks[1:]
        await a.crash()
        await until(lambda: len(b.slots) == SLOTS)


async def test_a_crash_is_made_good_by_the_others(
    cluster: Cluster, client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        replicas = await ring_env.at_work(keys, "a", "b", "c", state=SHORT_LEASES)
        # The replica whose planner is elected: others take over its slots and its election.
        dead = next(replica for replica in replicas if replica.ring.election.is_leader)
        theirs = {key for key in keys if dead.ring.shard_of(key) in dead.slots}
        mark = len(ring_env.acts)
        await dead.crash()
        await ring_env.share([replica for replica in replicas if replica is not dead])
        await until(lambda: ring_env.done(mark).keys() >= theirs)
        assert set(ring_env.done(mark)) == theirs
        ring_env.check_exclusive()
        logged = [line for line in caplog.text.splitlines() if dead.ring.id in line]
        for status in ("Healthy", "Unhealthy"):
            assert any("Health status of replica" in line and status in line for line in logged)


async def test_a_replica_that_is_cut_off_stops_and_joins_with_a_new_identity(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b", state=SHORT_LEASES)
        before = a.ring.id
        a.faults.partition()
        # The replica stops by itself before another may start.
        await until(lambda: not a.slots)
        assert len(b.slots) < SLOTS
        await until(lambda: not a.ring.healthy.is_set())
        await until(lambda: len(b.slots) == SLOTS)
        assert sorted(a.notes.lost) == sorted(a.notes.gained)
        a.faults.heal()
        await ring_env.share([a, b])
        assert a.ring.id != before
        assert a.metrics.value("sharded_controller_lapses_total", {"ring": "ring"}) >= 1
        ring_env.check_exclusive()


async def test_a_writer_that_lost_its_shard_is_refused_before_it_sends(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    frozen, refused = asyncio.Event(), asyncio.Event()

    async def write(replica: Replica, key: Key) -> None:
        if replica.name == "a" and not frozen.is_set():
            frozen.set()
            try:
                await asyncio.Event().wait()
            finally:
                # Writes of the stopping replica are too late.
                with pytest.raises(Fenced, match=r"any more|no valid Lease"):
                    patch = MergePatch({"data": {"by": "a"}})
                    await replica.controller.client.patch(CONFIG_MAPS, "o0", patch, namespace)
                refused.set()

    await make_objects(client, namespace, 1)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", reconcile=write, state=SHORT_LEASES)
        await until(frozen.is_set)
        a.faults.partition()
        ring_env.join("b", reconcile=write, state=SHORT_LEASES)
        await until(refused.is_set)
        found = await client.get(CONFIG_MAPS, "o0", namespace)
        assert not found.data


async def test_clocks_that_are_wrong_do_not_matter(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 20)
    async with RingEnv.open(cluster, namespace) as ring_env:
        ahead = SkewedClock(3600, rate=1.05, inner=WakingClock())
        behind = SkewedClock(-3600, rate=0.95, inner=WakingClock())
        a = ring_env.join("a", clock=ahead, state=SHORT_LEASES)
        b = ring_env.join("b", clock=behind, state=SHORT_LEASES)
        await ring_env.share([a, b])
        await until(lambda: set(ring_env.done()) == set(keys))
        await a.crash()
        await until(lambda: len(b.slots) == SLOTS)
        ring_env.check_exclusive()


async def test_two_replicas_of_one_name_are_refused(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        # The twin waits for two of these periods whether the first one renews its Lease.
        patient = {"retryPeriod": "4s"}
        first = ring_env.join("a", state=patient)
        await until(lambda: len(first.slots) == SLOTS)
        twin = ring_env.join("a", state=patient)
        with pytest.raises(
            ConfigError, match=r"node\.identity: another running replica .* \(got 'a'\)"
        ):
            await twin._tasks[0]
        twin._tasks = twin._tasks[1:]
        assert len(first.slots) == SLOTS


async def test_who_comes_back_under_its_name_gets_its_shards_again(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    patient = {"sharding": {"settlePeriod": "1m"}, "state": SHORT_LEASES}
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work([], "a", "b", **patient)
        held, lost = a.slots, len(b.notes.lost)  # b may have been there first, and had all
        await a.crash()
        again = ring_env.join("a", **patient)
        await until(lambda: again.slots == held)
        assert b.slots == frozenset(range(SLOTS)) - held
        assert len(b.notes.lost) == lost


async def test_a_table_that_is_deleted_is_written_anew_with_a_higher_epoch(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, _ = await ring_env.at_work([], "a", "b")
        # The first replica had all slots for a moment.
        held, lost, epoch = a.slots, len(a.notes.lost), a.ring.table.epoch
        await client.delete(CONFIG_MAPS, a.ring.names.table, namespace, uid=None)
        await until(lambda: a.ring.table.epoch > epoch)
        assert a.slots == held
        assert len(a.notes.lost) == lost


async def test_a_ring_is_not_cut_anew(cluster: Cluster, client: Client, namespace: str) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        other = ring_env.join("b", sharding={"slots": 64})
        with pytest.raises(ConfigError, match=r"sharding\.slots: replicas a_.* have '32'"):
            await other._tasks[0]
        other._tasks = other._tasks[1:]


async def test_a_quiet_ring_writes_only_its_leases(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 10)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = await ring_env.at_work(keys, "a", "b")

        def requests(replica: Replica) -> list[Request]:
            return [r for r in replica.faults.requests if not r.watches]

        def renewals(replica: Replica, since: int) -> int:
            return sum("-member-" in request.path for request in requests(replica)[since:])

        await until(lambda: not (a.ring.table or b.ring.table).draining())
        for _ in range(5):  # outstanding requests end within some heartbeats
            marks = {replica: len(requests(replica)) for replica in (a, b)}
            await until(lambda m=marks: all(renewals(r, at) >= 5 for r, at in m.items()))
            later = [request for r, at in marks.items() for request in requests(r)[at:]]
            if all("/leases/" in request.path for request in later):
                return
        pytest.fail(f"it is not quiet: {later}")


async def test_load_is_measured_and_evened_out(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 40)
    loaded = {"node": {"healthCheckInterval": "1s"}, "sharding": {"churnBudget": 1.0}}
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = ring_env.join("a", **loaded), ring_env.join("b", **loaded)
        await until(lambda: a.slots and b.slots and set(ring_env.done()) == set(keys))

        def even() -> bool:
            counts = [len(replica.controller.objects) for replica in (a, b)]
            return sum(counts) == 40 and max(counts) <= 24

        # The objects do not change, so the load of a slot is the number of its objects.
        overseer = RingAdmin(client, a.ring.names, namespace=namespace)

        async def reported() -> bool:
            members = (await overseer.state()).members
            return all(each.record.loads for each in members)

        await until(reported)
        await until(even)
        ring_env.check_exclusive()


async def test_who_is_cut_off_and_told_to_end_ends(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", state=SHORT_LEASES)
        await until(lambda: len(a.slots) == SLOTS)
        a.faults.partition()
        await until(lambda: not a.ring.healthy.is_set())
        async with asyncio.timeout(60):  # half of the time for a hand-over
            await a.ring.stop()
