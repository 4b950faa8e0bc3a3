"""The status of a Deployment, from the member's controllers to the hub's own object.

The hub has no controllers but those of placements, so no other program writes the status there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kubeocean.api.fleet.works import WORKS
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from support.applier_env import EVENTS_ONLY, ApplierEnv, Run
from support.controller_env import quiet
from support.faults import Faults
from support.placement_env import PlacementEnv, conditions_of
from support.wait import until

DEPLOYMENTS: Resource[Untyped] = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
CONDITION = "ResourcePlacementStatusReportedBack"
ORIGINAL = {"type": "Mirror", "destination": "OriginalResource"}
WORK_API = {"type": "Mirror", "destination": "WorkAPI"}
DISABLED = {"type": "Disabled"}


def deployment() -> Json:
    labels = {"app": "web"}
    container = {"name": "web", "image": "web:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {"owner": "team"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


@dataclass
class Fleet:
    """A hub that places one Deployment on one member."""

    hub: PlacementEnv
    applier: ApplierEnv
    member: str

    async def place(self, strategy: Json) -> Key:
        namespace = self.hub.namespace
        await self.hub.client.create(DEPLOYMENTS, deployment(), namespace=namespace)
        selector = {"group": "apps", "version": "v1", "kind": "Deployment", "name": "web"}
        return await self.hub.place(
            selector,
            namespace=namespace,
            policy={"placementType": "PickFixed", "clusterNames": [self.member]},
            strategy={"reportBackStrategy": strategy},
        )

    @asynccontextmanager
    async def running(self, faults: Faults | None = None) -> AsyncIterator[Run]:
        async with (
            self.hub.controlling(faults),
            self.applier.running(backoff=EVENTS_ONLY) as run,
        ):
            yield run

    async def statuses(self) -> tuple[Json, Json]:
        """Return the status of the Deployment on the hub, and that in the member."""
        stored = [
            await client.get(DEPLOYMENTS, "web", self.hub.namespace, keep_raw=True)
            for client in (self.hub.client, self.applier.member)
        ]
        on_hub, in_member = (each.content().get("status") or {} for each in stored)
        return on_hub, in_member

    async def is_mirrored(self, generation: int) -> bool:
        """Assert that the hub has the status that the member's controller wrote."""
        on_hub, in_member = await self.statuses()
        assert in_member.get("observedGeneration", 0) >= generation, in_member
        assert in_member.get("conditions"), in_member
        assert on_hub == in_member
        return True

    async def reported(self, key: Key) -> Json | None:
        """Return the status that the Work of the placement reports."""
        (work,) = await self.hub.works(key)
        entries = [each.back_reported_status for each in work.status.manifest_conditions]
        found: Json | None = entries[0].observed_status if entries and entries[0] else None
        return found


@pytest.fixture
async def fleet(
    hub_cluster: Cluster, cluster: Cluster, hub: Client, member: Client
) -> AsyncIterator[Fleet]:
    env = PlacementEnv(hub_cluster, hub, "")
    env.namespace = f"back-{env.unique}"
    for client in (hub, member):
        await client.create(NAMESPACES, {"metadata": {"name": env.namespace}})
    (name,) = await env.join("m")
    yield Fleet(env, ApplierEnv(hub_cluster, cluster, hub, member, id=name), name)
    await env.clear()


async def test_the_status_of_a_deployment_appears_on_the_hubs_object(fleet: Fleet) -> None:
    key = await fleet.place(ORIGINAL)
    faults = Faults()
    async with fleet.running(faults) as run:
        await fleet.hub.completed(key, fleet.member, index="0")
        await until(lambda: fleet.is_mirrored(1))

        async def has_condition() -> bool:
            states = conditions_of((await fleet.hub.placement(key)).status.conditions)
            assert states.get(CONDITION) == ("True", "StatusReportedBack", 1), states
            return True

        await until(has_condition)
        await quiet(faults)
        await run.is_quiet()

        space = fleet.hub.namespace
        change = MergePatch({"spec": {"replicas": 1}})
        await fleet.hub.client.patch(DEPLOYMENTS, "web", change, space)

        async def is_unavailable() -> bool:
            await fleet.is_mirrored(2)
            on_hub, _ = await fleet.statuses()
            assert on_hub.get("unavailableReplicas") == 1, "no node runs the pod"
            return True

        await until(is_unavailable)
        stored = await fleet.hub.client.get(DEPLOYMENTS, "web", space, keep_raw=True)
        assert stored.annotations == {"owner": "team"}, "only the status is written"
        assert stored.metadata.generation == 2
        await quiet(faults)
        await run.is_quiet()
        assert len(await fleet.hub.resource_snapshots(key)) == 2, "a status is no new release"
    restarted = Faults()
    async with fleet.running(restarted) as run:
        await quiet(restarted)
        await run.is_quiet()
        assert restarted.writes == 0
        assert run.writes() == []


@pytest.mark.parametrize("strategy", [WORK_API, DISABLED], ids=lambda each: each["type"])
async def test_the_hubs_object_is_left_alone_unless_it_is_the_destination(
    fleet: Fleet, strategy: Json
) -> None:
    key = await fleet.place(strategy)
    faults = Faults()
    async with fleet.running(faults) as run:
        await fleet.hub.completed(key, fleet.member)

        async def has_settled() -> bool:
            _, in_member = await fleet.statuses()
            assert in_member.get("conditions")
            if strategy is WORK_API:
                assert (await fleet.reported(key) or {}).get("status") == in_member
            return True

        await until(has_settled)
        await quiet(faults)
        await run.is_quiet()
        on_hub, _ = await fleet.statuses()
        assert on_hub == {}
        if strategy is DISABLED:
            assert await fleet.reported(key) is None
        (work,) = await fleet.hub.works(key)
        stored = await fleet.hub.client.get(WORKS, work.name, work.namespace)
        assert stored.spec.report_back_strategy.destination == strategy.get("destination", "")
        conditions = (await fleet.hub.placement(key)).status.conditions
        assert CONDITION not in conditions_of(conditions)

        # Another strategy reaches the Work without a new release
        await fleet.hub.change(key, strategy={"reportBackStrategy": ORIGINAL})
        await until(lambda: fleet.is_mirrored(1))
        await quiet(faults)
        await run.is_quiet()
        assert len(await fleet.hub.resource_snapshots(key)) == 1
