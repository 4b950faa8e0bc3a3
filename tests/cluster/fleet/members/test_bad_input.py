"""Bad input by users and strangers: shown on the MemberCluster, harmless, and repaired."""

from __future__ import annotations

import pytest

from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.names import member_namespace, member_role
from kubeocean.api.fleet.works import WORKS
from kubeocean.fleet.extensions import OURS, UPSTREAM, Extensions
from kubeocean.fleet.membership.forge import ROLES
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request
from support.background import running
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.wait import until

REFUSED = "MemberClusterNotReadyToJoin"
LEVELS = 5_000  # of nesting; API servers accept 10,000


async def test_a_foreign_namespace_is_reported_and_left_alone(env: FleetEnv) -> None:
    name, hub = env.new_name(), Faults()
    space = member_namespace(name)
    foreign = await env.hub.create(NAMESPACES, {"metadata": {"name": space}})
    async with env.hub_running(hub):
        await env.join(name)
        condition = await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        assert f"the namespace {space} exists" in condition.message
        await quiet(hub)
        stored = await env.hub.get(NAMESPACES, space)
        assert (stored.uid, stored.resource_version) == (foreign.uid, foreign.resource_version)
        await env.hub.delete(NAMESPACES, space, uid=foreign.uid)
        await env.wait_for(name, "ReadyToJoin", "True")


async def test_a_foreign_namespace_outlives_its_member(env: FleetEnv) -> None:
    name = env.new_name()
    foreign = await env.hub.create(NAMESPACES, {"metadata": {"name": member_namespace(name)}})
    async with env.hub_running():
        await env.join(name)
        await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        await env.leave(name)

        async def is_deleted() -> bool:
            members = (await env.hub.list(MEMBER_CLUSTERS)).items
            return name not in {each.name for each in members}

        await until(is_deleted)
    stored = await env.hub.get(NAMESPACES, member_namespace(name))
    assert stored.uid == foreign.uid
    assert not stored.deleting


async def test_a_foreign_role_in_the_namespace_is_reported_and_left_alone(env: FleetEnv) -> None:
    """Another controller owns an object with the name of the member's Role."""
    async with env.hub_running():
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True")
    space, role = member_namespace(name), member_role(name)
    await env.hub.delete(ROLES, role, space, uid=None)
    namespace = await env.hub.get(NAMESPACES, space)
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": space, "uid": namespace.uid}
    meta = {"name": role, "namespace": space, "ownerReferences": [owner | {"controller": True}]}
    foreign = await env.hub.create(ROLES, {"metadata": meta, "rules": []})
    hub = Faults()
    async with env.hub_running(hub):
        condition = await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        assert role in condition.message
        await quiet(hub)
        assert (await env.hub.get(ROLES, role, space)).resource_version == foreign.resource_version
        await env.hub.delete(ROLES, role, space, uid=foreign.uid)
        await env.wait_for(name, "ReadyToJoin", "True")


@pytest.mark.parametrize("extensions", [OURS, UPSTREAM], ids=["ours", "upstream"])
@pytest.mark.parametrize("name", ["a" * 51, "dotted.name"])
async def test_a_name_without_a_namespace_is_reported(
    env: FleetEnv, name: str, extensions: Extensions
) -> None:
    hub = Faults()
    async with env.hub_running(hub, extensions=extensions):
        await env.join(name)

        async def reported() -> bool:
            return REFUSED in {each.reason for each in await env.events(name)}

        await until(reported)
        if extensions is OURS:
            await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        else:
            assert (await env.get(name)).status.conditions == ()
        await quiet(hub)
        await env.leave(name)

        async def is_deleted() -> bool:
            members = (await env.hub.list(MEMBER_CLUSTERS)).items
            return name not in {each.name for each in members}

        await until(is_deleted)


async def test_an_unknown_kind_of_identity_is_reported_and_can_be_corrected(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join(identity={"kind": "Robot", "name": "r2"})).name
        condition = await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        assert "Robot" in condition.message
        identity = {"kind": "User", "name": f"agent-of-{name}"}
        patch = MergePatch({"spec": {"identity": identity}})
        await env.hub.patch(MEMBER_CLUSTERS, name, patch)
        await env.wait_for(name, "ReadyToJoin", "True")
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")


async def test_a_hub_without_rights_shows_it(env: FleetEnv) -> None:
    account = env.hub_cluster.user("hub-that-reads", ["hub-that-reads"])
    # Reads everything and writes members, but neither namespaces nor roles.
    await env.grant_partial_hub("hub-that-reads")
    async with env.hub_running(kubeconfig=account):
        name = (await env.join()).name
        condition = await env.wait_for(name, "ReadyToJoin", "False", REFUSED)
        assert "namespaces" in condition.message
        assert "forbidden" in condition.message
    async with env.hub_running():
        await env.wait_for(name, "ReadyToJoin", "True")


@pytest.mark.parametrize("status", [409, 429, 503])
async def test_a_failure_that_passes_is_not_shown(env: FleetEnv, status: int) -> None:
    hub = Faults()
    reason = "AlreadyExists" if status == 409 else ""
    hub.answer(status, times=12, when=_writes_roles, reason=reason)
    async with env.hub_running(hub):
        name = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True")

        async def reported() -> bool:
            return "MemberClusterReadyToJoin" in {each.reason for each in await env.events(name)}

        await until(reported)
    assert REFUSED not in {each.reason for each in await env.events(name)}


def _writes_roles(request: Request) -> bool:
    return request.writes and request.path.endswith("/roles")


async def test_a_namespace_deleted_by_hand_is_created_anew(env: FleetEnv) -> None:
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name):
            await env.wait_for(name, "Joined", "True")
            space = await env.hub.get(NAMESPACES, member_namespace(name))
            await env.hub.delete(NAMESPACES, space.name, uid=space.uid)

            async def anew() -> bool:
                internal = await env.internal_or_none(name)
                return internal is not None and bool(internal.status.agent_status)

            async def replaced() -> bool:
                if not await anew():
                    return False
                return (await env.hub.get(NAMESPACES, space.name)).uid != space.uid

            await until(replaced)
            await env.wait_for(name, "ReadyToJoin", "True")
            await env.wait_for(name, "Joined", "True")


@pytest.mark.parametrize("when", ["listed", "watched"])
async def test_a_work_that_a_member_nests_deeply_stops_no_other(env: FleetEnv, when: str) -> None:
    """A member may write any Work in its own namespace, and the hub reads all Works at once."""
    deep = Faults()
    async with env.hub_running():
        name = (await env.join()).name
        other = (await env.join()).name
        await env.wait_for(name, "ReadyToJoin", "True")
        await env.wait_for(other, "ReadyToJoin", "True")
    if when == "listed":
        await create_deep_work(env, name)
    client = env.hub_cluster.client(kubeconfig=env.hub_account, wrap=deep.wrap)
    works = Informer(client, WORKS)
    try:
        async with running(works):
            await until(lambda: works.has_synced)
            if when == "watched":
                await create_deep_work(env, name)
            body = {
                "apiVersion": WORKS.api_version,
                "kind": WORKS.kind,
                "metadata": {"name": "good"},
                "spec": {"workload": {"manifests": []}},
            }
            await env.hub.create(WORKS, body, namespace=member_namespace(other))
            await until(lambda: works.get(Key(member_namespace(name), "deep")) is not None)
            await until(lambda: works.get(Key(member_namespace(other), "good")) is not None)
            lists = [each for each in deep.requests if each.path.endswith("/works")]
            assert len(lists) == 1, lists  # no list or watch was broken off
    finally:
        await client.close()


async def create_deep_work(env: FleetEnv, member: str) -> None:
    """Create a Work in the namespace of a member, with the member's identity."""
    value = b'{"a":' * LEVELS + b"1" + b"}" * LEVELS
    body = (
        b'{"apiVersion":"placement.kubernetes-fleet.io/v1beta1","kind":"Work",'
        b'"metadata":{"name":"deep"},"spec":{"workload":{"manifests":['
        b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"x":' + value + b"}]}}}"
    )
    client = env.hub_cluster.client(kubeconfig=env.identity(member))
    try:
        headers = {"Content-Type": "application/json"}
        path = WORKS.path(member_namespace(member))
        answer = await client.transport.send(Request("POST", path, body=body, headers=headers))
        assert answer.status == 201, answer.body[:500]
    finally:
        await client.close()
