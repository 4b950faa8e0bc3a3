"""Replicas with different configurations do not form a ring, and a ring can change its own."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.config import read_config
from support.ring_env import SLOTS, Replica, RingEnv, config, make_objects
from support.wait import until

CUSTOM = {"algorithm": "custom", "custom": "unit.sharding.mine:Blocks"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "slots": {"slots": 2 * SLOTS},
    "hash": {"algorithm": "hash"},
    "consistent-hash": {"algorithm": "consistent-hash"},
    "virtual nodes": {"algorithm": "consistent-hash", "virtualNodes": 20},
    "range": {"algorithm": "range", "ranges": [{"shard": 3}]},
    "other ranges": {"algorithm": "range", "ranges": [{"shard": 4}]},
    "custom": CUSTOM,
    "other custom": {**CUSTOM, "custom": "unit.sharding.mine:Eager"},
    "filter": {"filter": "metadata"},
    "domain": {"domain": "other.example"},
    "election": {"election": "another-lease"},
}
PAIRS = list(itertools.combinations(CONFIGURATIONS, 2))


async def refusal(replica: Replica) -> str:
    """Return the error with which a replica ends."""
    with pytest.raises(ConfigError) as caught:
        await replica._tasks[0]
    replica._tasks = replica._tasks[1:]
    return str(caught.value)


def objects_written(client_requests: list[Any], names: set[str]) -> list[str]:
    return [r.path for r in client_requests if r.writes and r.path.rsplit("/", 1)[-1] in names]


@pytest.mark.parametrize("n", range(len(PAIRS)), ids=[f"{a} and {b}" for a, b in PAIRS])
@pytest.mark.sweep
async def test_a_replica_with_another_configuration_refuses_to_start(
    cluster: Cluster, client: Client, namespace: str, n: int
) -> None:
    one, other = PAIRS[n]
    keys = await make_objects(client, namespace, 6)
    async with RingEnv.open(cluster, namespace) as ring_env:
        first = ring_env.join("a", sharding=CONFIGURATIONS[one])
        await until(lambda: set(ring_env.done()) == set(keys))
        mark = len(ring_env.acts)
        second = ring_env.join("b", sharding=CONFIGURATIONS[other])
        message = await refusal(second)
        assert message.startswith("sharding.")
        # With another domain its Leases are not even seen.
        whom = "ring ring last ran with" if "domain" in (one, other) else "replicas a_"
        assert whom in message
        assert "kubeocean shards switch" in message
        assert not second.notes.gained
        assert {act.replica for act in ring_env.acts[mark:]} <= {"a"}
        assert not objects_written(second.faults.requests, {key.split("/")[1] for key in keys})
        assert first.slots


@pytest.mark.parametrize("n", range(len(PAIRS)), ids=[f"{a} and {b}" for a, b in PAIRS])
@pytest.mark.sweep
async def test_of_two_configurations_that_start_at_the_same_time_one_has_the_ring(
    cluster: Cluster, client: Client, namespace: str, n: int
) -> None:
    keys = await make_objects(client, namespace, 6)
    async with RingEnv.open(cluster, namespace) as ring_env:
        both = [
            ring_env.join(name, sharding=CONFIGURATIONS[each])
            for name, each in zip("ab", PAIRS[n], strict=True)
        ]
        tasks = [each._tasks[0] for each in both]
        ended, _ = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert len(ended) == 1
        first, second = both if tasks[1] in ended else reversed(both)
        assert (await refusal(second)).startswith("sharding.")
        assert not second.notes.gained
        await until(lambda: set(ring_env.done()) == set(keys))
        assert {act.replica for act in ring_env.acts} == {first.name}
        assert not objects_written(second.faults.requests, {key.split("/")[1] for key in keys})
        ring_env.check_exclusive()
        # Nothing is written at rest but the Leases.
        mark = len(first.faults.requests)
        await until(lambda: any(each.writes for each in first.faults.requests[mark:]))
        assert all("/leases/" in each.path for each in first.faults.requests[mark:] if each.writes)


async def test_a_refusal_names_the_field_and_both_values(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        first = ring_env.join("a")
        await until(lambda: len(first.slots) == SLOTS)
        message = await refusal(ring_env.join("b", sharding={"algorithm": "hash"}))
        assert message == (
            f"sharding.algorithm: replicas {first.ring.id} of ring ring have 'slots'; use the same "
            "configuration, or stop them and run `kubeocean shards switch` (got 'hash')"
        )
        filtered = await refusal(ring_env.join("c", sharding={"filter": "metadata"}))
        assert filtered.startswith(
            f"sharding.filter of ring: replicas {first.ring.id} of ring ring have 'label'"
        )


async def test_periods_may_differ(cluster: Cluster, client: Client, namespace: str) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        b = ring_env.join("b", state={"leaseDuration": "40s"}, sharding={"drainDeadline": "50s"})
        await ring_env.share([a, b])


async def test_auto_uses_the_filter_of_the_ring(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", sharding={"filter": "metadata"})
        await until(lambda: len(a.slots) == SLOTS)
        b = ring_env.join("b", sharding={"filter": "auto"})
        await ring_env.share([a, b])
        assert b.controller.objects.selection.name == "metadata"


async def test_a_stopped_ring_changes_its_configuration_and_returns_to_the_earlier_one(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 10)
    wider = {"slots": 2 * SLOTS, "algorithm": "consistent-hash", "filter": "metadata"}
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: set(ring_env.done()) == set(keys))
        admin = RingAdmin(client, a.ring.names, namespace=namespace)
        new = config(namespace, name="x", sharding=wider)
        with pytest.raises(ConfigError, match="still has running replicas: a_"):
            await admin.switch(new)
        epoch = a.ring.table.epoch
        await a.leave()
        assert "ring ring last ran with" in await refusal(ring_env.join("b", sharding=wider))
        state = await admin.switch(new)
        assert state.table.slots == 2 * SLOTS
        assert state.table.epoch > epoch
        assert [each.identity["sharding.slots"] for each in state.earlier] == [str(SLOTS)]
        mark = len(ring_env.acts)
        b = ring_env.join("b", sharding=wider)
        await until(lambda: set(ring_env.done(mark)) == set(keys))
        await b.leave()
        # And back again: also the labels that were written for it are right.
        state = await admin.switch_back()
        assert state.identity["sharding.filter of ring"] == "label"
        mark = len(ring_env.acts)
        ring_env.join("c")
        await until(lambda: set(ring_env.done(mark)) == set(keys))
        ring_env.check_exclusive()


class CountingClock(RealClock):
    """Clock that adds up the seconds of its sleeps."""

    slept_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        await super().sleep(seconds)


async def test_a_switch_is_refused_as_soon_as_a_replica_renews_its_lease(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        admin, clock = RingAdmin(client, a.ring.names, namespace=namespace), CountingClock()
        new = config(namespace, name="x", sharding={"algorithm": "hash"})
        with pytest.raises(ConfigError, match="still has running replicas: a_"):
            await admin.switch(new, clock=clock)
        assert clock.slept_s < a.ring.timing.lease_s


async def test_a_configuration_that_the_ring_has_is_no_switch(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        admin = RingAdmin(client, a.ring.names, namespace=namespace)
        with pytest.raises(ConfigError, match="has no earlier configuration"):
            await admin.switch_back()
        await a.leave()
        with pytest.raises(ConfigError, match="has this configuration already"):
            await admin.switch(config(namespace, name="x"))
        with pytest.raises(ConfigError, match="there is no such ring"):
            await RingAdmin(client, read_config({}).names, namespace=namespace).switch(
                config(namespace, name="x")
            )


async def test_the_table_records_the_time_and_the_configuration(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        state = await RingAdmin(client, a.ring.names, namespace=namespace).state()
        assert state.identity == a.ring.identity
        assert state.written.endswith("Z")
        table = await client.get(CONFIG_MAPS, a.ring.names.table, namespace)
        assert '"timestamp":"20' in (table.data or {})["state"]
