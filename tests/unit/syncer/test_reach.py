"""Whether a worker answers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.syncer.reach import ASK_AGAIN_S, ASK_EVERY_S, Reach


class Worker:
    """A server that answers, or does not."""

    generation = 0

    def __init__(self) -> None:
        self.up = True
        self.asked: list[str] = []

    async def send(self, request: Request) -> Response:
        self.asked.append(request.path)
        if not self.up:
            raise Unreachable("it is down")
        return Response(200, {}, b"{}")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        worker = self

        class Lines:
            status = 200
            headers: ClassVar[dict[str, str]] = {}

            async def read(self) -> bytes:
                if not worker.up:
                    raise Unreachable("it went down")
                return b"line\n"

        yield Lines()

    async def close(self) -> None:
        pass


class Watched:
    """A reach that runs, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.worker = Worker()
        self.reach = Reach(clock=self.clock)
        self.transport = self.reach.wrap(self.worker)  # type: ignore[arg-type]
        self.turns: list[bool] = []
        self.reach.on_change(self.turns.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reach.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


GET = Request("GET", "/x")


async def test_a_worker_that_talks_is_not_asked() -> None:
    watched = Watched()
    async with watched.running():
        for _ in range(20):
            await watched.transport.send(GET)
            await watched.clock.advance(10)
    assert watched.worker.asked == ["/x"] * 20


async def test_a_quiet_worker_is_asked_now_and_then() -> None:
    watched = Watched()
    async with watched.running():
        await watched.clock.advance(ASK_EVERY_S * 4 + 1)
    assert watched.worker.asked == ["/version"] * 4
    assert watched.reach.answers
    assert watched.turns == []


async def test_a_failed_request_is_looked_into_at_once() -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.up = False
        with pytest.raises(Unreachable):
            await watched.transport.send(GET)
        await watched.clock.advance(ASK_AGAIN_S * 2)
        assert not watched.reach.answers
        assert watched.reach.since <= watched.clock.now()
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S)
    assert watched.reach.answers
    assert watched.turns == [False, True]


async def test_a_blink_is_forgiven() -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.up = False
        with pytest.raises(Unreachable):
            await watched.transport.send(GET)
        await watched.clock.advance(0)
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S * 3)
    assert watched.turns == []


async def test_a_watch_that_talks_counts_and_one_that_breaks_too() -> None:
    watched = Watched()
    async with watched.running():
        with pytest.raises(Unreachable):
            async with watched.transport.stream(GET) as stream:
                for _ in range(10):
                    assert await stream.read()
                    await watched.clock.advance(20)
                assert watched.worker.asked == []
                watched.worker.up = False
                await stream.read()
        await watched.clock.advance(ASK_AGAIN_S * 2)
    assert watched.turns == [False]
