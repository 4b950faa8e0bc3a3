"""How soon changes reach the members and come back into the status, and that the status then stays.

A hub and three members, each with a control plane of its own and its agent. Each sequence of
changes has a placement and a namespace of its own, and all sequences run side by side: while one of
them waits to see that nothing changes any more, the others go on.

A change has 10 seconds on an idle machine, that of a workload 45. See `support.change_times` for
machines that have other things to do.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.names import LABEL_MEMBER_NAME, LABEL_PARENT_PLACEMENT
from kubeocean.api.fleet.placements import ClusterPlacementStatus, Placement
from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS
from kubeocean.fleet.placement import PlacementSettings
from kubeocean.install.fleet import member_objects
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Programs
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from support.background import running
from support.change_times import ChangeTimes
from support.control_planes import applier, plane
from support.fleet_env import HUB_COMPONENTS, FleetEnv
from support.placement_env import conditions_of, namespace_selector

from .test_place_and_report import COMPLETE, applying

LIMIT_S = 10.0
WORKLOAD_LIMIT_S = 45.0
NODE = "node-0"
DEPLOYMENTS: Resource[Untyped] = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
RED, BLUE, GREEN = ({"color": color} for color in ("red", "blue", "green"))

Shown = Callable[[Placement | None], Awaitable[None]]


@dataclass
class Fleet:
    """A hub and the clients of its members, by name."""

    hub: Client
    members: dict[str, Client]
    times: ChangeTimes


@asynccontextmanager
async def fleet_of_three(env: FleetEnv, assets: Programs, roots: Path) -> AsyncIterator[Fleet]:
    """Run the hub and three agents; each member has a simulated node."""
    async with AsyncExitStack() as stack:
        clusters = [env.member_cluster]
        for number in (2, 3):
            more = plane(f"member{number}", assets, roots, components=HUB_COMPONENTS)
            clusters.append(await stack.enter_async_context(more))
            async with applier(clusters[-1]) as installing:
                await installing.apply_all(member_objects())
        kwok = await ensure(["kwok"])
        for cluster in clusters:
            nodes = await stack.enter_async_context(SimulatedNodes(cluster, kwok))
            assert await nodes.add(1, prefix=NODE.partition("-")[0]) == [NODE]
        await stack.enter_async_context(env.hub_running(placements=PlacementSettings()))
        members = {}
        for cluster in clusters:
            name = (await env.join(heartbeat_s=15)).name
            agent = env.agent_running(name, cluster=cluster, new_applier=applying(name))
            await stack.enter_async_context(agent)
            members[name] = cluster.client()
            stack.push_async_callback(members[name].close)
        for name in members:
            await env.wait_for(name, "Joined", "True")
        times = ChangeTimes(env.hub)
        await stack.enter_async_context(running(times))
        yield Fleet(env.hub, members, times)


class Sequence:
    """Changes of one placement, which selects a namespace with a ConfigMap."""

    def __init__(self, fleet: Fleet, title: str, *, limit_s: float = LIMIT_S) -> None:
        unique = uuid.uuid4().hex[:8]
        self.fleet, self.title, self.limit_s = fleet, title, limit_s
        self.key, self.namespace = Key("", f"crp-{unique}"), f"ns-{unique}"

    @property
    def all(self) -> list[str]:
        return sorted(self.fleet.members)

    # Changes

    async def begin(self, *objects: tuple[Resource[Any], Json], **spec: Any) -> None:
        """Create the namespace with the objects, and then the placement."""
        await self.fleet.hub.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await self.put("app", RED)
        for resource, body in objects:
            await self.fleet.hub.create(resource, body, namespace=self.namespace)
        body = {
            "apiVersion": CLUSTER.placements.api_version,
            "kind": CLUSTER.placements.kind,
            "metadata": {"name": self.key.name},
            "spec": {"resourceSelectors": [namespace_selector(self.namespace)], **spec},
        }
        await self.fleet.hub.create(CLUSTER.placements, body)

    async def put(self, name: str, data: dict[str, str], client: Client | None = None) -> None:
        body = {"metadata": {"name": name}, "data": data}
        await (client or self.fleet.hub).create(CONFIG_MAPS, body, namespace=self.namespace)

    async def edit(self, change: Json, client: Client | None = None) -> None:
        client = client or self.fleet.hub
        await client.patch(CONFIG_MAPS, "app", MergePatch(change), self.namespace)

    async def remove(self, client: Client | None = None) -> None:
        await (client or self.fleet.hub).delete(CONFIG_MAPS, "app", self.namespace, uid=None)

    async def respecify(self, **spec: Any) -> None:
        await self.fleet.hub.patch(CLUSTER.placements, self.key.name, MergePatch({"spec": spec}))

    async def delete_placement(self) -> None:
        await self.fleet.hub.delete(CLUSTER.placements, self.key.name, uid=None)

    # Measured changes

    async def step(self, what: str, change: Awaitable[Any], is_shown: Shown) -> None:
        """Make a change, wait until it is shown, and see that nothing changes after that."""
        times, title = self.fleet.times, f"{self.title}: {what}"
        await times.measure(title, self.key, lambda: change, is_shown, limit_s=self.limit_s)
        if what != DELETION:
            await times.stays(self.key, is_shown, self.contents)

    async def end(self) -> None:
        await self.step(DELETION, self.delete_placement(), self.gone)

    async def contents(self) -> list[Json]:
        """Return the objects of all members, without versions and statuses."""
        contents = []
        kinds: tuple[Resource[Any], ...] = (NAMESPACES, CONFIG_MAPS, DEPLOYMENTS)
        for client in self.fleet.members.values():
            for resource in kinds:
                namespace = self.namespace if resource.namespaced else ""
                listed = await client.list(resource, namespace, keep_raw=True)
                contents += [
                    _without_versions(each.content())
                    for each in listed.items
                    if resource.namespaced or each.name == self.namespace
                ]
        return contents

    async def maps(self, client: Client) -> dict[str, dict[str, str]]:
        """Return the data of a member's ConfigMaps that are not the cluster's own."""
        listed = await client.list(CONFIG_MAPS, self.namespace, keep_raw=True)
        contents = (each.content() for each in listed.items if each.name != "kube-root-ca.crt")
        return {each["metadata"]["name"]: each.get("data") or {} for each in contents}

    async def placed(self, members: list[str], maps: dict[str, dict[str, str]]) -> None:
        """Check that the namespace exists in these members only, with these ConfigMaps."""
        for name, client in self.fleet.members.items():
            if name in members:
                assert await self.maps(client) == maps
            else:
                assert self.namespace not in {each.name for each in await _namespaces(client)}

    def complete(
        self, maps: dict[str, dict[str, str]], *, index: int = 0, on: list[str] | None = None
    ) -> Shown:
        """Return the check that a revision is complete on these members, and on no other."""
        members = self.all if on is None else on

        async def is_complete(placement: Placement | None) -> None:
            assert placement is not None
            status, generation = placement.status, placement.metadata.generation
            assert conditions_of(status.conditions) == {
                type_: ("True", reason, generation) for type_, reason in COMPLETE.items()
            }
            assert status.observed_resource_index == str(index)
            entries = status.placement_statuses
            assert sorted(each.cluster_name for each in entries) == members
            for each in entries:
                assert _is_complete(each, index)
            await self.placed(members, maps)

        return is_complete

    def not_applied(
        self, member: str, reason: str, maps: dict[str, dict[str, str]], *, index: int
    ) -> Shown:
        """Return the check that a member refused an object, and all others applied it."""

        async def is_not_applied(placement: Placement | None) -> None:
            assert placement is not None
            conditions = conditions_of(placement.status.conditions)
            generation = placement.metadata.generation
            applied = list(conditions.items())[-1]
            assert applied == (
                "ClusterResourcePlacementApplied",
                ("False", "ApplyFailed", generation),
            )
            entries = {each.cluster_name: each for each in placement.status.placement_statuses}
            assert sorted(entries) == self.all
            failed = entries.pop(member)
            assert [each.condition.reason for each in failed.failed_placements] == [reason]
            assert all(_is_complete(each, index) for each in entries.values())
            for name in entries:
                assert await self.maps(self.fleet.members[name]) == maps

        return is_not_applied

    async def gone(self, placement: Placement | None) -> None:
        """Check that neither the placement nor anything that was made for it exists."""
        assert placement is None
        labels = f"{LABEL_PARENT_PLACEMENT}={self.key.name}"
        kinds: tuple[Resource[Any], ...] = (
            WORKS,
            CLUSTER.bindings,
            CLUSTER.policy_snapshots,
            CLUSTER.resource_snapshots,
        )
        for resource in kinds:
            assert (await self.fleet.hub.list(resource, labels=labels)).items == []
        for client in self.fleet.members.values():
            applied = (await client.list(APPLIED_WORKS)).items
            assert not [each for each in applied if self.key.name in each.name]
        await self.placed([], {})


DELETION = "delete the placement"


async def _namespaces(client: Client) -> list[Any]:
    return (await client.list(NAMESPACES)).items


def _is_complete(entry: ClusterPlacementStatus, index: int) -> bool:
    deviations = entry.failed_placements + entry.drifted_placements + entry.diffed_placements
    statuses = [each.status for each in entry.conditions]
    return (
        entry.observed_resource_index == str(index)
        and statuses == ["True"] * len(COMPLETE)
        and not deviations
    )


def _without_versions(content: Json) -> Json:
    moving = ("resourceVersion", "managedFields")
    metadata = {name: value for name, value in content["metadata"].items() if name not in moving}
    return {name: value for name, value in content.items() if name != "status"} | {
        "metadata": metadata
    }


# Sequences of changes


async def objects_are_created_and_changed(fleet: Fleet) -> None:
    changes = Sequence(fleet, "objects")
    await changes.step("place", changes.begin(), changes.complete({"app": RED}))
    both = {"app": RED, "second": BLUE}
    create = changes.put("second", BLUE)
    await changes.step("create an object", create, changes.complete(both, index=1))
    both["app"] = GREEN
    change = changes.edit({"data": GREEN})
    await changes.step("change an object", change, changes.complete(both, index=2))
    await changes.end()


async def objects_are_deleted_and_created_anew(fleet: Fleet) -> None:
    changes = Sequence(fleet, "objects anew")
    await changes.step("place", changes.begin(), changes.complete({"app": RED}))
    await changes.step("delete an object", changes.remove(), changes.complete({}, index=1))
    create = changes.put("app", BLUE)
    await changes.step("create it anew", create, changes.complete({"app": BLUE}, index=2))
    await changes.end()


async def a_workload_is_scaled(fleet: Fleet) -> None:
    changes = Sequence(fleet, "workload", limit_s=WORKLOAD_LIMIT_S)
    pod = {"nodeName": NODE, "containers": [{"name": "app", "image": "app:1"}]}
    template = {"metadata": {"labels": {"app": "app"}}, "spec": pod}
    selector = {"matchLabels": {"app": "app"}}
    deployment = {
        "metadata": {"name": "app"},
        "spec": {"replicas": 1, "selector": selector, "template": template},
    }
    begin = changes.begin((DEPLOYMENTS, deployment))
    await changes.step("place", begin, changes.complete({"app": RED}))

    async def is_scaled(placement: Placement | None) -> None:
        await changes.complete({"app": RED}, index=1)(placement)
        for client in fleet.members.values():
            stored = await client.get(DEPLOYMENTS, "app", changes.namespace, keep_raw=True)
            assert stored.content()["status"].get("availableReplicas") == 2

    patch = MergePatch({"spec": {"replicas": 2}})
    scale = fleet.hub.patch(DEPLOYMENTS, "app", patch, changes.namespace)
    await changes.step("scale", scale, is_scaled)
    await changes.end()


async def members_edit_and_delete(fleet: Fleet) -> None:
    changes = Sequence(fleet, "member")
    complete = changes.complete({"app": RED})
    await changes.step("place", changes.begin(), complete)
    first, second, _ = fleet.members.values()
    await changes.step("edit in a member", changes.edit({"data": GREEN}, first), complete)
    await changes.step("delete in a member", changes.remove(second), complete)
    await changes.end()


async def the_policy_changes(fleet: Fleet) -> None:
    changes = Sequence(fleet, "policy")
    smallest, _, largest = changes.all
    policy: Json = {"placementType": "PickN", "numberOfClusters": 1}
    maps = {"app": RED}
    # Of equal clusters, the one with the largest name is picked
    await changes.step("place", changes.begin(policy=policy), changes.complete(maps, on=[largest]))
    more = changes.respecify(policy={"numberOfClusters": 3})
    await changes.step("more clusters", more, changes.complete(maps))
    term = {"labelSelector": {"matchLabels": {LABEL_MEMBER_NAME: smallest}}}
    required = {"clusterSelectorTerms": [term]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    other = changes.respecify(
        policy={"numberOfClusters": 1, "affinity": {"clusterAffinity": affinity}}
    )
    await changes.step("other clusters", other, changes.complete(maps, on=[smallest]))
    await changes.end()


async def a_drift_is_reported_and_reverted(fleet: Fleet) -> None:
    changes = Sequence(fleet, "drift")
    strategy = {"applyStrategy": {"whenToApply": "IfNotDrifted"}}
    complete = changes.complete({"app": RED})
    await changes.step("place", changes.begin(strategy=strategy), complete)
    member, client = next(iter(fleet.members.items()))

    async def is_reported(placement: Placement | None) -> None:
        await changes.not_applied(member, "FoundDrifts", {"app": RED}, index=0)(placement)
        assert placement is not None
        drifts = [
            (entry.cluster_name, drifted.name, each.path, each.value_in_member, each.value_in_hub)
            for entry in placement.status.placement_statuses
            for drifted in entry.drifted_placements
            for each in drifted.observed_drifts
        ]
        assert drifts == [(member, "app", "/data/color", "green", "red")]

    await changes.step("edit in a member", changes.edit({"data": GREEN}, client), is_reported)
    await changes.step("revert in the member", changes.edit({"data": RED}, client), complete)
    await changes.end()


async def a_failed_apply_is_mended(fleet: Fleet) -> None:
    changes = Sequence(fleet, "failure")
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}
    begin = changes.begin(strategy=strategy)
    await changes.step("place", begin, changes.complete({"app": RED}))
    member, client = next(iter(fleet.members.items()))

    async def change_what_cannot_change() -> None:
        await changes.edit({"immutable": True}, client)
        await changes.edit({"data": BLUE})

    failed = changes.not_applied(member, "ManifestApplyFailed", {"app": BLUE}, index=1)
    await changes.step("change that a member refuses", change_what_cannot_change(), failed)
    mended = changes.complete({"app": BLUE}, index=1)
    await changes.step("delete the cause in the member", changes.remove(client), mended)
    await changes.end()


@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(900)
async def test_each_change_is_shown_in_time_and_the_status_then_stays(
    env: FleetEnv, assets: Programs, cluster_roots: Path
) -> None:
    async with fleet_of_three(env, assets, cluster_roots) as fleet, asyncio.TaskGroup() as group:
        for sequence in (
            objects_are_created_and_changed,
            objects_are_deleted_and_created_anew,
            a_workload_is_scaled,
            members_edit_and_delete,
            the_policy_changes,
            a_drift_is_reported_and_reverted,
            a_failed_apply_is_mended,
        ):
            group.create_task(sequence(fleet))
    fleet.times.check()
