"""Members join, report and leave, on real API servers."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from kubeocean.api.fleet.clusters import INTERNAL_MEMBER_CLUSTERS, MEMBER_CLUSTERS
from kubeocean.api.fleet.names import (
    FINALIZER_MEMBER,
    FINALIZER_PROFILE,
    LABEL_FLEET_RESOURCE,
    member_namespace,
)
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import NotFound
from kubeocean.fleet.membership.forge import ROLE_BINDINGS, ROLES
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import RealClock, text_of
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Json
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.wait import until

PATIENT = timedelta(hours=1)


async def test_a_member_joins_reports_and_leaves(env: FleetEnv) -> None:
    hub = Faults()
    async with env.hub_running(hub):
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True", "MemberClusterReadyToJoin")
        await env.wait_for(name, "Joined", "Unknown", "MemberClusterJoinStateUnknown")
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True", "MemberClusterJoined")
            await env.wait_for(name, "Healthy", "True", "MemberClusterHealthy")
            await until(lambda: has_version(env, name))
            member = await env.get(name)
            assert member.labels["kubernetes-fleet.io/member-name"] == name
            assert set(member.metadata.finalizers or ()) == {FINALIZER_MEMBER, FINALIZER_PROFILE}
            # no controller writes the spec of a user's object
            assert member.metadata.generation == 1
            await env.leave(name)
            await until(lambda: env.is_gone(name))
        await quiet(hub)


async def has_version(env: FleetEnv, name: str) -> bool:
    try:
        return (await env.profile(name)).status.version.kubernetes.startswith("v1.")
    except NotFound:
        return False


async def test_events_tell_what_the_hub_did(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join()).name

        async def reported() -> bool:
            reasons = {each.reason for each in await env.events(name)}
            assert reasons >= {
                "NamespaceCreated",
                "RoleCreated",
                "RoleBindingCreated",
                "InternalMemberClusterCreated",
                "MemberClusterReadyToJoin",
                "MemberClusterJoinStateUnknown",
            }
            return True

        await until(reported)


async def test_a_restarted_hub_writes_nothing(env: FleetEnv) -> None:
    async with env.hub_running():
        names = [(await env.join()).name for _ in range(3)]
        async with env.agent_running(names[0]):
            await env.wait_for(names[0], "Joined", "True")
            await until(lambda: has_version(env, names[0]))
        for name in names[1:]:
            await env.wait_for(name, "Joined", "Unknown")
    restarted = Faults()
    async with env.hub_running(restarted, threshold=PATIENT) as hub:
        await until(lambda: hub.ready)
        await quiet(restarted)


# Leaving


@pytest.mark.parametrize("seen", [True, False], ids=["dead", "never seen"])
async def test_a_member_without_an_agent_is_removed_after_the_force_wait(
    env: FleetEnv, seen: bool
) -> None:
    async with env.hub_running(force_wait=timedelta(seconds=4)):
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True")
        if seen:
            async with env.agent_running(name):
                await env.wait_for(name, "Joined", "True")
        await put_work(env, name)
        await env.leave(name)

        async def requested() -> bool:
            return (await env.internal(name)).spec.state == "Leave"

        await until(requested)
        await until(lambda: env.is_gone(name))


async def put_work(env: FleetEnv, name: str) -> None:
    """Create a Work with a finalizer that no agent removes."""
    body: Json = {
        "apiVersion": WORKS.api_version,
        "kind": "Work",
        "metadata": {
            "name": "w",
            "namespace": member_namespace(name),
            "finalizers": ["kubernetes-fleet.io/work-cleanup", "example.com/other"],
        },
        "spec": {"workload": {"manifests": []}},
    }
    await env.hub.create(WORKS, body)


async def test_a_member_deleted_at_once_blocks_nothing(env: FleetEnv) -> None:
    name = (await env.join()).name
    patch = MergePatch({"metadata": {"finalizers": ["example.com/foreign"]}})
    await env.hub.patch(MEMBER_CLUSTERS, name, patch)
    await env.leave(name)
    hub = Faults()
    async with env.hub_running(hub):
        other = (await env.join()).name
        await env.wait_for(other, "ReadyToJoin", "True")
        member = await env.get(name)
        assert member.metadata.finalizers == ("example.com/foreign",)
        assert member.status.conditions == ()
        with pytest.raises(NotFound):
            await env.hub.get(NAMESPACES, member_namespace(name))


async def test_a_member_whose_finalizers_were_removed_is_cleared(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
            await until(lambda: has_version(env, name))
        await env.leave(name)
        patch = MergePatch({"metadata": {"finalizers": None}})

        async def gone() -> bool:
            with suppress(NotFound):
                await env.hub.patch(MEMBER_CLUSTERS, name, patch)
            return await env.is_gone(name)

        await until(gone)


@pytest.mark.sweep(sampled=False)
async def test_a_name_joins_and_leaves_in_quick_succession(env: FleetEnv) -> None:
    name, hub = env.new_name(), Faults()
    async with env.hub_running(hub), env.agent_running(name):
        for round_ in range(20):
            created = await env.join(name)
            if round_ % 3 == 2:  # others leave before they have joined
                await env.wait_for(name, "Joined", "True")
            await env.leave(name)

            async def replaced(uid: str = created.uid) -> bool:
                try:
                    return (await env.get(name)).uid != uid
                except NotFound:
                    return True

            await until(replaced)
        await env.join(name)
        await env.wait_for(name, "Joined", "True", "MemberClusterJoined")
    internal = await env.internal(name)
    assert internal.spec.state == "Join"


async def test_two_hubs_end_in_the_same_state(env: FleetEnv) -> None:
    """A hub with stale caches writes nothing that the other hub has to undo."""
    slow, quick = Faults(), Faults()
    async with env.hub_running(slow, force_wait=PATIENT), env.hub_running(quick):
        name = (await env.join()).name
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
            slow.freeze()
            await env.leave(name)
            await until(lambda: env.is_gone(name))
            again = await env.join(name)
            await env.wait_for(name, "Joined", "True")
            slow.thaw()
            await until(lambda: slow.requests)
            await env.wait_for(name, "Joined", "True")
            assert (await env.get(name)).uid == again.uid
            assert (await env.internal(name)).spec.state == "Join"


# Reports


async def test_periods_and_identities_take_effect(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join(heartbeat_s=60)).name
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
            patch = MergePatch({"spec": {"heartbeatPeriodSeconds": 1}})
            changed = await env.hub.patch(MEMBER_CLUSTERS, name, patch)

            async def beats() -> bool:
                stored = await env.internal(name)
                assert stored.spec.heartbeat_period_seconds == 1
                agents = (await env.get(name)).status.agent_status
                generations = {each.observed_generation for each in agents[0].conditions}
                assert generations == {changed.metadata.generation}
                return True

            await until(beats)
            first = (await env.get(name)).status.agent_status[0].last_received_heartbeat

            async def another() -> bool:
                now = (await env.get(name)).status.agent_status[0].last_received_heartbeat
                return now != first

            await until(another)


async def test_a_status_written_by_others_stays_until_the_next_report(env: FleetEnv) -> None:
    hub = Faults()
    async with env.hub_running(hub, threshold=PATIENT):
        name = (await env.join(heartbeat_s=600)).name
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
        old = text_of(RealClock().now() - timedelta(minutes=10))

        async def heartbeat() -> str | None:
            return (await env.get(name)).status.agent_status[0].last_received_heartbeat

        stored = await env.get(name)
        agents: list[Json] = [
            {
                "type": "MemberAgent",
                "lastReceivedHeartbeat": old,
                "conditions": [
                    {
                        "type": each.type,
                        "status": each.status,
                        "reason": each.reason,
                        "message": "",
                        "lastTransitionTime": each.last_transition_time,
                    }
                    for each in stored.status.agent_status[0].conditions
                ],
            }
        ]
        patch = MergePatch({"status": {"agentStatus": agents}})
        await env.hub.patch(MEMBER_CLUSTERS, name, patch, subresource="status")
        labels = MergePatch({"metadata": {"labels": {"example.com/x": "y"}}})
        await env.hub.patch(MEMBER_CLUSTERS, name, labels)
        await quiet(hub)
        assert await heartbeat() == old
        # An outside party may also report for a member without an agent.
        now = text_of(RealClock().now())
        agents[0]["lastReceivedHeartbeat"] = now
        patch = MergePatch({"status": {"agentStatus": agents}})
        await env.hub.patch(
            INTERNAL_MEMBER_CLUSTERS, name, patch, member_namespace(name), subresource="status"
        )

        async def followed() -> bool:
            return await heartbeat() == now

        await until(followed)


async def test_tampered_objects_are_restored(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True")
        space = member_namespace(name)
        role = await env.hub.get(ROLES, f"fleet-role-{name}", space)
        await env.hub.patch(ROLES, role.name, MergePatch({"rules": []}), space)
        await env.hub.delete(ROLE_BINDINGS, f"fleet-rolebinding-{name}", space, uid=None)
        await env.hub.patch(
            NAMESPACES, space, MergePatch({"metadata": {"labels": {LABEL_FLEET_RESOURCE: None}}})
        )

        async def restored() -> bool:
            stored = await env.hub.get(ROLES, role.name, space)
            assert stored.rules == role.rules
            await env.hub.get(ROLE_BINDINGS, f"fleet-rolebinding-{name}", space)
            return (await env.hub.get(NAMESPACES, space)).labels.get(LABEL_FLEET_RESOURCE) == "true"

        async def eventually() -> bool:
            try:
                return await restored()
            except NotFound:
                return False

        await until(eventually)
