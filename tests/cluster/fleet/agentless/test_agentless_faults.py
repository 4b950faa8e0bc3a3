"""Failures on both sides of a member without an agent: crashes of the hub, errors of the syncer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.errors import NotFound
from kubeocean.fleet.agentless.member import AgentlessMember, MemberParts
from kubeocean.fleet.extensions import OURS
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.transport import Request
from support.agentless_env import AgentlessEnv
from support.background import running
from support.controller_env import quiet
from support.faults import Faults
from support.wait import until

PATIENT = timedelta(hours=1)
USER = "nobody"  # no syncer runs: the member never joins


@asynccontextmanager
async def playing(
    env: AgentlessEnv, name: str, hub_faults: Faults, member_faults: Faults
) -> AsyncIterator[AgentlessMember]:
    """Play a member as a syncer does, in this process."""
    hub = env.fleet.hub_cluster.client(kubeconfig=env.syncer_account, wrap=hub_faults.wrap)
    member = env.fleet.member_cluster.client(wrap=member_faults.wrap)
    bindings = Informer(hub, CLUSTER_BINDINGS, fields=f"metadata.name={name}")
    parts = MemberParts(name=name, hub=hub, member=member, extensions=OURS, metrics=Metrics())
    playing = AgentlessMember(parts, bindings)
    try:
        async with running(bindings), running(playing):
            yield playing
    finally:
        await hub.close()
        await member.close()


async def reason(env: AgentlessEnv, name: str) -> str:
    condition = find_condition((await env.binding(name)).status.conditions, "FleetMember")
    return condition.reason if condition is not None else ""


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 5))
async def test_join_and_leave_of_a_binding_after_a_crash_of_the_hub(
    env: AgentlessEnv, n: int
) -> None:
    """The first writes: condition, MemberCluster, its finalizer, namespace; condition, deletion."""
    name = await env.bind(fleet_rights=False)
    await env.annotate(name, **{"fleet-identity": USER})

    async def is_ready() -> bool:
        try:
            condition = await env.fleet.condition(name, "ReadyToJoin")
        except NotFound:  # the crash was before the MemberCluster
            return False
        return condition is not None and condition.status == "True"

    async with env.fleet.hub_crashing(n, threshold=PATIENT) as crash:
        await until(crash.is_set)
    again = Faults()
    async with env.fleet.hub_running(again, threshold=PATIENT):
        await env.wait_for_binding(name, "Unknown", "Joining")
        await until(is_ready)
        await quiet(again)
        member = await env.fleet.get(name)
        assert member.spec.identity.name == USER
        assert member.metadata.generation == 1
    await env.annotate(name, None)
    async with env.fleet.hub_crashing(min(n, 2), threshold=PATIENT) as crash:
        await until(crash.is_set)
    last = Faults()
    soon = timedelta(seconds=2)  # no agent reports that it has left
    async with env.fleet.hub_running(last, threshold=PATIENT, force_wait=soon):
        await env.wait_for_binding(name, "False", "Left")
        await until(lambda: env.fleet.is_gone(name))
        await quiet(last)


async def test_what_fails_in_the_member_s_part_is_repeated(env: AgentlessEnv) -> None:
    """Neither an error of the hub nor a page that is no review ends the process of the syncer."""
    name, hub, member = await env.bind(), Faults(), Faults()
    hub.answer(500, times=8, when=_reviews)
    hub.answer(200, times=1, when=_reviews, page=b'{"kind": "Status"}')
    member.answer(503, times=8)
    async with env.fleet.hub_running(threshold=PATIENT):
        await env.annotate(name)
        async with playing(env, name, hub, member):
            await env.wait_for_binding(name, "Unknown", "AwaitingSyncer")
            await env.wait_for_binding(name, "True", "Joined")
            await env.fleet.wait_for(name, "Healthy", "True")


def _reviews(request: Request) -> bool:
    return request.path.endswith("/selfsubjectreviews")


async def test_an_identity_that_another_client_wrote_is_corrected(env: AgentlessEnv) -> None:
    name = await env.bind()
    async with env.fleet.hub_running(threshold=PATIENT):
        await env.annotate(name)
        async with playing(env, name, Faults(), Faults()):
            await env.wait_for_binding(name, "True", "Joined")
            await env.annotate(name, **{"fleet-identity": USER})

            async def is_corrected() -> bool:
                bound, member = await env.binding(name), await env.fleet.get(name)
                assert bound.annotations[DEFAULT.fleet_identity].endswith(":kubeocean-syncer")
                return member.spec.identity.name == "kubeocean-syncer"

            await until(is_corrected)


async def test_a_hub_that_is_no_computing_cluster_waits_for_the_kind(env: AgentlessEnv) -> None:
    """The hub of the other tests has the kind; here its definition is hidden and appears later."""
    name, hub = await env.bind(fleet_rights=False), Faults()
    hub.answer(404, times=10_000, when=_definitions)
    await env.annotate(name, **{"fleet-identity": USER})
    async with env.fleet.hub_running(hub, threshold=PATIENT) as running_hub:
        await running_hub.synced()
        await until(lambda: [request for request in hub.requests if _definitions(request)])
        assert not [each for each in hub.requests if each.path.endswith("/clusterbindings")]
        assert await reason(env, name) == ""
        hub.heal()
        await env.wait_for_binding(name, "Unknown", "Joining")


def _definitions(request: Request) -> bool:
    return request.path.endswith(f"/{CUSTOM_RESOURCE_DEFINITIONS.plural}") and any(
        "clusterbindings" in value for _, value in request.query
    )
