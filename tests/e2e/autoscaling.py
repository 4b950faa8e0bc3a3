"""Autoscalers of a binding's proxiers and sharded syncers, with the real metrics-server.

The manager's rollout creates Deployments and autoscalers from the shipped templates on a real node.
The containers are loops that use CPU, because no image of Kubeocean is there. metrics-server reads
their use from the kubelet, and the controller of kube-controller-manager scales. `make scale-proof`
builds metrics-server and runs this module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from kubeocean.errors import Conflict
from kubeocean.install.apply import resource_of
from kubeocean.install.templates import proxier_files, syncer_files, text
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.local.real_nodes.node import RealNode
from kubeocean.manager.rollout import Rollout
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json
from support.crds import install_our_kinds
from support.metrics_server import metrics_server, node_address
from support.rollout_env import Mounted, RolloutEnv
from support.wait import until

SPIN = ["sh", "-c", "while :; do :; done"]
VALUES = Values(
    replicas=1, shard_syncers=True, max_replicas={"syncer": 2, "proxier": 2}, target_cpu_percent=50
)
COMPONENTS = ("syncer", "proxier")
AUTOSCALERS = resource_of(
    {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": ""}}
)


@pytest.fixture
async def server(
    real_cluster: Cluster, real_node: RealNode, real_client: Client, tmp_path: Path
) -> AsyncIterator[Process]:
    """metrics-server of the cluster with the real node."""
    near = await node_address(real_client, real_node.name)
    directory = tmp_path / "metrics-server"
    directory.mkdir()
    async with metrics_server(real_cluster, real_client, near=near, directory=directory) as process:
        yield process


@pytest.fixture
async def env(
    real_cluster: Cluster, real_client: Client, real_namespace: str, tmp_path: Path
) -> RolloutEnv:
    await install_our_kinds(real_client)
    env = RolloutEnv(real_cluster, real_client, real_namespace, tmp_path / "templates")
    for component, mounted, files in (
        ("syncer", env.syncers, syncer_files(VALUES)),
        ("proxier", env.proxiers, proxier_files(VALUES)),
    ):
        mounted.files = files | {f"{component}Namespace": real_namespace}
        _spin(mounted)
    await env.settle()
    env.binding = await env.bind()
    return env


def _spin(mounted: Mounted) -> None:
    """Replace the program by a loop; all else stays as it is shipped."""
    lines = mounted.files["deployment.yaml"].splitlines()
    body = yaml.safe_load("\n".join(line for line in lines if not line.startswith("{{")))
    container = body["spec"]["template"]["spec"]["containers"][0]
    for part in ("args", "livenessProbe", "readinessProbe"):
        del container[part]
    container |= {"image": BUSYBOX, "command": SPIN}
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    mounted.write(deployment__yaml=text(body))


async def test_a_busy_binding_gets_more_proxiers_and_syncers(
    env: RolloutEnv, server: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    async with env.running() as rollout:
        await _roll_out(rollout, env)

        async def scaled() -> bool:
            # the manager keeps running, and must not revert the number
            await _roll_out(rollout, env)
            deployments = [await env.deployment(each) for each in COMPONENTS]
            return all(each["status"].get("readyReplicas", 0) == 2 for each in deployments)

        await until(
            scaled, within=300.0, every=1.0, waiting_for=f"the second replica; {server.tail()}"
        )

        async def used() -> dict[str, int]:
            scalers = await env.client.list(AUTOSCALERS, env.namespace, keep_raw=True)
            contents = [each.content() for each in scalers.items]
            assert len(contents) == 2
            for status in (each["status"] for each in contents):
                assert (status["currentReplicas"], status["desiredReplicas"]) == (2, 2)
            return {each["metadata"]["name"]: _utilization(each["status"]) for each in contents}

        for name, percent in (await until(used)).items():
            assert percent > 0
            with capsys.disabled():
                print(f"\n{name}: 1 -> 2 replicas at {percent} % of the requested CPU")

        async def removed() -> bool:
            return not await rollout.remove(env.binding)

        await until(removed, within=60.0)
    assert (await env.client.list(AUTOSCALERS, env.namespace)).items == []


def _utilization(status: Json) -> int:
    (metric,) = status["currentMetrics"]
    return int(metric["resource"]["current"]["averageUtilization"])


async def _roll_out(rollout: Rollout, env: RolloutEnv) -> None:
    with suppress(Conflict):  # a controller wrote at the same time
        await rollout.ensure(env.binding)
