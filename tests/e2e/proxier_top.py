"""`kubectl top` on virtual nodes, with the real metrics-server.

metrics-server is not among the programs that tests build: `make top-proof` builds it and runs this
module.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.ports import reserve
from kubeocean.local.process import Process
from kubeocean.runtime.kinds import NODES, SERVICES
from kubeocean.runtime.objects import Json
from support.proxier_env import ProxierEnv
from support.wait import until

NAME, NAMESPACE = "metrics-server", "kube-system"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
API = "/apis/apiregistration.k8s.io/v1/apiservices"
SPIN = "i=0; while true; do i=$((i+1)); [ $((i % 20000)) = 0 ] && sleep 0.1; done"


@pytest.fixture
async def metrics_server(proxier_env: ProxierEnv, tmp_path: Path) -> AsyncIterator[Process]:
    """metrics-server as a process, and the API that it serves."""
    assert shutil.which(NAME), f"{NAME} is not in PATH: run `make top-proof`"
    address = await _address(proxier_env)
    with reserve((address, 0)) as held:
        port = held.ports[0]
    cluster = proxier_env.computing
    kubeconfig = cluster.kubeconfig
    process = Process(
        NAME,
        [
            NAME,
            *(f"--{each}kubeconfig={kubeconfig}" for each in ("", "authentication-")),
            f"--authorization-kubeconfig={kubeconfig}",
            f"--secure-port={port}",
            f"--cert-dir={tmp_path}",
            # The proxier's certificate is verified.
            f"--kubelet-certificate-authority={cluster.root / 'pki' / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
        ],
        log=tmp_path / "metrics-server.log",
    )
    await process.start()
    await _publish(proxier_env, address, port)
    try:
        yield process
    finally:
        await proxier_env.computing_api.request("DELETE", f"{API}/v1beta1.metrics.k8s.io")
        await proxier_env.computing_api.request("DELETE", f"{SLICES}/{NAME}-test")
        await proxier_env.computing_api.delete(SERVICES, NAME, NAMESPACE, uid=None)
        await process.kill()


async def _address(proxier_env: ProxierEnv) -> str:
    """An address of this machine that an EndpointSlice may have: not one of the loopback."""
    node = (await proxier_env.worker_api.get(NODES, proxier_env.node.name, keep_raw=True)).content()
    node_address = next(
        a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node_address, 9))
        return str(probe.getsockname()[0])


async def _publish(proxier_env: ProxierEnv, address: str, port: int) -> None:
    service: Json = {"metadata": {"name": NAME}, "spec": {"ports": [{"port": 443}]}}
    await proxier_env.computing_api.create(SERVICES, service, namespace=NAMESPACE)
    endpoints: Json = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{NAME}-test",
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    await proxier_env.computing_api.request_json("POST", SLICES, body=endpoints)
    served: Json = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": NAME, "namespace": NAMESPACE},
        },
    }
    await proxier_env.computing_api.request_json("POST", API, body=served)


async def test_top_shows_virtual_nodes_and_pods(
    proxier_env: ProxierEnv, metrics_server: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    async with proxier_env.proxier():
        await proxier_env.run("busy", SPIN)

        async def pod() -> list[str]:
            answer = await proxier_env.kubectl("top", "pod", "busy", "--no-headers")
            assert answer.code == 0, (answer.err, metrics_server.tail())
            return answer.text.split()

        name, cpu, memory = await until(pod, within=90.0)
        assert name == "busy"
        assert int(cpu.removesuffix("m")) > 10
        assert memory.endswith("Mi")
        shown = (
            await proxier_env.kubectl("top", "pod", "busy", "--containers", "--no-headers")
        ).text
        assert shown.split()[:2] == ["busy", "main"]

        async def node() -> list[str]:
            answer = await proxier_env.kubectl("top", "node", proxier_env.vnode, "--no-headers")
            assert answer.code == 0, answer.err
            return answer.text.split()

        row = await until(node, within=60.0)
        assert row[0] == proxier_env.vnode
        assert int(row[1].removesuffix("m")) > 10
        with capsys.disabled():
            for what in (("pod", "busy", "--containers"), ("node", proxier_env.vnode)):
                print(f"\nkubectl top {' '.join(what)}")
                print((await proxier_env.kubectl("top", *what)).text, end="")
