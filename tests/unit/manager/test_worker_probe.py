"""Tests of the probes of workers."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import msgspec

from kubeocean.api.bindings import BindingSpec, ClusterBinding, SecretReference
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Unreachable
from kubeocean.manager.worker_probe import Cause, ProbeContext, ProbeResult, WorkerProbes
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.fencing import Grant, current_grant, under


class NoServer:
    """A transport to no server, which records the grant of each request."""

    generation = 0

    def __init__(self, error: str = "there is no server here") -> None:
        self.grants: list[Grant | None] = []
        self._error = error

    async def send(self, request: Request) -> Response:
        self.grants.append(current_grant())
        raise Unreachable(self._error, sent=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self.grants.append(current_grant())
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


class Listener:
    def __init__(self) -> None:
        self.bindings: list[Key] = []

    def result_changed(self, binding: Key) -> None:
        self.bindings.append(binding)

    def kubeconfig_rotated(self, binding: Key, server: str) -> None: ...
    def namespace_created(self, binding: Key, namespace: str) -> None: ...
    def worker_too_old(self, binding: Key, version: str) -> None: ...


def make_binding() -> ClusterBinding:
    spec = BindingSpec(secret_ref=SecretReference("s", "n"))
    return ClusterBinding(metadata=Meta(name="b", uid="u"), spec=spec)


def probe_context(no_server: NoServer, listener: Listener, clock: VirtualClock) -> ProbeContext:
    return ProbeContext(
        computing=Client(no_server, clock=clock),
        connect=lambda access: no_server,
        listener=listener,
        domain=DEFAULT,
        clock=clock,
    )


async def test_a_long_error_of_a_worker_is_truncated() -> None:
    clock, binding = VirtualClock(), make_binding()
    probes = WorkerProbes(probe_context(NoServer("x" * 100_000), Listener(), clock))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        probes.follow(binding)
        await clock.advance(60)
        result = probes.follow(binding)
        assert result is not None
        assert len(result.error) == 1000
        assert result.error.endswith("x…")
        running.cancel()


class Breaking(NoServer):
    """Raises an unexpected exception twelve times when one Secret is read."""

    times = 12

    async def send(self, request: Request) -> Response:
        if request.path.endswith("/secrets/broken") and self.times:
            self.times -= 1
            raise ZeroDivisionError("an unexpected exception")
        return await super().send(request)


async def test_a_probe_with_an_unexpected_exception_is_retried_and_stops_no_other_probe() -> None:
    clock, listener, metrics, no_server = VirtualClock(), Listener(), Metrics(), Breaking()
    probes = WorkerProbes(replace(probe_context(no_server, listener, clock), metrics=metrics))
    broken, well = (
        ClusterBinding(
            metadata=Meta(name=name, uid=name),
            spec=BindingSpec(secret_ref=SecretReference(name=name, namespace="n")),
        )
        for name in ("broken", "well")
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        probes.follow(broken)
        probes.follow(well)
        await clock.advance(10)
        assert probes.follow(well) is not None
        assert probes.follow(broken) is None
        await clock.advance(60)
        assert probes.follow(broken) is not None
        assert no_server.times == 0
        errors = "controller_runtime_reconcile_errors_total"
        assert metrics.value(errors, {"controller": "pulse"}) == 12
        assert not running.done()
        running.cancel()


KUBECONFIG = b"""
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://worker:6443"}}]
users: [{name: u, user: {token: t}}]
"""


class ComputingCluster(NoServer):
    """Answers each request with the Secret of a worker, so that watches fail."""

    def __init__(self, binding: str = "") -> None:
        super().__init__()
        self.labels = {DEFAULT.cluster_binding: binding} if binding else {}

    async def send(self, request: Request) -> Response:
        data = {"kubeconfig": base64.b64encode(KUBECONFIG).decode()}
        metadata = {"name": "s", "namespace": "n", "labels": self.labels}
        secret = {"metadata": metadata, "data": data}
        return Response(200, {}, msgspec.json.encode(secret))


class Worker(NoServer):
    """Grants all permissions while `reachable`."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.reviews = 0

    async def send(self, request: Request) -> Response:
        if not self.reachable:
            return await super().send(request)
        self.reviews += request.method == "POST"
        body = {
            "metadata": {"name": "m", "uid": "a"},
            "gitVersion": "v1.32.0",
            "status": {"allowed": True},
        }
        return Response(200, {}, msgspec.json.encode(body))


async def test_the_permissions_of_a_worker_that_recovers_are_reviewed_again() -> None:
    clock, worker = VirtualClock(), Worker()
    computing = Client(ComputingCluster(), clock=clock)
    probes = WorkerProbes(
        replace(
            probe_context(NoServer(), Listener(), clock),
            computing=computing,
            connect=lambda access: worker,
        )
    )
    spec = BindingSpec(secret_ref=SecretReference("s", "n"), mount_namespace="m")
    binding = ClusterBinding(metadata=Meta(name="b", uid="u"), spec=spec)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        probes.follow(binding)
        await clock.advance(60)
        first_reviews = worker.reviews
        assert first_reviews > 0
        for reachable in (False, True):
            worker.reachable = reachable
            await clock.advance(30)
        assert worker.reviews == 2 * first_reviews
        running.cancel()


async def test_a_probe_does_not_use_the_grant_of_the_reconcile_that_started_it() -> None:
    clock, no_server, listener = VirtualClock(), NoServer(), Listener()
    binding = make_binding()
    probes = WorkerProbes(probe_context(no_server, listener, clock))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        with under(Grant(1, 1, "a_1")):
            assert probes.follow(binding) is None
        await clock.advance(60)
        result = probes.follow(binding)
        assert result is not None
        assert result.cause is Cause.KUBECONFIG
        assert listener.bindings == [binding.key]
        assert set(no_server.grants) == {None}
        running.cancel()


async def test_a_cluster_with_another_identity_gets_no_permission_review() -> None:
    clock, worker = VirtualClock(), Worker()
    computing = Client(ComputingCluster(), clock=clock)
    probes = WorkerProbes(
        replace(
            probe_context(NoServer(), Listener(), clock),
            computing=computing,
            connect=lambda access: worker,
        )
    )
    spec = BindingSpec(secret_ref=SecretReference("s", "n"), mount_namespace="m")
    recorded = {DEFAULT.worker_cluster_id: "b"}
    binding = ClusterBinding(metadata=Meta(name="b", uid="u", annotations=recorded), spec=spec)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        probes.follow(binding)
        await clock.advance(60)
        result = probes.follow(binding)
        assert result is not None
        assert (result.cause, result.answers) == (Cause.ANOTHER, False)
        assert result.error == ("the cluster at https://worker:6443 is a, and the binding is for b")
        assert worker.reviews == 0
        running.cancel()


class Page(NoServer):
    """Answers as a server that is no API server, with a page of its own."""

    def __init__(self, status: int = 503) -> None:
        super().__init__()
        self.status = status

    async def send(self, request: Request) -> Response:
        return Response(self.status, {}, b"<html>internal: password=canary</html>")


async def probed(computing: ComputingCluster, worker: NoServer) -> ProbeResult:
    """Return the result of the probe of a binding named b."""
    clock = VirtualClock()
    probes = WorkerProbes(
        replace(
            probe_context(NoServer(), Listener(), clock),
            computing=Client(computing, clock=clock),
            connect=lambda access: worker,
        )
    )
    spec = BindingSpec(secret_ref=SecretReference("s", "n"), mount_namespace="m")
    binding = ClusterBinding(metadata=Meta(name="b", uid="u"), spec=spec)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        await clock.advance(0)
        probes.follow(binding)
        await clock.advance(60)
        result = probes.follow(binding)
        running.cancel()
    assert result is not None
    return result


async def test_the_page_of_a_server_that_is_no_api_server_is_not_shown() -> None:
    result = await probed(ComputingCluster(), Page())
    assert result.cause is Cause.UNREACHABLE
    assert result.error == "could not get the worker's version: HTTP 503"
    result = await probed(ComputingCluster(), Page(403))
    assert "canary" not in result.error


async def test_the_secret_of_another_binding_is_not_used() -> None:
    worker = Worker()
    result = await probed(ComputingCluster(binding="other"), worker)
    assert (result.cause, worker.reviews) == (Cause.KUBECONFIG, 0)
    assert result.error == (
        "Secret n/s: the label kubeocean.io/cluster-binding names another binding (got 'other')"
    )
    result = await probed(ComputingCluster(binding="b"), worker)
    assert result.cause is None
