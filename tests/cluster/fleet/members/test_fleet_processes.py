"""The processes and commands of a fleet, as users run them, on real control planes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace
from kubeocean.errors import NotFound
from kubeocean.install.fleet import MEMBER_ACCOUNT
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.commands import Home
from support.fleet_env import FleetEnv
from support.fleet_process import HASTY, fleet_process
from support.syncer_process import LEASE_S
from support.wait import until

SUCCESSION_S = LEASE_S + 90
READS = ("get", "list", "watch")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def test_one_hub_leads_and_a_paused_leader_writes_nothing_more(
    env: FleetEnv, tmp_path: Path
) -> None:
    cluster, account = env.hub_cluster, env.hub_account
    user = f"old-hub-{env.new_name()}"
    path = cluster.user(user, ["system:masters"])
    async with fleet_process("hub", "old", *HASTY, kubeconfig=path, directory=tmp_path) as old:
        first = (await env.join()).name
        await env.wait_for(first, "ReadyToJoin", "True")
        await until(old.is_ready)
        assert (await old.wait_for_output("Admitted member"))["member"] == first
        async with fleet_process(
            "hub", "new", *HASTY, kubeconfig=account, directory=tmp_path
        ) as new:
            await until(new.is_ready)  # a standby is ready
            assert not new.lines("Became leader")
            old.process.pause()
            await new.wait_for_output("Became leader", within=LEASE_S + 90)
            second = (await env.join()).name  # a resumed leader would have to admit it
            await env.wait_for(second, "ReadyToJoin", "True")
            since = cluster.audit.mark()
            old.process.resume()
            assert await old.process.wait() == 1
            await old.wait_for_output("Lost leadership")
            made = cluster.audit.requests(user=user, since=since)
            assert [each for each in made if each.verb not in READS and each.code < 400] == []
            assert await new.process.stop() == 0
    refused = [
        each
        for each in cluster.audit.requests(
            user=f"system:serviceaccount:{SYSTEM_NAMESPACE}:fleet-hub"
        )
        if each.code == 403
    ]
    assert refused == []


async def test_a_hub_that_is_paused_in_the_middle_of_joins_is_replaced(
    env: FleetEnv, tmp_path: Path
) -> None:
    cluster = env.hub_cluster
    path = cluster.user(f"paused-hub-{env.new_name()}", ["system:masters"])
    async with fleet_process("hub", "old", *HASTY, kubeconfig=path, directory=tmp_path) as old:
        await old.wait_for_output("Became leader", within=SUCCESSION_S)
        async with fleet_process(
            "hub", "new", *HASTY, kubeconfig=env.hub_account, directory=tmp_path
        ) as new:
            await until(new.is_ready)
            names: list[str] = []

            async def is_paused_in_the_middle() -> bool:
                joining = [(await env.join()).name for _ in range(8)]
                names.extend(joining)
                await until(lambda: exists(env, joining[0]), every=0.005)
                old.process.pause()
                ready = [await env.condition(name, "ReadyToJoin") for name in joining]
                if None in ready:
                    return True
                old.process.resume()  # the joins were complete already: again with other members
                return False

            await until(is_paused_in_the_middle)
            for name in names:
                await env.wait_for(name, "ReadyToJoin", "True", within=SUCCESSION_S)
            before = [(await env.get(name)).resource_version for name in names]
            old.process.resume()
            assert await old.process.wait() == 1
            for name, version in zip(names, before, strict=True):
                internal = await env.internal(name)
                assert (internal.spec.state, internal.metadata.generation) == ("Join", 1)
                assert (await env.get(name)).resource_version == version
            assert await new.process.stop() == 0


async def test_processes_killed_in_the_middle_of_join_and_leave_are_replaced(
    env: FleetEnv, tmp_path: Path
) -> None:
    name = env.new_name()

    @asynccontextmanager
    async def both(number: int) -> AsyncIterator[None]:
        """Yield a hub and an agent; both are killed at the end of the block."""
        words = (*HASTY, f"--hub-kubeconfig={env.identity(name)}")
        async with (
            fleet_process(
                "hub", f"hub-{number}", *HASTY, kubeconfig=env.hub_account, directory=tmp_path
            ),
            fleet_process(
                "member",
                f"agent-{number}",
                *words,
                kubeconfig=env.member_cluster.kubeconfig,
                directory=tmp_path,
                environ={"MEMBER_CLUSTER_NAME": name},
            ),
        ):
            yield

    async with both(1):
        await env.join(name)
        await until(lambda: exists(env, name), within=SUCCESSION_S)
    async with both(2):
        await env.wait_for(name, "Joined", "True", within=SUCCESSION_S)
        await env.leave(name)
    async with both(3):
        await until(lambda: env.is_gone(name), within=SUCCESSION_S)


async def exists(env: FleetEnv, name: str) -> bool:
    """Whether the hub has made at least the namespace of a member."""
    with suppress(NotFound):
        await env.hub.get(NAMESPACES, member_namespace(name))
        return True
    return False


async def test_a_cluster_joins_is_shown_cordoned_and_leaves(
    env: FleetEnv, home: Home, tmp_path: Path
) -> None:
    name = env.new_name()
    env.joined.append(name)
    hub, member = str(env.hub_cluster.kubeconfig), str(env.member_cluster.kubeconfig)

    async def fleet(*words: str, code: int = 0) -> str:
        result = await home.run("fleet", *words, "--hub-kubeconfig", hub)
        assert result.code == code, result
        return result.out + result.err

    async def shown() -> Json:
        document = json.loads(await fleet("clusters", name, "-o", "json"))
        return dict(document["clusters"][0])

    async with fleet_process("hub", "hub", kubeconfig=env.hub_account, directory=tmp_path):
        await fleet("join", name, "--kubeconfig", member, "--heartbeat", "1", "--no-wait")
        account = await env.member_cluster.service_account(SYSTEM_NAMESPACE, MEMBER_ACCOUNT)
        words, environ = await agent_of(env)
        async with fleet_process(
            "member", "agent", *words, kubeconfig=account, directory=tmp_path, environ=environ
        ) as agent:
            out = await fleet("join", name, "--kubeconfig", member, "--heartbeat", "1")
            assert f"{name} has joined" in out
            await until(agent.is_ready)

            async def has_metrics() -> bool:
                _, text = await agent.page("metrics", "/metrics")
                assert 'join_result_counter{result="success"} 1.0' in text
                assert 'kubeocean_fleet_heartbeats_total{result="success"}' in text
                return True

            await until(has_metrics)  # requests are counted after their answers
            view = await shown()
            assert (view["state"], view["healthy"]) == ("Joined", "True")
            assert view["version"].startswith("v1.")
            second = await fleet("join", f"{name}-2", "--kubeconfig", member, "--no-wait", code=2)
            assert f"run kubeocean fleet leave {name} first" in second
            taken = await fleet("join", name, "--kubeconfig", hub, "--no-wait", code=2)
            assert "is the name of another cluster of the fleet" in taken
            await fleet("cordon", name)
            assert "was cordoned already" in await fleet("cordon", name)
            assert (await shown())["taints"] == ["cordon-key=cordon-value:NoSchedule"]
            await fleet("uncordon", name)
            assert (await env.get(name)).spec.taints == ()
            assert f"{name} has left" in await fleet("leave", name)
            assert await agent.process.stop() == 0
    assert "is not a member of the fleet" in await fleet("clusters", name, code=2)


async def agent_of(env: FleetEnv) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the environment of the agent's Deployment, but for addresses and TLS."""
    stored = await env.member.get(DEPLOYMENTS, MEMBER_ACCOUNT, SYSTEM_NAMESPACE, keep_raw=True)
    (container,) = stored.content()["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["fleet", "member"]
    skipped = ("address", "metrics-secure")
    words = [word for word in container["args"][2:] if not any(each in word for each in skipped)]
    return words, {each["name"]: each["value"] for each in container["env"] if "value" in each}


async def test_wrong_usage_is_refused_before_anything_is_written(env: FleetEnv, home: Home) -> None:
    hub = str(env.hub_cluster.kubeconfig)
    too_long = await home.run(
        "fleet", "join", "a" * 51, "--kubeconfig", hub, "--hub-kubeconfig", hub
    )
    assert too_long.code == 2
    assert "shorter name" in too_long.err
    absent = await home.run("fleet", "leave", "no-such-member", "--hub-kubeconfig", hub)
    assert absent.code == 2
    assert "is not a member of the fleet" in absent.err
    member = str(env.member_cluster.kubeconfig)
    for words in (
        ("clusters",),
        ("clusters", "a"),
        ("cordon", "a"),
        ("leave", "a"),
        ("join", "a", "--kubeconfig", member, "--no-wait"),
    ):
        no_hub = await home.run("fleet", *words, "--hub-kubeconfig", member)
        assert no_hub.code == 2, words
        assert "the cluster is not the hub of a fleet" in no_hub.err


async def test_a_member_without_a_name_does_not_start(env: FleetEnv, tmp_path: Path) -> None:
    async with fleet_process(
        "member", "nameless", kubeconfig=env.member_cluster.kubeconfig, directory=tmp_path
    ) as agent:
        assert await agent.process.wait() == 1
        line = await agent.wait_for_output("Could not start fleet member")
        assert "MEMBER_CLUSTER_NAME" in line["error"]
