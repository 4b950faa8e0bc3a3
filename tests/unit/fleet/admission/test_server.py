"""The webhook server: answers to failures, without details that clients must not read."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kubeocean.errors import Unreachable
from kubeocean.fleet.admission import server as server_module
from kubeocean.fleet.admission.handlers import Handlers
from kubeocean.fleet.admission.reviews import AdmissionDecision, AdmissionRequest, BadReview
from kubeocean.fleet.admission.server import WebhookServer
from kubeocean.runtime.client import Client
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.server_tls import CertificateTls
from support.scripted_transport import Scripted

REVIEW = msgspec.json.encode(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "name": "p",
            "object": {},
        },
    }
)


class NoCertificates:
    """A source that never has a certificate."""

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


def new_server(metrics: Metrics | None = None) -> WebhookServer:
    handlers = Handlers(Client(Scripted([])))
    address = BindAddress("127.0.0.1", 0)
    return WebhookServer(handlers, CertificateTls(), NoCertificates(), address=address,
                         metrics=metrics)  # fmt: skip


async def response(server: WebhookServer, handler: Any) -> Any:
    return msgspec.json.decode(await server.review("w", handler, REVIEW))["response"]


async def test_a_failed_look_up_is_a_refusal_without_its_details() -> None:
    async def handler(request: AdmissionRequest) -> AdmissionDecision:
        raise Unreachable("https://10.0.0.1:6443 refused the connection")

    metrics = Metrics()
    answer = await response(new_server(metrics), handler)
    assert not answer["allowed"]
    assert answer["status"]["message"] == (
        "Pod p could not be checked, because the hub's API server did not answer; try again"
    )
    text = metrics.render().decode()
    assert 'kubeocean_fleet_admission_reviews_total{result="failed",webhook="w"} 1.0' in text


async def test_a_slow_look_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: AdmissionRequest) -> AdmissionDecision:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("not reached")

    monkeypatch.setattr(server_module, "_DECIDING_S", 0.01)
    assert not (await response(new_server(), handler))["allowed"]


async def test_an_unreadable_object_is_a_refusal_that_names_the_field() -> None:
    async def handler(request: AdmissionRequest) -> AdmissionDecision:
        raise BadReview("request.object cannot be read: it is not an object")

    answer = await response(new_server(), handler)
    assert answer["status"]["message"] == "request.object cannot be read: it is not an object"


async def test_a_server_without_a_certificate_is_not_ready() -> None:
    server = new_server()
    assert not server.ready
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0)
    assert not server.ready
    task.cancel()
    await asyncio.wait([task])
