"""Health of members: heartbeats that stop, API servers that do not answer, hubs that refuse."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from kubeocean.api.fleet.inventory import ClusterProfile
from kubeocean.api.fleet.names import member_namespace
from kubeocean.errors import NotFound
from kubeocean.fleet.extensions import UPSTREAM
from kubeocean.runtime.controller import After
from kubeocean.runtime.objects import Key, find_condition
from support.controller_env import quiet
from support.faults import Faults, SkewedClock, reads, writes
from support.fleet_env import FleetEnv
from support.wait import until

THRESHOLD = timedelta(seconds=3)
FACTOR = 60.0
REFUSED_S = 600.0
MOST_PER_MINUTE = 20  # requests to one path


async def control_plane(env: FleetEnv, name: str) -> tuple[str, str]:
    try:
        profile: ClusterProfile = await env.profile(name)
    except NotFound:
        return "", ""
    condition = find_condition(profile.status.conditions, "ControlPlaneHealthy")
    return (condition.status, condition.reason) if condition else ("", "")


async def wait_for_profile(env: FleetEnv, name: str, *expected: str) -> None:
    async def reached() -> bool:
        assert await control_plane(env, name) == expected
        return True

    await until(reached)


async def test_a_dead_agent_is_noticed_without_any_event(env: FleetEnv) -> None:
    hub = Faults()
    async with env.hub_running(hub, threshold=THRESHOLD):
        name = (await env.join()).name
        async with env.agent_running(name):
            await env.wait_for(name, "Healthy", "True")
            await wait_for_profile(env, name, "True", "MemberClusterAPIServerHealthy")
        before = find_condition((await env.get(name)).status.conditions, "Healthy")
        assert before is not None
        lost = await env.wait_for(name, "Healthy", "Unknown", "HeartbeatLost")
        await wait_for_profile(env, name, "False", "MemberAgentHeartbeatLost")
        assert lost.last_transition_time != before.last_transition_time
        await quiet(hub)
        async with env.agent_running(name):
            await env.wait_for(name, "Healthy", "True", "MemberClusterHealthy")
            await wait_for_profile(env, name, "True", "MemberClusterAPIServerHealthy")
        joined = await env.condition(name, "Joined")
        assert joined is not None
        assert joined.status == "True"  # a missed heartbeat is no leave


async def test_without_extensions_only_the_profile_shows_a_dead_agent(env: FleetEnv) -> None:
    async with env.hub_running(threshold=THRESHOLD, extensions=UPSTREAM):
        name = (await env.join()).name
        async with env.agent_running(name, extensions=UPSTREAM):
            await env.wait_for(name, "Joined", "True")
            await wait_for_profile(env, name, "True", "MemberClusterAPIServerHealthy")
        await wait_for_profile(env, name, "False", "MemberAgentHeartbeatLost")
        types = {each.type for each in (await env.get(name)).status.conditions}
        assert types == {"ReadyToJoin", "Joined"}


async def test_heartbeats_go_on_while_the_member_does_not_answer(env: FleetEnv) -> None:
    member = Faults()
    async with env.hub_running(threshold=timedelta(hours=1)):
        name = (await env.join()).name
        async with env.agent_running(name, member_faults=member):
            await env.wait_for(name, "Healthy", "True")
            properties = (await env.get(name)).status.properties
            member.partition()
            bad = await env.wait_for(name, "Healthy", "False", "MemberClusterUnhealthy")
            await wait_for_profile(env, name, "False", "MemberClusterAPIServerUnhealthy")
            first = (await env.get(name)).status.agent_status[0].last_received_heartbeat

            async def another() -> bool:
                agents = (await env.get(name)).status.agent_status
                return agents[0].last_received_heartbeat != first

            await until(another)
            assert bad.observed_generation == 1
            assert set((await env.get(name)).status.properties) == set(properties)
            member.rejoin()
            await env.wait_for(name, "Healthy", "True")


async def test_a_member_that_never_answered_joins_and_recovers(env: FleetEnv) -> None:
    member = Faults()
    member.partition()
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name, member_faults=member):
            await env.wait_for(name, "Joined", "True")
            await env.wait_for(name, "Healthy", "False")
            member.rejoin()
            await env.wait_for(name, "Healthy", "True")

            async def reported() -> bool:
                return "kubernetes-fleet.io/node-count" in (await env.get(name)).status.properties

            await until(reported)


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_a_fleet_recovers_from_a_hub_that_refuses_for_minutes(
    env: FleetEnv, status: int
) -> None:
    """The hub's API server refuses the agent, and then the controllers of the hub as well."""
    clock, agent, hub = SkewedClock(rate=FACTOR), Faults(), Faults()
    async with env.hub_running(hub, clock=clock):
        name = (await env.join(heartbeat_s=60)).name
        async with env.agent_running(name, agent, clock=clock):
            await env.wait_for(name, "Healthy", "True")
            refuse(agent, status)
            began = clock.monotonic()
            await env.wait_for(name, "Healthy", "Unknown", "HeartbeatLost")
            refuse(hub, status)
            other = (await env.join(heartbeat_s=60)).name
            await until(lambda: clock.monotonic() > began + REFUSED_S)
            minutes = (clock.monotonic() - began) / 60
            for faults in (agent, hub):
                most = Counter((each.method, each.path) for each in faults.requests).most_common(1)
                assert most[0][1] < MOST_PER_MINUTE * minutes, most
                faults.heal()
            await env.wait_for(other, "ReadyToJoin", "True")
            await env.wait_for(name, "Healthy", "True")
            joined = await env.condition(name, "Joined")
            assert joined is not None
            assert joined.status == "True"


def refuse(faults: Faults, status: int) -> None:
    """Answer all requests with a status, until healed; end the open watches."""
    faults.answer(status, times=1_000_000)
    faults.cut()
    faults.requests.clear()


async def test_a_failed_heartbeat_is_repeated_after_one_period(env: FleetEnv) -> None:
    """A delay that grows with each failure would hide the member after the hub has recovered."""
    hub = Faults()
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name, hub) as agent:
            await env.wait_for(name, "Joined", "True")
            hub.answer(503, times=1_000, when=writes)
            outcome = await agent.reconcile(Key(member_namespace(name), name))
            assert outcome == After(1.0)


async def test_a_heartbeat_costs_the_hub_one_write(env: FleetEnv) -> None:
    hub, agent = Faults(), Faults()
    async with env.hub_running(hub):
        name = (await env.join()).name
        async with env.agent_running(name, agent):
            await env.wait_for(name, "Healthy", "True")
            await wait_for_profile(env, name, "True", "MemberClusterAPIServerHealthy")
            beats = agent.writes
            await until(lambda: agent.writes >= beats + 3)  # writes of the join are done
            ours, theirs = hub.writes, agent.writes
            await until(lambda: agent.writes >= theirs + 5)
            assert hub.writes - ours <= agent.writes - theirs + 1


async def test_an_agent_waits_for_its_member_cluster(env: FleetEnv) -> None:
    name, hub = env.new_name(), Faults()
    async with env.hub_running(), env.agent_running(name, hub) as agent:
        await until(lambda: [request for request in hub.requests if reads(request)])
        assert not agent.ready
        await env.join(name)
        await env.wait_for(name, "Joined", "True")
        assert agent.ready
