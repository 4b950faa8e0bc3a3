"""A hub or an agent that crashes after any of its writes: the next one ends in the same state."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.fleet.extensions import OURS, UPSTREAM, Extensions
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.wait import until

PATIENT = timedelta(hours=1)
BOTH = pytest.mark.parametrize("extensions", [OURS, UPSTREAM], ids=["ours", "upstream"])


def conditions(member: MemberCluster) -> dict[str, tuple[str, str, int]]:
    return {
        each.type: (each.status, each.reason, each.observed_generation)
        for each in member.status.conditions
    }


READY = {
    "ReadyToJoin": ("True", "MemberClusterReadyToJoin", 1),
    "Joined": ("Unknown", "MemberClusterJoinStateUnknown", 1),
}


@pytest.mark.sweep
@BOTH
@pytest.mark.parametrize("n", range(1, 9))
async def test_join_after_a_crash_of_the_hub(env: FleetEnv, n: int, extensions: Extensions) -> None:
    """The writes: finalizer, Namespace, Role, RoleBinding, IMC, status, and events."""
    name = (await env.join()).name

    async def is_ready() -> bool:
        return conditions(await env.get(name)) == READY

    async with env.hub_crashing(n, extensions=extensions) as crash:
        await crash.or_until(is_ready)
    again = Faults()
    async with env.hub_running(again, extensions=extensions):
        await until(is_ready)
        await quiet(again)
    internal = await env.internal(name)
    assert (internal.spec.state, internal.metadata.generation) == ("Join", 1)


@pytest.mark.sweep
@BOTH
@pytest.mark.parametrize("n", range(1, 11))
async def test_leave_after_a_crash_of_the_hub(
    env: FleetEnv, n: int, extensions: Extensions
) -> None:
    """The writes: Leave, status, Work finalizers, namespace, profile, both finalizers."""
    async with env.hub_running(extensions=extensions, threshold=PATIENT):
        name = (await env.join()).name
        async with env.agent_running(name, extensions=extensions):
            await env.wait_for(name, "Joined", "True")
    async with env.agent_running(name, extensions=extensions):
        await env.leave(name)
        async with env.hub_crashing(n, extensions=extensions, threshold=PATIENT) as crash:
            await crash.or_until(lambda: env.is_gone(name))
        again = Faults()
        async with env.hub_running(again, extensions=extensions, threshold=PATIENT):
            await until(lambda: env.is_gone(name))
            await quiet(again)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 5))
async def test_join_and_leave_after_a_crash_of_the_agent(env: FleetEnv, n: int) -> None:
    async with env.hub_running(threshold=PATIENT):
        name = (await env.join()).name
        async with env.agent_crashing(name, n) as crash:
            await until(crash.is_set)
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
        await env.leave(name)
        async with env.agent_crashing(name, 1) as crash:
            await crash.or_until(lambda: env.is_gone(name))
        async with env.agent_running(name):
            await until(lambda: env.is_gone(name))


@pytest.mark.parametrize("fault", ["lagging", "repeating", "rewinding", "cut", "restarted server"])
async def test_bad_watches_change_nothing(env: FleetEnv, fault: str) -> None:
    hub = Faults(seed=1)
    async with env.hub_running(hub, threshold=PATIENT):
        match fault:
            case "lagging":
                hub.watch_delay_s = 1.0
            case "repeating":
                hub.watch_repeats = 2
        name = (await env.join()).name
        async with env.agent_running(name):
            if fault == "rewinding":
                await env.wait_for(name, "Joined", "True")
                hub.rewind(20)
            if fault == "restarted server":
                await env.wait_for(name, "ReadyToJoin", "True")
                await env.hub_cluster.restart("kube-apiserver")
            if fault == "cut":
                await until(lambda: hub.writes > 5)
                hub.cut()
            await env.wait_for(name, "Joined", "True")
            await env.leave(name)
            await until(lambda: env.is_gone(name))
        hub.heal()
        await quiet(hub)
