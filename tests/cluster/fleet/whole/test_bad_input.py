"""Large and overlapping placements, from the hub to the objects of a member."""

from __future__ import annotations

from collections import Counter

import pytest

from kubeocean.api.fleet.kinds import NAMESPACED
from kubeocean.api.fleet.placements import Placement
from kubeocean.fleet.writes import in_parallel
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import find_condition
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.placement_env import config_map_selector
from support.wait import until

from .test_place_and_report import complete, config, fleet, select, source

OVERLAPPING = 100
MEBIBYTE = 1 << 20


async def test_an_object_of_a_mebibyte_reaches_the_member(env: FleetEnv) -> None:
    member = (await env.join(heartbeat_s=600)).name
    namespace = await source(env)
    text = "x" * (MEBIBYTE - len("text") - len("color") - len("red"))
    await env.hub.patch(CONFIG_MAPS, "app", MergePatch({"data": {"text": text}}), namespace)
    faults = Faults()
    async with fleet(env, [member], faults=faults):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        await complete(env, name)
        assert await config(env.member, namespace) == {"color": "red", "text": text}
        await quiet(faults)


@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(900)
async def test_a_hundred_placements_of_one_object(env: FleetEnv) -> None:
    """A placement owns the object in the member; when it is deleted, another placement does."""
    member = (await env.join(heartbeat_s=600)).name
    namespace = await source(env)
    await env.member.create(NAMESPACES, {"metadata": {"name": namespace}})
    resource = NAMESPACED.placements
    names = [f"p{number:03}" for number in range(OVERLAPPING)]

    async def place(name: str) -> None:
        await env.hub.create(
            resource,
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "resourceSelectors": [config_map_selector("app")],
                    "policy": {"placementType": "PickFixed", "clusterNames": [member]},
                },
            },
        )

    async def reasons() -> dict[str, str]:
        """Return, by placement, the reason of its object; `Applied` if it is."""
        placements: list[Placement] = (await env.hub.list(resource, namespace)).items
        found: dict[str, str] = {}
        for placement in placements:
            applied = find_condition(placement.status.conditions, "ResourcePlacementApplied")
            if applied is not None and applied.status == "True":
                found[placement.name] = "Applied"
            for entry in placement.status.placement_statuses:
                for failed in entry.failed_placements:
                    found[placement.name] = failed.condition.reason
        return found

    async def settled(count: int) -> bool:
        counts = Counter((await reasons()).values())
        assert counts == {"Applied": 1, "FailedToTakeOver": count - 1}, counts
        return True

    faults = Faults()
    async with fleet(env, [member], faults=faults):
        await env.wait_for(member, "Joined", "True")
        await in_parallel(place, names)
        await until(lambda: settled(OVERLAPPING), within=300)
        assert await config(env.member, namespace) == {"color": "red"}
        await quiet(faults)
        (owner,) = [name for name, reason in (await reasons()).items() if reason == "Applied"]
        stored = await env.hub.get(resource, owner, namespace)
        await env.hub.delete(resource, owner, namespace, uid=stored.uid)
        await until(lambda: settled(OVERLAPPING - 1), within=300)
        assert await config(env.member, namespace) == {"color": "red"}
