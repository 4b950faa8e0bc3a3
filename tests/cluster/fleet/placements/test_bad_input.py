"""Placements that make no sense: clear conditions, nothing lost, and no writes at rest."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.errors import NotFound
from kubeocean.fleet.writes import in_parallel
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, Key
from support.controller_env import quiet
from support.faults import Faults
from support.placement_env import (
    PlacementEnv,
    conditions_of,
    config_map_selector,
    namespace_selector,
)
from support.wait import until

MANY = 5_000
PREFIX = "ResourcePlacement"
FOREIGN = "example.com/hold"
UNKNOWN = {"group": "absent.example.com", "version": "v1", "kind": "Absent"}


@pytest.mark.parametrize(
    ("selector", "policy", "scheduled"),
    [
        (config_map_selector("absent"), {}, ("True", "SchedulingPolicyFulfilled")),
        (
            config_map_selector() | {"labelSelector": {"matchLabels": {"no": "object"}}},
            {},
            ("True", "SchedulingPolicyFulfilled"),
        ),
        (UNKNOWN, {}, ("True", "SchedulingPolicyFulfilled")),
        (
            config_map_selector("settings"),
            {"placementType": "PickFixed", "clusterNames": ["absent-1", "absent-2"]},
            ("False", "SchedulingPolicyUnfulfilled"),
        ),
    ],
    ids=["no such name", "no such label", "unknown kind", "unknown clusters"],
)
async def test_what_does_not_exist_costs_no_writes_at_rest(
    env: PlacementEnv, selector: Json, policy: dict[str, Any], scheduled: tuple[str, str]
) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(selector, namespace=env.namespace, policy=policy or None)
    faults = Faults()
    async with env.reporting(), env.controlling(faults):

        async def is_decided() -> bool:
            placement = await env.placement(key)
            states = conditions_of(placement.status.conditions)
            assert states.get(f"{PREFIX}Scheduled") == (*scheduled, 1), states
            if not policy:
                assert states.get(f"{PREFIX}Available", ("",))[0] == "True", states
            return True

        await until(is_decided)
        await quiet(faults)
        placement = await env.placement(key)
        if policy:
            messages = [
                condition.message
                for entry in placement.status.placement_statuses
                for condition in entry.conditions
            ]
            assert messages == [
                f'Specified cluster "absent-{number}" is not found' for number in (1, 2)
            ]
            assert await env.works(key) == []
        else:
            assert placement.status.selected_resources == ()
            (work,) = await env.works(key)
            assert work.namespace == f"fleet-member-{a}"
            assert work.spec.workload.manifests == ()


async def test_a_namespace_that_stays_in_deletion_is_placed_no_more(env: PlacementEnv) -> None:
    """An object with a finalizer holds the namespace; its placements do not wait for it."""
    (a,) = await env.join("a")
    await env.config_map("held")
    await env.client.patch(
        CONFIG_MAPS, "held", MergePatch({"metadata": {"finalizers": [FOREIGN]}}), env.namespace
    )
    inside = await env.place(config_map_selector("held"), namespace=env.namespace, name="inside")
    key = await env.place(namespace_selector(env.namespace))
    faults = Faults()
    async with env.reporting(), env.controlling(faults):
        await env.completed(inside, a)
        placement = await env.completed(key, a)
        index = int(placement.status.observed_resource_index)
        await env.client.delete(NAMESPACES, env.namespace, uid=None)
        placement = await env.completed(key, a, index=str(index + 1))
        assert placement.status.selected_resources == ()

        async def is_gone() -> bool:
            return not await env.exists(inside) and not await env.works(inside)

        await until(is_gone)
        await quiet(faults)
        assert (await env.client.get(NAMESPACES, env.namespace)).deleting
        await env.client.patch(
            CONFIG_MAPS, "held", MergePatch({"metadata": {"finalizers": None}}), env.namespace
        )

        async def has_ended() -> bool:
            try:
                await env.client.get(NAMESPACES, env.namespace)
            except NotFound:
                return True
            return False

        await until(has_ended)
        await quiet(faults)


@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(900)
async def test_a_namespace_of_five_thousand_objects(env: PlacementEnv) -> None:
    (a,) = await env.join("a")

    async def create(number: int) -> None:
        await env.config_map(f"c{number:04}")

    await in_parallel(create, range(MANY))
    key = await env.place(config_map_selector(), namespace=env.namespace)
    faults = Faults()
    async with env.reporting(), env.controlling(faults):
        placement = await env.completed(key, a, index="0")
        listed = [each.name for each in placement.status.selected_resources]
        assert listed == [f"c{number:04}" for number in range(MANY)]
        await quiet(faults)
        await env.config_map("c0042", "changed")
        await env.completed(key, a, index="1")
        values = await _values(env, key)
        assert len(values) == MANY
        assert values["c0042"] == "changed"
        await quiet(faults)


async def _values(env: PlacementEnv, key: Key) -> dict[str, str]:
    """Return the values of the ConfigMaps in all Works of a placement."""
    return {
        each["metadata"]["name"]: each["data"]["value"]
        for work in await env.works(key)
        for each in work.spec.workload.manifests
    }
