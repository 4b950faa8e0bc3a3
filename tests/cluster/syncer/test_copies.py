"""Copies of ConfigMaps and Secrets on two real control planes."""

from __future__ import annotations

import base64

import pytest

from kubeocean.api.naming import physical_name
from kubeocean.errors import NotFound
from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS, SECRETS, ConfigMap, Pod
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.topdown.missing import Missing
from porters import MOUNT, Porter, bind_pod, crashing, seen_below, unbind
from straits import Strait, quiet
from waiting import until

QUOTAS = "/api/v1/namespaces/{}/resourcequotas"


def config_map_volume(name: str, *, optional: bool = False) -> Json:
    return {"configMap": {"name": name, "optional": optional}}


def secret_volume(name: str, *, optional: bool = False) -> Json:
    return {"secret": {"secretName": name, "optional": optional}}


async def config(strait: Strait, home: str, name: str = "config", **content: object) -> ConfigMap:
    body = {"metadata": {"name": name, "labels": {"app": "a"}}, "data": {"k": "v"}} | content
    return await strait.above.create(CONFIG_MAPS, body, namespace=home)


async def secret(strait: Strait, home: str, name: str = "secret", **content: object) -> Untyped:
    data = {"password": base64.b64encode(b"canary-in-a-secret").decode()}
    body = {"metadata": {"name": name}, "data": data} | content
    return await strait.above.create(SECRETS, body, namespace=home)


async def copy(strait: Strait, home: str, name: str = "config") -> ConfigMap | None:
    return await seen_below(strait, CONFIG_MAPS, physical_name(name, home))


async def holds(strait: Strait, home: str, name: str = "config", **data: str) -> ConfigMap:
    there = await copy(strait, home, name)
    assert there is not None
    assert (there.data or {}) == data
    return there


async def gone(strait: Strait, home: str, name: str = "config") -> bool:
    return await copy(strait, home, name) is None


async def ppod(strait: Strait, home: str, name: str) -> Pod | None:
    return await seen_below(strait, PODS, f"{name}-{home}")


async def pod_gone(strait: Strait, home: str, name: str) -> bool:
    return await ppod(strait, home, name) is None


async def unmarked(strait: Strait, home: str, name: str = "config") -> bool:
    there = await strait.above.get(CONFIG_MAPS, name, home)
    ours = [*there.labels, *there.annotations, *(there.metadata.finalizers or ())]
    return not any("kubeocean.io" in key for key in ours)


async def edit(strait: Strait, home: str, name: str = "config", **change: object) -> None:
    await strait.above.patch(CONFIG_MAPS, name, MergePatch(change), home)


def writes(faults: Faults) -> list[str]:
    return [
        f"{r.method} {r.path.partition('/namespaces/')[2]}" for r in faults.requests if r.writes
    ]


def asked(faults: Faults, word: str) -> int:
    return sum(word in f"{r.method} {r.path}" and not watches(r) for r in faults.requests)


async def test_a_pod_has_what_it_refers_to(strait: Strait, home: str) -> None:
    original = await config(strait, home, binaryData={"b": "AAE="})
    await secret(strait, home, type="kubernetes.io/basic-auth")
    async with strait.syncing(Porter) as porter:
        pod = await bind_pod(
            strait, home, "p", config_map_volume("config"), secret_volume("secret")
        )
        there = await until(lambda: holds(strait, home, k="v"))
        names = await until(lambda: porter.answers.get(pod.key))
    assert not isinstance(names, Missing)
    assert names.config_maps == {"config": there.name}
    assert names.secrets == {"secret": physical_name("secret", home)}
    assert there.binary_data == {"b": "AAE="}
    assert (
        there.labels.items()
        >= {
            "app": "a",
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": strait.name,
            "kubeocean.io/physical-cluster-id": strait.cluster_id,
        }.items()
    )
    assert there.annotations["kubeocean.io/virtual-name"] == "config"
    assert there.annotations["kubeocean.io/virtual-namespace"] == home
    assert there.annotations["kubeocean.io/virtual-uid"] == original.uid
    marked = await strait.above.get(CONFIG_MAPS, "config", home)
    assert marked.labels[f"kubeocean.io/synced-by-{strait.cluster_id}"] == "true"
    assert marked.labels["kubeocean.io/managed-by"] == "kubeocean"
    assert marked.annotations["kubeocean.io/physical-name"] == there.name
    assert not marked.metadata.finalizers
    below = await seen_below(strait, SECRETS, names.secrets["secret"])
    assert below is not None
    assert below.content()["type"] == "kubernetes.io/basic-auth"


async def test_many_pods_that_share_cost_one_copy(strait: Strait, home: str) -> None:
    await config(strait, home)
    await secret(strait, home)
    above, below = Faults(), Faults()
    async with strait.syncing(Porter, above=above, below=below) as porter:
        for n in range(30):
            volumes = (config_map_volume("config"), secret_volume("secret"))
            await bind_pod(strait, home, f"p{n}", *volumes)
        await until(lambda: len(porter.answers) == 30)
        await quiet(above, below)
    for kind in ("configmaps", "secrets"):
        assert asked(above, f"/{kind}/") == 2  # one read, one mark
        assert asked(below, f"/{kind}") == 1
    assert asked(below, "POST") == 32


async def test_after_a_restart_nothing_is_read_or_written(strait: Strait, home: str) -> None:
    await config(strait, home)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: holds(strait, home, k="v"))
    faults = Faults()
    async with strait.syncing(Porter, above=faults, below=faults) as porter:
        await until(lambda: porter.dependents.config_maps.pairs.synced)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_content_metadata_and_immutability_follow(strait: Strait, home: str) -> None:
    await config(strait, home)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        uid = (await until(lambda: holds(strait, home, k="v"))).uid
        mine = {"metadata": {"labels": {"mine": "x"}}}
        await strait.below.patch(
            CONFIG_MAPS, physical_name("config", home), MergePatch(mine), MOUNT
        )
        await edit(strait, home, data={"k": None, "l": "w"})
        await until(lambda: holds(strait, home, l="w"))
        await edit(strait, home, metadata={"labels": {"app": None, "new": "n"}})

        async def relabelled() -> bool:
            labels = (await holds(strait, home, l="w")).labels
            return "app" not in labels and labels["new"] == "n" and labels["mine"] == "x"

        await until(relabelled)
        await edit(strait, home, immutable=True)

        async def frozen() -> bool:
            there = await holds(strait, home, l="w")
            return there.immutable is True and there.uid == uid

        await until(frozen)


async def test_what_nobody_uses_any_more_goes(strait: Strait, home: str) -> None:
    await config(strait, home)
    async with strait.syncing(Porter):
        first = await bind_pod(strait, home, "p1", config_map_volume("config"))
        second = await bind_pod(strait, home, "p2", config_map_volume("config"))
        await until(lambda: holds(strait, home, k="v"))
        await until(lambda: ppod(strait, home, "p2"))
        await unbind(strait, first)
        await until(lambda: pod_gone(strait, home, "p1"))
        assert await holds(strait, home, k="v")
        await unbind(strait, second)
        await until(lambda: gone(strait, home))
        await until(lambda: unmarked(strait, home))
        await bind_pod(strait, home, "p3", config_map_volume("config"))
        await until(lambda: holds(strait, home, k="v"))


# What is not there


async def test_a_missing_one_is_named_and_seen_when_it_comes(strait: Strait, home: str) -> None:
    faults = Faults()
    async with strait.syncing(Porter, above=faults) as porter:
        volumes = (config_map_volume("config"), secret_volume("secret"))
        pod = await bind_pod(strait, home, "p", *volumes)
        missing = await until(lambda: porter.answers.get(pod.key))
        assert isinstance(missing, Missing)
        assert missing.kind == "ConfigMap"
        assert missing.key == Key(home, "config")
        assert missing.message == f"ConfigMap {home}/config does not exist"
        await quiet(faults)
        reads = asked(faults, "GET")
        await config(strait, home)
        await secret(strait, home)
        await until(lambda: ppod(strait, home, "p"))
        assert asked(faults, "GET") == reads + 2
        assert await holds(strait, home, k="v")


async def test_an_optional_one_is_not_waited_for_and_comes_later(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter) as porter:
        pod = await bind_pod(
            strait,
            home,
            "p",
            config_map_volume("config", optional=True),
            imagePullSecrets=[{"name": "pull"}],
        )
        await until(lambda: ppod(strait, home, "p"))
        names = porter.answers[pod.key]
        assert not isinstance(names, Missing)
        assert names.config_maps == {"config": physical_name("config", home)}
        assert names.secrets == {"pull": physical_name("pull", home)}
        await config(strait, home)
        await until(lambda: holds(strait, home, k="v"))
        await unbind(strait, pod)
        await until(lambda: gone(strait, home))
        appearances = porter.dependents.secrets.appearances
        await until(lambda: len(appearances) == 0)


async def test_one_that_is_deleted_and_made_again_keeps_its_copy(strait: Strait, home: str) -> None:
    original = await config(strait, home)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        uid = (await until(lambda: holds(strait, home, k="v"))).uid
    await strait.above.delete(CONFIG_MAPS, "config", home, uid=original.uid)
    again = await config(strait, home, data={"k": "w"})
    async with strait.syncing(Porter):
        there = await until(lambda: holds(strait, home, k="w"))
        assert there.uid == uid
        assert there.annotations["kubeocean.io/virtual-uid"] == again.uid


async def test_a_copy_goes_with_its_original_and_comes_back(strait: Strait, home: str) -> None:
    original = await config(strait, home, immutable=True)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: holds(strait, home, k="v"))
        await strait.above.delete(CONFIG_MAPS, "config", home, uid=original.uid)
        await until(lambda: gone(strait, home))
        await config(strait, home, data={"k": "w"})
        await until(lambda: holds(strait, home, k="w"))


async def test_an_immutable_copy_is_replaced_for_a_new_original(strait: Strait, home: str) -> None:
    original = await config(strait, home, immutable=True)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        uid = (await until(lambda: holds(strait, home, k="v"))).uid
    await strait.above.delete(CONFIG_MAPS, "config", home, uid=original.uid)
    await config(strait, home, data={"k": "w"})
    async with strait.syncing(Porter):
        there = await until(lambda: holds(strait, home, k="w"))
        assert there.uid != uid
        assert not there.immutable


async def test_what_others_delete_or_change_below_is_repaired(strait: Strait, home: str) -> None:
    await config(strait, home)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", config_map_volume("config"))
        there = await until(lambda: holds(strait, home, k="v"))
        await strait.below.delete(CONFIG_MAPS, there.name, MOUNT, uid=there.uid)
        there = await until(lambda: holds(strait, home, k="v"))
        change = MergePatch({"data": {"k": "changed", "more": "x"}})
        await strait.below.patch(CONFIG_MAPS, there.name, change, MOUNT)
        await until(lambda: holds(strait, home, k="v"))
        labels = {"labels": {f"kubeocean.io/synced-by-{strait.cluster_id}": None}}
        await edit(strait, home, metadata=labels)
        await edit(strait, home, data={"k": "w"})
        await until(lambda: holds(strait, home, k="w"))


async def test_every_namespace_has_its_own_root_certificate(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter) as porter:
        pod = await bind_pod(strait, home, "p", automountServiceAccountToken=True)
        await until(lambda: ppod(strait, home, "p"))
        names = porter.answers[pod.key]
        assert not isinstance(names, Missing)
        there = await copy(strait, home, "kube-root-ca.crt")
        assert there is not None
        assert names.config_maps == {"kube-root-ca.crt": there.name}
        assert "BEGIN CERTIFICATE" in (there.data or {})["ca.crt"]


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("kubernetes.io/service-account-token", "Opaque"),
        ("helm.sh/release.v1", "helm.sh/release.v1"),
        ("bootstrap.kubernetes.io/token", "bootstrap.kubernetes.io/token"),
    ],
)
async def test_types_that_mean_something_to_a_server(
    strait: Strait, home: str, above: str, below: str
) -> None:
    account = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": "typed", "annotations": account}
    await secret(strait, home, type=above, metadata=metadata)
    async with strait.syncing(Porter):
        await bind_pod(strait, home, "p", secret_volume("typed"))

        async def copied() -> Untyped | None:
            return await seen_below(strait, SECRETS, physical_name("typed", home))

        there = await until(copied)
        assert there is not None
        assert there.content()["type"] == below
        assert "password" in there.content()["data"]


# Those of others


async def test_a_foreign_one_of_that_name_is_left_alone(strait: Strait, home: str) -> None:
    await config(strait, home)
    body = {
        "metadata": {
            "name": physical_name("config", home),
            # As another computing cluster, with the earlier implementation, would have made it.
            "labels": {"kubeocean.io/managed-by": "kubeocean"},
            "annotations": {
                "kubeocean.io/virtual-name": "config",
                "kubeocean.io/virtual-namespace": home,
            },
        },
        "data": {"theirs": "yes"},
    }
    foreign = await strait.below.create(CONFIG_MAPS, body, namespace=MOUNT)
    async with strait.syncing(Porter) as porter:
        pod = await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "p"))
        names = porter.answers[pod.key]
        assert not isinstance(names, Missing)
        second = names.config_maps["config"]
        assert second != foreign.name
        there = await seen_below(strait, CONFIG_MAPS, second)
        assert there is not None
        assert there.data == {"k": "v"}
        untouched = await strait.below.get(CONFIG_MAPS, foreign.name, MOUNT)
        assert untouched.resource_version == foreign.resource_version
        await strait.below.delete(CONFIG_MAPS, foreign.name, MOUNT, uid=foreign.uid)
        await edit(strait, home, data={"k": "w"})

        async def followed() -> bool:
            there = await seen_below(strait, CONFIG_MAPS, second)
            return there is not None and there.data == {"k": "w"}

        await until(followed)
        assert await gone(strait, home)
        await unbind(strait, pod)

        async def removed() -> bool:
            return await seen_below(strait, CONFIG_MAPS, second) is None

        await until(removed)


async def test_two_bindings_have_a_copy_each(strait: Strait, home: str) -> None:
    other = strait.neighbour()
    await config(strait, home)
    async with strait.syncing(Porter) as ours, other.syncing(Porter) as theirs:
        mine = await bind_pod(strait, home, "mine", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "mine"))
        their = await bind_pod(other, home, "their", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "their"))
        found = [porter.answers[pod.key] for porter, pod in ((ours, mine), (theirs, their))]
        first, second = (names.config_maps["config"] for names in found)
        assert first != second
        await unbind(strait, mine)
        await until(lambda: gone(strait, home))

        async def only_theirs() -> bool:
            labels = (await strait.above.get(CONFIG_MAPS, "config", home)).labels
            assert "kubeocean.io/managed-by" in labels
            assert f"kubeocean.io/synced-by-{other.cluster_id}" in labels
            return f"kubeocean.io/synced-by-{strait.cluster_id}" not in labels

        await until(only_theirs)
        assert await seen_below(strait, CONFIG_MAPS, second) is not None
        await unbind(strait, their)
        await until(lambda: unmarked(strait, home))


async def go_made(strait: Strait, home: str) -> ConfigMap:
    """A ConfigMap and its copy as the earlier implementation leaves them; the copy."""
    name = physical_name("config", home)
    marks = {
        "name": "config",
        "labels": {
            "app": "a",
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{strait.cluster_id}": "true",
        },
        "annotations": {
            "kubeocean.io/physical-name": name,
            "kubeocean.io/physical-namespace": MOUNT,
        },
        "finalizers": [f"kubeocean.io/finalizer-{strait.cluster_id}"],
    }
    await config(strait, home, metadata=marks)
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
    return await strait.below.create(CONFIG_MAPS, body, namespace=MOUNT)


async def test_a_copy_of_the_earlier_implementation_is_taken_over(
    strait: Strait, home: str
) -> None:
    made = await go_made(strait, home)
    pod = await bind_pod(strait, home, "p", config_map_volume("config"))
    async with strait.syncing(Porter):
        there = await until(lambda: holds(strait, home, k="v"))
        assert there.uid == made.uid
        assert there.labels["kubeocean.io/cluster-binding"] == strait.name

        async def freed() -> bool:
            return not (await strait.above.get(CONFIG_MAPS, "config", home)).metadata.finalizers

        await until(freed)
        await unbind(strait, pod)
        await until(lambda: gone(strait, home))
        await until(lambda: unmarked(strait, home))


async def test_what_the_earlier_implementation_left_behind_goes(strait: Strait, home: str) -> None:
    await go_made(strait, home)
    original = await strait.above.get(CONFIG_MAPS, "config", home)
    await strait.above.delete(CONFIG_MAPS, "config", home, uid=original.uid)
    async with strait.syncing(Porter):
        await until(lambda: gone(strait, home))

        async def ended() -> bool:
            return await strait.seen(CONFIG_MAPS, "config", home) is None

        await until(ended)


# Refusals and faults


async def test_a_refusal_names_the_object_and_the_reason(strait: Strait, home: str) -> None:
    quota = {
        "metadata": {"name": strait.name},
        "spec": {"hard": {"count/secrets": "0"}},
        "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}},
    }
    await secret(strait, home)
    path = QUOTAS.format(MOUNT)
    await strait.below.request("POST", path, body=quota)
    await strait.below.request("PUT", f"{path}/{strait.name}/status", body=quota)
    faults = Faults()
    try:
        async with strait.syncing(Porter, below=faults) as porter:
            pod = await bind_pod(strait, home, "p", secret_volume("secret"))
            missing = await until(lambda: porter.answers.get(pod.key))
            assert isinstance(missing, Missing)
            assert missing.key == Key(home, "secret")
            assert "exceeded quota" in missing.message
            assert "canary" not in missing.message
            await bind_pod(strait, home, "q", secret_volume("secret"))
            await until(lambda: len(porter.answers) == 2)
            assert asked(faults, "POST") <= 3
            await strait.below.request("DELETE", f"{path}/{strait.name}")
            await until(lambda: ppod(strait, home, "p"))
            await until(lambda: ppod(strait, home, "q"))
    finally:
        listed = await strait.below.request_json("GET", path)
        for each in listed["items"]:
            await strait.below.request("DELETE", f"{path}/{each['metadata']['name']}")


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 11))
async def test_a_crash_after_the_nth_write_changes_nothing(
    strait: Strait, home: str, n: int
) -> None:
    await config(strait, home, "stays")
    await config(strait, home, "goes")
    await bind_pod(strait, home, "p1", config_map_volume("stays"))
    pod = await bind_pod(strait, home, "p2", config_map_volume("goes"))
    async with crashing(strait, n) as crash:
        for name in ("stays", "goes"):
            await crash.or_until(lambda name=name: holds(strait, home, name, k="v"))
        await crash.or_until(lambda: ppod(strait, home, "p2"))
        await edit(strait, home, "stays", data={"k": "w"})
        await crash.or_until(lambda: holds(strait, home, "stays", k="w"))
        await unbind(strait, pod)
        await crash.or_until(lambda: gone(strait, home, "goes"))
        await crash.or_until(lambda: unmarked(strait, home, "goes"))
    if not crash.is_set():
        assert n > 10
    await edit(strait, home, "stays", data={"k": "w"})
    if await strait.seen(PODS, "p2", home):
        await unbind(strait, pod)
    async with strait.syncing(Porter):
        await until(lambda: holds(strait, home, "stays", k="w"))
        await until(lambda: gone(strait, home, "goes"))
        await until(lambda: unmarked(strait, home, "goes"))


async def test_lagging_and_repeating_watches_change_nothing(strait: Strait, home: str) -> None:
    await config(strait, home)
    above, below = Faults(), Faults()
    for faults in (above, below):
        faults.lag(0.3)
        faults.repeat(1)
    async with strait.syncing(Porter, above=above, below=below):
        pod = await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "p"))
        await edit(strait, home, data={"k": "w"})
        await until(lambda: holds(strait, home, k="w"))
        above.rewind(20)
        below.rewind(20)
        await quiet(above, below)
        await unbind(strait, pod)
        await until(lambda: gone(strait, home))
        await until(lambda: unmarked(strait, home))
    assert asked(above, "/configmaps/config") == 3  # read, mark, unmark
    assert asked(below, "/configmaps") == 3  # create, update, delete


async def test_two_leaders_end_where_one_does(strait: Strait, home: str) -> None:
    await config(strait, home)
    first, second = Faults(), Faults()
    async with (
        strait.syncing(Porter, above=first, below=first),
        strait.syncing(Porter, above=second, below=second),
    ):
        pod = await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: holds(strait, home, k="v"))
        await edit(strait, home, data={"k": "w"})
        await until(lambda: holds(strait, home, k="w"))
        await quiet(first, second)
        await unbind(strait, pod)
        await until(lambda: gone(strait, home))
        await until(lambda: unmarked(strait, home))


async def test_a_cache_that_knows_too_little_removes_nothing(strait: Strait, home: str) -> None:
    await config(strait, home)
    above = Faults()
    async with strait.syncing(Porter, above=above) as porter:
        pod = await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "p"))
        above.freeze()
        await bind_pod(strait, home, "unseen", config_map_volume("config"))
        ours = await strait.below.get(PODS, f"p-{home}", MOUNT)
        await strait.below.delete(PODS, ours.name, MOUNT, uid=ours.uid, grace_s=0)
        await until(lambda: not porter.world.ppods.by("virtual", str(pod.key)))
        await unbind(strait, pod)
        lists = asked(above, f"GET /api/v1/namespaces/{home}/pods")
        porter.dependents.release(pod.key)  # as if it had been seen to go
        await until(lambda: asked(above, f"GET /api/v1/namespaces/{home}/pods") > lists)
        await quiet(above)
        assert await holds(strait, home, k="v")


async def test_a_binding_that_ends_leaves_nothing(strait: Strait, home: str) -> None:
    await config(strait, home)
    await secret(strait, home)
    async with strait.syncing(Porter) as porter:
        volumes = (config_map_volume("config"), secret_volume("secret"))
        pod = await bind_pod(strait, home, "p", *volumes)
        await until(lambda: ppod(strait, home, "p"))
        await until(lambda: porter.dependents.remaining() == 4)
        porter.dependents.drain()
        await until(lambda: porter.dependents.remaining() == 0)
        assert await gone(strait, home)
        assert await unmarked(strait, home)
        with pytest.raises(NotFound):
            await strait.below.get(SECRETS, physical_name("secret", home), MOUNT)
    await unbind(strait, pod)


async def test_a_binding_can_end_without_its_worker(strait: Strait, home: str) -> None:
    await config(strait, home)
    below = Faults()
    async with strait.syncing(Porter, below=below) as porter:
        pod = await bind_pod(strait, home, "p", config_map_volume("config"))
        await until(lambda: ppod(strait, home, "p"))
        await until(lambda: porter.dependents.remaining() == 2)
        below.partition()
        await until(lambda: not porter.world.reach.answers)
        porter.dependents.drain(confirmed=False)
        await until(lambda: porter.dependents.remaining() == 0)
        assert await unmarked(strait, home)
        assert await holds(strait, home, k="v")
        below.rejoin()
        porter.dependents.drain()
        await until(lambda: gone(strait, home))
    await unbind(strait, pod)
