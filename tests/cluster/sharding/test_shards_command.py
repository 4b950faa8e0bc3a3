"""`kubeocean shards` on a ring that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES
from kubeocean.sharding.names import Names
from support.commands import Home, Result
from support.ring_env import SLOTS, RingEnv, make_objects
from support.wait import until


class Command:
    """`kubeocean shards` for one ring."""

    def __init__(self, home: Home, kubeconfig: Path, namespace: str) -> None:
        self._home = home
        self._where = ("--kubeconfig", str(kubeconfig), "-n", namespace)

    async def run(self, *words: str) -> Result:
        return await self._home.run("shards", *words, *self._where)

    async def ok(self, *words: str) -> str:
        result = await self.run(*words)
        assert result.code == 0, result.err
        return result.out

    async def listed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.ok("list", "-o", "json"))
        return found


@pytest.fixture
def command(cluster: Cluster, namespace: str, tmp_path: Path) -> Command:
    return Command(Home(tmp_path / "home"), cluster.kubeconfig, namespace)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_ring_is_shown_and_steered_by_hand(
    cluster: Cluster, client: Client, namespace: str, command: Command
) -> None:
    keys = await make_objects(client, namespace, 10)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a, b = ring_env.join("a"), ring_env.join("b")
        await ring_env.share([a, b])
        await until(lambda: set(ring_env.done()) == set(keys))

        # Looking.
        ring = await command.listed()
        assert (ring["ring"], ring["slots"], ring["frozen"]) == ("ring", SLOTS, False)
        assert {each["id"]: each["count"] for each in ring["replicas"]} == {
            a.ring.id: SLOTS // 2,
            b.ring.id: SLOTS // 2,
        }
        text = await command.ok("list")
        assert f"{namespace}/ring: {SLOTS} shards" in text
        assert a.ring.id in text
        slot = a.ring.shard_of(keys[0])
        who = json.loads(await command.ok("owner", keys[0], "-o", "json"))
        assert yaml.safe_load(await command.ok("owner", keys[0], "-o", "yaml")) == who
        assert who["shard"] == slot
        assert who["owner"] == (a if slot in a.slots else b).ring.id
        assert f"shard {slot}, {who['owner']}" in await command.ok("owner", str(slot))

        # A move in a frozen ring is not reverted.
        assert "frozen" in await command.ok("freeze")
        mine, rest = sorted(a.slots)[:3], len(a.slots) - 3
        output = await command.ok("move", ",".join(map(str, mine)), "--to", "b")
        assert "3 shards move" in output
        await until(lambda: set(mine) <= b.slots)
        assert len(a.slots) == rest

        # Going back.
        epochs = (await command.listed())["history"]
        await command.ok("rollback", str(epochs[-1]))
        await until(lambda: set(mine) <= a.slots)
        await command.ok("unfreeze")

        # Emptying one.
        await command.ok("drain", "a")
        await until(lambda: len(b.slots) == SLOTS)
        assert "a" in (await command.listed())["drained"]
        await command.ok("drain", "a", "--undo")
        await until(lambda: a.slots and b.slots)

        # Pinning.
        await command.ok("pin", "0-3", "--to", "a")
        await until(lambda: {0, 1, 2, 3} <= a.slots)
        await command.ok("unpin", "0-3")

        # By force: the owner notices that the slot was taken, and two never work on it.
        await command.ok("release", "0", "--yes")
        await until(lambda: 0 in a.slots | b.slots)
        ring_env.check_exclusive()


async def test_mistakes_are_explained(
    cluster: Cluster, client: Client, namespace: str, command: Command
) -> None:
    result = await command.run("list")
    assert (result.code, result.err.startswith("error: there is no ring: no Lease")) == (2, True)
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        for words, message in (
            (
                ("list", "--ring", "other"),
                f"there is no such ring; there are: {namespace}/ring",
            ),
            (("move", "0", "--to", "zoe"), "there is no such replica; replicas: a_"),
            (("move", "0-x", "--to", "a"), "slots: is not a set of slots"),
            (("rollback", "77"), "epoch: is not in the history of assignments"),
            (("release", "0"), "confirm that no process of the owner runs"),
        ):
            result = await command.run(*words)
            assert (result.code, result.out) == (2, ""), (words, result)
            assert message in result.err, (words, result)
            assert result.err.count("\n") == 1


async def test_two_rings_of_one_name_are_told_apart_by_their_namespaces(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    names = Names(namespace)
    for where in (namespace, "default"):
        table = {"metadata": {"name": names.table, "labels": names.labels("table")}}
        await client.create(CONFIG_MAPS, table, namespace=where)
    words = ("shards", "freeze", "--kubeconfig", str(cluster.kubeconfig), "--ring", names.ring)
    result = await Home(tmp_path / "home").run(*words)
    both = ", ".join(sorted(f"{where}/{names.ring}" for where in (namespace, "default")))
    assert (result.code, result.err) == (2, f"error: --namespace: must name one of {both}\n")


async def test_the_policy_is_printed_for_kubectl(command: Command) -> None:
    words = ("v1/configmaps", "--user", "u", "--group", "g", "--ring", "r", "-n", "default")
    result = await command._home.run("shards", "policy", *words)
    policy, binding = yaml.safe_load_all(result.out)
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    rule = policy["spec"]["matchConstraints"]["resourceRules"][0]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["configmaps"])
    assert binding["spec"]["paramRef"]["name"] == "r-table"
    result = await command._home.run("shards", "policy", "configmaps", "--user", "u")
    assert result.code == 2
    assert "must be version/plural or group/version/plural (got 'configmaps')" in result.err


async def test_a_stopped_ring_is_switched_to_another_configuration_and_back(
    cluster: Cluster, client: Client, namespace: str, command: Command, tmp_path: Path
) -> None:
    config = tmp_path / "new.yaml"
    config.write_text(yaml.safe_dump({"sharding": {"ring": "ring", "slots": 2 * SLOTS}}))
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        refused = await command.run("switch", "--config", str(config))
        assert refused.code == 2
        assert f"still has running replicas: {a.ring.id}; stop all of them first" in refused.err
        await a.leave()
        output = await command.ok("switch", "--config", str(config))
        assert f"sharding.slots: {2 * SLOTS}" in output
        ring = await command.listed()
        assert ring["configuration"]["sharding.slots"] == str(2 * SLOTS)
        assert ring["earlierConfigurations"][0]["configuration"]["sharding.slots"] == str(SLOTS)
        assert f"sharding.slots: {SLOTS}" in await command.ok("switch", "--back")
        wrong = await command.run("switch")
        assert (wrong.code, "give either --config or --back" in wrong.err) == (2, True)


async def test_a_lease_of_a_hostile_writer_sends_no_escape_sequences_to_the_terminal(
    cluster: Cluster, client: Client, namespace: str, command: Command
) -> None:
    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        await until(lambda: len(a.slots) == SLOTS)
        names, member = a.ring.names, "x\x1b[2J_1"
        meta = {
            "name": names.member(member),
            "labels": names.labels("member"),
            "annotations": {names.record: '{"unplaced":3}'},
        }
        spec = {"holderIdentity": member, "leaseDurationSeconds": 30}
        await client.create(LEASES, {"metadata": meta, "spec": spec}, namespace=namespace)
        output = await command.ok("list")
        assert "\x1b" not in output
        assert output.count("x [2J_1") == 2
