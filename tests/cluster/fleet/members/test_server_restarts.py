"""API servers that are killed and started again on their data, while members send heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace
from kubeocean.api.fleet.works import WORKS
from kubeocean.fleet.agent.protocols import NewApplier
from kubeocean.fleet.applier import WorkApplier
from kubeocean.fleet.health import stored_instant
from kubeocean.install.fleet import HUB_ACCOUNT
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.objects import find_condition
from support.fleet_env import FleetEnv
from support.wait import until

PERIOD_S = 4
OUTAGE_S = 2 * PERIOD_S
THRESHOLD = timedelta(minutes=2)  # longer than the outage and the start of a server
SLACK_S = 6.0  # of a busy machine, and of a server that begins to serve
PERIODS = 3
READS = ("get", "list", "watch")


def placing(name: str) -> Callable[[Client, Client], NewApplier]:
    """Return what makes the applier of a member."""

    def new_applier(hub: Client, member: Client) -> NewApplier:
        return lambda: WorkApplier(hub, member, namespace=member_namespace(name))

    return new_applier


@asynccontextmanager
async def fleet(env: FleetEnv) -> AsyncIterator[list[str]]:
    """Run a hub and three members; each member has a Work with a ConfigMap."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(env.hub_running(threshold=THRESHOLD))
        names = [(await env.join(heartbeat_s=PERIOD_S)).name for _ in range(3)]
        for name in names:
            await env.wait_for(name, "ReadyToJoin", "True")
            await stack.enter_async_context(env.agent_running(name, new_applier=placing(name)))
        for name in names:
            await env.wait_for(name, "Healthy", "True")
            await place(env, name)
        yield names


async def place(env: FleetEnv, name: str) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"k": "v"},
    }
    body = {
        "apiVersion": WORKS.api_version,
        "kind": WORKS.kind,
        "metadata": {"name": name},
        "spec": {"workload": {"manifests": [manifest]}},
    }
    await env.hub.create(WORKS, body, namespace=member_namespace(name))
    await until(lambda: is_placed(env, name))


async def is_placed(env: FleetEnv, name: str) -> bool:
    return name in {each.name for each in (await env.member.list(CONFIG_MAPS, "default")).items}


def conditions(member: MemberCluster) -> dict[str, tuple[str, str, str]]:
    return {
        each.type: (each.status, each.reason, each.last_transition_time)
        for each in member.status.conditions
    }


async def has_heartbeat_after(env: FleetEnv, name: str, instant: datetime) -> bool:
    agents = (await env.get(name)).status.agent_status
    heartbeat = stored_instant(agents[0].last_received_heartbeat)
    return heartbeat is not None and heartbeat >= instant.replace(microsecond=0)


def kinds(requests: list[AuditedRequest]) -> Counter[tuple[str, str]]:
    return Counter((each.verb, each.resource) for each in requests)


def writes(requests: list[AuditedRequest]) -> Counter[tuple[str, str]]:
    """Return the writes that the server carried out: while it starts, it refuses some (403)."""
    return kinds([each for each in requests if each.verb not in READS and each.code < 400])


def writes_of_objects(cluster: Cluster, mark: int) -> Counter[tuple[str, str]]:
    """Count the writes of placed objects in the member since `mark`."""
    made = cluster.audit.requests(since=mark)
    return writes([each for each in made if each.resource == "configmaps"])


async def test_members_return_within_one_heartbeat_after_a_restart_of_the_hubs_server(
    env: FleetEnv,
) -> None:
    cluster = env.hub_cluster
    async with fleet(env) as names:
        before = {name: conditions(await env.get(name)) for name in names}
        await cluster.kill("kube-apiserver")
        await asyncio.sleep(OUTAGE_S)
        mark, restarted = cluster.audit.mark(), datetime.now(UTC)
        await cluster.restart("kube-apiserver")
        began = datetime.now(UTC)
        for name in names:
            await until(partial(has_heartbeat_after, env, name, began))
        lasted = datetime.now(UTC) - began
        assert lasted <= timedelta(seconds=1.05 * PERIOD_S + SLACK_S), lasted
        await asyncio.sleep(PERIODS * PERIOD_S)
        passed_s = (datetime.now(UTC) - restarted).total_seconds()
        heartbeats = 2 + int(passed_s / (0.95 * PERIOD_S))
        for name in names:
            assert conditions(await env.get(name)) == before[name]  # nothing was decided anew
            made = cluster.audit.requests(user=f"agent-of-{name}", since=mark)
            assert writes(made).total() <= heartbeats, writes(made)
            assert len(made) <= heartbeats + 20, kinds(made)
        account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{HUB_ACCOUNT}"
        made = cluster.audit.requests(user=account, since=mark)
        assert writes(made).total() <= heartbeats * len(names), writes(made)
        assert len(made) <= heartbeats * len(names) + 60, kinds(made)


async def test_a_member_returns_within_one_heartbeat_after_a_restart_of_its_server(
    env: FleetEnv,
) -> None:
    cluster = env.member_cluster
    async with fleet(env) as names:
        since = {name: conditions(await env.get(name))["Joined"] for name in names}
        await cluster.kill("kube-apiserver")
        for name in names:
            await env.wait_for(name, "Healthy", "False", "MemberClusterUnhealthy")
            agents = (await env.get(name)).status.agent_status
            healthy = find_condition(agents[0].conditions, "Healthy")
            assert healthy is not None
            assert healthy.reason == "InternalMemberClusterUnhealthy"
            assert conditions(await env.get(name))["Joined"] == since[name]
        mark = cluster.audit.mark()
        await cluster.restart("kube-apiserver")
        began = datetime.now(UTC)
        for name in names:
            await env.wait_for(name, "Healthy", "True", "MemberClusterHealthy")
        lasted = datetime.now(UTC) - began
        assert lasted <= timedelta(seconds=1.05 * PERIOD_S + SLACK_S), lasted
        for name in names:  # drift is corrected as before
            await env.member.delete(CONFIG_MAPS, name, "default", uid=None)
        for name in names:
            await until(partial(is_placed, env, name))
        # The server shows an object to readers before it records the request that created it.
        await until(lambda: writes_of_objects(cluster, mark).total() >= 2 * len(names))
        made = writes_of_objects(cluster, mark)
        assert made["create", "configmaps"] == len(names), made
        assert made.total() == 2 * len(names), made  # and the deletions of this test
