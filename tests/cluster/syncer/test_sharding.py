"""Two syncers share a binding: each works on its part, and one takes over when the other dies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.local.cluster import Cluster
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.patches import MergePatch
from ourkinds import install_our_kinds
from sharedseas import SharedSea, prove
from syncers import LEASE_S
from waiting import until

NODES, PODS = 20, 60
RIGHTS = Path(__file__).parents[3] / "deploy" / "syncer-sharding.yaml"


@pytest.fixture
async def shared(
    cluster: Cluster, client: Client, worker: Cluster, kubelets: SimulatedNodes
) -> AsyncIterator[SharedSea]:
    await install_our_kinds(client)
    below = worker.client()
    sea = SharedSea(cluster, worker, client, below)
    sea.pnodes = await kubelets.add(NODES, prefix=sea.name, labels={"test": sea.name})
    try:
        await sea.open()
        yield sea
    finally:
        await kubelets.remove(sea.pnodes)
        await below.close()


async def test_each_works_on_its_part_and_one_killed_loses_and_doubles_nothing(
    shared: SharedSea, tmp_path: Path
) -> None:
    figures = await prove(shared, tmp_path, pods=PODS, kill_after_s=0.5, every_s=0.05)
    assert figures["pods asked for in fail-over"] > 0
    # The ring needs no more rights than the manifest gives.
    role = next(iter(yaml.safe_load_all(RIGHTS.read_text())))
    granted = {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}
    for name in ("one", "two"):
        asked = shared.computing.audit.requests(user=shared.user(name))
        for each in asked:
            if each.namespace == "default" and each.resource in granted:
                assert each.verb in granted[each.resource], each


async def test_what_pods_share_is_copied_once_and_goes_with_the_binding(
    shared: SharedSea, tmp_path: Path
) -> None:
    sea, names = shared, [f"p{number}" for number in range(24)]
    body = {"metadata": {"name": "settings"}, "data": {"colour": "blue"}}
    await sea.above.create(CONFIG_MAPS, body, namespace=sea.namespace)
    volume = {"name": "v", "configMap": {"name": "settings"}}
    async with sea.sharing("one", "two", directory=tmp_path):
        await sea.lent()
        await sea.shared()
        for number, name in enumerate(names):
            await sea.run(name, node=number % NODES, volumes=[volume], grace_s=0)
        await sea.settled(len(names))
        # Both of them needed the copy, which was made once; a change is carried down once.
        assert all(pods for pods, _ in map(sea.worked_on, sea.replicas))
        copy = naming.physical_name("settings", sea.namespace)
        assert _written(sea, "create") == {copy: 1}
        patch = MergePatch({"data": {"colour": "red"}})
        await sea.above.patch(CONFIG_MAPS, "settings", patch, sea.namespace)

        async def red() -> bool:
            return (await sea.below.get(CONFIG_MAPS, copy, sea.mount)).data == {"colour": "red"}

        await until(red)
        assert _written(sea, "patch") == {copy: 1}
        # Of figures that concern the whole binding there is one account.
        pages = [(await each.page("metrics", "/metrics"))[1] for each in sea.replicas.values()]
        told = f'_vnode_total{{clusterbinding="{sea.name}"}}'
        assert sum(told in page for page in pages) == 1

        # One leaves, and says so: the other need not wait.
        began = time.monotonic()
        assert await sea.replicas.pop("one").process.stop() == 0
        await sea.shared()
        assert time.monotonic() - began < LEASE_S + 4

    async with sea.sharing("two", "three", directory=tmp_path):
        await sea.shared()
        binding = await sea.above.get(CLUSTER_BINDINGS, sea.name)
        await sea.above.delete(CLUSTER_BINDINGS, sea.name, uid=binding.uid)
        for name in names:
            pod = await sea.vpod(name)
            if pod is not None:
                await sea.delete(pod, grace_s=0)

        async def nothing_left() -> bool:
            assert not await sea.ppods()
            copies = (await sea.below.list(CONFIG_MAPS, sea.mount)).items
            assert copy not in {each.name for each in copies}
            assert not await sea.vnodes()
            return await sea.seen(CLUSTER_BINDINGS, sea.name) is None

        await until(nothing_left)


async def test_one_that_was_frozen_does_no_harm_when_it_wakes_and_works_again(
    shared: SharedSea, tmp_path: Path
) -> None:
    sea, names = shared, [f"p{number}" for number in range(24)]
    async with sea.sharing("one", "two", directory=tmp_path):
        await sea.lent()
        await sea.shared()
        frozen = sea.replicas.pop("one")
        frozen.process.pause()
        await sea.shared()
        # It will wake up to hear of pods that it would have to make, and of nodes.
        for number, name in enumerate(names):
            await sea.run(name, node=number % NODES)
        await sea.settled(len(names))
        mark = sea.computing.audit.mark()
        frozen.process.resume()
        sea.replicas["one"] = frozen
        await frozen.says("Lost membership")
        await sea.shared()
        assert set(sea.created().values()) == {1}
        # What it does from now on, it does about its own part.
        await until(lambda: sea.worked_on("one", mark)[1], within=60)
        ring = naming.syncer_ring(sea.name)
        joined = frozen.lines("Joined ring")
        assert [line["ring"] for line in joined] == [ring, ring]
        assert joined[0]["replica"] != joined[1]["replica"]
        for name in names:
            await sea.runs(name)


def _written(sea: SharedSea, verb: str) -> dict[str, int]:
    """How often each ConfigMap of this binding was written in the worker."""
    asked = sea.worker.audit.requests(user=sea.name)
    return dict(
        Counter(
            each.name
            for each in asked
            if (each.resource, each.verb) == ("configmaps", verb) and each.code < 300
        )
    )
