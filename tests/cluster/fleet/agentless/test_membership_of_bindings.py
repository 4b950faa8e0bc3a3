"""Bindings become members of the fleet and leave it, served by their syncers."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import PolicySpec
from kubeocean.fleet.placement import PlacementSettings
from kubeocean.install.apply import ApplyResult
from kubeocean.install.fleet import HUB_ACCOUNT
from kubeocean.install.leave import Leave
from kubeocean.install.object_parts import title
from kubeocean.install.values import WorkerValues
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, NODES, SECRETS
from kubeocean.runtime.objects import Condition, Json, find_condition
from support.agentless_env import FLEET, AgentlessEnv
from support.commands import Home
from support.control_planes import applier
from support.controller_env import quiet
from support.faults import Faults
from support.placement_env import namespace_selector
from support.wait import until

PATIENT = timedelta(hours=1)


async def place(env: AgentlessEnv, member: str) -> tuple[str, str]:
    """Place a namespace with a ConfigMap on a member; return the names of both objects."""
    hub, namespace = env.fleet.hub, f"ns-{uuid.uuid4().hex[:8]}"
    await hub.create(NAMESPACES, {"metadata": {"name": namespace}})
    body = {"metadata": {"name": "app", "namespace": namespace}, "data": {"color": "red"}}
    await hub.create(CONFIG_MAPS, body)
    placement = {
        "apiVersion": CLUSTER.placements.api_version,
        "kind": CLUSTER.placements.kind,
        "metadata": {"name": f"crp-{namespace}"},
        "spec": {
            "resourceSelectors": [namespace_selector(namespace)],
            "policy": {"placementType": "PickFixed", "clusterNames": [member]},
        },
    }
    await hub.create(CLUSTER.placements, placement)
    return namespace, "app"


async def has_config(env: AgentlessEnv, namespace: str) -> bool:
    maps = await env.fleet.member.list(CONFIG_MAPS, namespace)
    return "app" in {each.name for each in maps.items}


async def agent_condition(env: AgentlessEnv, name: str) -> Condition | None:
    agents = (await env.fleet.get(name)).status.agent_status
    return find_condition(agents[0].conditions, "Joined") if agents else None


async def vnodes(env: AgentlessEnv, name: str) -> int:
    labels = f"{DEFAULT.cluster_binding}={name}"
    return len((await env.fleet.hub.list(NODES, labels=labels)).items)


async def test_a_binding_joins_gets_objects_reports_its_leases_and_leaves(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = env.fleet.new_name()
    await env.bind(name, lease=PolicySpec(name))
    hub = Faults()
    async with (
        env.fleet.hub_running(hub, placements=PlacementSettings(), threshold=PATIENT),
        env.syncing(name, tmp_path) as process,
    ):
        await env.annotate(name)
        await env.wait_for_binding(name, "True", "Joined")
        namespace, _ = await place(env, name)
        await until(lambda: has_config(env, namespace))

        async def leased() -> bool:
            found = (await env.fleet.get(name)).status.properties
            values = {key: found[key].value for key in found}
            assert values.get("kubeocean.io/leasing/nodes") == "1"
            assert values["kubeocean.io/leasing/window-open"] == "1"
            assert values["kubeocean.io/leasing/seconds-until-close"] == "31536000"
            assert values["kubeocean.io/resources/cpu/leased"] == "8"
            assert values["kubeocean.io/resources/cpu/free"] == "8"
            return True

        await until(leased)

        await env.annotate(name, None)  # the worker stays bound
        await env.wait_for_binding(name, "False", "Left")
        await until(lambda: env.fleet.is_gone(name))
        assert await has_config(env, namespace)
        assert await vnodes(env, name) == 1
        await process.wait_for_output("Stopped member agent of binding")
        await quiet(hub)

        await env.annotate(name)
        await env.wait_for_binding(name, "True", "Joined")
    account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{HUB_ACCOUNT}"
    requests = env.fleet.hub_cluster.audit.requests(user=account)
    written = [each for each in requests if each.resource in ("clusterbindings", "memberclusters")]
    assert "patch" in {each.verb for each in written}
    assert [each for each in written if each.code == 403] == []


async def test_the_deletion_of_a_binding_leaves_the_fleet_and_ends(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = await env.bind()
    async with env.fleet.hub_running(), env.syncing(name, tmp_path):
        await env.annotate(name)
        await env.wait_for_binding(name, "True", "Joined")
        binding = await env.binding(name)
        await env.fleet.hub.delete(CLUSTER_BINDINGS, name, uid=binding.uid)
        # The agent reports that it has left: the force wait would take 30 seconds longer.
        await until(lambda: env.is_unbound(name))
        await until(lambda: env.fleet.is_gone(name))
    results: dict[str, ApplyResult] = {}

    def note(body: Json, result: ApplyResult) -> None:
        results[title(body)] = result

    worker = WorkerValues(namespace=f"mount-{name}")
    async with (
        applier(env.fleet.hub_cluster) as computing,
        applier(env.fleet.member_cluster) as installed,
    ):
        # The rest of `kubeocean leave`
        await Leave(name, computing, domain=DEFAULT).clean(installed, worker, note, force=False)
    assert results[f"ClusterRole {worker.fleet_role}"] is ApplyResult.REMOVED


async def test_a_deleted_member_is_not_created_again(env: AgentlessEnv, tmp_path: Path) -> None:
    name = await env.bind()
    async with env.fleet.hub_running(agentless=True), env.syncing(name, tmp_path):
        # All bindings are members: the hub annotates this one.
        await env.wait_for_binding(name, "True", "Joined")
        assert (await env.binding(name)).annotations[FLEET] == "member"
        await env.fleet.leave(name)
        await env.wait_for_binding(name, "False", "Left")
        assert (await env.binding(name)).annotations[FLEET] == "left"
        await until(lambda: env.fleet.is_gone(name))


async def test_a_syncer_with_shards_plays_the_member_on_its_leader(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = await env.bind()
    user = f"sharded-{name}"  # sharding needs more rights than the roles of syncers have
    admin = env.fleet.hub_cluster.user(user, ["system:masters"])
    async with (
        env.fleet.hub_running(),
        env.syncing(name, tmp_path, "--sharding", kubeconfig=admin),
    ):
        await env.annotate(name)
        await env.wait_for_binding(name, "True", "Joined")
        identity = (await env.fleet.get(name)).spec.identity
        assert (identity.kind, identity.name) == ("User", user)
        await env.annotate(name, None)
        await env.wait_for_binding(name, "False", "Left")


async def test_a_foreign_member_of_that_name_is_left_alone(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = await env.bind(fleet_rights=False)
    foreign = await env.fleet.join(name)
    async with env.fleet.hub_running():
        words = ("join", name, "--agentless", "--no-wait")
        hub, worker = env.fleet.hub_cluster.kubeconfig, env.fleet.member_cluster.kubeconfig
        clusters = ("--hub-kubeconfig", str(hub), "--kubeconfig", str(worker))
        command = await Home(tmp_path / "home").run("fleet", *words, *clusters)
        assert command.code == 2, command
        assert "is a member with an agent; run kubeocean fleet leave" in command.err
        assert "kubeocean-syncer-fleet" not in command.err  # nothing was granted
        await env.annotate(name)
        refused = await env.wait_for_binding(name, "False", "Refused")
        assert f"the MemberCluster {name} exists" in refused.message
        await env.fleet.wait_for(name, "ReadyToJoin", "True")
        stored = await env.fleet.hub.get(MEMBER_CLUSTERS, name)
        assert (stored.uid, stored.spec) == (foreign.uid, foreign.spec)
        await env.annotate(name, None)
        await env.wait_for_binding(name, "False", "Left")
        assert (await env.fleet.get(name)).uid == foreign.uid


async def test_missing_rights_are_shown_and_granted_by_the_command(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = env.fleet.new_name()
    await env.bind(name, fleet_rights=False, lease=PolicySpec(name))
    home = Home(tmp_path / "home")
    hub = str(env.fleet.hub_cluster.kubeconfig)
    worker = str(env.fleet.member_cluster.kubeconfig)

    async def fleet(*words: str) -> str:
        result = await home.run("fleet", *words, "--hub-kubeconfig", hub)
        assert result.code == 0, result
        return result.out + result.err

    async with env.fleet.hub_running(), env.syncing(name, tmp_path) as process:
        await env.annotate(name)

        async def shown() -> bool:
            condition = await agent_condition(env, name)
            assert condition is not None
            assert condition.reason == "InternalMemberClusterFailedToJoin"
            assert "create appliedworks.placement.kubernetes-fleet.io" in condition.message
            return True

        await env.wait_for_binding(name, "Unknown", "Joining")
        await until(shown)
        waiting = await env.wait_for_binding(name, "Unknown", "Joining")
        assert f"run kubeocean fleet join {name} --agentless" in waiting.message
        await until(process.is_ready)  # the syncer keeps running
        await until(lambda: vnodes(env, name))

        out = await fleet("join", name, "--kubeconfig", worker, "--agentless", "--heartbeat", "1")
        assert f"{name} has joined" in out
        out = await fleet("leave", name, "--kubeconfig", worker)
        assert f"worker: ClusterRole kubeocean-syncer-fleet-mount-{name} removed" in out
        await env.wait_for_binding(name, "False", "Left")


async def test_a_member_whose_owner_has_withdrawn_the_rights_leaves(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    name = await env.bind(fleet_rights=False)
    async with env.fleet.hub_running(force_wait=PATIENT), env.syncing(name, tmp_path):
        await env.annotate(name)

        async def has_failed() -> bool:
            if await env.fleet.is_gone(name):
                return False  # not created yet
            condition = await agent_condition(env, name)
            return condition is not None and condition.status == "Unknown"

        await until(has_failed)
        await env.fleet.leave(name)
        await until(lambda: env.fleet.is_gone(name))
        await env.wait_for_binding(name, "False", "Left")


async def test_a_revoked_credential_of_the_worker_is_shown_and_renewed(
    env: AgentlessEnv, tmp_path: Path
) -> None:
    """The token of the binding is bound to a Secret of the worker, which its owner deletes."""
    name = await env.bind()
    async with env.fleet.hub_running(threshold=PATIENT), env.syncing(name, tmp_path):
        await env.annotate(name)
        await env.wait_for_binding(name, "True", "Joined")
        await env.fleet.wait_for(name, "Healthy", "True")
        space = f"mount-{name}"
        for secret in (await env.fleet.member.list(SECRETS, space)).items:
            await env.fleet.member.delete(SECRETS, secret.name, space, uid=secret.uid)
        await env.fleet.wait_for(name, "Healthy", "False", "MemberClusterUnhealthy")
        agent = (await env.fleet.get(name)).status.agent_status[0]
        healthy = find_condition(agent.conditions, "Healthy")
        assert healthy is not None
        assert "Unauthorized" in healthy.message
        await env.bind(name)  # a join makes a new token
        await env.fleet.wait_for(name, "Healthy", "True")
