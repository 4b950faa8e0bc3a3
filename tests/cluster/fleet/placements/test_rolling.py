"""Releases on a real hub: limits of a rolling update, strategies, failures and staged rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Json, Key
from support.placement_env import (
    PlacementEnv,
    all_applied,
    conditions_of,
    config_map_selector,
    namespace_selector,
    now,
    work_status,
)
from support.wait import until

PREFIX = "ResourcePlacement"


async def place(env: PlacementEnv, **strategy: Any) -> Key:
    await env.config_map("settings")
    return await env.place(
        config_map_selector("settings"), namespace=env.namespace, strategy=strategy
    )


def never_available_again(work: Work) -> Json:
    """Report a Work as available once, and not after a change."""
    if work.metadata.generation == 1:
        return all_applied(work)
    applied = work_status(work, Applied="AllManifestsApplied")
    waiting = work_status(work, status="False", Available="SomeManifestsAreNotAvailable")
    identifier = {"ordinal": 0, "version": "v1", "kind": "ConfigMap", "name": "settings"}
    condition = waiting["conditions"][0] | {
        "reason": "ManifestNotAvailableYet",
        "observedGeneration": 2,
    }
    return {
        "conditions": [*applied["conditions"], *waiting["conditions"]],
        "manifestConditions": [{"identifier": identifier, "conditions": [condition]}],
    }


async def test_a_change_that_does_not_become_available_stays_on_one_cluster(
    env: PlacementEnv,
) -> None:
    members = await env.join("a", "b", "c")
    key = await place(env, type="RollingUpdate", rollingUpdate={"maxUnavailable": 1, "maxSurge": 1})
    async with env.controlling(), env.reporting(never_available_again):
        await env.completed(key, *members)
        await env.config_map("settings", "2")

        async def is_blocked() -> Placement:
            placement = await env.placement(key)
            assert conditions_of(placement.status.conditions) == {
                f"{PREFIX}Scheduled": ("True", "SchedulingPolicyFulfilled", 1),
                f"{PREFIX}RolloutStarted": ("False", "RolloutNotStartedYet", 1),
            }
            entries = placement.status.placement_statuses
            assert {each.observed_resource_index for each in entries} == {"1"}
            assert [len(each.failed_placements) for each in entries].count(1) == 1
            (stuck,) = (each for each in entries if each.failed_placements)
            assert conditions_of(stuck.conditions)["Available"] == (
                "False",
                "NotAllWorkAreAvailable",
                1,
            )
            (failed,) = stuck.failed_placements
            assert (failed.name, failed.condition.reason) == ("settings", "ManifestNotAvailableYet")
            assert failed.condition.observed_generation == 2
            for each in entries:
                if each is not stuck:
                    assert conditions_of(each.conditions) == {
                        "Scheduled": ("True", "Scheduled", 1),
                        "RolloutStarted": ("False", "RolloutNotStartedYet", 1),
                    }
            return placement

        await until(is_blocked)
        changed = [work for work in await env.works(key) if work.metadata.generation > 1]
        assert len(changed) == 1


async def test_a_strategy_reaches_all_works_at_once(env: PlacementEnv) -> None:
    a, b = await env.join("a", "b")
    key = await place(env, type="RollingUpdate")

    def report(work: Work) -> Json:
        if work.spec.apply_strategy.type != "ReportDiff":
            return all_applied(work) | {"manifestConditions": None}
        identifier = {"ordinal": 0, "version": "v1", "kind": "ConfigMap", "name": "settings"}
        details = {
            "observationTime": now(),
            "firstDiffedObservedTime": now(),
            "observedDiffs": [{"path": "/data/value", "valueInMember": "2", "valueInHub": "1"}],
        }
        reported = work_status(work, DiffReported="AllManifestsDiffReported")
        entry = {
            "identifier": identifier,
            "conditions": reported["conditions"],
            "diffDetails": details,
        }
        return reported | {"manifestConditions": [entry]}

    async with env.controlling(), env.reporting(report):
        await env.completed(key, a, b)
        await env.change(key, strategy={"applyStrategy": {"type": "ReportDiff"}})

        async def is_compared() -> bool:
            conditions = (await env.placement(key)).status.conditions
            return conditions_of(conditions).get(f"{PREFIX}DiffReported") == (
                "True",
                "DiffReportingCompleted",
                2,
            )

        await until(is_compared)
        placement = await env.placement(key)
        assert [each.type for each in placement.status.conditions][-2:] == [
            f"{PREFIX}WorkSynchronized",
            f"{PREFIX}DiffReported",
        ]
        assert {len(each.conditions) for each in placement.status.placement_statuses} == {5}
        assert {len(each.diffed_placements) for each in placement.status.placement_statuses} == {1}
        assert placement.status.observed_resource_index == "0"

        await env.change(key, strategy={"applyStrategy": {"type": "ClientSideApply"}})
        placement = await env.completed(key, a, b, index="0")
        assert len(placement.status.conditions) == 6
        entries = placement.status.placement_statuses
        assert {(len(each.conditions), each.diffed_placements) for each in entries} == {(6, ())}


async def test_a_strategy_reaches_works_whose_snapshots_are_pruned(env: PlacementEnv) -> None:
    a, b = await env.join("a", "b")
    await env.config_map("settings")
    key = await env.place(
        config_map_selector("settings"),
        namespace=env.namespace,
        strategy={"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
        revisionHistoryLimit=1,
    )
    async with env.controlling(), env.reporting(never_available_again):
        await env.completed(key, a, b)
        await env.config_map("settings", "2")

        async def is_held() -> bool:
            generations = [work.metadata.generation for work in await env.works(key)]
            return sorted(generations) == [1, 2] and len(await env.resource_snapshots(key)) == 1

        await until(is_held)
        await env.change(key, strategy={"applyStrategy": {"type": "ReportDiff"}})

        async def is_pushed() -> bool:
            works = await env.works(key)
            return {work.spec.apply_strategy.type for work in works} == {"ReportDiff"}

        await until(is_pushed)


async def test_force_is_turned_off_again(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    forced = {"type": "ServerSideApply", "serverSideApplyConfig": {"force": True}}
    key = await place(env, type="RollingUpdate", applyStrategy=forced)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
        await env.change(
            key, strategy={"applyStrategy": {"serverSideApplyConfig": {"force": False}}}
        )
        await env.config_map("settings", "2")
        await env.completed(key, a, index="1")
        (work,) = await env.works(key)
        assert not work.spec.apply_strategy.forces_conflicts


async def test_a_name_of_a_work_is_used_as_soon_as_another_placement_frees_it(
    env: PlacementEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeocean.runtime.controller._STUCK_S", 600.0)
    (a,) = await env.join("a")
    key = await place(env)
    selector = namespace_selector(env.namespace, "NamespaceOnly")
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
        same = await env.place(selector, name=f"{key.namespace}.{key.name}")

        async def is_refused() -> bool:
            conditions = conditions_of((await env.placement(same)).status.conditions)
            return conditions.get("ClusterResourcePlacementWorkSynchronized") == (
                "False",
                "WorkNotSynchronizedYet",
                1,
            )

        await until(is_refused)
        await env.delete(key)
        await env.completed(same, a)


async def test_works_of_envelopes_that_another_hub_made_stay(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
    (work,) = await env.works(key)
    labels = work.labels | {names.LABEL_ENVELOPE_TYPE: "ResourceEnvelope"}
    name = f"{work.name}-envelope-0123456789abcdef"
    await env.client.create(
        WORKS,
        {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": name, "namespace": work.namespace, "labels": labels},
            "spec": {"workload": {"manifests": []}},
        },
    )
    async with env.controlling(), env.reporting():

        async def is_reported() -> bool:
            (entry,) = (await env.placement(key)).status.placement_statuses
            last = entry.conditions[-1]
            assert "unpacks no envelopes" in last.message
            return (last.type, last.reason) == ("WorkSynchronized", "SyncWorkFailed")

        await until(is_reported)
        await env.config_map("settings", "2")
        await until(lambda: _has_index(env, key, "1"))
        works = {each.name: each for each in await env.works(key)}
        assert works.keys() == {work.name, name}
        assert not any(each.deleting for each in works.values())
        assert works[work.name].metadata.generation == work.metadata.generation


async def _has_index(env: PlacementEnv, key: Key, index: str) -> bool:
    placement = await env.placement(key)
    states = conditions_of(placement.status.conditions)
    refused = ("False", "WorkNotSynchronizedYet", 1)
    return (
        placement.status.observed_resource_index == index
        and states.get(f"{PREFIX}WorkSynchronized") == refused
    )


async def test_an_external_rollout_is_left_alone(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, type="External")
    async with env.controlling(), env.reporting():

        async def awaits_run() -> Placement:
            placement = await env.placement(key)
            assert conditions_of(placement.status.conditions) == {
                f"{PREFIX}Scheduled": ("True", "SchedulingPolicyFulfilled", 1),
                f"{PREFIX}RolloutStarted": (
                    "Unknown",
                    "RolloutControlledByExternalController",
                    1,
                ),
            }
            return placement

        placement = await until(awaits_run)
        (entry,) = placement.status.placement_statuses
        assert (entry.cluster_name, entry.observed_resource_index) == (a, "")
        assert await env.resource_snapshots(key) == []
        assert await env.works(key) == []
        assert (await env.bindings(key))[a].spec.state == "Scheduled"


async def test_a_status_that_an_outsider_damages_is_followed(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, type="RollingUpdate")
    async with env.controlling():
        async with env.reporting():
            await env.completed(key, a)
        (work,) = await env.works(key)
        failed = work_status(work, status="False", Applied="Anything")
        await env.client.patch(
            WORKS, work.name, MergePatch({"status": failed}), work.namespace, subresource="status"
        )

        async def has_failed() -> bool:
            conditions = (await env.placement(key)).status.conditions
            return conditions_of(conditions).get(f"{PREFIX}Applied") == ("False", "ApplyFailed", 1)

        await until(has_failed)


async def test_a_cluster_that_does_not_report_is_in_progress(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, type="RollingUpdate")
    async with env.controlling():

        async def is_in_progress() -> Placement | None:
            placement = await env.placement(key)
            entries = placement.status.placement_statuses
            found = entries and conditions_of(entries[0].conditions).get("Applied")
            return placement if found == ("False", "ApplyInProgress", 1) else None

        await until(is_in_progress)
        async with env.reporting():
            await env.completed(key, a)


async def test_an_abandoned_placement_tells_the_member_to_keep_its_objects(
    env: PlacementEnv,
) -> None:
    (a,) = await env.join("a")
    key = await place(env, deleteStrategy={"propagationPolicy": "Abandon"})
    async with env.controlling():
        async with env.reporting():
            await env.completed(key, a)
        (work,) = await env.works(key)
        held = MergePatch({"metadata": {"finalizers": [names.FINALIZER_WORK]}})
        await env.client.patch(WORKS, work.name, held, work.namespace)
        await env.delete(key)

        async def is_told() -> bool:
            (found,) = await env.works(key)
            noted = found.annotations.get(names.ANNOTATION_DELETE_PROPAGATION)
            return found.deleting and noted == "Abandon"

        await until(is_told)
        await until(lambda: _is_gone(env, key))
        async with env.reporting():
            await until(lambda: _is_empty(env, key))


async def _is_gone(env: PlacementEnv, key: Key) -> bool:
    return not await env.exists(key)


async def _is_empty(env: PlacementEnv, key: Key) -> bool:
    return not await env.objects_of(key)


async def test_a_work_that_the_server_refuses_is_reported(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, type="RollingUpdate")
    namespace = await env.client.get(NAMESPACES, names.member_namespace(a))
    await env.client.delete(NAMESPACES, namespace.name, uid=namespace.uid)
    await until(lambda: _namespace_gone(env, namespace.name))
    async with env.controlling(), env.reporting():

        async def is_refused() -> Placement:
            placement = await env.placement(key)
            conditions = [
                each
                for entry in placement.status.placement_statuses
                for each in entry.conditions
                if each.type == "WorkSynchronized"
            ]
            assert conditions, placement.status
            (condition,) = conditions
            assert (condition.status, condition.reason) == ("False", "SyncWorkFailed")
            assert condition.message.startswith("Failed to synchronize the work to the latest: ")
            return placement

        placement = await until(is_refused)
        conditions = conditions_of(placement.status.conditions)
        assert conditions[f"{PREFIX}WorkSynchronized"] == ("False", "WorkNotSynchronizedYet", 1)
        await env.client.create(NAMESPACES, {"metadata": {"name": namespace.name}})
        await env.completed(key, a)


async def _namespace_gone(env: PlacementEnv, name: str) -> bool:
    return not (await env.client.list(NAMESPACES, fields=f"metadata.name={name}")).items
