"""Credentials that a real hub refuses: conditions meanwhile, and recovery by itself."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from datetime import timedelta

from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace, member_role_binding
from kubeocean.fleet.agent.tokens import SecretTokenAccess
from kubeocean.fleet.membership.forge import ROLE_BINDINGS
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Key
from support.fleet_env import FleetEnv
from support.wait import until

THRESHOLD = timedelta(seconds=3)


async def bound_token(env: FleetEnv, account: str) -> tuple[Key, str]:
    """Create a token that is valid as long as a Secret of the hub exists; return both."""
    anchor = f"anchor-{env.new_name()}"
    secret = await env.hub.create(
        SECRETS, {"metadata": {"name": anchor, "namespace": SYSTEM_NAMESPACE}}
    )
    reference = {"apiVersion": "v1", "kind": "Secret", "name": anchor, "uid": secret.uid}
    body: Json = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600, "boundObjectRef": reference},
    }
    answer = await env.hub.post(SERVICE_ACCOUNTS, account, "token", body, SYSTEM_NAMESPACE)
    return Key(SYSTEM_NAMESPACE, anchor), str(answer["status"]["token"])


async def heartbeat(env: FleetEnv, name: str) -> str | None:
    return (await env.internal(name)).status.agent_status[0].last_received_heartbeat


async def test_a_revoked_token_is_shown_and_a_new_one_is_read_by_the_agent(env: FleetEnv) -> None:
    name = env.new_name()
    account = f"account-of-{name}"
    meta = {"name": account, "namespace": SYSTEM_NAMESPACE}
    await env.hub.create(SERVICE_ACCOUNTS, {"metadata": meta})
    anchor, first = await bound_token(env, account)
    stored = {
        "metadata": {"name": name, "namespace": "default"},
        "data": {"token": b64encode(first.encode()).decode()},
    }
    await env.member.create(SECRETS, stored)
    admin = load_kubeconfig(env.hub_cluster.kubeconfig)
    base = replace(admin, certificate=None, private_key=None, token=None)
    access = SecretTokenAccess(base, env.member, Key("default", name))
    identity = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}
    async with env.hub_running(threshold=THRESHOLD):
        await env.join(name, identity=identity)
        async with env.agent_running(name, access=access):
            await env.wait_for(name, "Healthy", "True")
            await env.hub.delete(SECRETS, anchor.name, anchor.namespace, uid=None)
            # The API server remembers for some seconds that it has accepted the token.
            lost = await env.wait_for(name, "Healthy", "Unknown", "HeartbeatLost")
            assert "heartbeat" in lost.message
            _, second = await bound_token(env, account)
            patch = MergePatch({"data": {"token": b64encode(second.encode()).decode()}})
            await env.member.patch(SECRETS, name, patch, "default")
            await env.wait_for(name, "Healthy", "True")
            joined = await env.condition(name, "Joined")
            assert joined is not None
            assert joined.status == "True"


async def test_a_member_whose_rights_were_removed_returns_with_them(env: FleetEnv) -> None:
    """The hub is down meanwhile, and grants the rights again when it is back."""
    async with env.hub_running(threshold=THRESHOLD):
        name = (await env.join()).name
        async with env.agent_running(name):
            await env.wait_for(name, "Healthy", "True")
        space, role = member_namespace(name), member_role_binding(name)
    audit, user = env.hub_cluster.audit, f"agent-of-{name}"
    granted = await env.hub.get(ROLE_BINDINGS, role, space)
    async with env.agent_running(name):
        await env.hub.delete(ROLE_BINDINGS, role, space, uid=granted.uid)
        since = audit.mark()
        await until(lambda: [r for r in audit.requests(user=user, since=since) if r.code == 403])
        last = await heartbeat(env, name)
        async with env.hub_running(threshold=THRESHOLD):

            async def is_back() -> bool:
                return await heartbeat(env, name) != last

            await until(is_back)
            await env.wait_for(name, "Healthy", "True")
            assert (await env.hub.get(ROLE_BINDINGS, role, space)).uid != granted.uid
