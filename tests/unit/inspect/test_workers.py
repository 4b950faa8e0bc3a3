"""Tests of the connection to a worker by the Secret that its binding names."""

from __future__ import annotations

import base64

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.errors import Unreachable
from kubeocean.inspect.snapshot import WorkerState
from kubeocean.inspect.workers import Workers
from kubeocean.runtime.client import Client
from kubeocean.runtime.transport import Response
from support.explain_objects import binding
from support.scripted_transport import Scripted, answer

KUBECONFIG = b"""
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


def secret(kubeconfig: bytes = KUBECONFIG) -> Response:
    data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
    body = {"metadata": {"name": "s", "namespace": "default"}, "data": data}
    return answer(200, msgspec.json.encode(body))


def workers_of(*script: Response | BaseException, worker: Scripted | None = None) -> Workers:
    computing = Client(Scripted(*script), cluster="computing")
    return Workers(computing, connect=lambda _: Client(worker or Scripted(), cluster="worker"))


@pytest.mark.parametrize(
    ("response", "state", "message"),
    [
        (answer(404), WorkerState.UNUSABLE, "default/s"),
        (answer(403), WorkerState.NOT_ALLOWED, "not allowed to read Secret default/s"),
        (answer(503), WorkerState.NOT_ASKED, "default/s"),
        (Unreachable("could not reach it", sent=False), WorkerState.NOT_ASKED, "could not reach"),
        (secret(b"nonsense"), WorkerState.UNUSABLE, "Secret default/s: data.kubeconfig"),
    ],
)
async def test_a_secret_that_was_not_read_is_not_called_unusable(
    response: Response | BaseException, state: WorkerState, message: str
) -> None:
    connection = await workers_of(response).connect(binding())
    assert (connection.state, connection.client) == (state, None)
    assert message in connection.message


async def test_a_binding_without_a_secret_is_unusable() -> None:
    nameless = msgspec.convert({"metadata": {"name": "b"}}, ClusterBinding)
    connection = await workers_of(secret()).connect(nameless)
    assert (connection.state, connection.message) == (
        WorkerState.UNUSABLE,
        "spec.secretRef: must have the name and the namespace of a Secret",
    )


@pytest.mark.parametrize(
    ("response", "state", "usable"),
    [
        (answer(200), WorkerState.ANSWERED, True),
        (answer(401), WorkerState.REFUSED, False),
        (Unreachable("could not reach it", sent=False), WorkerState.SILENT, False),
    ],
)
async def test_a_worker_that_does_not_answer_a_probe_has_no_client(
    response: Response | BaseException, state: WorkerState, usable: bool
) -> None:
    workers = workers_of(secret(), worker=Scripted(response))
    connection = await workers.probe(await workers.connect(binding()))
    assert (connection.state, connection.client is not None) == (state, usable)
    assert connection.access is not None


async def test_a_worker_without_our_kind_was_not_prepared() -> None:
    workers = workers_of(secret(), worker=Scripted(answer(404)))
    connection, policies = await workers.policies(await workers.connect(binding()))
    assert (connection.state, policies) == (WorkerState.REFUSED, ())
    assert "was not prepared for lending" in connection.message
