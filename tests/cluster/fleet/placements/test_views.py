"""`kubeocean fleet placements`, `fleet tree`, `explain work` and `explain member` on a real hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kubeocean.runtime.objects import Resource, Untyped
from support.commands import Home, Result
from support.placement_env import PlacementEnv, config_map_selector
from support.wait import until

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped)


@pytest.fixture
def home(tmp_path: Path, env: PlacementEnv) -> Home:
    home = Home(tmp_path / "home")
    home.environ["KUBECONFIG"] = str(env.hub.kubeconfig)
    return home


async def test_a_placement_is_listed_and_shown_as_a_tree(env: PlacementEnv, home: Home) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)

    listed = await home.run("fleet", "placements", "-n", env.namespace)
    assert (listed.code, listed.err) == (0, "")
    row = listed.out.splitlines()[1].split()
    assert row[:7] == [str(key), "namespace", "PickAll", "1", "1", "1", "1"]
    document = json.loads((await home.run("fleet", "placements", "-o", "json")).out)
    (view,) = [each for each in document["placements"] if each["namespace"] == env.namespace]
    assert (view["available"], view.get("problem")) == (1, None)
    assert document["notRead"] == []

    tree = await home.run("fleet", "tree", str(key))
    assert (tree.code, tree.err) == (0, "")
    lines = [line.strip("│├└─ ") for line in tree.out.splitlines()]
    kinds = [line.split()[0] for line in lines]
    assert kinds == [
        "ResourcePlacement",
        "SchedulingPolicySnapshot",
        "ResourceSnapshot",
        "ResourceBinding",
        "Work",
        "ConfigMap",
    ]
    # The members of these tests report on Works, not on the manifests in them.
    assert all(line.endswith(": complete") for line in lines[:5]), lines
    document = json.loads((await home.run("fleet", "tree", str(key), "-o", "json")).out)
    binding = document["tree"]["children"][1]["children"][0]
    assert f"cluster {a}" in binding["details"]

    (work,) = await env.works(key)
    explained = await home.run("explain", "work", work.name, "--member", a, "-o", "json")
    assert json.loads(explained.out)["rule"] == "WorkDone", explained
    found = await home.run("explain", "work", work.name)
    assert f"work fleet-member-{a}/{work.name}: " in found.out
    member = await home.run("explain", "member", a)
    assert f"{work.name} of placement {key}: complete" in member.out, member
    missing = await home.run("explain", "work", "nothing", "--member", a)
    assert (missing.code, "there is no such Work" in missing.out) == (1, True)
    missing = await home.run("explain", "member", "nothing")
    assert (missing.code, "there is no such MemberCluster" in missing.out) == (1, True)


async def test_a_work_of_two_members_has_to_be_chosen(env: PlacementEnv, home: Home) -> None:
    a, b = await env.join("a", "b")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        await env.completed(key, a, b)
    (work, _) = await env.works(key)
    result = await home.run("explain", "work", work.name)
    assert result.code == 2
    assert f"exists for the members {a}, {b}; choose one with --member" in result.err


async def test_doctor_finds_a_silent_member_and_a_placement_that_no_hub_sees(
    env: PlacementEnv, home: Home
) -> None:
    (a, b) = await env.join("a", "b")
    silent = {"type": "MemberAgent", "lastReceivedHeartbeat": "2026-01-01T00:00:00Z"}
    ready = {
        "type": "ReadyToJoin",
        "status": "True",
        "reason": "Tested",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await env.beat(a, agentStatus=[silent], conditions=[ready])
    await env.beat(b, conditions=[ready | {"status": "False", "message": "a foreign namespace"}])
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    result = await home.run("doctor", "-o", "json")
    document = json.loads(result.out)
    fleet = [each for each in document["findings"] if each["check"].startswith("fleet")]
    assert [(each["check"], each["about"]) for each in fleet] == [
        ("fleet members", f"member {a}"),
        ("fleet placements", f"placement {key}"),
    ]
    assert "its agent sends no heartbeats" in fleet[0]["message"]
    assert "a running `kubeocean fleet member`" in fleet[0]["remedy"]
    assert f"explain placement {key}" in fleet[1]["remedy"]
    made = {each for each in document["checks"] if each.startswith("fleet")}
    assert len(made) == 5, document["notRead"]


async def test_absent_forbidden_and_unreachable_are_told_apart(
    env: PlacementEnv, home: Home, tmp_path: Path
) -> None:
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    absent = await home.run("fleet", "tree", "nothing")
    assert absent.code == 2
    assert "is not a ClusterResourcePlacement of the hub; list them with" in absent.err

    user = f"viewer-{env.unique}"
    rule = {
        "apiGroups": ["placement.kubernetes-fleet.io"],
        "resources": ["resourceplacements"],
        "verbs": ["get", "list"],
    }
    await env.client.create(ROLES, {"metadata": {"name": user}, "rules": [rule]})
    body = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await env.client.create(ROLE_BINDINGS, body)
    viewer = ("--hub-kubeconfig", str(env.hub.user(user)))

    async def permitted() -> Result | None:
        result = await home.run("fleet", "placements", *viewer)
        return result if result.out else None

    listed = await until(permitted)
    assert listed.code == 1
    assert str(key) in listed.out
    assert listed.err.startswith("not read clusterresourceplacements.placement")
    assert "is forbidden" in listed.err
    tree = await home.run("fleet", "tree", str(key), *viewer)
    assert tree.code == 1
    assert tree.out.count("not read: not allowed to list them") == 4
    member = await home.run("explain", "member", "a", "--kubeconfig", viewer[1], "-o", "json")
    assert (member.code, json.loads(member.out)["rule"]) == (1, "NotRead")

    nowhere = tmp_path / "nowhere"
    text = env.hub.kubeconfig.read_text()
    nowhere.write_text(re.sub(r"server: .*", "server: https://127.0.0.1:1", text))
    for words in (("fleet", "tree", "x"), ("fleet", "placements")):
        result = await home.run(*words, "--hub-kubeconfig", str(nowhere))
        assert (result.code, result.out) == (1, ""), result
        assert "Traceback" not in result.err
