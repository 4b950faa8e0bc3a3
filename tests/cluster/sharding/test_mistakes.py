"""Mistakes of users, and failures at the start: each affects one object or one call only."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Object, Resource, Untyped
from kubeocean.runtime.transport import Request
from kubeocean.sharding import ResourceHandler, Ring, ShardedController
from support.background import running
from support.custom_resources import define
from support.faults import Faults
from support.ring_env import APP, MANY, SHORT_LEASES, SLOTS, Notes, RingEnv, config, make_objects
from support.wait import until
from unit.sharding.mine import Blocks


class Added(ResourceHandler[Any]):
    """Handler that records the names of the objects that it was given."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    async def handle_add(self, obj: Object) -> None:
        self.names.add(obj.name)


class Program:
    """A replica of a program with one controller of ConfigMaps."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, *, number: int = 0, **sections: Any
    ) -> None:
        self.faults = Faults()
        self.client = cluster.client(wrap=self.faults.wrap)
        self.ring = Ring(self.client, config(namespace, name=f"{name}-{number}", **sections))
        self.handler = Added()
        self.controller = ShardedController(
            name,
            self.ring,
            self.client,
            CONFIG_MAPS,
            handler=self.handler,
            namespace=namespace,
            labels=APP,
        )


async def test_a_second_program_is_refused_by_the_ring_of_another_one_until_that_has_ended(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    await make_objects(client, namespace, 4)
    names = ("one", "two", "two", "one")
    first, second, third, last = (
        Program(cluster, namespace, name, state=SHORT_LEASES) for name in names
    )
    async with running(first.controller), running(first.ring):
        await until(lambda: len(first.handler.names) == 4)
        with pytest.raises(ConfigError, match="of ring ring have 'one'; give each program a ring"):
            await second.ring.run()
        assert len(first.ring.serving) == SLOTS
        await first.ring.stop()
    async with running(third.controller), running(third.ring):
        await until(lambda: len(third.handler.names) == 4)
        # Its controllers are recorded now, and those of the first program are not.
        with pytest.raises(ConfigError, match="of ring ring have 'two'"):
            await last.ring.run()
        await third.ring.stop()
    for each in (first, second, third, last):
        await each.client.close()


async def test_a_program_that_crashed_keeps_no_other_one_from_its_ring(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    await make_objects(client, namespace, 4)
    first = Program(cluster, namespace, "one", state=SHORT_LEASES)
    async with running(first.controller), running(first.ring):
        await until(lambda: len(first.handler.names) == 4)
        first.faults.partition()  # so that its Lease is not released
    second = Program(cluster, namespace, "two", state=SHORT_LEASES)
    async with running(second.controller), running(second.ring):
        await until(lambda: len(second.handler.names) == 4)
        await second.ring.stop()
    for each in (first, second):
        await each.client.close()


async def ran_before(cluster: Cluster, namespace: str, name: str) -> None:
    """Let a program run in the ring and end."""
    program = Program(cluster, namespace, name, state=SHORT_LEASES)
    async with running(program.controller), running(program.ring):
        await until(lambda: len(program.ring.serving) == SLOTS)
        await program.ring.stop()
    await program.client.close()


async def test_replicas_with_renamed_controllers_may_start_at_the_same_time(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    await ran_before(cluster, namespace, "one")
    await make_objects(client, namespace, 4)
    both = [
        Program(cluster, namespace, "two", number=number, state=SHORT_LEASES) for number in (0, 1)
    ]
    parts = [part for each in both for part in (each.controller, each.ring)]
    async with running(*parts):
        await until(lambda: [len(each.ring.serving) for each in both] == [SLOTS / 2] * 2)
        await until(lambda: len(both[0].handler.names | both[1].handler.names) == 4)
    for each in both:
        await each.client.close()


@pytest.mark.parametrize("before", [True, False], ids=["used before", "new"])
async def test_of_programs_that_start_at_the_same_time_in_one_ring_one_keeps_it(
    cluster: Cluster, client: Client, namespace: str, before: bool
) -> None:
    if before:
        await ran_before(cluster, namespace, "one")
    await make_objects(client, namespace, 4)
    programs = [
        Program(cluster, namespace, name, number=number, state=SHORT_LEASES)
        for name in ("two", "three")
        for number in (0, 1)
    ]
    controllers = [each.controller for each in programs]
    async with running(*controllers):
        rings = {asyncio.create_task(each.ring.run()): each for each in programs}
        try:
            refused: set[asyncio.Task[None]] = set()
            while len(refused) < 2:
                ended, _ = await asyncio.wait(
                    rings.keys() - refused, timeout=60, return_when=asyncio.FIRST_COMPLETED
                )
                assert ended
                refused |= ended
            losers = {rings[task].controller.name for task in refused}
            assert len(losers) == 1
            for task in refused:
                with pytest.raises(
                    ConfigError, match=r"of ring ring have '\w+'; give each program"
                ):
                    await task
            kept = [each for task, each in rings.items() if task not in refused]
            await until(lambda: sum(len(each.ring.serving) for each in kept) == SLOTS)
            await until(lambda: len(kept[0].handler.names | kept[1].handler.names) == 4)
        finally:
            for task in rings:
                task.cancel()
            await asyncio.gather(*rings, return_exceptions=True)
    for each in programs:
        await each.client.close()


async def test_two_controllers_of_one_name_are_refused(cluster: Cluster, namespace: str) -> None:
    one = Program(cluster, namespace, "one")
    with pytest.raises(ConfigError, match=r"has a controller of this name already.*\(got 'one'\)"):
        ShardedController("one", one.ring, one.client, CONFIG_MAPS, handler=Added())
    await one.client.close()


async def test_a_replica_starts_when_the_api_server_answers(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 4)
    async with RingEnv.open(cluster, namespace) as ring_env:
        replica = ring_env.join("a")
        replica.faults.refuse(times=5)
        await until(lambda: set(ring_env.done()) == set(keys))
        # A replica that never gets an answer ends when it is stopped.
        late = ring_env.join("b")
        late.faults.partition()
        await until(lambda: late.faults.requests)
        await late.leave()


def lists_objects(request: Request) -> bool:
    """Whether a request lists the objects of slots, as a replica that gains the slots does."""
    return request.method == "GET" and "slot." in str(request.query) and not request.watches


async def test_a_replica_survives_an_api_server_that_goes_away_in_a_hand_over(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, MANY)
    async with RingEnv.open(cluster, namespace) as ring_env:
        (first,) = await ring_env.at_work(keys, "a")
        second = ring_env.join("b")
        second.faults.refuse(times=20, when=lists_objects)
        await ring_env.share([first, second])
        assert sum(map(lists_objects, second.faults.requests)) > 20


REPORTS = Resource("sharding.example", "v1", "reports", "Report", True, Untyped)


async def test_a_replica_waits_for_its_custom_resource(
    cluster: Cluster, client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    own, handler = cluster.client(), Added()
    ring = Ring(own, config(namespace, name="a"))
    controller = ShardedController("reports", ring, own, REPORTS, handler=handler)
    with caplog.at_level(logging.WARNING):
        async with running(controller), running(ring):
            await until(lambda: "create its CustomResourceDefinition" in caplog.text)
            assert "reports" in caplog.text
            await define(client, REPORTS)
            kind = {"apiVersion": REPORTS.api_version, "kind": REPORTS.kind}
            body = {**kind, "metadata": {"name": "r"}}
            await client.create(REPORTS, body, namespace=namespace)
            await until(lambda: handler.names == {"r"})
    await own.close()


class Keyed(Added):
    """Handler that has no key for one of the objects."""

    def get_resource_key(self, obj: Object) -> str:
        return {f"o{number}": f"{obj.namespace}/o{number}" for number in range(3)}[obj.name]


@pytest.mark.parametrize("filter_", ["label", "metadata"])
async def test_an_object_without_a_key_stops_no_other(
    cluster: Cluster,
    client: Client,
    namespace: str,
    filter_: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await make_objects(client, namespace, 4)
    own, handler = cluster.client(), Keyed()
    ring = Ring(own, config(namespace, name="a", sharding={"filter": filter_}))
    controller: ShardedController[ConfigMap] = ShardedController(
        "keyed", ring, own, CONFIG_MAPS, handler=handler, namespace=namespace, labels=APP
    )
    async with running(controller), running(ring):
        await until(lambda: handler.names == {"o0", "o1", "o2"})
        await until(lambda: controller.unplaced() == 1)
        assert f"{namespace}/o3" in caplog.text
    await own.close()


class Fickle(Blocks):
    """Algorithm that fails when there is more than one node."""

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        if len(nodes) > 1:
            raise RuntimeError("too many nodes")
        return super().rebalance(nodes, total)


async def test_an_algorithm_that_fails_later_leaves_the_shards_where_they_are(
    cluster: Cluster, client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [cluster.client(), cluster.client()]
    one, two = (
        Ring(own, config(namespace, name=name), algorithm=Fickle())
        for own, name in zip(clients, ("a", "b"), strict=True)
    )
    with caplog.at_level(logging.ERROR):
        async with running(one):
            await until(lambda: len(one.serving) == SLOTS)
            async with running(two):
                await until(lambda: "rebalance failed: RuntimeError: too many" in caplog.text)
                assert len(one.serving) == SLOTS
            # The other one has left, and planning succeeds again.
            await until(lambda: len(one.healthy_nodes()) == 1)
    for each in clients:
        await each.close()


class Failing(Notes):
    async def on_shard_reassigned(self, shard: int, old: str, new: str) -> None:
        raise RuntimeError("is logged")


async def test_a_notifier_that_raises_ends_no_replica(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    own = cluster.client()
    ring = Ring(own, config(namespace, name="a"), notifiers=[Failing()])
    async with RingEnv.open(cluster, namespace) as ring_env, running(ring):
        await until(lambda: len(ring.serving) == SLOTS)
        other = ring_env.join("b")
        await until(lambda: len(other.slots) == SLOTS / 2 == len(ring.serving))
        await other.leave()
        await until(lambda: len(ring.serving) == SLOTS)
    await own.close()


async def test_a_table_that_cannot_be_read_at_the_start_is_named_with_a_remedy(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    own = cluster.client()
    ring = Ring(own, config(namespace, name="a"))
    data = {"state": "{"}
    await client.create(
        CONFIG_MAPS, {"metadata": {"name": ring.names.table}, "data": data}, namespace=namespace
    )
    with pytest.raises(ConfigError) as caught:
        await ring.run()
    assert f"ConfigMap {namespace}/{ring.names.table} has no table of shards" in str(caught.value)
    assert "delete it while no replica of the ring runs" in str(caught.value)
    patch = MergePatch({"data": {"state": "{}"}})
    await client.patch(CONFIG_MAPS, ring.names.table, patch, namespace)
    with pytest.raises(ConfigError, match="has no table of shards"):
        await Ring(own, config(namespace, name="a")).run()
    await own.close()
