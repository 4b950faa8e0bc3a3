"""Features of the design document on a real API server: nodes, resync, batches, own algorithms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Key
from kubeocean.sharding import (
    Change,
    NodeInfo,
    NodeWatcher,
    ResourceHandler,
    Ring,
    ShardedController,
)
from support.background import running
from support.ring_env import APP, SHORT_LEASES, SLOTS, RingEnv, config, make_objects
from support.wait import until
from unit.sharding.mine import Blocks


class Statuses(NodeWatcher):
    """Watcher that records the status of each node by name."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}

    async def on_node_joining(self, node: NodeInfo) -> None:
        self._add("Joining", node)

    async def on_node_healthy(self, node: NodeInfo) -> None:
        self._add("Healthy", node)

    async def on_node_unhealthy(self, node: NodeInfo) -> None:
        self._add("Unhealthy", node)

    async def on_node_leaving(self, node: NodeInfo) -> None:
        self._add("Leaving", node)
        raise RuntimeError("is logged")

    def _add(self, status: str, node: NodeInfo) -> None:
        assert node.status == status
        self.seen.setdefault(node.name, []).append(status)


async def test_watchers_are_called_for_each_status_of_each_node(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    statuses = Statuses()
    settings = config(namespace, name="a", node={"address": "10.0.0.1"}, state=SHORT_LEASES)
    own = cluster.client()
    ring = Ring(own, settings, watchers=[statuses])
    async with RingEnv.open(cluster, namespace) as ring_env, running(ring):
        await until(lambda: "Healthy" in statuses.seen.get("a", []))
        b, c = (ring_env.join(name, state=SHORT_LEASES) for name in ("b", "c"))
        await until(lambda: b.slots and c.slots and len(ring.healthy_nodes()) == 3)
        me = next(node for node in ring.nodes() if node.name == "a")
        assert (me.id, me.address, me.shards) == (ring.id, "10.0.0.1", tuple(sorted(ring.serving)))
        assert abs((ring._clock.now() - me.last_seen).total_seconds()) < 60
        await c.leave()
        await until(lambda: "Leaving" in statuses.seen["c"])
        await b.crash()
        await until(lambda: "Unhealthy" in statuses.seen["b"])
        await until(lambda: [node.name for node in ring.healthy_nodes()] == ["a"])
        assert "Unhealthy" not in statuses.seen["c"]
    await own.close()


class Hanging(ResourceHandler[ConfigMap]):
    """Handler whose first two calls never return."""

    def __init__(self) -> None:
        self.cancelled = self.ended = 0

    async def handle_add(self, obj: ConfigMap) -> None:
        try:
            if self.cancelled < 2:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1


async def test_a_call_beyond_its_deadline_is_cancelled_and_repeated(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    await make_objects(client, namespace, 1)
    own, handler = cluster.client(), Hanging()
    ring = Ring(own, config(namespace, name="a"))
    controller: ShardedController[ConfigMap] = ShardedController(
        "hanging",
        ring,
        own,
        CONFIG_MAPS,
        handler=handler,
        namespace=namespace,
        labels=APP,
        workers=1,
        deadline_s=0.5,
    )
    async with running(controller, ring):
        await until(lambda: handler.ended == 1)
        assert handler.cancelled == 2
    await own.close()


async def test_unchanged_objects_are_handled_again_at_each_resync(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 4)
    async with RingEnv.open(cluster, namespace) as ring_env:
        ring_env.join("a", handles=True, options={"resync_s": 0.3})
        await until(lambda: {key for key, _ in ring_env.handled("update")} == set(keys))
        await until(lambda: min(ring_env.handled("update").values()) >= 3)
        assert set(ring_env.handled("add").values()) == {1}


async def test_a_key_is_processed_once_its_present_version_was_handled(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    await make_objects(client, namespace, 2)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a", handles=True)
        assert not a.controller.is_processed(f"{namespace}/o1")
        await until(lambda: a.controller.is_processed(f"{namespace}/o1"))
        assert a.controller.is_processed(Key(namespace, "o1"))
        assert not a.controller.is_processed(f"{namespace}/none")
        await client.patch(CONFIG_MAPS, "o1", MergePatch({"data": {"text": "new"}}), namespace)
        await until(lambda: ring_env.handled("update"))
        await until(lambda: a.controller.is_processed(f"{namespace}/o1"))
        obj = await client.get(CONFIG_MAPS, "o1", namespace)
        await client.delete(CONFIG_MAPS, "o1", namespace, uid=obj.uid)
        await until(lambda: not a.controller.is_processed(f"{namespace}/o1"))


class Batches(ResourceHandler[ConfigMap]):
    """Handler that records the keys of its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    async def handle_batch(self, changes: Sequence[Change[ConfigMap]]) -> None:
        self.batches.append([str((change.new or change.old).key) for change in changes])


async def test_batches_are_bounded_and_of_one_shard(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = await make_objects(client, namespace, 60)
    settings = config(namespace, name="a", sharding={"slots": 4})
    own = cluster.client()
    ring, handler = Ring(own, settings), Batches()
    controller = ShardedController(
        "batches",
        ring,
        own,
        CONFIG_MAPS,
        handler=handler,
        namespace=namespace,
        labels=APP,
        batch_size=8,
        batch_delay_s=0.5,
    )
    async with running(controller), running(ring):
        await until(lambda: sum(map(len, handler.batches)) >= len(keys))
    assert sorted(key for batch in handler.batches for key in batch) == sorted(keys)
    assert max(map(len, handler.batches)) <= 8
    assert len(handler.batches) < len(keys) / 2
    assert all(len({ring.shard_of(key) for key in batch}) == 1 for batch in handler.batches)
    await own.close()


async def test_an_algorithm_object_shards_a_ring(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    own = cluster.client()
    ring = Ring(own, config(namespace, name="a"), algorithm=Blocks())
    async with running(ring):
        await until(lambda: len(ring.serving) == SLOTS)
        assert ring.shard_of("n/four") == len("n/four") % SLOTS
        assert ring.validate_shard(6, "n/four")
        assert not ring.validate_shard(7, "n/four")
    await own.close()
