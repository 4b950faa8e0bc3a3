"""Simulated nodes: Ready, running pods, failing on request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from conftest import NewCluster
from kubeocean.errors import LocalError, NotFound
from kubeocean.local.assets import Assets, ensure
from kubeocean.local.cluster import Cluster
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import LEASES, NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition
from support.wait import until

_JOBS = Resource("batch", "v1", "jobs", "Job", True, Untyped)
_QUICK = {"kube-controller-manager": ["--node-monitor-grace-period=4s", "--node-monitor-period=1s"]}


@pytest.fixture(scope="module")
async def kwok() -> Assets:
    return await ensure(["kwok"])


@pytest.fixture(scope="module")
async def world(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A cluster that notices a lost node after seconds."""
    root = cluster_roots / "simulated"
    async with Cluster("simulated", root, assets, ephemeral=True, extra_args=_QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def admin(world: Cluster) -> AsyncIterator[Client]:
    client = world.client()
    yield client
    await client.close()


@pytest.fixture(scope="module")
async def nodes(world: Cluster, kwok: Assets) -> AsyncIterator[SimulatedNodes]:
    async with SimulatedNodes(world, kwok, lease_s=4) as nodes:
        yield nodes


def _pod(name: str, node: str = "", **spec: object) -> Json:
    container = {"name": "c", "image": "none"}
    tolerations = [{"operator": "Exists"}]
    more = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container], "tolerations": tolerations} | more | spec,
    }


def _ready(node: Node) -> str:
    condition = find_condition(node.status.conditions, "Ready")
    return condition.status if condition else ""


async def _phase(client: Client, name: str) -> str:
    return (await client.get(PODS, name, "default")).status.phase


async def _gone(client: Client, name: str) -> bool:
    try:
        await client.get(PODS, name, "default")
    except NotFound:
        return True
    return False


async def test_added_nodes_are_ready_with_what_was_asked_for(
    nodes: SimulatedNodes, admin: Client
) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    names = await nodes.add(
        2, prefix="asked", capacity={"cpu": "7", "x/gpu": "2"}, labels={"zone": "z"}, taints=[taint]
    )
    assert names == ["asked-0", "asked-1"]
    node = await admin.get(NODES, "asked-1")
    assert _ready(node) == "True"
    assert node.labels["zone"] == "z"
    assert node.status.allocatable is not None
    assert (node.status.allocatable["cpu"], node.status.allocatable["x/gpu"]) == ("7", "2")
    assert [entry.key for entry in node.spec.taints or () if entry.key == "k"] == ["k"]
    assert await nodes.add(1, prefix="asked") == ["asked-2"]


async def test_the_scheduler_places_pods_that_run_and_end(
    nodes: SimulatedNodes, admin: Client
) -> None:
    names = await nodes.add(2, prefix="placed")
    await admin.create(
        PODS, _pod("placed", nodeSelector={"kubernetes.io/os": "linux"}), namespace="default"
    )
    await until(lambda: _running(admin, "placed"))
    pod: Pod = await admin.get(PODS, "placed", "default")
    assert pod.spec.node_name
    assert pod.status.pod_ip.startswith("10.")
    assert len(names) == 2
    await admin.delete(PODS, "placed", "default", uid=pod.uid)
    await until(lambda: _gone(admin, "placed"))


async def _running(client: Client, name: str) -> bool:
    return await _phase(client, name) == "Running"


async def test_finalizers_of_others_are_respected(nodes: SimulatedNodes, admin: Client) -> None:
    (name,) = await nodes.add(1, prefix="finalized")
    pod = _pod("finalized", name)
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    await admin.create(PODS, pod, namespace="default")
    await until(lambda: _running(admin, "finalized"))
    await admin.delete(PODS, "finalized", "default", uid=None)
    await until(lambda: _failed(admin, "finalized"))
    assert not await _gone(admin, "finalized")
    await admin.patch(PODS, "finalized", MergePatch({"metadata": {"finalizers": None}}), "default")
    await until(lambda: _gone(admin, "finalized"))


async def _failed(client: Client, name: str) -> bool:
    return await _phase(client, name) == "Failed"


async def test_pods_of_a_job_complete(nodes: SimulatedNodes, admin: Client) -> None:
    await nodes.add(1, prefix="working")
    template = {"spec": _pod("any")["spec"] | {"restartPolicy": "Never"}}
    job = {"metadata": {"name": "work"}, "spec": {"completions": 2, "template": template}}
    await admin.create(_JOBS, job, namespace="default")

    async def succeeded() -> bool:
        status = (await admin.get(_JOBS, "work", "default", keep_raw=True)).content()["status"]
        return bool(status.get("succeeded") == 2)

    await until(succeeded)


async def test_nodes_of_others_are_left_alone(nodes: SimulatedNodes, admin: Client) -> None:
    label = {"kwok.x-k8s.io/node": "another-cluster"}
    await admin.create(NODES, {"metadata": {"name": "foreign", "labels": label}})
    await admin.create(PODS, _pod("foreign", "foreign"), namespace="default")
    (name,) = await nodes.add(1, prefix="own")
    await admin.create(PODS, _pod("own", name), namespace="default")
    await until(lambda: _running(admin, "own"))
    assert await _phase(admin, "foreign") == "Pending"
    assert _ready(await admin.get(NODES, "foreign")) != "True"
    await admin.delete(NODES, "foreign", uid=None)


async def test_one_node_fails_and_heals(nodes: SimulatedNodes, admin: Client) -> None:
    lost, kept = await nodes.add(2, prefix="mortal")
    await nodes.fail([lost])
    await until(lambda: _is(admin, lost, "Unknown"))
    assert _ready(await admin.get(NODES, kept)) == "True"
    await nodes.heal([lost])
    await until(lambda: _is(admin, lost, "True"))


async def _is(client: Client, name: str, status: str) -> bool:
    return _ready(await client.get(NODES, name)) == status


async def test_all_nodes_fail_while_paused(nodes: SimulatedNodes, admin: Client) -> None:
    names = await nodes.add(2, prefix="paused")
    nodes.pause()
    for name in names:
        await until(lambda name=name: _is(admin, name, "Unknown"))
    nodes.resume()
    for name in names:
        await until(lambda name=name: _is(admin, name, "True"))


async def test_removed_nodes_take_their_leases_along(nodes: SimulatedNodes, admin: Client) -> None:
    names = await nodes.add(2, prefix="brief")
    await nodes.remove(names)

    async def leases() -> set[str]:
        return {lease.name for lease in (await admin.list(LEASES, "kube-node-lease")).items}

    async def gone() -> bool:
        return not set(names) & await leases()

    await until(gone)
    assert not set(names) & {node.name for node in (await admin.list(NODES)).items}
    await nodes.remove(names)


async def test_a_new_kwok_minds_the_nodes_of_the_last_one_at_once(
    new_cluster: NewCluster, kwok: Assets
) -> None:
    cluster = await new_cluster()
    client = cluster.client()

    async def holder() -> str | None:
        leases = (await client.list(LEASES, "kube-node-lease")).items
        return leases[0].spec.holder_identity if leases else None

    async with SimulatedNodes(cluster, kwok) as nodes:
        await nodes.add(1)
        first = await holder()
    assert first is not None

    async def taken_over() -> bool:
        return await holder() not in (None, first)

    async with SimulatedNodes(cluster, kwok):  # its leases last for two minutes
        await until(taken_over)
    await client.close()


async def test_a_broken_kwok_is_shown(world: Cluster, tmp_path: Path) -> None:
    class Broken:
        def path(self, name: str) -> Path:
            return Path("/bin/false")

    with pytest.raises(LocalError, match=r"kwok of cluster simulated ended with exit code 1"):
        await SimulatedNodes(world, Broken()).start()


@pytest.mark.sweep(sampled=False)
async def test_a_thousand_nodes_are_ready_and_cheap(new_cluster: NewCluster, kwok: Assets) -> None:
    cluster = await new_cluster()
    client = cluster.client()
    async with SimulatedNodes(cluster, kwok) as nodes:
        names = await nodes.add(1000, prefix="many")
        actual = (await client.list(NODES)).items
        assert {node.name for node in actual if _ready(node) == "True"} == set(names)
        assert len(names) == 1000
        spent = psutil.Process(nodes.process.pid).cpu_times()
        assert spent.user + spent.system < 10
    await client.close()


async def test_kwok_serves_no_logs_and_no_shells_of_pods(
    world: Cluster, admin: Client, nodes: SimulatedNodes
) -> None:
    (name,) = await nodes.add(1, prefix="quiet")
    await admin.create(PODS, _pod("quiet", name), namespace="default")
    (port,) = (
        connection.laddr.port
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "kwok" and str(world.root) in " ".join(process.info["cmdline"])
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    )
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for path in ("/containerLogs/default/quiet/c", "/exec/default/quiet/c?command=id"):
            async with session.get(path) as answer:
                assert (answer.status, await answer.text()) == (
                    405,
                    "Debug endpoints are disabled.\n",
                )
