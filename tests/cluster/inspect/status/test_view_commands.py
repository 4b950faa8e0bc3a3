"""Tests of `kubeocean status` and `kubeocean top` as processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Resource, Untyped
from support.binding_env import BindingEnv
from support.commands import Home, Result
from support.wait import until

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped)


@pytest.fixture
def home(tmp_path: Path, computing_cluster: Cluster) -> Home:
    home = Home(tmp_path / "home")
    home.environ["KUBECONFIG"] = str(computing_cluster.kubeconfig)
    return home


@pytest.fixture
async def lent(env: BindingEnv) -> AsyncIterator[BindingEnv]:
    """Run a syncer for a binding with one node."""
    await env.bind()
    await env.lend()
    await env.add_node("a")
    async with env.syncing():
        await until(env.vnodes)
        await until(lambda: _connected(env))
        yield env


async def _connected(env: BindingEnv) -> bool:
    return (await env.condition("Connected"))[0] == "True"


async def test_status_ends_with_the_health_and_its_exit_code(home: Home, lent: BindingEnv) -> None:
    good = await home.run("status", lent.name)
    assert (good.code, good.err) == (0, ""), good
    assert re.search(rf"^{lent.name}   new     connected .*1/1     1 open$", good.out, re.M), good
    assert f"{lent.name}-policy" in good.out
    assert good.out.endswith("healthy: 1 cluster, 1 of 1 node Ready, 0 pods running\n")
    assert "\x1b" not in good.out

    broken = {"type": "Ready", "status": "False", "reason": "Broken", "message": "it is"}
    status = MergePatch({"status": {"conditions": [broken]}})
    await lent.worker_api.patch(NODES, f"{lent.name}-a", status, subresource="status")

    async def reported() -> bool:
        bad = await home.run("status", lent.name, "-o", "wide")
        return bad.code == 3 and "not healthy: 1 problem" in bad.out and "Broken" in bad.out

    await until(reported, every=0.5)


async def test_status_and_top_print_documents(home: Home, lent: BindingEnv) -> None:
    seen = json.loads((await home.run("status", "-o", "json")).out)
    assert lent.name in [cluster["name"] for cluster in seen["clusters"]]
    seen = yaml.safe_load((await home.run("status", lent.name, "-o", "yaml", "--no-workers")).out)
    (cluster,) = seen["clusters"]
    assert cluster["worker"]["state"] == "NotAsked"
    assert cluster["nodes"][0]["resources"]["lent"]["cpu"] == "8"
    top = json.loads((await home.run("top", lent.name, "-o", "json", "--nodes")).out)
    assert top["total"]["lent"] == {"cpu": "8", "memory": "32Gi", "pods": "110"}
    assert [node["name"] for node in top["clusters"][0]["perNode"]] == [cluster["nodes"][0]["name"]]


async def test_top_has_a_row_for_each_cluster_or_node_and_a_total(
    home: Home, lent: BindingEnv
) -> None:
    page = (await home.run("top", lent.name)).out.splitlines()
    assert page[0].split()[:4] == ["CLUSTER", "NODES", "CPU", "LENT"]
    assert page[1].split()[:5] == [lent.name, "1", "8", "0", "8"]
    assert page[-1].split()[:5] == ["total", "1", "8", "0", "8"]
    page = (await home.run("top", lent.name, "--nodes")).out.splitlines()
    assert page[1].startswith(f"vnode-{lent.cluster_id}-{lent.name}-a")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["unknown"], 2, "NAME: there is no such binding; there are: "),
        (["--kubeconfig", "/no/such/file"], 2, "--kubeconfig /no/such/file: "),
        (["--context", "elsewhere"], 2, "--context elsewhere: "),
        (["--label-domain", "A_B"], 2, "--label-domain: must be a lowercase DNS subdomain"),
        (["-o", "xml"], 2, "'xml' is not one of"),
        (["--timeout", "0"], 2, "--timeout"),
    ],
)
async def test_wrong_arguments_are_named_in_the_error(
    home: Home, words: list[str], code: int, message: str
) -> None:
    result = await home.run("status", *words)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


async def test_an_unreachable_cluster_is_exit_code_1(home: Home, tmp_path: Path) -> None:
    text = Path(home.environ["KUBECONFIG"]).read_text()
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(re.sub(r"server: .*", "server: https://127.0.0.1:1", text))
    for command in ("status", "top"):
        result = await home.run(command, "--kubeconfig", str(nowhere))
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: could not ")
        assert "Traceback" not in result.err


async def test_a_user_who_may_list_bindings_only_is_told_so(home: Home, env: BindingEnv) -> None:
    await env.bind()
    user = f"{env.name}-viewer"
    rule = {"apiGroups": ["cloud.tencent.com"], "resources": ["clusterbindings"]}
    role = {"metadata": {"name": user}, "rules": [rule | {"verbs": ["get", "list"]}]}
    await env.computing_api.create(ROLES, role)
    body = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await env.computing_api.create(ROLE_BINDINGS, body)
    connected = {"type": "Connected", "status": "True", "reason": "Ok", "message": ""}
    connected |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    ready = MergePatch({"status": {"phase": "Ready", "conditions": [connected]}})
    await env.computing_api.patch(CLUSTER_BINDINGS, env.name, ready, subresource="status")
    home.environ["KUBECONFIG"] = str(env.computing.user(user))

    async def permitted() -> Result | None:
        result = await home.run("top", env.name)
        return result if result.out else None

    top = await until(permitted)
    assert top.code == 1
    assert top.out.splitlines()[-2:] == [
        "nodes are not shown: not allowed to list them",
        "pods are not shown: not allowed to list them",
    ]
    status = await home.run("status", env.name)
    assert status.code == 1, status
    assert status.out.splitlines()[-1].startswith("health unknown; 1 cluster; nodes or pods")
    document = json.loads((await home.run("status", env.name, "-o", "json")).out)
    assert document["health"]["healthy"] is None
    assert {each.partition(":")[0] for each in document["notRead"]} >= {"nodes", "pods"}


async def test_watching_prints_a_frame_for_each_change(home: Home, lent: BindingEnv) -> None:
    async with home.running("status", lent.name, "--watch", "--interval", "0.2") as running:
        await running.wait_for_output("healthy: 1 cluster, 1 of 1 node Ready")
        await lent.add_node("b")
        await running.wait_for_output("healthy: 1 cluster, 2 of 2 nodes Ready")
        running.signal(signal.SIGINT)
        assert await running.ended() == 130
    assert "Traceback" not in running.output
    assert running.output.count("CLUSTER   PHASE") < 8, running.output


async def test_on_a_terminal_there_are_colours_and_a_live_page(
    home: Home, lent: BindingEnv
) -> None:
    home.environ |= {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    home.environ.pop("NO_COLOR", None)
    main, side = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kubeocean", "status", lent.name, "--watch"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=side,
        stderr=asyncio.subprocess.PIPE,
        env=home.environ,
    )
    os.close(side)
    os.set_blocking(main, False)
    seen = b""

    def shown() -> bool:
        nonlocal seen
        try:
            seen += os.read(main, 65_536)
        except BlockingIOError:
            return False
        return b"1 of 1 node Ready" in seen

    try:
        await until(shown)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
        os.close(main)
    assert process.returncode == 130
    assert b"\x1b[32mhealthy" in seen


async def test_a_shell_completes_commands_options_and_names(home: Home, lent: BindingEnv) -> None:
    async def complete(words: str, at: int) -> list[str]:
        home.environ |= {
            "_KUBEOCEAN_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
        }
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("kubeocean"),
            stdout=asyncio.subprocess.PIPE,
            env=home.environ,
        )
        out, _ = await process.communicate()
        return out.decode().split()

    assert await complete("kubeocean stat", 1) == ["status"]
    assert await complete("kubeocean status --out", 2) == ["--output"]
    assert await complete("kubeocean status -o ", 3) == ["text", "wide", "json", "yaml"]

    async def names() -> bool:  # none, if the cluster does not answer at once
        return await complete(f"kubeocean status {lent.name[:6]}", 2) == [lent.name]

    await until(names)
    home.environ["KUBECONFIG"] = "/no/such/file"
    assert await complete("kubeocean status b", 2) == []
