"""The ocean, as its users start and stop it: on real control planes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kubeocean.errors import LocalError
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.local.ocean import Ocean, Shape
from kubeocean.local.progress import PlainProgress
from kubeocean.local.state import OceanState, this_program
from kubeocean.runtime.client import connect
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES
from kubeocean.runtime.objects import find_condition
from support.commands import Home
from support.wait import until


@pytest.fixture
async def home(tmp_path: Path, assets: Assets) -> AsyncIterator[Home]:
    """A home directory for the test, with the assets built before the first command."""
    home = Home(tmp_path / "home")
    yield home
    await home.run("down", "--purge")
    assert home.processes() == {}


async def _ready_nodes(kubeconfig: str | Path, context: str) -> set[str]:
    client = connect(kubeconfig, context=context)
    try:
        nodes = (await client.list(NODES)).items
    finally:
        await client.close()
    conditions = {node.name: find_condition(node.status.conditions, "Ready") for node in nodes}
    return {name for name, actual in conditions.items() if actual and actual.status == "True"}


async def _up(home: Home, *words: str) -> OceanState:
    result = await home.run("up", "--bare", "--output", "json", *words)
    assert result.code == 0, result.err
    return msgspec.json.decode(result.out, type=OceanState)


@pytest.mark.slow
async def test_an_ocean_outlives_its_command_and_its_data_outlives_its_supervisor(
    home: Home,
) -> None:
    state = await _up(home, "--workers", "1", "--nodes", "2")
    assert [cluster.context for cluster in state.clusters] == ["computing", "worker-1"]
    assert await _ready_nodes(state.kubeconfig, "worker-1") == {"sim-0", "sim-1"}
    assert await _ready_nodes(state.kubeconfig, "computing") == set()
    client = connect(state.kubeconfig, context="worker-1")
    await client.create(CONFIG_MAPS, {"metadata": {"name": "kept"}}, namespace="default")
    await client.close()

    again = await home.run("up")
    assert again.code == 0
    assert "ocean was already up: 1 worker with 2 simulated nodes" in again.out
    assert f"export KUBECONFIG={state.kubeconfig}" in again.out
    assert "kubectl --context worker-1 get nodes" in again.out
    other = await home.run("up", "--workers", "2")
    assert other.code == 1
    assert "is up with 1 worker with 2 simulated nodes; to have it with --workers 2," in other.err
    assert (await home.run("kubeconfig")).out == f"{state.kubeconfig}\n"
    one = Path((await home.run("kubeconfig", "--context", "worker-1")).out.strip())
    assert await _ready_nodes(one, "worker-1") == {"sim-0", "sim-1"}

    os.kill(state.process.pid, signal.SIGKILL)
    await until(lambda: not home.processes(), within=10, waiting_for="the end of all processes")
    assert (await home.run("kubeconfig")).code == 1

    after = await _up(home, "--workers", "1", "--nodes", "1")
    assert after.process != state.process
    assert [c.server for c in after.clusters] == [c.server for c in state.clusters]
    assert await _ready_nodes(after.kubeconfig, "worker-1") == {"sim-0"}
    client = connect(after.kubeconfig, context="worker-1")
    assert (await client.get(CONFIG_MAPS, "kept", "default")).name == "kept"
    await client.close()

    # The state of a supervisor whose version did not record its program.
    home.directory().write(msgspec.structs.replace(after, program=""))
    renewed = await home.run("up", "--bare")
    assert renewed.code == 0, renewed.err
    assert "ocean was started by an earlier version: restarting its processes" in renewed.err
    last = home.directory().read()
    assert last is not None
    assert (last.alive, last.shape, last.program) == (True, after.shape, this_program())
    assert last.process != after.process
    assert await _ready_nodes(last.kubeconfig, "worker-1") == {"sim-0"}

    down = await home.run("down")
    assert down.code == 0
    assert "ocean is down; its data is kept" in down.out
    assert home.processes() == {}
    assert (await home.run("down", "--purge")).code == 0
    assert not home.directory().path.exists()


async def test_an_ephemeral_ocean_leaves_nothing_behind(home: Home, tmp_path: Path) -> None:
    home.environ["PATH"] = str(tmp_path)  # no kubectl there
    async with home.running("up", "--bare", "--ephemeral", "--workers", "1", "--nodes", "1") as up:
        await up.wait_for_output("Press Ctrl-C to stop them")
        (root,) = home.temporary.iterdir()
        assert f"export KUBECONFIG={root}/kubeconfig" in up.output
        assert "/kubectl --context worker-1 get nodes" in up.output
        assert await _ready_nodes(root / "kubeconfig", "worker-1") == {"sim-0"}
        up.signal(signal.SIGINT)
        assert await up.ended() == 130
    assert home.processes() == {}
    assert list(home.temporary.iterdir()) == []
    assert not home.directory().path.exists()


async def test_a_component_that_ends_takes_the_ocean_down_with_a_word(home: Home) -> None:
    async with home.running("up", "--bare", "--ephemeral", "--workers", "0") as up:
        await up.wait_for_output("Press Ctrl-C to stop them")
        actual = home.processes().items()
        (scheduler,) = (pid for pid, line in actual if "kube-scheduler" in line.split()[0])
        os.kill(scheduler, signal.SIGKILL)
        assert await up.ended() == 1
    assert "kube-scheduler of cluster computing ended with exit code -9" in up.output
    assert home.processes() == {}


async def test_an_ocean_that_lost_a_part_while_it_started_is_not_up(
    tmp_path: Path, assets: Assets, monkeypatch: pytest.MonkeyPatch
) -> None:
    message: list[str] = []
    shape = Shape(workers=1, nodes=1)
    ocean = Ocean(
        tmp_path / "ocean", assets, shape, ephemeral=True, progress=PlainProgress(message.append)
    )
    nodes = ocean.simulated["worker-1"]
    start = nodes.start

    async def start_late() -> None:
        ready = "starting computing: done"
        await until(
            lambda: any(line.startswith(ready) for line in message), within=60, waiting_for=ready
        )
        await ocean.computing.process("kube-scheduler").kill()
        await start()

    monkeypatch.setattr(nodes, "start", start_late)
    try:
        with pytest.raises(LocalError, match="kube-scheduler of cluster computing ended with"):
            await ocean.start()
        assert not any(c.process(name).running for c in ocean.clusters for name in c.components)
    finally:
        await ocean.stop()


async def test_a_start_does_not_wait_for_what_cannot_come_any_more(
    tmp_path: Path, assets: Assets
) -> None:
    def program(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    pid = tmp_path / "pid"
    etcd = program("etcd", f'echo $$ >{pid}; exec {assets.path("etcd")} "$@"')
    # An API server that never serves, whose etcd ends beside it.
    server = program("kube-apiserver", f"kill -9 $(cat {pid}); exec sleep 600")
    programs = Assets({"etcd": etcd, "kube-apiserver": server})
    cluster = Cluster("c", tmp_path / "c", programs, components=["etcd", "kube-apiserver"])
    with pytest.raises(LocalError, match="etcd of cluster c ended with exit code -9"):
        await cluster.start()
