"""The life of a placement on a real hub, from its creation to its deletion."""

from __future__ import annotations

import base64

import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED, scope_of
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.runtime.client import JsonPatch
from kubeocean.runtime.objects import Json, Key
from support.faults import Faults
from support.placement_env import (
    PlacementEnv,
    conditions_of,
    config_map_selector,
    namespace_selector,
)
from support.wait import until

SCOPES = pytest.mark.parametrize("scope", [CLUSTER, NAMESPACED], ids=lambda scope: scope.prefix)


def selectors(env: PlacementEnv, key_namespace: str) -> list[Json]:
    """Return selectors for one ConfigMap, for a placement of either scope."""
    if key_namespace:
        return [config_map_selector("settings")]
    chosen = namespace_selector(env.namespace, "NamespaceWithResourceSelectors")
    return [chosen, config_map_selector("settings")]


async def start(env: PlacementEnv, scope: object, **spec: object) -> Key:
    """Place one ConfigMap."""
    await env.config_map("settings")
    namespace = env.namespace if scope is NAMESPACED else ""
    return await env.place(*selectors(env, namespace), namespace=namespace, **spec)


@SCOPES
async def test_an_object_is_placed_and_its_status_comes_back(
    env: PlacementEnv, scope: object
) -> None:
    a, b = await env.join("a", "b")
    key = await start(env, scope)
    prefix = scope_of(key).prefix
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a, b, index="0")

    assert placement.metadata.generation == 1
    assert conditions_of(placement.status.conditions) == {
        f"{prefix}Scheduled": ("True", "SchedulingPolicyFulfilled", 1),
        f"{prefix}RolloutStarted": ("True", "RolloutStarted", 1),
        f"{prefix}Overridden": ("True", "NoOverrideSpecified", 1),
        f"{prefix}WorkSynchronized": ("True", "WorkSynchronized", 1),
        f"{prefix}Applied": ("True", "ApplySucceeded", 1),
        f"{prefix}Available": ("True", "ResourceAvailable", 1),
    }
    for entry in placement.status.placement_statuses:
        assert entry.observed_resource_index == "0"
        assert conditions_of(entry.conditions) == {
            "Scheduled": ("True", "Scheduled", 1),
            "RolloutStarted": ("True", "RolloutStarted", 1),
            "Overridden": ("True", "NoOverrideSpecified", 1),
            "WorkSynchronized": ("True", "AllWorkSynced", 1),
            "Applied": ("True", "AllWorkHaveBeenApplied", 1),
            "Available": ("True", "AllWorkAreAvailable", 1),
        }
    selected = [(each.kind, each.name) for each in placement.status.selected_resources]
    assert selected == ([] if key.namespace else [("Namespace", env.namespace)]) + [
        ("ConfigMap", "settings")
    ]
    works = await env.works(key)
    base = f"{key.namespace}.{key.name}" if key.namespace else key.name
    assert {work.name for work in works} == {f"{base}-work"}
    assert {work.metadata.generation for work in works} == {1}
    bindings = await env.bindings(key)
    for work in works:
        member = names.member_of_namespace(work.namespace)
        assert member is not None
        assert work.labels[names.LABEL_PARENT_BINDING] == bindings[member].name
        (owner,) = work.metadata.owner_references or [None]
        assert (owner is None) == bool(key.namespace)
        manifest = work.spec.workload.manifests[-1]
        assert manifest["data"] == {"value": "1"}
        assert "uid" not in manifest["metadata"]
    (policy,) = await env.policy_snapshots(key)
    assert policy.name == f"{key.name}-0"
    assert len(base64.b64decode(policy.spec.policy_hash)) == 64
    (snapshot,) = await env.resource_snapshots(key)
    assert snapshot.name == f"{key.name}-0-snapshot"
    assert snapshot.annotations[names.ANNOTATION_RESOURCE_SNAPSHOTS] == "1"


@SCOPES
async def test_a_change_reaches_all_clusters(env: PlacementEnv, scope: object) -> None:
    (a,) = await env.join("a")
    key = await start(env, scope)
    async with env.controlling(), env.reporting():
        await env.completed(key, a, index="0")
        await env.config_map("settings", "2")
        await env.completed(key, a, index="1")
        (work,) = await env.works(key)
        assert work.spec.workload.manifests[-1]["data"] == {"value": "2"}
        assert work.metadata.generation == 2
        snapshots = await env.resource_snapshots(key)
        latest = [
            each.name
            for each in snapshots
            if each.labels.get(names.LABEL_LATEST_SNAPSHOT) == "true"
        ]
        assert latest == [f"{key.name}-1-snapshot"]
        assert len(snapshots) == 2


async def test_a_work_that_was_edited_gets_its_manifests_again(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, CLUSTER)
    async with env.controlling(), env.reporting():
        await env.completed(key, a, index="0")
        for _ in range(2):
            (work,) = await env.works(key)
            patch = JsonPatch([{"op": "remove", "path": "/spec/workload/manifests/1"}])
            await env.client.patch(WORKS, work.name, patch, work.namespace)

            async def restored(before: Work = work) -> bool:
                (present,) = await env.works(key)
                is_newer = present.metadata.generation > before.metadata.generation + 1
                return is_newer and present.spec == before.spec

            await until(restored, waiting_for="all manifests of the Work")


async def test_a_work_that_was_edited_while_no_hub_ran_gets_its_manifests_again(
    env: PlacementEnv,
) -> None:
    a, b = await env.join("a", "b")
    key = await start(env, CLUSTER)
    async with env.controlling(), env.reporting():
        await env.completed(key, a, b, index="0")
    before = {work.namespace: work for work in await env.works(key)}
    edited = names.member_namespace(a)
    patch = JsonPatch([{"op": "remove", "path": "/spec/workload/manifests/1"}])
    await env.client.patch(WORKS, before[edited].name, patch, edited)
    faults = Faults()
    async with env.controlling(faults), env.reporting():

        async def restored() -> bool:
            present = {work.namespace: work for work in await env.works(key)}
            assert present[edited].metadata.generation == 3
            return present[edited].spec == before[edited].spec

        await until(restored, waiting_for="all manifests of the Work")
        await env.completed(key, a, b, index="0")
        other = f"/namespaces/{names.member_namespace(b)}/works/"
        assert not any(other in request.path for request in faults.requests)


@SCOPES
async def test_a_deletion_leaves_nothing(env: PlacementEnv, scope: object) -> None:
    a, b = await env.join("a", "b")
    key = await start(env, scope)
    async with env.controlling(), env.reporting():
        await env.completed(key, a, b)
        await env.delete(key)

        async def gone() -> bool:
            assert not await env.exists(key)
            return not await env.objects_of(key)

        await until(gone)


@SCOPES
async def test_restarted_controllers_write_nothing(env: PlacementEnv, scope: object) -> None:
    (a,) = await env.join("a")
    key = await start(env, scope)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
    faults = Faults()
    async with env.controlling(faults) as controllers:
        await controllers.cache.synced()
        await until(lambda: all(not len(each.queue) for each in controllers.controllers))
        placement = await env.placement(key)
        await until(lambda: controllers.snapshots.result(placement) is not None)
        await env.config_map("other")  # not selected
        await until(lambda: all(not len(each.queue) for each in controllers.controllers))
        assert [request for request in faults.requests if request.writes] == []
