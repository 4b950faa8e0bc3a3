"""Two syncers share a binding: each works on its shards, and one takes over when the other is
killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.local.cluster import Cluster
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from support.crds import install_our_kinds
from support.sharded_env import ShardedEnv, prove
from support.wait import until

NODES, PODS = 20, 60
MANIFEST = Path(__file__).parents[3] / "deploy" / "syncer-sharding.yaml"


@pytest.fixture
async def shared(
    cluster: Cluster, client: Client, worker: Cluster, kubelets: SimulatedNodes
) -> AsyncIterator[ShardedEnv]:
    await install_our_kinds(client)
    worker_api = worker.client()
    env = ShardedEnv(cluster, worker, client, worker_api)
    env.pnodes = await kubelets.add(NODES, prefix=env.name, labels={"test": env.name})
    try:
        await env.open()
        yield env
    finally:
        await kubelets.remove(env.pnodes)
        await worker_api.close()


async def test_each_replica_works_on_its_shards_and_a_killed_one_loses_and_duplicates_nothing(
    shared: ShardedEnv, tmp_path: Path
) -> None:
    results = await prove(shared, tmp_path, pods=PODS, kill_after_s=0.5, every_s=0.05)
    assert results["pods created in fail-over"] > 0
    # The ring needs no more permissions than the manifest grants.
    role = next(iter(yaml.safe_load_all(MANIFEST.read_text())))
    granted = {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}
    for name in ("one", "two"):
        requests = shared.computing.audit.requests(user=shared.user(name))
        for each in requests:
            if each.namespace == "default" and each.resource in granted:
                assert each.verb in granted[each.resource], each


async def test_objects_that_pods_share_are_copied_once_and_deleted_with_the_binding(
    shared: ShardedEnv, tmp_path: Path
) -> None:
    env, names = shared, [f"p{number}" for number in range(24)]
    body = {"metadata": {"name": "settings"}, "data": {"colour": "blue"}}
    await env.computing_api.create(CONFIG_MAPS, body, namespace=env.namespace)
    volume = {"name": "v", "configMap": {"name": "settings"}}
    async with env.sharing("one", "two", directory=tmp_path):
        await env.lent()
        await env.shared()
        for number, name in enumerate(names):
            await env.run(name, node=number % NODES, volumes=[volume], grace_s=0)
        await env.settled(len(names))
        # Both replicas needed the copy, which was created once; a change is applied once. The
        # server shows an object to readers before it records the request that wrote the object.
        await until(lambda: all(pods for pods, _ in map(env.worked_on, env.replicas)))
        copy = naming.physical_name("settings", env.namespace)
        assert _written(env, "create") == {copy: 1}
        patch = MergePatch({"data": {"colour": "red"}})
        await env.computing_api.patch(CONFIG_MAPS, "settings", patch, env.namespace)

        async def red() -> bool:
            return (await env.worker_api.get(CONFIG_MAPS, copy, env.mount)).data == {
                "colour": "red"
            }

        await until(red)
        await until(lambda: _written(env, "patch"))
        assert _written(env, "patch") == {copy: 1}
        # Only one replica exposes the metrics of the whole binding.
        pages = [(await each.page("metrics", "/metrics"))[1] for each in env.replicas.values()]
        metric = f'_vnode_total{{clusterbinding="{env.name}"}}'
        assert sum(metric in page for page in pages) == 1

        # A replica that stops hands over first: the other need not wait for its lease.
        assert await env.replicas.pop("one").process.stop() == 0
        assert set(await env.shares()) == {"two"}

    async with env.sharing("two", "three", directory=tmp_path):
        await env.shared()
        binding = await env.computing_api.get(CLUSTER_BINDINGS, env.name)
        await env.computing_api.delete(CLUSTER_BINDINGS, env.name, uid=binding.uid)
        for name in names:
            pod = await env.vpod(name)
            if pod is not None:
                await env.delete(pod, grace_s=0)

        async def nothing_left() -> bool:
            assert not await env.ppods()
            copies = (await env.worker_api.list(CONFIG_MAPS, env.mount)).items
            assert copy not in {each.name for each in copies}
            assert not await env.vnodes()
            return await env.seen(CLUSTER_BINDINGS, env.name) is None

        await until(nothing_left)


async def test_a_replica_that_was_frozen_does_no_harm_when_it_wakes_and_works_again(
    shared: ShardedEnv, tmp_path: Path
) -> None:
    env, names = shared, [f"p{number}" for number in range(24)]
    async with env.sharing("one", "two", directory=tmp_path):
        await env.lent()
        await env.shared()
        frozen = env.replicas.pop("one")
        frozen.process.pause()
        await env.shared()
        # When it resumes, its caches show new pods and nodes of its former shards.
        for number, name in enumerate(names):
            await env.run(name, node=number % NODES)
        await env.settled(len(names))
        mark = env.computing.audit.mark()
        frozen.process.resume()
        env.replicas["one"] = frozen
        await frozen.wait_for_output("Lost membership of ring")
        await env.shared()
        assert set(env.created().values()) == {1}
        # From now on it works on its own shards only.
        await until(lambda: env.worked_on("one", mark)[1], within=60)
        ring = naming.syncer_ring(env.name)
        joined = frozen.lines("Joined ring")
        assert [line["ring"] for line in joined] == [ring, ring]
        assert joined[0]["replica"] != joined[1]["replica"]
        for name in names:
            await env.runs(name)


def _written(env: ShardedEnv, verb: str) -> dict[str, int]:
    """Return how often each ConfigMap of this binding was written in the worker."""
    requests = env.worker.audit.requests(user=env.name)
    return dict(
        Counter(
            each.name
            for each in requests
            if (each.resource, each.verb) == ("configmaps", verb) and each.code < 300
        )
    )
