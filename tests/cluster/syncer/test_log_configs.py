"""LogConfigs, copied between two real control planes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication import log_configs
from kubeocean.syncer.replication.log_configs import LOG_CONFIGS, LogConfigs
from support.binding_env import BindingEnv
from support.controller_env import ControllerEnv, Crash, quiet
from support.custom_resources import define
from support.faults import Crashed, Faults, watches
from support.wait import until

CRD = f"{LOG_CONFIGS.plural}.{LOG_CONFIGS.group}"


class LogConfigsDriver:
    """Runs `LogConfigs` with its caches."""

    def __init__(self, clusters: Clusters) -> None:
        self.logconfigs = LogConfigs(clusters)
        self.parts = (clusters.bindings, *self.logconfigs.parts)


@pytest.fixture
async def controller_env(
    binding_env: BindingEnv, client: Client, worker: Cluster
) -> AsyncIterator[ControllerEnv]:
    """Two clusters that serve LogConfigs and have none at the start and at the end."""
    worker_client = worker.client()
    for each in (client, worker_client):
        await define(each, LOG_CONFIGS)
        await until(lambda each=each: delete_all(each))
    controller_env = ControllerEnv(
        binding_env.computing, worker, client, worker_client, name=binding_env.name
    )
    kind = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind}
    spec = {
        "clusterID": controller_env.cluster_id,
        "secretRef": {"name": "x", "namespace": "default"},
        "mountNamespace": "kubeocean-worker",
    }
    body = {**kind, "metadata": {"name": controller_env.name}, "spec": spec}
    await client.create(CLUSTER_BINDINGS, body)
    yield controller_env
    for each in (client, worker_client):
        await delete_all(each)
    await worker_client.close()


async def delete_all(client: Client) -> bool:
    with suppress(NotFound):  # until the server serves the kind
        for each in (await client.list(LOG_CONFIGS)).items:
            if each.metadata.finalizers:
                patch = MergePatch({"metadata": {"finalizers": []}})
                await client.patch(LOG_CONFIGS, each.name, patch)
            with suppress(NotFound):
                await client.delete(LOG_CONFIGS, each.name, uid=each.uid)
        return True
    return False


async def create_log_config(client: Client, name: str, spec: Json, **metadata: object) -> Untyped:
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


async def selected_namespaces(controller_env: ControllerEnv) -> dict[str, str]:
    """Return the virtual namespace that each copy selects, by the name of the copy."""
    namespaces_by_copy = {}
    for each in (await controller_env.worker_api.list(LOG_CONFIGS, keep_raw=True)).items:
        detail = each.content()["spec"]["inputDetail"]["containerStdout"]
        namespaces_by_copy[each.name] = detail.get("includeLabels", {}).get(
            "kubeocean.io/virtual-namespace", ""
        )
    return namespaces_by_copy


async def copies_select(controller_env: ControllerEnv, *namespaces: str) -> bool:
    assert sorted((await selected_namespaces(controller_env)).values()) == sorted(namespaces)
    return True


async def test_nothing_is_watched_unless_both_clusters_serve_the_kind(
    controller_env: ControllerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_configs, "DISCOVER_EVERY_S", 0.3)
    definition = await controller_env.worker_api.get(CUSTOM_RESOURCE_DEFINITIONS, CRD)
    await controller_env.worker_api.delete(CUSTOM_RESOURCE_DEFINITIONS, CRD, uid=definition.uid)

    async def forgotten() -> bool:
        with suppress(NotFound):
            await controller_env.worker_api.list(LOG_CONFIGS)
            return False
        return True

    await until(forgotten)
    await create_log_config(
        controller_env.computing_api, controller_env.name, stdout(namespace="team")
    )
    computing_faults = Faults()
    async with controller_env.syncing(LogConfigsDriver, computing_api=computing_faults) as driver:
        await until(lambda: sum(r.path.endswith("/v1") for r in computing_faults.requests) > 2)
        assert not driver.logconfigs.on
        assert not any(watches(r) and "logconfigs" in r.path for r in computing_faults.requests)
        await define(controller_env.worker_api, LOG_CONFIGS)
        await until(lambda: driver.logconfigs.on)
        await until(lambda: copies_select(controller_env, "team"))


async def test_copies_of_groups_are_updated_in_place_and_in_one_order(
    controller_env: ControllerEnv,
) -> None:
    name = controller_env.name
    await create_log_config(
        controller_env.computing_api, name, workloads(("b", "x"), ("a", "y")), labels={"t": "1"}
    )
    worker_faults, computing_faults = Faults(), Faults()
    async with controller_env.syncing(
        LogConfigsDriver, computing_api=computing_faults, worker_api=worker_faults
    ):
        await until(lambda: copies_select(controller_env, "a", "b"))
        assert await selected_namespaces(controller_env) == {
            naming.log_config(name, 0): "a",
            naming.log_config(name, 1): "b",
        }
        uids = {each.uid for each in (await controller_env.worker_api.list(LOG_CONFIGS)).items}
        # The same groups in another order: nothing to write.
        spec = workloads(("a", "y"), ("b", "x"))
        await controller_env.computing_api.patch(LOG_CONFIGS, name, MergePatch({"spec": spec}))
        await quiet(worker_faults, computing_faults)
        assert worker_faults.writes == 2
        await controller_env.computing_api.patch(
            LOG_CONFIGS, name, MergePatch({"spec": workloads(("b", "x"), ("c", "y"))})
        )
        await until(lambda: copies_select(controller_env, "b", "c"))
        assert {
            each.uid for each in (await controller_env.worker_api.list(LOG_CONFIGS)).items
        } == uids
        await controller_env.computing_api.patch(
            LOG_CONFIGS, name, MergePatch({"spec": workloads(("c", "y"))})
        )
        await until(lambda: copies_select(controller_env, "c"))
    source = await controller_env.computing_api.get(LOG_CONFIGS, name)
    assert not source.metadata.finalizers
    assert computing_faults.writes == 0


async def test_copies_are_deleted_with_the_source_and_with_the_binding(
    controller_env: ControllerEnv,
) -> None:
    first, second = f"{controller_env.name}-1", f"{controller_env.name}-2"
    source = await create_log_config(controller_env.computing_api, first, stdout(namespace="one"))
    await create_log_config(controller_env.computing_api, second, stdout(namespace="two"))
    async with controller_env.syncing(LogConfigsDriver) as driver:
        await until(lambda: copies_select(controller_env, "one", "two"))
        await controller_env.computing_api.delete(LOG_CONFIGS, first, uid=source.uid)
        await until(lambda: copies_select(controller_env, "two"))
        (copy,) = (await controller_env.worker_api.list(LOG_CONFIGS)).items
        await controller_env.worker_api.delete(LOG_CONFIGS, copy.name, uid=copy.uid)
        await until(lambda: copies_select(controller_env, "two"))
        finalizers = ["kubeocean.io/clusterbinding-syncer"]
        patch = MergePatch({"metadata": {"finalizers": finalizers}})
        binding = await controller_env.computing_api.patch(
            CLUSTER_BINDINGS, controller_env.name, patch
        )
        await controller_env.computing_api.delete(
            CLUSTER_BINDINGS, controller_env.name, uid=binding.uid
        )
        await until(lambda: copies_select(controller_env))
        await until(lambda: driver.logconfigs.remaining() == 0)
    patch = MergePatch({"metadata": {"finalizers": []}})
    await controller_env.computing_api.patch(CLUSTER_BINDINGS, controller_env.name, patch)


async def test_copies_of_the_earlier_implementation_are_adopted(
    controller_env: ControllerEnv,
) -> None:
    name, other = controller_env.name, f"{controller_env.name}-going"
    theirs = f"kubeocean.io/finalizer-{controller_env.cluster_id}"
    await create_log_config(
        controller_env.computing_api,
        name,
        stdout(namespace="team"),
        finalizers=[theirs, "x.io/mine"],
    )
    going = await create_log_config(
        controller_env.computing_api, other, stdout(namespace="old"), finalizers=[theirs]
    )
    uids = {}
    for each in (name, other):
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{controller_env.cluster_id}": "true",
            "kubeocean.io/virtual-logconfig": each,
        }
        copy = naming.log_config(each)
        legacy = await create_log_config(
            controller_env.worker_api, copy, stdout(namespace="kubeocean-worker"), labels=labels
        )
        uids[each] = legacy.uid
    await controller_env.computing_api.delete(LOG_CONFIGS, other, uid=going.uid)
    async with controller_env.syncing(LogConfigsDriver):
        await until(lambda: copies_select(controller_env, "team"))
        copy = await controller_env.worker_api.get(LOG_CONFIGS, naming.log_config(name))
        assert copy.uid == uids[name]
        assert copy.labels["kubeocean.io/cluster-binding"] == controller_env.name

        async def free() -> bool:
            source = await controller_env.computing_api.get(LOG_CONFIGS, name)
            return source.metadata.finalizers == ("x.io/mine",)

        await until(free)

        async def gone() -> bool:
            return await controller_env.seen(LOG_CONFIGS, other) is None

        await until(gone)


async def test_copies_of_others_and_of_another_binding_are_left_alone(
    controller_env: ControllerEnv,
) -> None:
    name = controller_env.name
    foreign = await create_log_config(
        controller_env.worker_api, naming.log_config(name), stdout(namespace="theirs")
    )
    await create_log_config(controller_env.computing_api, name, stdout(namespace="team"))
    worker_faults = Faults()
    async with controller_env.syncing(LogConfigsDriver, worker_api=worker_faults):
        await until(lambda: copies_select(controller_env, "", "team"))
    untouched = await controller_env.worker_api.get(LOG_CONFIGS, foreign.name)
    assert untouched.resource_version == foreign.resource_version
    source = await controller_env.computing_api.get(LOG_CONFIGS, name)
    await controller_env.computing_api.delete(LOG_CONFIGS, name, uid=source.uid)
    async with controller_env.syncing(LogConfigsDriver):
        await until(lambda: copies_select(controller_env, ""))
    untouched = await controller_env.worker_api.get(LOG_CONFIGS, foreign.name)
    assert untouched.resource_version == foreign.resource_version


async def test_a_source_that_the_cache_does_not_show_keeps_its_copies(
    controller_env: ControllerEnv,
) -> None:
    await create_log_config(
        controller_env.computing_api, controller_env.name, stdout(namespace="team")
    )
    async with controller_env.syncing(LogConfigsDriver):
        await until(lambda: copies_select(controller_env, "team"))
    (copy,) = (await controller_env.worker_api.list(LOG_CONFIGS)).items
    computing_faults, worker_faults = Faults(), Faults()
    async with controller_env.syncing(
        LogConfigsDriver, computing_api=computing_faults, worker_api=worker_faults
    ) as driver:
        # As if the watch had lost the event: only the server has the object.
        await until(lambda: driver.logconfigs.copies.has_synced)
        source = await until(lambda: next(iter(driver.logconfigs.sources.items()), None))
        driver.logconfigs.sources._put(source.key, None)
        await until(
            lambda: any(
                r.path.endswith(f"/{controller_env.name}") for r in computing_faults.requests
            )
        )
        await driver.logconfigs.controller.queue.drain()
    assert worker_faults.writes == 0
    (kept,) = (await controller_env.worker_api.list(LOG_CONFIGS)).items
    assert kept.uid == copy.uid


async def _wrote(faults: Faults, number: int) -> bool:
    return faults.writes >= number


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 6))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, n: int
) -> None:
    stays, goes = f"{controller_env.name}-stays", f"{controller_env.name}-goes"
    await create_log_config(controller_env.computing_api, stays, workloads(("a", "x"), ("b", "y")))
    leaving = await create_log_config(controller_env.computing_api, goes, stdout(namespace="gone"))
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    change = MergePatch({"spec": workloads(("a", "x"), ("c", "y"))})
    with suppress(Crashed, BaseExceptionGroup):
        async with controller_env.syncing(LogConfigsDriver, worker_api=faults):
            await crash.or_until(lambda: _wrote(faults, 3))
            await controller_env.computing_api.patch(LOG_CONFIGS, stays, change)
            await crash.or_until(lambda: _wrote(faults, 4))
            await controller_env.computing_api.delete(LOG_CONFIGS, goes, uid=leaving.uid)
            await crash.or_until(lambda: _wrote(faults, 5))
    assert crash.is_set()
    await controller_env.computing_api.patch(LOG_CONFIGS, stays, change)
    if await controller_env.seen(LOG_CONFIGS, goes):
        await controller_env.computing_api.delete(LOG_CONFIGS, goes, uid=leaving.uid)
    worker_faults = Faults()
    async with controller_env.syncing(LogConfigsDriver, worker_api=worker_faults):
        await until(lambda: copies_select(controller_env, "a", "c"))
        before = worker_faults.writes
        await until(lambda: worker_faults.writes == before, every=0.5)
