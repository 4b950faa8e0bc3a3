"""Tests of metrics over HTTPS: callers are authenticated and authorized by a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import cluster_role_binding, cluster_role_of
from kubeocean.install.permissions import Rule
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.health import metrics_app
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.metrics_access import MetricsAccess, SecureMetrics, ServingCertificate
from kubeocean.runtime.server import Server
from support.faults import Faults


@asynccontextmanager
async def served(client: Client) -> AsyncIterator[str]:
    """Serve metrics; yield the address of the server."""
    secure = SecureMetrics(MetricsAccess(client), ServingCertificate())
    metrics = Metrics()
    metrics.counter("tests_done", "A metric").inc(3)
    app = metrics_app(metrics, secure=secure)
    address = BindAddress("127.0.0.1", 0)
    async with Server(app, address, tls=secure.certificate.context) as server:
        yield f"127.0.0.1:{server.address.port}"


async def answer(url: str, token: str = "") -> tuple[int, str]:
    """Request a page without verifying the self-signed certificate."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False) as response,
    ):
        return response.status, await response.text()


async def token_of(cluster: Cluster, client: Client, namespace: str, account: str) -> str:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, namespace=namespace)
    access = load_kubeconfig(await cluster.service_account(namespace, account))
    assert access.token is not None
    return access.token.reveal()


async def test_only_callers_that_may_read_metrics_get_them(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    reader, stranger = [
        await token_of(cluster, client, namespace, name) for name in ("prometheus", "stranger")
    ]
    name = f"metrics-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}
    role = cluster_role_of(name, (Rule((), ("get",), urls=("/metrics",)),), labels={})
    for body in (role, cluster_role_binding(name, role=name, subject=subject, labels={})):
        await client.create(resource_of(body), body)
    faults = Faults()
    reviewer = cluster.client(wrap=faults.wrap)
    try:
        async with served(reviewer) as address:
            url = f"https://{address}/metrics"
            status, page = await answer(url, reader)
            assert status == 200
            assert "tests_done_total 3.0" in page
            assert (await answer(url))[0] == 401
            assert (await answer(url, "not.a.token"))[0] == 401
            status, reason = await answer(url, stranger)
            assert status == 403
            assert f"system:serviceaccount:{namespace}:stranger" in reason
            before = len(faults.requests)
            for token, status in ((reader, 200), (stranger, 403), ("not.a.token", 401)):
                assert (await answer(url, token))[0] == status
            assert len(faults.requests) == before  # answers are cached
            with pytest.raises(aiohttp.ClientError):
                await answer(f"http://{address}/metrics", reader)
            faults.answer(503, times=1_000)
            new = await token_of(cluster, client, namespace, "late")
            assert (await answer(url, new))[0] == 503
    finally:
        await reviewer.close()
