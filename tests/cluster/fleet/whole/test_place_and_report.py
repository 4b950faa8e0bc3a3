"""A hub and the agents of its members together: from a placement to objects in members and back.

Hub and agents run with the rights of an installation, and the test plays no part of them: the
members' own agents apply the selected objects, and their reports become the placement's status.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.names import member_namespace
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS
from kubeocean.fleet.agent.protocols import NewApplier
from kubeocean.fleet.applier import Backoff, WorkApplier
from kubeocean.fleet.extensions import OURS, UPSTREAM, Extensions
from kubeocean.fleet.placement import PlacementSettings
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.placement_env import conditions_of, namespace_selector
from support.wait import until

COMPLETE = {
    "ClusterResourcePlacementScheduled": "SchedulingPolicyFulfilled",
    "ClusterResourcePlacementRolloutStarted": "RolloutStarted",
    "ClusterResourcePlacementOverridden": "NoOverrideSpecified",
    "ClusterResourcePlacementWorkSynchronized": "WorkSynchronized",
    "ClusterResourcePlacementApplied": "ApplySucceeded",
    "ClusterResourcePlacementAvailable": "ResourceAvailable",
}


def applying(name: str, extensions: Extensions = OURS) -> Any:
    def new(hub: Client, member: Client) -> NewApplier:
        return lambda: WorkApplier(
            hub,
            member,
            namespace=member_namespace(name),
            trackers=extensions.tracker,
            health_checks=extensions.health_checks({}),
            backoff=Backoff(slow_limit_s=5.0, fast_limit_s=5.0),
        )

    return new


@asynccontextmanager
async def fleet(
    env: FleetEnv,
    members: list[str],
    *,
    faults: Faults | None = None,
    extensions: Extensions = OURS,
) -> AsyncIterator[None]:
    """Run the hub with placements, and the agent of each member, until the block ends."""
    async with AsyncExitStack() as stack:
        settings = PlacementSettings()
        await stack.enter_async_context(
            env.hub_running(faults, placements=settings, extensions=extensions)
        )
        for name in members:
            running = env.agent_running(
                name, faults, faults, new_applier=applying(name, extensions), extensions=extensions
            )
            await stack.enter_async_context(running)
        yield


async def select(env: FleetEnv, namespace: str, members: list[str]) -> str:
    """Create a placement of a namespace on these members; return its name."""
    name = f"crp-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": CLUSTER.placements.api_version,
        "kind": CLUSTER.placements.kind,
        "metadata": {"name": name},
        "spec": {
            "resourceSelectors": [namespace_selector(namespace)],
            "policy": {"placementType": "PickFixed", "clusterNames": members},
        },
    }
    await env.hub.create(CLUSTER.placements, body)
    return name


async def complete(env: FleetEnv, name: str, *, index: str = "0") -> Placement:
    """Wait until this revision of a placement is complete on one cluster; return the placement."""

    async def reached() -> Placement:
        placement: Placement = await env.hub.get(CLUSTER.placements, name)
        conditions = conditions_of(placement.status.conditions)
        expected = {
            type_: ("True", reason, placement.metadata.generation)
            for type_, reason in COMPLETE.items()
        }
        assert conditions == expected, conditions
        statuses = placement.status.placement_statuses
        assert [each.observed_resource_index for each in statuses] == [index]
        assert placement.status.observed_resource_index == index
        for each in statuses:
            assert [c.status for c in each.conditions] == ["True"] * len(COMPLETE), each
        return placement

    return await until(reached, waiting_for=f"placement {name}")


async def config(client: Client, namespace: str) -> dict[str, str]:
    stored = await client.get(CONFIG_MAPS, "app", namespace, keep_raw=True)
    data: dict[str, str] = stored.content().get("data") or {}
    return data


async def source(env: FleetEnv) -> str:
    """Create a namespace with a ConfigMap on the hub; return its name."""
    namespace = f"ns-{uuid.uuid4().hex[:8]}"
    await env.hub.create(NAMESPACES, {"metadata": {"name": namespace}})
    body = {"metadata": {"name": "app", "namespace": namespace}, "data": {"color": "red"}}
    await env.hub.create(CONFIG_MAPS, body)
    return namespace


@pytest.mark.parametrize("extensions", [OURS, UPSTREAM], ids=["extended", "upstream"])
async def test_a_namespace_is_placed_changed_corrected_and_removed(
    env: FleetEnv, extensions: Extensions
) -> None:
    member = (await env.join(heartbeat_s=1)).name
    namespace = await source(env)
    async with fleet(env, [member], extensions=extensions):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        placement = await complete(env, name)
        selected = [(each.kind, each.name) for each in placement.status.selected_resources]
        assert selected == [("Namespace", namespace), ("ConfigMap", "app")]
        assert await config(env.member, namespace) == {"color": "red"}

        await env.hub.patch(CONFIG_MAPS, "app", MergePatch({"data": {"color": "blue"}}), namespace)

        async def followed() -> bool:
            assert await config(env.member, namespace) == {"color": "blue"}
            return True

        await until(followed)
        await complete(env, name, index="1")

        drifted = MergePatch({"data": {"color": "green"}})
        await env.member.patch(CONFIG_MAPS, "app", drifted, namespace)
        await until(followed)

        uid = (await env.hub.get(CLUSTER.placements, name)).uid
        await env.hub.delete(CLUSTER.placements, name, uid=uid)

        async def removed() -> bool:
            placements = await env.hub.list(CLUSTER.placements)
            assert name not in {each.name for each in placements.items}
            assert (await env.hub.list(WORKS, member_namespace(member))).items == []
            applied = await env.member.list(APPLIED_WORKS)
            assert not [each for each in applied.items if name in each.name]
            maps = await env.member.list(CONFIG_MAPS, namespace)
            assert "app" not in {each.name for each in maps.items}
            return True

        await until(removed)


async def test_objects_stay_that_move_to_another_work(env: FleetEnv) -> None:
    """A further large object, or one less, divides the others differently among the Works."""
    member = (await env.join(heartbeat_s=1)).name
    namespace = await source(env)

    async def create(name: str) -> None:
        body = {"metadata": {"name": name}, "data": {"text": "x" * 500_000}}
        await env.hub.create(CONFIG_MAPS, body, namespace=namespace)

    async def placed() -> dict[str, str]:
        maps = (await env.member.list(CONFIG_MAPS, namespace)).items
        return {each.name: each.uid for each in maps if each.name in ("app", "c", "d")}

    await create("c")
    await create("d")
    async with fleet(env, [member]):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        await complete(env, name)
        before = await placed()
        assert len(before) == 3
        await create("b")
        await complete(env, name, index="1")
        assert await placed() == before
        await env.hub.delete(CONFIG_MAPS, "b", namespace, uid=None)
        await complete(env, name, index="2")

        async def has_fewer_works() -> bool:
            works = await env.hub.list(WORKS, member_namespace(member))
            return len(works.items) == 2

        await until(has_fewer_works)
        await complete(env, name, index="2")
        assert await placed() == before


async def test_a_member_that_leaves_keeps_the_objects_and_the_placement_goes_on(
    env: FleetEnv,
) -> None:
    member = (await env.join(heartbeat_s=1)).name
    namespace = await source(env)
    async with fleet(env, [member]):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        await complete(env, name)
        await env.leave(member)
        await until(lambda: env.is_gone(member))
        assert await config(env.member, namespace) == {"color": "red"}

        async def unscheduled() -> bool:
            placement: Placement = await env.hub.get(CLUSTER.placements, name)
            (scheduled, *_) = placement.status.conditions
            assert (scheduled.status, scheduled.reason) == (
                "False",
                "SchedulingPolicyUnfulfilled",
            )
            return True

        await until(unscheduled)


async def test_a_fleet_at_rest_writes_nothing_but_heartbeats(env: FleetEnv) -> None:
    faults = Faults()
    member = (await env.join(heartbeat_s=600)).name
    namespace = await source(env)
    async with fleet(env, [member], faults=faults):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        await complete(env, name)
        await quiet(faults)
