"""A pulse goes on by itself, whatever asked for it."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import msgspec

from kubeocean.api.binding import BindingSpec, ClusterBinding, SecretReference
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Unreachable
from kubeocean.manager.findings import Cause
from kubeocean.manager.pulses import Pulses, Surroundings
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.fencing import Grant, current_grant, under


class Nowhere:
    """A way to no server, which notes under which grant it was asked."""

    generation = 0

    def __init__(self, said: str = "there is no server here") -> None:
        self.asked: list[Grant | None] = []
        self._said = said

    async def send(self, request: Request) -> Response:
        self.asked.append(current_grant())
        raise Unreachable(self._said, sent=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self.asked.append(current_grant())
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


class Told:
    def __init__(self) -> None:
        self.bindings: list[Key] = []

    def found(self, binding: Key) -> None:
        self.bindings.append(binding)

    def rotated(self, binding: Key, server: str) -> None: ...
    def namespace_created(self, binding: Key, namespace: str) -> None: ...
    def too_old(self, binding: Key, version: str) -> None: ...


def bound() -> ClusterBinding:
    spec = BindingSpec(secret_ref=SecretReference("s", "n"))
    return ClusterBinding(metadata=Meta(name="b", uid="u"), spec=spec)


def around(nowhere: Nowhere, told: Told, clock: VirtualClock) -> Surroundings:
    return Surroundings(
        computing=Client(nowhere, clock=clock),
        connect=lambda access: nowhere,
        told=told,
        domain=DEFAULT,
        clock=clock,
    )


async def test_what_a_stranger_says_at_length_is_cut_short() -> None:
    clock, binding = VirtualClock(), bound()
    pulses = Pulses(around(Nowhere("x" * 100_000), Told(), clock))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pulses.run())
        await clock.advance(0)
        pulses.follow(binding)
        await clock.advance(60)
        finding = pulses.follow(binding)
        assert finding is not None
        assert len(finding.error) == 1000
        assert finding.error.endswith("x…")
        running.cancel()


class Breaking(Nowhere):
    """Breaks for twenty seconds in a way that nobody expects, when asked for one Secret."""

    times = 12

    async def send(self, request: Request) -> Response:
        if request.path.endswith("/secrets/broken") and self.times:
            self.times -= 1
            raise ZeroDivisionError("nobody expects this")
        return await super().send(request)


async def test_one_pulse_that_breaks_ends_no_other_and_goes_on_by_itself() -> None:
    clock, told, metrics, nowhere = VirtualClock(), Told(), Metrics(), Breaking()
    pulses = Pulses(replace(around(nowhere, told, clock), metrics=metrics))
    broken, well = (
        ClusterBinding(
            metadata=Meta(name=name, uid=name),
            spec=BindingSpec(secret_ref=SecretReference(name=name, namespace="n")),
        )
        for name in ("broken", "well")
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pulses.run())
        await clock.advance(0)
        pulses.follow(broken)
        pulses.follow(well)
        await clock.advance(10)
        assert pulses.follow(well) is not None
        assert pulses.follow(broken) is None
        await clock.advance(60)
        assert pulses.follow(broken) is not None
        assert nowhere.times == 0
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


class Home(Nowhere):
    """Knows the Secret of a worker, and lets nobody watch it."""

    async def send(self, request: Request) -> Response:
        data = {"kubeconfig": base64.b64encode(KUBECONFIG).decode()}
        secret = {"metadata": {"name": "s", "namespace": "n"}, "data": data}
        return Response(200, {}, msgspec.json.encode(secret))


class Worker(Nowhere):
    """Says yes to everything, while it is `there`."""

    def __init__(self) -> None:
        super().__init__()
        self.there = True
        self.reviews = 0

    async def send(self, request: Request) -> Response:
        if not self.there:
            return await super().send(request)
        self.reviews += request.method == "POST"
        said = {
            "metadata": {"name": "m", "uid": "a"},
            "gitVersion": "v1.32.0",
            "status": {"allowed": True},
        }
        return Response(200, {}, msgspec.json.encode(said))


async def test_a_worker_that_comes_back_is_asked_again_what_we_may_do() -> None:
    clock, worker = VirtualClock(), Worker()
    computing = Client(Home(), clock=clock)
    pulses = Pulses(
        replace(
            around(Nowhere(), Told(), clock), computing=computing, connect=lambda access: worker
        )
    )
    spec = BindingSpec(secret_ref=SecretReference("s", "n"), mount_namespace="m")
    binding = ClusterBinding(metadata=Meta(name="b", uid="u"), spec=spec)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pulses.run())
        await clock.advance(0)
        pulses.follow(binding)
        await clock.advance(60)
        asked = worker.reviews
        assert asked > 0
        for there in (False, True):
            worker.there = there
            await clock.advance(30)
        assert worker.reviews == 2 * asked
        running.cancel()


async def test_a_pulse_does_not_work_under_the_grant_of_the_turn_that_began_it() -> None:
    clock, nowhere, told = VirtualClock(), Nowhere(), Told()
    binding = bound()
    pulses = Pulses(around(nowhere, told, clock))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pulses.run())
        await clock.advance(0)
        with under(Grant(1, 1, "a_1")):
            assert pulses.follow(binding) is None
        await clock.advance(60)
        finding = pulses.follow(binding)
        assert finding is not None
        assert finding.cause is Cause.KUBECONFIG
        assert told.bindings == [binding.key]
        assert set(nowhere.asked) == {None}
        running.cancel()


async def test_another_cluster_than_the_syncer_met_is_asked_for_nothing_more() -> None:
    clock, worker = VirtualClock(), Worker()
    computing = Client(Home(), clock=clock)
    pulses = Pulses(
        replace(
            around(Nowhere(), Told(), clock), computing=computing, connect=lambda access: worker
        )
    )
    spec = BindingSpec(secret_ref=SecretReference("s", "n"), mount_namespace="m")
    met = {DEFAULT.worker_cluster_id: "b"}
    binding = ClusterBinding(metadata=Meta(name="b", uid="u", annotations=met), spec=spec)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pulses.run())
        await clock.advance(0)
        pulses.follow(binding)
        await clock.advance(60)
        finding = pulses.follow(binding)
        assert finding is not None
        assert (finding.cause, finding.answers) == (Cause.ANOTHER, False)
        assert finding.error == (
            "the cluster at https://worker:6443 is a, and the binding is for b"
        )
        assert worker.reviews == 0
        running.cancel()
