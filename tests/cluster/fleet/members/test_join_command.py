"""`kubeocean fleet join` and `leave`, repeated and killed in the middle, on real control planes."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.errors import NotFound
from kubeocean.install.fleet import DEPLOYMENTS, MEMBER_ACCOUNT, TOKEN_SECRET, identity_name
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.commands import Home, Result
from support.fleet_env import FleetEnv
from support.fleet_process import fleet_process
from support.wait import until

KILLED = Path(__file__).parents[3] / "support" / "killed_command.py"
WRITES = 12  # of a join: two objects on the hub, seven in the member, token, Secret, Deployment
SECRETS = Resource("", "v1", "secrets", "Secret", True, Untyped)
MEMBERS = Resource(
    MEMBER_CLUSTERS.group,
    MEMBER_CLUSTERS.version,
    "memberclusters",
    "MemberCluster",
    False,
    Untyped,
)

SET_BY_SERVERS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


class Owner:
    """An administrator of hub and member who runs `kubeocean fleet` for the member `name`."""

    def __init__(self, env: FleetEnv, home: Home) -> None:
        self.env, self.home, self.name = env, home, env.new_name()
        env.joined.append(self.name)

    async def join(self, *words: str, kill_after: int = 0) -> Result:
        member = str(self.env.member_cluster.kubeconfig)
        return await self._run("join", "--kubeconfig", member, *words, kill_after=kill_after)

    async def leave(self, *words: str, kill_after: int = 0) -> Result:
        return await self._run("leave", *words, kill_after=kill_after)

    async def _run(self, command: str, *words: str, kill_after: int) -> Result:
        hub = ("--hub-kubeconfig", str(self.env.hub_cluster.kubeconfig))
        line = ("fleet", command, self.name, *words, *hub)
        if not kill_after:
            return await self.home.run(*line)
        wrapper = (sys.executable, str(KILLED), str(kill_after))
        return await self.home.run_as(*wrapper, *line)

    async def forget_agent(self) -> None:
        """Remove the agent that a test before this one has installed."""
        for resource, name in ((DEPLOYMENTS, MEMBER_ACCOUNT), (SECRETS, TOKEN_SECRET)):
            try:
                await self.env.member.delete(resource, name, SYSTEM_NAMESPACE, uid=None)
            except NotFound:
                continue

    async def state(self) -> dict[str, Json]:
        """Return the objects of the member on the hub and in the member, without identities."""
        hub, member = self.env.hub, self.env.member
        account = identity_name(self.name)
        objects = {
            "member cluster": await read(hub, MEMBERS, self.name),
            "identity": await read(hub, SERVICE_ACCOUNTS, account, SYSTEM_NAMESPACE),
            "token": await read(member, SECRETS, TOKEN_SECRET, SYSTEM_NAMESPACE),
            "agent": await read(member, DEPLOYMENTS, MEMBER_ACCOUNT, SYSTEM_NAMESPACE),
        }
        owner = objects["member cluster"]["metadata"]["uid"]
        references = objects["identity"]["metadata"].pop("ownerReferences")
        assert [each["uid"] for each in references] == [owner]
        assert objects["token"].pop("data").keys() == {"token"}
        for body in objects.values():
            body.pop("status", None)
            for field in SET_BY_SERVERS:
                body["metadata"].pop(field, None)
        return objects


async def read(client: Client, resource: Any, name: str, namespace: str = "") -> Json:
    return (await client.get(resource, name, namespace, keep_raw=True)).content()


async def exists(client: Client, resource: Any, name: str, namespace: str = "") -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return False
    return True


async def test_a_repeated_join_keeps_what_is_not_given(env: FleetEnv, home: Home) -> None:
    owner = Owner(env, home)
    await owner.forget_agent()
    url = "https://hub.example.com:6443"
    words = ("--heartbeat", "7", "--hub-url", url, "--image", "registry.example/agent:1")
    assert (await owner.join(*words, "--no-wait")).code == 0
    first = await owner.state()
    [container] = first["agent"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "HUB_SERVER_URL", "value": url} in container["env"]
    assert container["image"] == "registry.example/agent:1"
    again = await owner.join("--no-wait")
    assert again.code == 0, again
    assert f"MemberCluster {owner.name} unchanged" in again.err
    assert await owner.state() == first
    assert first["member cluster"]["spec"]["heartbeatPeriodSeconds"] == 7
    assert (await owner.join("--heartbeat", "9", "--no-wait")).code == 0
    second = await owner.state()
    assert second["member cluster"]["spec"].pop("heartbeatPeriodSeconds") == 9
    assert first["member cluster"]["spec"].pop("heartbeatPeriodSeconds") == 7
    assert second == first


async def test_a_join_waits_until_the_earlier_member_has_left(env: FleetEnv, home: Home) -> None:
    owner = Owner(env, home)
    assert (await owner.join("--no-wait")).code == 0
    hold = MergePatch({"metadata": {"finalizers": ["example.com/hold"]}})
    before = await env.hub.patch(MEMBER_CLUSTERS, owner.name, hold)
    await env.leave(owner.name)
    at_once = await owner.join("--no-wait")
    assert (at_once.code, "is leaving the fleet" in at_once.err) == (2, True)
    late = await owner.join("--timeout", "1")
    assert (late.code, "has not left after 1 s" in late.err) == (3, True)
    line = ("--kubeconfig", str(env.member_cluster.kubeconfig), "--timeout", "60")
    hub = ("--hub-kubeconfig", str(env.hub_cluster.kubeconfig))
    async with (
        env.hub_running(),
        home.running("fleet", "join", owner.name, *line, *hub),
    ):
        drop = MergePatch({"metadata": {"finalizers": None}})
        await env.hub.patch(MEMBER_CLUSTERS, owner.name, drop)

        async def joins() -> bool:
            return (await env.get(owner.name)).uid != before.uid

        async def is_there() -> bool:
            return await exists(env.hub, MEMBER_CLUSTERS, owner.name) and await joins()

        await until(is_there)
        await env.wait_for(owner.name, "ReadyToJoin", "True")


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, WRITES + 1))
async def test_a_killed_join_is_completed_by_the_next_and_a_killed_leave_goes_on(
    env: FleetEnv, home: Home, tmp_path: Path, n: int
) -> None:
    reference = Owner(env, home)
    await reference.forget_agent()
    assert (await reference.join("--heartbeat", "1", "--no-wait")).code == 0
    expected = await reference.state()
    await reference.forget_agent()
    await env.clear()

    owner = Owner(env, home)
    killed = await owner.join("--heartbeat", "1", "--no-wait", kill_after=n)
    assert killed.code == -signal.SIGKILL, killed
    again = await owner.join("--heartbeat", "1", "--no-wait")
    assert again.code == 0, again
    state = await owner.state()
    assert renamed(state, owner.name) == renamed(expected, reference.name)

    async with env.hub_running(force_wait=timedelta(seconds=60)):
        account = await env.member_cluster.service_account(SYSTEM_NAMESPACE, MEMBER_ACCOUNT)
        flags, environ = agent_of(state["agent"])
        async with fleet_process(
            "member", "agent", *flags, kubeconfig=account, directory=tmp_path, environ=environ
        ):
            await env.wait_for(owner.name, "Joined", "True")
            left = await owner.leave(kill_after=1)  # the only write of the command
            assert left.code == -signal.SIGKILL, left
            await until(lambda: env.is_gone(owner.name))

            async def is_collected() -> bool:
                return not await exists(
                    env.hub, SERVICE_ACCOUNTS, identity_name(owner.name), SYSTEM_NAMESPACE
                )

            await until(is_collected, waiting_for="the end of the identity")


def renamed(state: dict[str, Json], name: str) -> str:
    """Return a state as text in which the name of the member is NAME."""
    return repr(state).replace(name, "NAME")


def agent_of(deployment: Json) -> tuple[list[str], dict[str, str]]:
    """Return flags and environment of the agent's Deployment, but for addresses and TLS."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    skipped = ("address", "metrics-secure")
    words = [word for word in container["args"][2:] if not any(each in word for each in skipped)]
    return words, {each["name"]: each["value"] for each in container["env"] if "value" in each}
