"""The end of an outage: keys with long backoffs are reconciled at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Request, Response
from kubeocean.runtime.transport_layers import RecoveryTransport
from support.scripted_transport import Scripted, ScriptedStream, answer

GONE = Unreachable("the server is down", sent=False)
WATCH = Request("GET", "/api/v1/namespaces", (("watch", "true"),))
OBJECT = b'{"metadata": {"name": "a"}}'


class Cluster:
    """A server that can be down, and a controller whose reconcile reads one object from it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = Scripted(answer(200, OBJECT))
        self.transport = RecoveryTransport(self.server, cluster="test", clock=self.clock)
        self.client = Client(self.transport, clock=self.clock, retry=RetryPolicy(attempts=1))
        self.reconciled: list[str] = []
        self.controller: Controller[str] = Controller("test", self._reconcile, clock=self.clock)
        self.transport.on_recovery(self.controller.retry_failed)

    async def _reconcile(self, key: str) -> Outcome:
        await self.client.get(NAMESPACES, key)
        self.reconciled.append(key)
        return Done()

    def down(self, step: Response | Unreachable = GONE) -> None:
        self.server.script = [step]

    def up(self) -> None:
        self.server.script = [answer(200, OBJECT)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.controller.run())
            yield
            task.cancel()


@pytest.mark.parametrize("step", [GONE, answer(503, b"")])
async def test_keys_that_failed_during_an_outage_are_retried_when_a_watch_opens(
    step: Response | Unreachable,
) -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.down(step)
        cluster.controller.enqueue("a")
        cluster.controller.enqueue("b")
        await cluster.clock.advance(900)  # the next attempt would be up to 300 s away
        cluster.up()
        cluster.server.streams = [ScriptedStream()]
        async with cluster.transport.stream(WATCH):
            pass
        await cluster.clock.advance(0.1)
        assert sorted(cluster.reconciled) == ["a", "b"]


async def test_a_single_failed_request_keeps_its_backoff_while_others_succeed() -> None:
    cluster = Cluster()
    async with cluster.running():
        for _ in range(20):
            cluster.down(answer(500, b""))
            cluster.controller.enqueue("a")
            await cluster.clock.advance(1)
            cluster.up()
            await cluster.client.get(NAMESPACES, "other")
        attempts = len(cluster.server.requests)
        cluster.down(answer(500, b""))
        await cluster.clock.advance(5)
        assert len(cluster.server.requests) - attempts <= 2, "the backoff was dropped"


async def test_a_delay_that_is_no_backoff_stays() -> None:
    cluster = Cluster()
    cluster.controller.queue.add_after("planned", 60)
    async with cluster.running():
        cluster.controller.retry_failed()
        await cluster.clock.advance(59)
        assert cluster.reconciled == []
        await cluster.clock.advance(1)
        assert cluster.reconciled == ["planned"]
