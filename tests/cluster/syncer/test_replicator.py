"""Copies of ConfigMaps and Secrets on two real control planes."""

from __future__ import annotations

import base64

import pytest

from kubeocean.api.naming import physical_name
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, PODS, SECRETS, ConfigMap, Pod
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.syncer.replication.missing import Missing
from support.controller_env import ControllerEnv, quiet
from support.faults import Faults, watches
from support.pod_copies_driver import (
    MOUNT,
    PodCopiesDriver,
    bind_pod,
    crashing,
    delete_pod,
    read_in_worker,
)
from support.pod_env import PodEnv
from support.wait import until

QUOTAS = "/api/v1/namespaces/{}/resourcequotas"


def config_map_volume(name: str, *, optional: bool = False) -> Json:
    return {"configMap": {"name": name, "optional": optional}}


def secret_volume(name: str, *, optional: bool = False) -> Json:
    return {"secret": {"secretName": name, "optional": optional}}


async def create_config_map(
    controller_env: ControllerEnv, home: str, name: str = "config", **content: object
) -> ConfigMap:
    body = {"metadata": {"name": name, "labels": {"app": "a"}}, "data": {"k": "v"}} | content
    return await controller_env.computing_api.create(CONFIG_MAPS, body, namespace=home)


async def create_secret(
    controller_env: ControllerEnv, home: str, name: str = "secret", **content: object
) -> Untyped:
    data = {"password": base64.b64encode(b"canary-in-a-secret").decode()}
    body = {"metadata": {"name": name}, "data": data} | content
    return await controller_env.computing_api.create(SECRETS, body, namespace=home)


async def read_copy(
    controller_env: ControllerEnv, home: str, name: str = "config"
) -> ConfigMap | None:
    return await read_in_worker(controller_env, CONFIG_MAPS, physical_name(name, home))


async def has_data(
    controller_env: ControllerEnv, home: str, name: str = "config", **data: str
) -> ConfigMap:
    copy = await read_copy(controller_env, home, name)
    assert copy is not None
    assert (copy.data or {}) == data
    return copy


async def gone(controller_env: ControllerEnv, home: str, name: str = "config") -> bool:
    return await read_copy(controller_env, home, name) is None


async def ppod(controller_env: ControllerEnv, home: str, name: str) -> Pod | None:
    return await read_in_worker(controller_env, PODS, f"{name}-{home}")


async def pod_gone(controller_env: ControllerEnv, home: str, name: str) -> bool:
    return await ppod(controller_env, home, name) is None


async def unmarked(controller_env: ControllerEnv, home: str, name: str = "config") -> bool:
    copy = await controller_env.computing_api.get(CONFIG_MAPS, name, home)
    ours = [*copy.labels, *copy.annotations, *(copy.metadata.finalizers or ())]
    return not any("kubeocean.io" in key for key in ours)


async def edit(
    controller_env: ControllerEnv, home: str, name: str = "config", **change: object
) -> None:
    await controller_env.computing_api.patch(CONFIG_MAPS, name, MergePatch(change), home)


def writes(faults: Faults) -> list[str]:
    return [
        f"{r.method} {r.path.partition('/namespaces/')[2]}" for r in faults.requests if r.writes
    ]


def count_requests(faults: Faults, word: str) -> int:
    return sum(word in f"{r.method} {r.path}" and not watches(r) for r in faults.requests)


async def test_the_objects_that_a_pod_refers_to_are_replicated(
    controller_env: ControllerEnv, home: str
) -> None:
    source = await create_config_map(controller_env, home, binaryData={"b": "AAE="})
    await create_secret(controller_env, home, type="kubernetes.io/basic-auth")
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await bind_pod(
            controller_env, home, "p", config_map_volume("config"), secret_volume("secret")
        )
        copy = await until(lambda: has_data(controller_env, home, k="v"))
        names = await until(lambda: driver.answers.get(pod.key))
    assert not isinstance(names, Missing)
    assert names.config_maps == {"config": copy.name}
    assert names.secrets == {"secret": physical_name("secret", home)}
    assert copy.binary_data == {"b": "AAE="}
    assert (
        copy.labels.items()
        >= {
            "app": "a",
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": controller_env.name,
            "kubeocean.io/physical-cluster-id": controller_env.cluster_id,
        }.items()
    )
    assert copy.annotations["kubeocean.io/virtual-name"] == "config"
    assert copy.annotations["kubeocean.io/virtual-namespace"] == home
    assert copy.annotations["kubeocean.io/virtual-uid"] == source.uid
    marked = await controller_env.computing_api.get(CONFIG_MAPS, "config", home)
    assert marked.labels[f"kubeocean.io/synced-by-{controller_env.cluster_id}"] == "true"
    assert marked.labels["kubeocean.io/managed-by"] == "kubeocean"
    assert marked.annotations["kubeocean.io/physical-name"] == copy.name
    assert not marked.metadata.finalizers
    secret_copy = await read_in_worker(controller_env, SECRETS, names.secrets["secret"])
    assert secret_copy is not None
    assert secret_copy.content()["type"] == "kubernetes.io/basic-auth"


async def test_many_pods_that_refer_to_one_object_cost_one_copy(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    await create_secret(controller_env, home)
    computing_faults, worker_faults = Faults(), Faults()
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=computing_faults, worker_api=worker_faults
    ) as driver:
        for n in range(30):
            volumes = (config_map_volume("config"), secret_volume("secret"))
            await bind_pod(controller_env, home, f"p{n}", *volumes)
        await until(lambda: len(driver.answers) == 30)
        await quiet(computing_faults, worker_faults)
    for kind in ("configmaps", "secrets"):
        assert count_requests(computing_faults, f"/{kind}/") == 2  # one read, one mark
        assert count_requests(worker_faults, f"/{kind}") == 1
    assert count_requests(worker_faults, "POST") == 32


async def test_after_a_restart_nothing_is_read_or_written(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: has_data(controller_env, home, k="v"))
    faults = Faults()
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=faults, worker_api=faults
    ) as driver:
        await until(lambda: driver.pod_copies.replicators["ConfigMap"].synced)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_a_copy_follows_the_content_metadata_and_immutability_of_its_source(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        uid = (await until(lambda: has_data(controller_env, home, k="v"))).uid
        label = {"metadata": {"labels": {"mine": "x"}}}
        await controller_env.worker_api.patch(
            CONFIG_MAPS, physical_name("config", home), MergePatch(label), MOUNT
        )
        await edit(controller_env, home, data={"k": None, "l": "w"})
        await until(lambda: has_data(controller_env, home, l="w"))
        await edit(controller_env, home, metadata={"labels": {"app": None, "new": "n"}})

        async def relabelled() -> bool:
            labels = (await has_data(controller_env, home, l="w")).labels
            return "app" not in labels and labels["new"] == "n" and labels["mine"] == "x"

        await until(relabelled)
        await edit(controller_env, home, immutable=True)

        async def frozen() -> bool:
            copy = await has_data(controller_env, home, l="w")
            return copy.immutable is True and copy.uid == uid

        await until(frozen)


async def test_a_copy_that_no_pod_uses_any_more_is_deleted(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver):
        first = await bind_pod(controller_env, home, "p1", config_map_volume("config"))
        second = await bind_pod(controller_env, home, "p2", config_map_volume("config"))
        await until(lambda: has_data(controller_env, home, k="v"))
        await until(lambda: ppod(controller_env, home, "p2"))
        await delete_pod(controller_env, first)
        await until(lambda: pod_gone(controller_env, home, "p1"))
        assert await has_data(controller_env, home, k="v")
        await delete_pod(controller_env, second)
        await until(lambda: gone(controller_env, home))
        await until(lambda: unmarked(controller_env, home))
        await bind_pod(controller_env, home, "p3", config_map_volume("config"))
        await until(lambda: has_data(controller_env, home, k="v"))


# Sources that do not exist


async def test_a_missing_source_is_named_and_noticed_when_it_is_created(
    controller_env: ControllerEnv, home: str
) -> None:
    faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=faults) as driver:
        volumes = (config_map_volume("config"), secret_volume("secret"))
        pod = await bind_pod(controller_env, home, "p", *volumes)
        missing = await until(lambda: driver.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert missing.kind == "ConfigMap"
        assert missing.key == Key(home, "config")
        assert missing.message == f"ConfigMap {home}/config does not exist"
        await quiet(faults)
        reads = count_requests(faults, "GET")
        await create_config_map(controller_env, home)
        await create_secret(controller_env, home)
        await until(lambda: ppod(controller_env, home, "p"))
        assert count_requests(faults, "GET") == reads + 2
        assert await has_data(controller_env, home, k="v")


async def test_an_optional_source_is_not_waited_for_and_replicated_later(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await bind_pod(
            controller_env,
            home,
            "p",
            config_map_volume("config", optional=True),
            imagePullSecrets=[{"name": "pull"}],
        )
        await until(lambda: ppod(controller_env, home, "p"))
        names = driver.answers[pod.key]
        assert not isinstance(names, Missing)
        copiers = driver.pod_copies.replicators
        reserved = copiers["ConfigMap"].reserved_name(Key(home, "config"))
        assert names.config_maps == {"config": reserved}
        assert reserved != physical_name("config", home)
        assert names.secrets == {"pull": copiers["Secret"].reserved_name(Key(home, "pull"))}
        await create_config_map(controller_env, home)
        await until(lambda: has_data(controller_env, home, k="v"))
        await delete_pod(controller_env, pod)
        await until(lambda: gone(controller_env, home))
        watches = driver.pod_copies.replicators["Secret"].existence_watches
        await until(lambda: len(watches) == 0)


async def test_a_pod_never_mounts_a_foreign_object_for_an_optional_source_that_is_absent(
    pod_env: PodEnv,
) -> None:
    env, name = pod_env, physical_name("config", pod_env.namespace)
    foreign = {"metadata": {"name": name}, "data": {"k": "of somebody else"}}
    await env.worker_api.create(CONFIG_MAPS, foreign, namespace=env.mount)
    volume = {"name": "v", **config_map_volume("config", optional=True)}
    async with env.pods():
        await env.run(volumes=[volume])
        await until(env.runs)
        (mounted,) = (await env.ppod()).content()["spec"]["volumes"]
        reserved = mounted["configMap"]["name"]
        assert reserved != name

        # The source appears later: its copy has the name that the pod mounts.
        body = {"metadata": {"name": "config"}, "data": {"k": "v"}}
        await env.computing_api.create(CONFIG_MAPS, body, namespace=env.namespace)

        async def copied() -> bool:
            copy = await read_in_worker(env, CONFIG_MAPS, reserved, env.mount)
            return copy is not None and copy.content()["data"] == {"k": "v"}

        await until(copied)


async def test_changes_of_a_copy_flow_back_only_on_request(
    controller_env: ControllerEnv, home: str
) -> None:
    env, name = controller_env, physical_name("config", home)
    two_way = {"metadata": {"annotations": {"kubeocean.io/sync-back": "true"}}}

    async def change_copy(value: str) -> None:
        await env.worker_api.patch(CONFIG_MAPS, name, MergePatch({"data": {"k": value}}), MOUNT)

    async def source_has(value: str) -> bool:
        source = await env.computing_api.get(CONFIG_MAPS, "config", home, keep_raw=True)
        return bool(source.content()["data"] == {"k": value})

    async def copy_has_hash() -> bool:
        copy = await read_in_worker(env, CONFIG_MAPS, name)
        return copy is not None and "kubeocean.io/synced-hash" in copy.annotations

    await create_config_map(env, home)
    faults = Faults()
    async with env.syncing(PodCopiesDriver, computing_api=faults, worker_api=faults):
        await bind_pod(env, home, "p", config_map_volume("config"))
        await until(lambda: has_data(env, home, k="v"))
        await change_copy("mine")
        await until(lambda: has_data(env, home, k="v"))
        assert await source_has("v")
        await env.computing_api.patch(CONFIG_MAPS, "config", MergePatch(two_way), home)
        await until(copy_has_hash)
        await change_copy("back")
        await until(lambda: source_has("back"))
        await quiet(faults)
        assert await has_data(env, home, k="back")

    # Both change while no syncer runs: the computing cluster decides.
    await change_copy("theirs")
    await env.computing_api.patch(CONFIG_MAPS, "config", MergePatch({"data": {"k": "ours"}}), home)
    async with env.syncing(PodCopiesDriver, computing_api=faults, worker_api=faults):
        await until(lambda: has_data(env, home, k="ours"))
        assert await source_has("ours")
        fields = "involvedObject.name=config,reason=SyncConflict"

        async def reported() -> bool:
            return bool((await env.computing_api.list(EVENTS, home, fields=fields)).items)

        await until(reported)
        await quiet(faults)


async def test_a_source_that_is_deleted_and_created_again_keeps_its_copy(
    controller_env: ControllerEnv, home: str
) -> None:
    source = await create_config_map(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        uid = (await until(lambda: has_data(controller_env, home, k="v"))).uid
    await controller_env.computing_api.delete(CONFIG_MAPS, "config", home, uid=source.uid)
    again = await create_config_map(controller_env, home, data={"k": "w"})
    async with controller_env.syncing(PodCopiesDriver):
        copy = await until(lambda: has_data(controller_env, home, k="w"))
        assert copy.uid == uid
        assert copy.annotations["kubeocean.io/virtual-uid"] == again.uid


async def test_a_copy_is_deleted_and_created_again_with_its_source(
    controller_env: ControllerEnv, home: str
) -> None:
    source = await create_config_map(controller_env, home, immutable=True)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: has_data(controller_env, home, k="v"))
        await controller_env.computing_api.delete(CONFIG_MAPS, "config", home, uid=source.uid)
        await until(lambda: gone(controller_env, home))
        await create_config_map(controller_env, home, data={"k": "w"})
        await until(lambda: has_data(controller_env, home, k="w"))


async def test_an_immutable_copy_is_replaced_for_a_new_source(
    controller_env: ControllerEnv, home: str
) -> None:
    source = await create_config_map(controller_env, home, immutable=True)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        uid = (await until(lambda: has_data(controller_env, home, k="v"))).uid
    await controller_env.computing_api.delete(CONFIG_MAPS, "config", home, uid=source.uid)
    await create_config_map(controller_env, home, data={"k": "w"})
    async with controller_env.syncing(PodCopiesDriver):
        copy = await until(lambda: has_data(controller_env, home, k="w"))
        assert copy.uid != uid
        assert not copy.immutable


async def test_a_copy_that_others_delete_or_change_is_repaired(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", config_map_volume("config"))
        copy = await until(lambda: has_data(controller_env, home, k="v"))
        await controller_env.worker_api.delete(CONFIG_MAPS, copy.name, MOUNT, uid=copy.uid)
        copy = await until(lambda: has_data(controller_env, home, k="v"))
        change = MergePatch({"data": {"k": "changed", "more": "x"}})
        await controller_env.worker_api.patch(CONFIG_MAPS, copy.name, change, MOUNT)
        await until(lambda: has_data(controller_env, home, k="v"))
        labels = {"labels": {f"kubeocean.io/synced-by-{controller_env.cluster_id}": None}}
        await edit(controller_env, home, metadata=labels)
        await edit(controller_env, home, data={"k": "w"})
        await until(lambda: has_data(controller_env, home, k="w"))


async def test_the_root_certificate_of_each_namespace_is_replicated(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await bind_pod(controller_env, home, "p", automountServiceAccountToken=True)
        await until(lambda: ppod(controller_env, home, "p"))
        names = driver.answers[pod.key]
        assert not isinstance(names, Missing)
        copy = await read_copy(controller_env, home, "kube-root-ca.crt")
        assert copy is not None
        assert names.config_maps == {"kube-root-ca.crt": copy.name}
        assert "BEGIN CERTIFICATE" in (copy.data or {})["ca.crt"]


@pytest.mark.parametrize(
    ("source_type", "copy_type"),
    [
        ("kubernetes.io/service-account-token", "Opaque"),
        ("helm.sh/release.v1", "helm.sh/release.v1"),
        ("bootstrap.kubernetes.io/token", "bootstrap.kubernetes.io/token"),
    ],
)
async def test_the_copy_of_a_secret_has_a_type_that_the_worker_does_not_act_on(
    controller_env: ControllerEnv, home: str, source_type: str, copy_type: str
) -> None:
    account = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": "typed", "annotations": account}
    await create_secret(controller_env, home, type=source_type, metadata=metadata)
    async with controller_env.syncing(PodCopiesDriver):
        await bind_pod(controller_env, home, "p", secret_volume("typed"))

        async def copied() -> Untyped | None:
            return await read_in_worker(controller_env, SECRETS, physical_name("typed", home))

        copy = await until(copied)
        assert copy is not None
        assert copy.content()["type"] == copy_type
        assert "password" in copy.content()["data"]


# Objects of others


async def test_a_foreign_object_with_the_name_of_a_copy_is_left_alone(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    body = {
        "metadata": {
            "name": physical_name("config", home),
            # As the earlier implementation creates copies for another computing cluster.
            "labels": {"kubeocean.io/managed-by": "kubeocean"},
            "annotations": {
                "kubeocean.io/virtual-name": "config",
                "kubeocean.io/virtual-namespace": home,
            },
        },
        "data": {"theirs": "yes"},
    }
    foreign = await controller_env.worker_api.create(CONFIG_MAPS, body, namespace=MOUNT)
    async with controller_env.syncing(PodCopiesDriver) as driver:
        pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "p"))
        names = driver.answers[pod.key]
        assert not isinstance(names, Missing)
        second = names.config_maps["config"]
        assert second != foreign.name
        copy = await read_in_worker(controller_env, CONFIG_MAPS, second)
        assert copy is not None
        assert copy.data == {"k": "v"}
        untouched = await controller_env.worker_api.get(CONFIG_MAPS, foreign.name, MOUNT)
        assert untouched.resource_version == foreign.resource_version
        await controller_env.worker_api.delete(CONFIG_MAPS, foreign.name, MOUNT, uid=foreign.uid)
        await edit(controller_env, home, data={"k": "w"})

        async def followed() -> bool:
            copy = await read_in_worker(controller_env, CONFIG_MAPS, second)
            return copy is not None and copy.data == {"k": "w"}

        await until(followed)
        assert await gone(controller_env, home)
        await delete_pod(controller_env, pod)

        async def removed() -> bool:
            return await read_in_worker(controller_env, CONFIG_MAPS, second) is None

        await until(removed)


async def test_two_bindings_have_a_copy_each(controller_env: ControllerEnv, home: str) -> None:
    other = controller_env.neighbour()
    await create_config_map(controller_env, home)
    async with (
        controller_env.syncing(PodCopiesDriver) as ours,
        other.syncing(PodCopiesDriver) as theirs,
    ):
        own = await bind_pod(controller_env, home, "mine", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "mine"))
        their = await bind_pod(other, home, "their", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "their"))
        answers = [driver.answers[pod.key] for driver, pod in ((ours, own), (theirs, their))]
        first, second = (names.config_maps["config"] for names in answers)
        assert first != second
        await delete_pod(controller_env, own)
        await until(lambda: gone(controller_env, home))

        async def only_theirs() -> bool:
            labels = (await controller_env.computing_api.get(CONFIG_MAPS, "config", home)).labels
            assert "kubeocean.io/managed-by" in labels
            assert f"kubeocean.io/synced-by-{other.cluster_id}" in labels
            return f"kubeocean.io/synced-by-{controller_env.cluster_id}" not in labels

        await until(only_theirs)
        assert await read_in_worker(controller_env, CONFIG_MAPS, second) is not None
        await delete_pod(controller_env, their)
        await until(lambda: unmarked(controller_env, home))


async def create_legacy_copy(controller_env: ControllerEnv, home: str) -> ConfigMap:
    """Create a ConfigMap and its copy as the earlier implementation does; return the copy."""
    name = physical_name("config", home)
    marks = {
        "name": "config",
        "labels": {
            "app": "a",
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{controller_env.cluster_id}": "true",
        },
        "annotations": {
            "kubeocean.io/physical-name": name,
            "kubeocean.io/physical-namespace": MOUNT,
        },
        "finalizers": [f"kubeocean.io/finalizer-{controller_env.cluster_id}"],
    }
    await create_config_map(controller_env, home, metadata=marks)
    body = {
        "metadata": {
            "name": name,
            "labels": {"app": "a", "kubeocean.io/managed-by": "kubeocean"},
            "annotations": {
                "kubeocean.io/virtual-name": "config",
                "kubeocean.io/virtual-namespace": home,
            },
        },
        "data": {"k": "old"},
    }
    return await controller_env.worker_api.create(CONFIG_MAPS, body, namespace=MOUNT)


async def test_a_copy_of_the_earlier_implementation_is_adopted(
    controller_env: ControllerEnv, home: str
) -> None:
    legacy = await create_legacy_copy(controller_env, home)
    pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
    async with controller_env.syncing(PodCopiesDriver):
        copy = await until(lambda: has_data(controller_env, home, k="v"))
        assert copy.uid == legacy.uid
        assert copy.labels["kubeocean.io/cluster-binding"] == controller_env.name

        async def freed() -> bool:
            return not (
                await controller_env.computing_api.get(CONFIG_MAPS, "config", home)
            ).metadata.finalizers

        await until(freed)
        await delete_pod(controller_env, pod)
        await until(lambda: gone(controller_env, home))
        await until(lambda: unmarked(controller_env, home))


async def test_a_copy_that_the_earlier_implementation_left_is_deleted(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_legacy_copy(controller_env, home)
    source = await controller_env.computing_api.get(CONFIG_MAPS, "config", home)
    await controller_env.computing_api.delete(CONFIG_MAPS, "config", home, uid=source.uid)
    async with controller_env.syncing(PodCopiesDriver):
        await until(lambda: gone(controller_env, home))

        async def ended() -> bool:
            return await controller_env.seen(CONFIG_MAPS, "config", home) is None

        await until(ended)


# Refusals and faults


async def test_a_refusal_names_the_object_and_the_reason(
    controller_env: ControllerEnv, home: str
) -> None:
    quota = {
        "metadata": {"name": controller_env.name},
        "spec": {"hard": {"count/secrets": "0"}},
        "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}},
    }
    await create_secret(controller_env, home)
    path = QUOTAS.format(MOUNT)
    await controller_env.worker_api.request("POST", path, body=quota)
    await controller_env.worker_api.request(
        "PUT", f"{path}/{controller_env.name}/status", body=quota
    )
    faults = Faults()
    try:
        async with controller_env.syncing(PodCopiesDriver, worker_api=faults) as driver:
            pod = await bind_pod(controller_env, home, "p", secret_volume("secret"))
            missing = await until(lambda: driver.answers.get(pod.key))
            assert isinstance(missing, Missing)
            assert missing.key == Key(home, "secret")
            assert "exceeded quota" in missing.message
            assert "canary" not in missing.message
            await bind_pod(controller_env, home, "q", secret_volume("secret"))
            await until(lambda: len(driver.answers) == 2)
            assert count_requests(faults, "POST") <= 3
            await controller_env.worker_api.request("DELETE", f"{path}/{controller_env.name}")
            await until(lambda: ppod(controller_env, home, "p"))
            await until(lambda: ppod(controller_env, home, "q"))
    finally:
        listed = await controller_env.worker_api.request_json("GET", path)
        for each in listed["items"]:
            await controller_env.worker_api.request("DELETE", f"{path}/{each['metadata']['name']}")


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 11))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, home: str, n: int
) -> None:
    await create_config_map(controller_env, home, "stays")
    await create_config_map(controller_env, home, "goes")
    await bind_pod(controller_env, home, "p1", config_map_volume("stays"))
    pod = await bind_pod(controller_env, home, "p2", config_map_volume("goes"))
    async with crashing(controller_env, n) as crash:
        for name in ("stays", "goes"):
            await crash.or_until(lambda name=name: has_data(controller_env, home, name, k="v"))
        await crash.or_until(lambda: ppod(controller_env, home, "p2"))
        await edit(controller_env, home, "stays", data={"k": "w"})
        await crash.or_until(lambda: has_data(controller_env, home, "stays", k="w"))
        await delete_pod(controller_env, pod)
        await crash.or_until(lambda: gone(controller_env, home, "goes"))
        await crash.or_until(lambda: unmarked(controller_env, home, "goes"))
    if not crash.is_set():
        assert n > 10
    await edit(controller_env, home, "stays", data={"k": "w"})
    if await controller_env.seen(PODS, "p2", home):
        await delete_pod(controller_env, pod)
    async with controller_env.syncing(PodCopiesDriver):
        await until(lambda: has_data(controller_env, home, "stays", k="w"))
        await until(lambda: gone(controller_env, home, "goes"))
        await until(lambda: unmarked(controller_env, home, "goes"))


async def test_lagging_and_repeating_watches_cause_no_more_requests(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    computing_faults, worker_faults = Faults(), Faults()
    for faults in (computing_faults, worker_faults):
        faults.lag(0.3)
        faults.repeat(1)
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=computing_faults, worker_api=worker_faults
    ):
        pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "p"))
        await edit(controller_env, home, data={"k": "w"})
        await until(lambda: has_data(controller_env, home, k="w"))
        computing_faults.rewind(20)
        worker_faults.rewind(20)
        await quiet(computing_faults, worker_faults)
        await delete_pod(controller_env, pod)
        await until(lambda: gone(controller_env, home))
        await until(lambda: unmarked(controller_env, home))
    assert count_requests(computing_faults, "/configmaps/config") == 3  # read, mark, unmark
    assert count_requests(worker_faults, "/configmaps") == 3  # create, update, delete


async def test_two_leaders_reach_the_same_state_as_one(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    first, second = Faults(), Faults()
    async with (
        controller_env.syncing(PodCopiesDriver, computing_api=first, worker_api=first),
        controller_env.syncing(PodCopiesDriver, computing_api=second, worker_api=second),
    ):
        pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: has_data(controller_env, home, k="v"))
        await edit(controller_env, home, data={"k": "w"})
        await until(lambda: has_data(controller_env, home, k="w"))
        await quiet(first, second)
        await delete_pod(controller_env, pod)
        await until(lambda: gone(controller_env, home))
        await until(lambda: unmarked(controller_env, home))


async def test_a_cache_that_knows_too_little_removes_nothing(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    computing_faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=computing_faults) as driver:
        pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "p"))
        computing_faults.freeze()
        await bind_pod(controller_env, home, "unseen", config_map_volume("config"))
        ours = await controller_env.worker_api.get(PODS, f"p-{home}", MOUNT)
        await controller_env.worker_api.delete(PODS, ours.name, MOUNT, uid=ours.uid, grace_s=0)
        await until(lambda: not driver.clusters.ppods.by("virtual", str(pod.key)))
        await delete_pod(controller_env, pod)
        lists = count_requests(computing_faults, f"GET /api/v1/namespaces/{home}/pods")
        driver.pod_copies.release(pod.key)  # as if its deletion had been seen
        await until(
            lambda: count_requests(computing_faults, f"GET /api/v1/namespaces/{home}/pods") > lists
        )
        await quiet(computing_faults)
        assert await has_data(controller_env, home, k="v")


async def test_draining_deletes_all_copies_and_marks(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    await create_secret(controller_env, home)
    async with controller_env.syncing(PodCopiesDriver) as driver:
        volumes = (config_map_volume("config"), secret_volume("secret"))
        pod = await bind_pod(controller_env, home, "p", *volumes)
        await until(lambda: ppod(controller_env, home, "p"))
        await until(lambda: driver.pod_copies.remaining() == 4)
        driver.pod_copies.drain()
        await until(lambda: driver.pod_copies.remaining() == 0)
        assert await gone(controller_env, home)
        assert await unmarked(controller_env, home)
        with pytest.raises(NotFound):
            await controller_env.worker_api.get(SECRETS, physical_name("secret", home), MOUNT)
    await delete_pod(controller_env, pod)


async def test_a_binding_can_end_without_its_worker(
    controller_env: ControllerEnv, home: str
) -> None:
    await create_config_map(controller_env, home)
    worker_faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, worker_api=worker_faults) as driver:
        pod = await bind_pod(controller_env, home, "p", config_map_volume("config"))
        await until(lambda: ppod(controller_env, home, "p"))
        await until(lambda: driver.pod_copies.remaining() == 2)
        worker_faults.partition()
        await until(lambda: not driver.clusters.worker_health.answers)
        driver.pod_copies.drain(confirmed=False)
        await until(lambda: driver.pod_copies.remaining() == 0)
        assert await unmarked(controller_env, home)
        assert await has_data(controller_env, home, k="v")
        worker_faults.rejoin()
        driver.pod_copies.drain()
        await until(lambda: gone(controller_env, home))
    await delete_pod(controller_env, pod)
