"""Health checks in a whole fleet: by annotation, up to the placement; by file, of an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.names import ANNOTATION_AVAILABLE_WHEN, member_namespace
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from support.commands import Home
from support.custom_resources import define
from support.fleet_env import FleetEnv
from support.fleet_process import fleet_process
from support.wait import until

from .test_place_and_report import complete, fleet, select, source

DATABASES = Resource("kubeocean.test", "v1", "databases", "Database", True, Untyped)
IS_READY = "self.status.phase == 'Ready'"


@pytest.mark.sweep(sampled=False)
async def test_a_placement_is_available_when_a_custom_resource_fulfils_its_expression(
    env: FleetEnv, tmp_path: Path
) -> None:
    for client in (env.hub, env.member):
        await define(client, DATABASES, with_status=True)
    member = (await env.join(heartbeat_s=1)).name
    namespace = await source(env)
    metadata = {
        "name": "db",
        "namespace": namespace,
        "annotations": {ANNOTATION_AVAILABLE_WHEN: IS_READY},
    }
    body = {"apiVersion": DATABASES.api_version, "kind": "Database", "metadata": metadata}

    async def is_created() -> bool:
        try:
            await env.hub.create(DATABASES, body)
        except NotFound:
            return False  # the API server does not serve the new kind yet
        return True

    await until(is_created)
    async with fleet(env, [member]):
        await env.wait_for(member, "Joined", "True")
        name = await select(env, namespace, [member])

        async def waits() -> bool:
            placement: Placement = await env.hub.get(CLUSTER.placements, name)
            assert placement.status.conditions
            last = placement.status.conditions[-1]
            assert (last.type, last.status) == ("ClusterResourcePlacementAvailable", "False")
            assert placement.status.placement_statuses
            (status,) = placement.status.placement_statuses
            assert status.failed_placements
            (failed,) = status.failed_placements
            assert failed.kind == "Database"
            assert failed.condition.reason == "ManifestNotAvailableYet"
            assert IS_READY in failed.condition.message
            return True

        await until(waits)
        (work,) = (await env.hub.list(WORKS, member_namespace(member))).items
        home = Home(tmp_path / "home")
        words = ("explain", "work", work.name, "--member", member)
        result = await home.run(*words, "--kubeconfig", str(env.hub_cluster.kubeconfig))
        assert f"Database {namespace}/db: available when {IS_READY}" in result.out
        assert 'the object has no field "status"' in result.out

        ready = MergePatch({"status": {"phase": "Ready"}})
        await env.member.patch(DATABASES, "db", ready, namespace, subresource="status")
        await complete(env, name)


@pytest.mark.sweep(sampled=False)
async def test_an_agent_reads_the_expressions_of_kinds_from_a_file(
    env: FleetEnv, tmp_path: Path
) -> None:
    checks = tmp_path / "checks.yaml"
    checks.write_text("ConfigMap: self.data.state == 'ready'\nSecret: self.data.\n")
    name = (await env.join(heartbeat_s=1)).name
    flags = (
        f"--member-name={name}",
        f"--hub-kubeconfig={env.identity(name)}",
        f"--health-checks={checks}",
        "--leader-elect=false",
    )
    kubeconfig = env.member_cluster.kubeconfig
    async with (
        env.hub_running(),
        fleet_process(
            "member", "agent", *flags, kubeconfig=kubeconfig, directory=tmp_path
        ) as agent,
    ):
        await env.wait_for(name, "Joined", "True")
        metadata = {"name": f"{name}-map", "namespace": "default"}
        manifests = [
            {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"color": "cmVk"}}
            for kind in ("ConfigMap", "Secret")
        ]
        body = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": f"{name}-work"},
            "spec": {"workload": {"manifests": manifests}},
        }
        await env.hub.create(WORKS, body, namespace=member_namespace(name))

        async def reported() -> list[str]:
            work: Work = await env.hub.get(WORKS, f"{name}-work", member_namespace(name))
            entries = work.status.manifest_conditions
            conditions = [find_condition(each.conditions, "Available") for each in entries]
            messages = [each.message for each in conditions if each is not None]
            assert len(messages) == 2
            return messages

        of_map, of_secret = await until(reported)
        assert 'has no field "state", which self.data.state ==' in of_map
        assert of_secret.endswith("; correct --health-checks of the member's agent")
        assert await agent.process.stop() == 0
    checks.write_text("- no mapping")
    async with fleet_process(
        "member", "wrong", *flags, kubeconfig=kubeconfig, directory=tmp_path
    ) as agent:
        assert await agent.process.wait() == 1
        line = await agent.wait_for_output("Could not start fleet member")
        assert "must be a mapping from KIND.GROUP to an expression" in line["error"]
