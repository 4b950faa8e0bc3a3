"""Fixtures: a real node that runs real containers.

`real_cluster` is a control plane that checks its kubelets' certificates, `real_node` the first
node of it; both are shared by these tests. Where real nodes cannot run, every test that needs one
is skipped with the reason.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeocean.errors import NotFound
from kubeocean.local.assets import CONTROL_PLANE, Assets, ensure
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes.config import MACHINE_ADDRESS
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.local.real_nodes.node import RealNode, available
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from support.crds import install_our_kinds
from support.proxier_env import ProxierEnv
from support.wait import until

Kubectl = Callable[..., Awaitable["Answer"]]
RunPod = Callable[..., Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
async def node_assets() -> Assets:
    """The programs of a cluster with real nodes."""
    if (reason := available()) is not None:
        pytest.skip(reason)
    return await ensure((*CONTROL_PLANE, "kubectl", "kubelet"))


@pytest.fixture(scope="package")
async def real_cluster(node_assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A control plane with all components that trusts no kubelet without a certificate."""
    root = cluster_roots / "real"
    verify = f"--kubelet-certificate-authority={root / 'pki' / 'ca.crt'}"
    async with Cluster(
        "real",
        root,
        node_assets,
        sans=(MACHINE_ADDRESS,),
        ephemeral=True,
        extra_args={"kube-apiserver": [verify]},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def real_node(real_cluster: Cluster, node_assets: Assets) -> AsyncIterator[RealNode]:
    """The shared real node, which reads ConfigMaps more often than kubelets do by default."""
    async with RealNode(
        "node-1",
        real_cluster,
        node_assets,
        labels={"shared": "yes"},
        kubelet={"syncFrequency": "2s"},
    ) as node:
        yield node


@pytest.fixture(scope="package")
async def real_client(real_cluster: Cluster) -> AsyncIterator[Client]:
    """An administrator of the cluster with real nodes."""
    client = real_cluster.client()
    yield client
    await client.close()


@pytest.fixture
async def real_namespace(real_client: Client) -> AsyncIterator[str]:
    """A fresh namespace in which pods can be created; its pods end with the test."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    await real_client.create(NAMESPACES, {"metadata": {"name": name}})

    async def has_account() -> bool:
        try:
            return bool(await real_client.get(SERVICE_ACCOUNTS, "default", name))
        except NotFound:
            return False

    await until(has_account, waiting_for="the default service account")
    yield name
    for pod in (await real_client.list(PODS, name)).items:
        await real_client.delete(PODS, pod.name, name, uid=None, grace_s=0)


@pytest.fixture(scope="package")
def kubectl(real_cluster: Cluster, node_assets: Assets) -> Kubectl:
    """Runs kubectl as administrator: `await kubectl("logs", "web", "-n", namespace)`."""

    async def run(*arguments: str, stdin: str = "") -> Answer:
        command = await asyncio.create_subprocess_exec(
            *(node_assets.path("kubectl"), f"--kubeconfig={real_cluster.kubeconfig}", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await command.communicate(stdin.encode())
        return Answer(command.returncode or 0, out.decode(), err.decode())

    return run


@pytest.fixture
def run_pod(real_node: RealNode, real_client: Client, real_namespace: str) -> RunPod:
    """Runs a shell script in a pod of the shared node and returns the pod when it is Ready.

    Further arguments are entries of the pod's spec, `container` those of its only container.
    """

    async def run(name: str, script: str, *, container: Json | None = None, **spec: Any) -> Json:
        main = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}
        body = {
            "nodeSelector": {"shared": "yes"},
            "terminationGracePeriodSeconds": 1,
            "containers": [main | (container or {})],
        }
        manifest = {"metadata": {"name": name}, "spec": body | spec}
        await real_client.create(PODS, manifest, namespace=real_namespace)
        return await until_ready(real_client, real_namespace, name)

    return run


async def until_ready(client: Client, namespace: str, name: str) -> Json:
    """Return the pod, once its Ready condition is true."""

    async def ready_pod() -> Json | None:
        pod = (await client.get(PODS, name, namespace, keep_raw=True)).content()
        conditions = pod["status"].get("conditions", ())
        return (
            pod if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) else None
        )

    ready = await until(ready_pod, waiting_for=f"pod {name} to be Ready")
    assert ready is not None
    return ready


@pytest.fixture(scope="module")
async def proxier_env(
    cluster: Cluster,
    client: Client,
    real_cluster: Cluster,
    real_node: RealNode,
    real_client: Client,
    node_assets: Assets,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ProxierEnv]:
    """A virtual node of the shared real node."""
    await install_our_kinds(client)
    built = ProxierEnv(
        computing=cluster,
        worker=real_cluster,
        node=real_node,
        computing_api=client,
        worker_api=real_client,
        kubectl_path=node_assets.path("kubectl"),
        directory=tmp_path_factory.mktemp("proxier_env"),
    )
    await built.build()
    yield built
    await built.demolish()
