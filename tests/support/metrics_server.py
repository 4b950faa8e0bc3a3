"""metrics-server as a process of this machine, and the API that it serves in a cluster.

Tests do not build the program: `make top-proof` and `make scale-proof` build it.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubeocean.local.cluster import Cluster
from kubeocean.local.ports import reserve
from kubeocean.local.process import Process
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, SERVICES
from kubeocean.runtime.objects import Json

__all__ = ["metrics_server", "node_address"]

NAME, NAMESPACE = "metrics-server", "kube-system"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
API = "/apis/apiregistration.k8s.io/v1/apiservices"


async def node_address(client: Client, node: str) -> str:
    """Return the internal address of a node."""
    content = (await client.get(NODES, node, keep_raw=True)).content()
    addresses = content["status"]["addresses"]
    return next(str(each["address"]) for each in addresses if each["type"] == "InternalIP")


@asynccontextmanager
async def metrics_server(
    cluster: Cluster, client: Client, *, near: str, directory: Path
) -> AsyncIterator[Process]:
    """Serve metrics of the cluster's nodes; `near` is the address of a real node."""
    assert shutil.which(NAME), f"{NAME} is not in PATH: run `make top-proof` or `make scale-proof`"
    address = _own_address(near)
    with reserve((address, 0)) as held:
        port = held.ports[0]
    kubeconfig = cluster.kubeconfig
    process = Process(
        NAME,
        [
            NAME,
            *(f"--{each}kubeconfig={kubeconfig}" for each in ("", "authentication-")),
            f"--authorization-kubeconfig={kubeconfig}",
            f"--secure-port={port}",
            f"--cert-dir={directory}",
            # Certificates of kubelets and proxiers are verified.
            f"--kubelet-certificate-authority={cluster.root / 'pki' / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
        ],
        log=directory / "metrics-server.log",
    )
    await process.start()
    await _publish(client, address, port)
    try:
        yield process
    finally:
        await client.request("DELETE", f"{API}/v1beta1.metrics.k8s.io")
        await client.request("DELETE", f"{SLICES}/{NAME}-test")
        await client.delete(SERVICES, NAME, NAMESPACE, uid=None)
        await process.kill()


def _own_address(near: str) -> str:
    """Return an address of this machine that an EndpointSlice may have: not one of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((near, 9))
        return str(probe.getsockname()[0])


async def _publish(client: Client, address: str, port: int) -> None:
    service: Json = {"metadata": {"name": NAME}, "spec": {"ports": [{"port": 443}]}}
    await client.create(SERVICES, service, namespace=NAMESPACE)
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
    await client.request_json("POST", SLICES, body=endpoints)
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
    await client.request_json("POST", API, body=served)
