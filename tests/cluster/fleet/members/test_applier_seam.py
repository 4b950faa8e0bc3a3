"""The applier of a member: runs while the member has joined, and releases its Works on leave."""

from __future__ import annotations

import asyncio

from kubeocean.api.fleet.names import ANNOTATION_WORK_FINALIZER, FINALIZER_WORK, member_namespace
from kubeocean.api.fleet.works import WORKS
from kubeocean.fleet.agent.protocols import NewApplier
from kubeocean.fleet.health import member_agent
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.objects import find_condition
from support.fleet_env import FleetEnv
from support.wait import until


class Applier:
    """Applies nothing, and removes the finalizers of Works as an applier does on leave."""

    def __init__(self, hub: Client, namespace: str) -> None:
        self._hub = hub
        self._namespace = namespace
        self.is_running = False
        self.fails = False
        self.runs = 0
        self.released_while_running: bool | None = None

    async def run(self) -> None:
        self.runs += 1
        if self.fails:
            raise RuntimeError("no such cluster")
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False

    async def release_works(self) -> None:
        self.released_while_running = self.is_running
        for work in (await self._hub.list(WORKS, self._namespace)).items:
            patch = MergePatch({"metadata": {"finalizers": None}})
            await self._hub.patch(WORKS, work.name, patch, self._namespace)


async def joined(env: FleetEnv, name: str) -> tuple[str, str]:
    agent = member_agent((await env.get(name)).status.agent_status)
    condition = find_condition(agent.conditions, "Joined") if agent is not None else None
    return (condition.status, condition.reason) if condition is not None else ("", "")


async def test_an_applier_runs_from_join_to_leave(env: FleetEnv) -> None:
    name = env.new_name()
    space = member_namespace(name)
    appliers: list[Applier] = []

    def new_applier(hub: Client, _: Client) -> NewApplier:
        def make() -> Applier:
            appliers.append(Applier(hub, space))
            return appliers[-1]

        return make

    async with (
        env.hub_running(),
        env.agent_running(name, new_applier=new_applier),
    ):
        await env.join(name)
        await env.wait_for(name, "Joined", "True")
        (applier,) = appliers
        assert applier.is_running
        assert (await env.internal(name)).annotations[ANNOTATION_WORK_FINALIZER] == "preset"
        work = {
            "apiVersion": WORKS.api_version,
            "kind": "Work",
            "metadata": {"name": "w", "namespace": space, "finalizers": [FINALIZER_WORK]},
            "spec": {"workload": {"manifests": []}},
        }
        await env.hub.create(WORKS, work)
        await env.leave(name)
        await until(lambda: env.is_gone(name))
        assert applier.released_while_running is False
        assert not applier.is_running
        await env.join(name)  # the same agent joins again, with a new applier
        await env.wait_for(name, "Joined", "True")
        assert len(appliers) == 2
        assert appliers[1].is_running


async def test_an_applier_that_fails_is_reported_and_restarted(env: FleetEnv) -> None:
    name = env.new_name()
    appliers: list[Applier] = []
    fails = True

    def new_applier(hub: Client, _: Client) -> NewApplier:
        def make() -> Applier:
            applier = Applier(hub, member_namespace(name))
            applier.fails = fails
            appliers.append(applier)
            return applier

        return make

    async with (
        env.hub_running(),
        env.agent_running(name, new_applier=new_applier),
    ):
        await env.join(name)

        async def shows(*expected: str) -> bool:
            return await joined(env, name) == expected

        await until(lambda: shows("Unknown", "InternalMemberClusterFailedToJoin"))
        fails = False
        await until(lambda: shows("True", "InternalMemberClusterJoined"))
        await env.wait_for(name, "Joined", "True")
        assert appliers[-1].is_running
