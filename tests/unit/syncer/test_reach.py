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
from kubeocean.syncer.reach import ASK_AGAIN_S, ASK_EVERY_S, PATIENCE_S, Reach
from scripted import ScriptedStream


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
        self.transport = self.reach.wrap(self.worker)
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
WATCH = Request("GET", "/x", query=(("watch", "true"),))


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
            async with watched.transport.stream(WATCH) as stream:
                for _ in range(10):
                    assert await stream.read()
                    await watched.clock.advance(15)
                assert watched.worker.asked == []
                watched.worker.up = False
                await stream.read()
        await watched.clock.advance(ASK_AGAIN_S * 2)
    assert watched.turns == [False]


class Watcher:
    """Reads a watch as a reflector does: opens it anew whenever it ends."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.source = Source(watched.worker)
        watched.transport = watched.reach.wrap(self.source)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            async with self.watched.running():
                yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            async with self.watched.transport.stream(WATCH) as stream:
                while await stream.read():
                    pass


class Source:
    """A worker whose watches say one line each and are then silent; or do not open at all."""

    generation = 0

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.opened = 0
        self.opens = True
        self.speaks = True
        self.send = worker.send

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        if not self.opens:
            await asyncio.Event().wait()
        self.opened += 1
        stream = ScriptedStream()
        if self.speaks:
            stream.say(b"bookmark\n")
        yield stream


async def test_a_quiet_watch_is_renewed_instead_of_asking() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    async with watcher.running():
        await watched.clock.advance(1)
        for _ in range(4):
            await watched.clock.advance(ASK_EVERY_S + PATIENCE_S)
    assert watcher.source.opened >= 4
    assert watched.worker.asked == []
    assert watched.reach.answers


async def test_a_watch_that_has_said_nothing_yet_is_left_alone() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    watcher.source.speaks = False
    async with watcher.running():
        await watched.clock.advance(ASK_EVERY_S * 2 + 1)
    assert watcher.source.opened == 1
    assert watched.worker.asked == ["/version"] * 2


async def test_a_renewal_without_an_answer_is_looked_into() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    async with watcher.running():
        await watched.clock.advance(1)
        watcher.source.opens = watched.worker.up = False
        await watched.clock.advance(ASK_EVERY_S + PATIENCE_S + 2 * ASK_AGAIN_S)
    assert watched.turns == [False]
    assert set(watched.worker.asked) == {"/version"}


async def test_another_cluster_is_no_sign_of_life_until_it_is_gone() -> None:
    watched = Watched()
    said: list[bool] = []
    watched.reach.on_change(said.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watched.reach.run())
        await watched.clock.advance(1)
        watched.reach.mistake("it is another")
        assert (watched.reach.answers, watched.reach.mistaken) == (False, True)
        assert watched.reach.error == "it is another"
        await watched.transport.send(Request("GET", "/"))
        await watched.clock.advance(60)
        assert said == [False]
        watched.reach.mistake("")
        await watched.clock.advance(ASK_AGAIN_S)
        assert said == [False, True]
        assert not watched.reach.mistaken
        running.cancel()
