"""Members join, report and leave, on real API servers."""

from __future__ import annotations

from kubeocean.api.fleet.names import FINALIZER_MEMBER, FINALIZER_PROFILE
from support.faults import Faults
from support.fleet_env import FleetEnv, quiet_writes
from support.wait import until


async def test_a_member_joins_reports_and_leaves(env: FleetEnv) -> None:
    hub = Faults()
    async with env.hub_running(hub):
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True", "MemberClusterReadyToJoin")
        await env.wait_for(name, "Joined", "Unknown", "MemberClusterJoinStateUnknown")
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True", "MemberClusterJoined")
            await env.wait_for(name, "Healthy", "True", "MemberClusterHealthy")
            member = await env.get(name)
            assert member.labels["kubernetes-fleet.io/member-name"] == name
            await until(lambda: has_profile(env, name))
            assert set((await env.get(name)).metadata.finalizers or ()) == {
                FINALIZER_MEMBER,
                FINALIZER_PROFILE,
            }
            await env.leave(name)
            await until(lambda: env.is_gone(name))
        assert await quiet_writes(hub) == 0


async def has_profile(env: FleetEnv, name: str) -> bool:
    profile = await env.profile(name)
    return profile.status.version.kubernetes.startswith("v1.")
