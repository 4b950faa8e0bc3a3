"""LogConfigs, copied between two real control planes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from crds import define
from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge.logconfigs import LOG_CONFIGS
from kubeocean.syncer.topdown import logconfigs
from kubeocean.syncer.topdown.logconfigs import LogConfigs
from kubeocean.syncer.world import World
from oceans import Sea
from straits import Crash, Strait, quiet
from waiting import until

CRD = f"{LOG_CONFIGS.plural}.{LOG_CONFIGS.group}"


class Copying:
    """Copies, and what they need."""

    def __init__(self, world: World) -> None:
        self.logconfigs = LogConfigs(world)
        self.parts = (world.bindings, *self.logconfigs.parts)


@pytest.fixture
async def strait(sea: Sea, client: Client, worker: Cluster) -> AsyncIterator[Strait]:
    """With the kind on both sides, and nothing of it at the start and at the end."""
    below = worker.client()
    for each in (client, below):
        await define(each, LOG_CONFIGS)
        await until(lambda each=each: clear(each))
    strait = Strait(sea.computing, worker, client, below, name=sea.name)
    kind = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind}
    spec = {
        "clusterID": strait.cluster_id,
        "secretRef": {"name": "x", "namespace": "default"},
        "mountNamespace": "kubeocean-worker",
    }
    body = {**kind, "metadata": {"name": strait.name}, "spec": spec}
    await client.create(CLUSTER_BINDINGS, body)
    yield strait
    for each in (client, below):
        await clear(each)
    await below.close()


async def clear(client: Client) -> bool:
    with suppress(NotFound):  # while the server learns the kind
        for each in (await client.list(LOG_CONFIGS)).items:
            if each.metadata.finalizers:
                patch = MergePatch({"metadata": {"finalizers": []}})
                await client.patch(LOG_CONFIGS, each.name, patch)
            with suppress(NotFound):
                await client.delete(LOG_CONFIGS, each.name, uid=each.uid)
        return True
    return False


async def collect(client: Client, name: str, spec: Json, **metadata: object) -> Untyped:
    body = {
        "apiVersion": LOG_CONFIGS.api_version,
        "kind": LOG_CONFIGS.kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }
    return await client.create(LOG_CONFIGS, body)


def stdout(**detail: object) -> Json:
    return {"inputDetail": {"type": "container_stdout", "containerStdout": detail}}


def workloads(*where: tuple[str, str]) -> Json:
    listed = [{"namespace": ns, "kind": "deployment", "name": name} for ns, name in where]
    return stdout(workloads=listed)


async def selected(strait: Strait) -> dict[str, str]:
    """The virtual namespaces that the copies select, by name."""
    found = {}
    for each in (await strait.below.list(LOG_CONFIGS, keep_raw=True)).items:
        detail = each.content()["spec"]["inputDetail"]["containerStdout"]
        found[each.name] = detail.get("includeLabels", {}).get("kubeocean.io/virtual-namespace", "")
    return found


async def shows(strait: Strait, *namespaces: str) -> bool:
    assert sorted((await selected(strait)).values()) == sorted(namespaces)
    return True


async def test_without_the_kind_on_both_sides_nothing_is_watched(
    strait: Strait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logconfigs, "ASK_EVERY_S", 0.3)
    there = await strait.below.get(CUSTOM_RESOURCE_DEFINITIONS, CRD)
    await strait.below.delete(CUSTOM_RESOURCE_DEFINITIONS, CRD, uid=there.uid)

    async def forgotten() -> bool:
        with suppress(NotFound):
            await strait.below.list(LOG_CONFIGS)
            return False
        return True

    await until(forgotten)
    await collect(strait.above, strait.name, stdout(namespace="team"))
    above = Faults()
    async with strait.syncing(Copying, above=above) as made:
        await until(lambda: sum(r.path.endswith("/v1") for r in above.requests) > 2)
        assert not made.logconfigs.on
        assert not any(watches(r) and "logconfigs" in r.path for r in above.requests)
        await define(strait.below, LOG_CONFIGS)
        await until(lambda: made.logconfigs.on)
        await until(lambda: shows(strait, "team"))


async def test_groups_follow_in_place_and_in_one_order(strait: Strait) -> None:
    name = strait.name
    await collect(strait.above, name, workloads(("b", "x"), ("a", "y")), labels={"t": "1"})
    below, above = Faults(), Faults()
    async with strait.syncing(Copying, above=above, below=below):
        await until(lambda: shows(strait, "a", "b"))
        assert await selected(strait) == {
            naming.log_config(name, 0): "a",
            naming.log_config(name, 1): "b",
        }
        uids = {each.uid for each in (await strait.below.list(LOG_CONFIGS)).items}
        # The same groups in another order: nothing to write.
        spec = workloads(("a", "y"), ("b", "x"))
        await strait.above.patch(LOG_CONFIGS, name, MergePatch({"spec": spec}))
        await quiet(below, above)
        assert below.writes == 2
        await strait.above.patch(
            LOG_CONFIGS, name, MergePatch({"spec": workloads(("b", "x"), ("c", "y"))})
        )
        await until(lambda: shows(strait, "b", "c"))
        assert {each.uid for each in (await strait.below.list(LOG_CONFIGS)).items} == uids
        await strait.above.patch(LOG_CONFIGS, name, MergePatch({"spec": workloads(("c", "y"))}))
        await until(lambda: shows(strait, "c"))
    there = await strait.above.get(LOG_CONFIGS, name)
    assert not there.metadata.finalizers
    assert above.writes == 0


async def test_copies_go_with_the_original_and_with_the_binding(strait: Strait) -> None:
    first, second = f"{strait.name}-1", f"{strait.name}-2"
    original = await collect(strait.above, first, stdout(namespace="one"))
    await collect(strait.above, second, stdout(namespace="two"))
    async with strait.syncing(Copying) as made:
        await until(lambda: shows(strait, "one", "two"))
        await strait.above.delete(LOG_CONFIGS, first, uid=original.uid)
        await until(lambda: shows(strait, "two"))
        (copy,) = (await strait.below.list(LOG_CONFIGS)).items
        await strait.below.delete(LOG_CONFIGS, copy.name, uid=copy.uid)
        await until(lambda: shows(strait, "two"))
        finalizers = ["kubeocean.io/clusterbinding-syncer"]
        patch = MergePatch({"metadata": {"finalizers": finalizers}})
        binding = await strait.above.patch(CLUSTER_BINDINGS, strait.name, patch)
        await strait.above.delete(CLUSTER_BINDINGS, strait.name, uid=binding.uid)
        await until(lambda: shows(strait))
        await until(lambda: made.logconfigs.remaining() == 0)
    patch = MergePatch({"metadata": {"finalizers": []}})
    await strait.above.patch(CLUSTER_BINDINGS, strait.name, patch)


async def test_what_the_earlier_implementation_left_is_taken_over(strait: Strait) -> None:
    name, other = strait.name, f"{strait.name}-going"
    theirs = f"kubeocean.io/finalizer-{strait.cluster_id}"
    await collect(strait.above, name, stdout(namespace="team"), finalizers=[theirs, "x.io/mine"])
    going = await collect(strait.above, other, stdout(namespace="old"), finalizers=[theirs])
    uids = {}
    for each in (name, other):
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{strait.cluster_id}": "true",
            "kubeocean.io/virtual-logconfig": each,
        }
        copy = naming.log_config(each)
        made = await collect(
            strait.below, copy, stdout(namespace="kubeocean-worker"), labels=labels
        )
        uids[each] = made.uid
    await strait.above.delete(LOG_CONFIGS, other, uid=going.uid)
    async with strait.syncing(Copying):
        await until(lambda: shows(strait, "team"))
        copy = await strait.below.get(LOG_CONFIGS, naming.log_config(name))
        assert copy.uid == uids[name]
        assert copy.labels["kubeocean.io/cluster-binding"] == strait.name

        async def free() -> bool:
            original = await strait.above.get(LOG_CONFIGS, name)
            return original.metadata.finalizers == ("x.io/mine",)

        await until(free)

        async def gone() -> bool:
            return await strait.seen(LOG_CONFIGS, other) is None

        await until(gone)


async def test_a_foreign_copy_and_a_neighbours_are_left_alone(strait: Strait) -> None:
    name = strait.name
    foreign = await collect(strait.below, naming.log_config(name), stdout(namespace="theirs"))
    await collect(strait.above, name, stdout(namespace="team"))
    below = Faults()
    async with strait.syncing(Copying, below=below):
        await until(lambda: shows(strait, "", "team"))
    there = await strait.below.get(LOG_CONFIGS, foreign.name)
    assert there.resource_version == foreign.resource_version
    original = await strait.above.get(LOG_CONFIGS, name)
    await strait.above.delete(LOG_CONFIGS, name, uid=original.uid)
    async with strait.syncing(Copying):
        await until(lambda: shows(strait, ""))
    there = await strait.below.get(LOG_CONFIGS, foreign.name)
    assert there.resource_version == foreign.resource_version


async def test_a_cache_that_knows_nothing_removes_nothing(strait: Strait) -> None:
    await collect(strait.above, strait.name, stdout(namespace="team"))
    async with strait.syncing(Copying):
        await until(lambda: shows(strait, "team"))
    (copy,) = (await strait.below.list(LOG_CONFIGS)).items
    above, below = Faults(), Faults()
    async with strait.syncing(Copying, above=above, below=below) as made:
        # As if the watch had lost it: only the server knows better.
        await until(lambda: made.logconfigs.copies.has_synced)
        original = await until(lambda: next(iter(made.logconfigs.sources.items()), None))
        made.logconfigs.sources._put(original.key, None)
        await until(lambda: any(r.path.endswith(f"/{strait.name}") for r in above.requests))
        await made.logconfigs.controller.queue.drain()
    assert below.writes == 0
    (there,) = (await strait.below.list(LOG_CONFIGS)).items
    assert there.uid == copy.uid


async def _wrote(faults: Faults, number: int) -> bool:
    return faults.writes >= number


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 6))
async def test_a_crash_after_the_nth_write_changes_nothing(strait: Strait, n: int) -> None:
    stays, goes = f"{strait.name}-stays", f"{strait.name}-goes"
    await collect(strait.above, stays, workloads(("a", "x"), ("b", "y")))
    leaving = await collect(strait.above, goes, stdout(namespace="gone"))
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    change = MergePatch({"spec": workloads(("a", "x"), ("c", "y"))})
    with suppress(Crashed, BaseExceptionGroup):
        async with strait.syncing(Copying, below=faults):
            await crash.or_until(lambda: _wrote(faults, 3))
            await strait.above.patch(LOG_CONFIGS, stays, change)
            await crash.or_until(lambda: _wrote(faults, 4))
            await strait.above.delete(LOG_CONFIGS, goes, uid=leaving.uid)
            await crash.or_until(lambda: _wrote(faults, 5))
    assert crash.is_set()
    await strait.above.patch(LOG_CONFIGS, stays, change)
    if await strait.seen(LOG_CONFIGS, goes):
        await strait.above.delete(LOG_CONFIGS, goes, uid=leaving.uid)
    below = Faults()
    async with strait.syncing(Copying, below=below):
        await until(lambda: shows(strait, "a", "c"))
        before = below.writes
        await until(lambda: below.writes == before, every=0.5)
