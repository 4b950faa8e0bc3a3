"""Placements get and lose clusters as their policies and the fleet change."""

from __future__ import annotations

from typing import Any

from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Key
from support.controller_env import quiet
from support.faults import Faults
from support.placement_env import PlacementEnv, conditions_of, config_map_selector, now
from support.wait import until

PREFIX = "ResourcePlacement"
STEPS = [
    "Scheduled",
    "RolloutStarted",
    "Overridden",
    "WorkSynchronized",
    "Applied",
    "Available",
]


async def place(env: PlacementEnv, **policy: Any) -> Key:
    await env.config_map("settings")
    return await env.place(config_map_selector("settings"), namespace=env.namespace, policy=policy)


async def scheduled(env: PlacementEnv, key: Key, expected: tuple[str, str]) -> Placement:
    """Wait for status and reason of the condition Scheduled of the present generation."""

    async def is_scheduled() -> Placement | None:
        placement = await env.placement(key)
        state = conditions_of(placement.status.conditions).get(f"{PREFIX}Scheduled")
        return placement if state == (*expected, placement.metadata.generation) else None

    found = await until(is_scheduled)
    assert found is not None
    return found


async def test_a_fixed_cluster_that_is_missing_gets_an_entry_until_it_joins(
    env: PlacementEnv,
) -> None:
    (a,) = await env.join("a")
    absent = f"b-{env.unique}"
    key = await place(env, placementType="PickFixed", clusterNames=[a, absent])
    async with env.controlling(), env.reporting():
        await scheduled(env, key, ("False", "SchedulingPolicyUnfulfilled"))

        async def is_complete_on_a() -> Placement | None:
            placement = await env.placement(key)
            return placement if len(placement.status.conditions) == 6 else None

        placement = await until(is_complete_on_a)
        assert placement is not None
        named, lacking = sorted(
            placement.status.placement_statuses, key=lambda each: not each.cluster_name
        )
        assert named.cluster_name == a
        assert conditions_of(lacking.conditions) == {"Scheduled": ("False", "ScheduleFailed", 1)}
        assert lacking.conditions[0].message == f'Specified cluster "{absent}" is not found'
        await env.join("b")
        await env.completed(key, a, absent)


async def test_a_number_of_clusters_grows_and_shrinks(env: PlacementEnv) -> None:
    a, b, c = await env.join("a", "b", "c")
    key = await place(env, placementType="PickN", numberOfClusters=1)
    async with env.controlling(), env.reporting():
        await env.completed(key, c)
        await env.change(key, policy={"numberOfClusters": 3})
        await env.completed(key, a, b, c)
        await env.change(key, policy={"numberOfClusters": 2})
        await env.completed(key, b, c)
        await until(lambda: _has_bindings(env, key, {b, c}))
        await env.change(key, policy={"numberOfClusters": 0})
        placement = await env.completed(key)
        assert len(placement.status.conditions) == 1
        assert placement.status.observed_resource_index == "0"
        await until(lambda: _has_bindings(env, key, set()))
        (snapshot,) = await env.policy_snapshots(key)
        assert snapshot.name.endswith("-0"), "a number of clusters makes no new snapshot"
        assert await env.works(key) == []


async def _has_bindings(env: PlacementEnv, key: Key, clusters: set[str]) -> bool:
    return (await env.bindings(key)).keys() == clusters


async def test_an_empty_list_of_clusters_decides_nothing(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, placementType="PickFixed", clusterNames=[])
    async with env.controlling(), env.reporting():
        placement = await scheduled(env, key, ("Unknown", "SchedulePending"))
        assert placement.status.placement_statuses == ()
        assert placement.status.observed_resource_index == "0"
        assert len(placement.status.selected_resources) == 1
        await env.change(key, policy={"clusterNames": [a]})
        await env.completed(key, a)
        await env.change(key, policy={"clusterNames": []})
        placement = await scheduled(env, key, ("Unknown", "SchedulePending"))
        assert placement.status.placement_statuses == ()
        assert (await env.bindings(key)).keys() == {a}, "the cluster keeps its objects"


async def test_another_policy_moves_the_placement(env: PlacementEnv) -> None:
    a, b = await env.join("a", "b")
    key = await place(env, placementType="PickFixed", clusterNames=[a])
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
        await env.change(key, policy={"clusterNames": [b]})
        await env.completed(key, b)
        await until(lambda: _has_bindings(env, key, {b}))
        assert {work.namespace for work in await env.works(key)} == {f"fleet-member-{b}"}
        snapshots = {each.name[-1]: each for each in await env.policy_snapshots(key)}
        assert {
            index: each.labels["kubernetes-fleet.io/is-latest-snapshot"]
            for index, each in snapshots.items()
        } == {"0": "false", "1": "true"}


async def test_members_come_and_go(env: PlacementEnv) -> None:
    a, b = await env.join("a", "b")
    key = await place(env, placementType="PickAll")
    async with env.controlling(), env.reporting():
        await env.completed(key, a, b)
        (c,) = await env.join("c")
        await env.completed(key, a, b, c)
        await env.client.patch(
            MEMBER_CLUSTERS, a, MergePatch({"metadata": {"labels": {"other": "label"}}})
        )
        gone = await env.client.get(MEMBER_CLUSTERS, b)
        await env.client.delete(MEMBER_CLUSTERS, b, uid=gone.uid)
        await env.completed(key, a, c)
        await until(lambda: _has_bindings(env, key, {a, c}))


async def test_a_binding_that_a_user_deletes_is_created_again(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await place(env, placementType="PickAll")
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
        before = (await env.bindings(key))[a]
        await env.client.delete(
            scope_of(key).bindings, before.name, before.namespace, uid=before.uid
        )

        async def is_another() -> bool:
            binding = (await env.bindings(key)).get(a)
            return binding is not None and binding.uid != before.uid

        await until(is_another)
        await env.completed(key, a)


async def test_a_binding_whose_decision_somebody_edits_is_decided_on_again(
    env: PlacementEnv,
) -> None:
    (a,) = await env.join("a")
    key = await place(env, placementType="PickAll")
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
        before = (await env.bindings(key))[a]
        patch = MergePatch({"spec": {"schedulingPolicySnapshotName": "another"}})
        await env.client.patch(scope_of(key).bindings, before.name, patch, before.namespace)

        async def is_restored() -> bool:
            return (await env.bindings(key))[a].spec == before.spec

        await until(is_restored)
        await env.completed(key, a)


SIZE = "example.com/size"


def required(**term: Any) -> dict[str, Any]:
    terms = {"clusterSelectorTerms": [term]}
    return {"clusterAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


POLICIES: dict[str, tuple[dict[str, Any], str]] = {
    "labels": (
        {"affinity": required(labelSelector={"matchLabels": {"zone": "x"}})},
        "a b",
    ),
    "properties": (
        {
            "affinity": required(
                propertySelector={
                    "matchExpressions": [{"name": SIZE, "operator": "Ge", "values": ["20"]}]
                }
            )
        },
        "b c",
    ),
    "preferred": (
        {
            "placementType": "PickN",
            "numberOfClusters": 1,
            "affinity": {
                "clusterAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 100,
                            "preference": {
                                "propertySorter": {"name": SIZE, "sortOrder": "Ascending"}
                            },
                        }
                    ]
                }
            },
        },
        "a",
    ),
    "spread": (
        {
            "placementType": "PickN",
            "numberOfClusters": 2,
            "topologySpreadConstraints": [{"topologyKey": "zone"}],
        },
        "b c",
    ),
    "tolerations": (
        {"tolerations": [{"key": "reserved", "operator": "Exists"}]},
        "a b c t",
    ),
    "no tolerations": ({}, "a b c"),
}


async def test_policies_pick_by_labels_properties_zones_and_taints(env: PlacementEnv) -> None:
    members: dict[str, str] = {}
    for name, zone, size in (("a", "x", 10), ("b", "x", 20), ("c", "y", 30), ("t", "y", "much")):
        (members[name],) = await env.join(name, zone=zone)
        value = {"value": str(size), "observationTime": now()}
        await env.beat(members[name], properties={SIZE: value})
    taint = {"key": "reserved", "value": "", "effect": "NoSchedule"}
    await env.client.patch(MEMBER_CLUSTERS, members["t"], MergePatch({"spec": {"taints": [taint]}}))
    await env.config_map("settings")
    keys = {
        title: await env.place(
            config_map_selector("settings"),
            namespace=env.namespace,
            name=f"p{number}",
            policy={"placementType": "PickAll", **policy},
        )
        for number, (title, (policy, _)) in enumerate(POLICIES.items())
    }
    faults = Faults()
    async with env.reporting(), env.controlling(faults):
        for title, (_, expected) in POLICIES.items():
            placement = await env.completed(
                keys[title], *(members[name] for name in expected.split())
            )
            for entry in placement.status.placement_statuses:
                assert [each.type for each in entry.conditions] == STEPS, title
            assert [each.type for each in placement.status.conditions] == [
                f"{PREFIX}{step}" for step in STEPS
            ]
        await quiet(faults)
