"""`kubeocean up`: the product runs, and every statement of its output is true."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conftest import NewCluster
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.fleet.names import ANNOTATION_AGENT_VERSION, ANNOTATION_WORK_FINALIZER
from kubeocean.api.fleet.placements import CLUSTER_RESOURCE_PLACEMENTS
from kubeocean.api.group import APP_PART_OF
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import ApiError
from kubeocean.inspect.fleet import placement_view
from kubeocean.local.assets import Assets
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.discovery import Discovery
from kubeocean.runtime.kinds import DEPLOYMENTS, LEASES, NAMESPACES, NODES, PODS
from kubeocean.runtime.objects import find_condition
from support.commands import Home
from support.wait import until

SYSTEM = "kubeocean-system"
# Annotations that extend KubeFleet's API: they are the same under each label domain.
_OF_FLEETS = {ANNOTATION_AGENT_VERSION, ANNOTATION_WORK_FINALIZER}


@pytest.fixture
async def home(tmp_path: Path, assets: Assets) -> AsyncIterator[Home]:
    home = Home(tmp_path / "home")
    # Commands are called as they are printed, and ours may not be in the PATH of the test.
    bins = f"{Path(sys.executable).parent}:{assets.path('kubectl').parent}"
    home.environ["PATH"] = f"{bins}:{os.environ['PATH']}"
    yield home
    await home.run("down", "--purge")
    assert home.processes() == {}


async def _ready_nodes(client: Client) -> set[str]:
    actual = set()
    for node in (await client.list(NODES)).items:
        condition = find_condition(node.status.conditions, "Ready")
        if condition is not None and condition.status == "True":
            actual.add(node.name)
    return actual


def _printed(out: str) -> list[str]:
    """Return the commands that `up` recommends."""
    lines = out.partition("\nTry:\n")[2].splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_up_shows_the_product_at_work(
    home: Home, assets: Assets, new_cluster: NewCluster
) -> None:
    up = await home.run("up", "--workers", "2", "--nodes", "2")
    assert up.code == 0, up.err
    assert "ocean is up: 2 workers with 2 simulated nodes each" in up.out
    computing = connect((await home.run("kubeconfig")).out.strip())
    try:
        await _check_at_work(computing, home)
        await _check_commands(up.out, home)
        await _check_fleet(home, computing)
        await _check_kept(home, computing)
        await _check_again(home, computing)
        await _check_join(home, assets, new_cluster, computing)
    finally:
        await computing.close()
    down = await home.run("down")
    assert (down.code, down.err.count("killing")) == (0, 0), down.err
    assert home.processes() == {}


@pytest.mark.slow
async def test_a_whole_ocean_has_the_labels_and_names_of_another_domain(home: Home) -> None:
    own = ("--label-domain", "tapestry.io")
    up = await home.run("up", "--workers", "1", "--nodes", "1", *own)
    assert up.code == 0, up.err
    assert "labels of tapestry.io" in up.out
    await _check_commands(up.out, home, node="vnode-worker-1-sim-0")
    kubeconfig = (await home.run("kubeconfig")).out.strip()
    computing, worker = connect(kubeconfig), connect(kubeconfig, context="worker-1")
    try:
        pods = (await computing.list(PODS, "tapestry-system")).items
        programs = {pod.name.rsplit("-", 2)[0] for pod in pods}
        assert programs == {
            "tapestry-manager",
            "tapestry-syncer-worker-1",
            "tapestry-proxier-worker-1",
        }
        leases = {lease.name for lease in (await computing.list(LEASES, "tapestry-system")).items}
        assert {"tapestry-manager-leader", "tapestry-syncer-worker-1"} <= leases
        # The API server calls the proxier, which calls the worker; its simulated node has no
        # kubelet.
        pods = (await computing.list(PODS, "default")).items
        page = f"/api/v1/namespaces/default/pods/{pods[0].name}/log"
        with pytest.raises(ApiError, match="containerLogs/tapestry-worker/sample-"):
            await computing.request("GET", page)
        copies = (await worker.list(PODS, "tapestry-worker")).items
        assert {copy.labels["tapestry.io/managed-by"] for copy in copies} == {"tapestry"}
        await _check_no_other_domain(computing, worker)
        binding = await computing.get(CLUSTER_BINDINGS, "worker-1")
        assert all(each.startswith("tapestry.io/") for each in binding.metadata.finalizers or ())
        leave = await home.run(
            *("leave", "worker-1", "--kubeconfig", kubeconfig, "--context", "worker-1", *own),
            *("--computing-kubeconfig", kubeconfig),
        )
        assert leave.code == 0, leave.err
        assert (await worker.list(PODS, "tapestry-worker")).items == []
    finally:
        await computing.close()
        await worker.close()


async def _check_no_other_domain(*clients: Client) -> None:
    """Check that no object has keys, names or finalizers of the default domain."""
    for client in clients:
        for kind in await Discovery(client).resources():
            if "list" not in kind.verbs:
                continue
            for each in (await client.list(kind.untyped(), keep_raw=True)).items:
                meta = each.content()["metadata"]
                keys = {*each.labels, *each.annotations, *(meta.get("finalizers") or ())}
                named = [each.name, each.namespace, *each.labels.values()]
                assert not [key for key in keys - _OF_FLEETS if "kubeocean.io/" in key], meta
                mine = each.labels.get(APP_PART_OF) != "kubeocean"  # of CRDs, shared by all domains
                assert not mine or not [word for word in named if "kubeocean" in word], meta


async def _check_at_work(computing: Client, home: Home) -> None:
    virtual = {f"vnode-worker-{w}-sim-{n}" for w in (1, 2) for n in (0, 1)}
    assert await _ready_nodes(computing) == virtual | {"processes"}
    pods = (await computing.list(PODS, "default")).items
    assert {pod.status.phase for pod in pods} == {"Running"}
    assert {pod.spec.node_name for pod in pods} == virtual
    ours = {pod.name.rsplit("-", 2)[0]: pod for pod in (await computing.list(PODS, SYSTEM)).items}
    assert set(ours) == {
        "kubeocean-manager",
        *(f"kubeocean-{part}-worker-{n}" for part in ("syncer", "proxier") for n in (1, 2)),
    }
    # Each runs as a process, and under its own account.
    lines = [line for line in home.processes().values() if "kubeocean_pod=" in line]
    assert len(lines) == len(ours)
    accounts = {name: pod.spec.service_account_name for name, pod in ours.items()}
    assert accounts == {name: name for name in ours}


async def _check_commands(out: str, home: Home, *, node: str = "vnode-worker-2-sim-1") -> None:
    commands = _printed(out)
    assert len(commands) >= 7
    script = "\n".join(["set -e", *commands])
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", script],
        env=home.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert node in done.stdout
    assert "sample-" in done.stdout


async def _check_fleet(home: Home, computing: Client) -> None:
    """Check that the workers are members, and that an object is placed in one of them."""
    home.environ["KUBECONFIG"] = (await home.run("kubeconfig")).out.strip()
    clusters = await home.run("fleet", "clusters", "-o", "json")
    states = {
        each["name"]: (each["state"], each["healthy"])
        for each in json.loads(clusters.out)["clusters"]
    }
    assert states == {"worker-1": ("Joined", "True"), "worker-2": ("Joined", "True")}
    await computing.create(NAMESPACES, {"metadata": {"name": "placed"}})
    selector = {"group": "", "version": "v1", "kind": "Namespace", "name": "placed"}
    await computing.create(
        CLUSTER_RESOURCE_PLACEMENTS,
        {
            "apiVersion": CLUSTER_RESOURCE_PLACEMENTS.api_version,
            "kind": CLUSTER_RESOURCE_PLACEMENTS.kind,
            "metadata": {"name": "everywhere"},
            "spec": {"resourceSelectors": [selector]},
        },
    )

    async def is_available() -> bool:
        placement = await computing.get(CLUSTER_RESOURCE_PLACEMENTS, "everywhere")
        return placement_view(placement).available == 2

    await until(is_available, within=120, waiting_for="the placement on both workers")
    worker = connect((await home.run("kubeconfig", "--context", "worker-2")).out.strip())
    try:
        assert (await worker.get(NAMESPACES, "placed")).name == "placed"
    finally:
        await worker.close()
    del home.environ["KUBECONFIG"]


async def _check_kept(home: Home, computing: Client) -> None:
    """Check that `install` refuses to change local clusters."""
    kubeconfig = (await home.run("kubeconfig")).out.strip()
    before = await computing.get(DEPLOYMENTS, "kubeocean-manager", SYSTEM)
    install = await home.run("install", "--kubeconfig", kubeconfig)
    assert install.code == 2, install.err
    assert (
        "this computing cluster was created by kubeocean up, which has installed Kubeocean"
        in install.err
    )
    after = await computing.get(DEPLOYMENTS, "kubeocean-manager", SYSTEM)
    assert after.metadata.generation == before.metadata.generation


async def _check_again(home: Home, computing: Client) -> None:
    broken = MergePatch({"spec": {"replicas": 0}})
    await computing.patch(DEPLOYMENTS, "kubeocean-manager", broken, SYSTEM)
    again = await home.run("up", "--show-reclaim")
    assert again.code == 0, again.err
    manager = await computing.get(DEPLOYMENTS, "kubeocean-manager", SYSTEM)
    assert manager.is_observed
    assert manager.status.updated_replicas == manager.status.available_replicas == 1
    assert "ocean was already up" in again.out
    assert "worker-2 reclaims its nodes from" in again.out
    worker = connect((await home.run("kubeconfig", "--context", "worker-2")).out.strip())
    try:
        policy = await worker.get(RESOURCE_LEASING_POLICIES, "worker-2")
    finally:
        await worker.close()
    assert policy.spec.force_reclaim
    (window,) = policy.spec.time_windows or ()
    assert f" to {window.start} UTC. To watch, run" in again.out
    bare = await home.run("up", "--bare")
    assert bare.code == 1
    assert "to have it with --bare, take it down first" in bare.err


async def _check_join(
    home: Home, assets: Assets, new_cluster: NewCluster, computing: Client
) -> None:
    """Check that one command with an administrator's kubeconfig joins a new worker."""
    fresh = await new_cluster(name="fresh")
    async with SimulatedNodes(fresh, assets) as nodes:
        await nodes.add(2, prefix="new")
        home.environ["KUBECONFIG"] = (await home.run("kubeconfig")).out.strip()
        join = await home.run(
            *("join", "third", "--kubeconfig", str(fresh.kubeconfig), "--lease", "cpu=50%")
        )
        assert join.code == 0, join.err
        assert "third: 2 of 2 virtual nodes are Ready" in join.out
        ready = await _ready_nodes(computing)
        assert {"vnode-third-new-0", "vnode-third-new-1"} <= ready
        leave = await home.run("leave", "third", "--kubeconfig", str(fresh.kubeconfig))
        assert leave.code == 0, leave.err
        assert not any(name.startswith("vnode-third") for name in await _ready_nodes(computing))
        await until(lambda: _no_programs(computing, "third"), waiting_for="the end of its programs")
    del home.environ["KUBECONFIG"]


async def _no_programs(computing: Client, binding: str) -> bool:
    left = [binding_.name for binding_ in (await computing.list(CLUSTER_BINDINGS)).items]
    pods = [pod.name for pod in (await computing.list(PODS, SYSTEM)).items if binding in pod.name]
    return binding not in left and not pods
