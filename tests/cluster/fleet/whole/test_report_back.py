"""Statuses come back to the hub's objects with the rights of an installation."""

from __future__ import annotations

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.wait import until

from .test_place_and_report import fleet, select, source

SERVICES: Resource[Untyped] = Resource("", "v1", "services", "Service", True, Untyped)
CONDITION = "ClusterResourcePlacementStatusReportedBack"
STATUS: Json = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}


async def test_the_hubs_account_may_write_statuses(env: FleetEnv) -> None:
    member = (await env.join(heartbeat_s=600)).name
    namespace = await source(env)
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    await env.hub.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, namespace=namespace)
    faults = Faults()
    async with fleet(env, [member], faults=faults):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])
        strategy = {"type": "Mirror", "destination": "OriginalResource"}
        change = MergePatch({"spec": {"strategy": {"reportBackStrategy": strategy}}})
        await env.hub.patch(CLUSTER.placements, name, change)

        async def is_placed() -> bool:
            listed = await env.member.list(SERVICES, namespace)
            return [each.name for each in listed.items] == ["web"]

        await until(is_placed)
        await env.member.patch(
            SERVICES, "web", MergePatch({"status": STATUS}), namespace, subresource="status"
        )

        async def is_reported() -> bool:
            stored = await env.hub.get(SERVICES, "web", namespace, keep_raw=True)
            assert stored.content()["status"] == STATUS
            placement = await env.hub.get(CLUSTER.placements, name)
            condition = find_condition(placement.status.conditions, CONDITION)
            assert condition is not None
            assert (condition.status, condition.reason) == ("True", "StatusReportedBack")
            return True

        await until(is_reported)
        await quiet(faults)
