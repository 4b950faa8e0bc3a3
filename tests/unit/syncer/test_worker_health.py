"""Whether a worker counts as healthy, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from kubeocean.api.group import NODE_LEASE_DURATION_S
from kubeocean.errors import Unreachable
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.syncer.worker_health import (
    ASK_AGAIN_S,
    ASK_EVERY_S,
    LIST_WITHIN_S,
    PATIENCE_S,
    WorkerHealth,
)
from support.scripted_transport import ScriptedStream


class Worker:
    """A server that answers, or does not."""

    generation = 0

    def __init__(self) -> None:
        self.up = True
        self.requests: list[str] = []
        self.refusals: dict[str, Response] = {}  # by path; "" is for every other path

    async def send(self, request: Request) -> Response:
        self.requests.append(request.path)
        if not self.up:
            raise Unreachable("it is down")
        return self.answer(request)

    def answer(self, request: Request) -> Response:
        served = Response(200, {}, b"{}")
        return self.refusals.get(request.path, self.refusals.get("", served))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        worker = self
        if (answer := self.answer(request)).status != 200:
            refused = ScriptedStream(answer.status)
            refused.feed(answer.body, b"")
            yield refused
            return

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
    """A WorkerHealth that runs on a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.worker = Worker()
        self.worker_health = WorkerHealth(clock=self.clock)
        self.transport = self.worker_health.wrap(self.worker)
        self.turns: list[bool] = []
        self.worker_health.on_change(self.turns.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.worker_health.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
GET = Request("GET", "/x")
WATCH = Request("GET", "/x", query=(("watch", "true"),))


async def test_a_worker_that_answers_is_not_probed() -> None:
    watched = Watched()
    async with watched.running():
        for _ in range(20):
            await watched.transport.send(GET)
            await watched.clock.advance(10)
    assert watched.worker.requests == ["/x"] * 20


async def test_a_quiet_worker_is_probed_periodically() -> None:
    watched = Watched()
    async with watched.running():
        await watched.clock.advance(ASK_EVERY_S * 4 + 1)
    assert watched.worker.requests == [NODES_PATH] * 4
    assert watched.worker_health.answers
    assert watched.turns == []


async def test_after_a_failed_request_the_worker_is_probed_at_once() -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.up = False
        with pytest.raises(Unreachable):
            await watched.transport.send(GET)
        await watched.clock.advance(ASK_AGAIN_S * 2)
        assert not watched.worker_health.answers
        assert watched.worker_health.since <= watched.clock.now()
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S)
    assert watched.worker_health.answers
    assert watched.turns == [False, True]


class Cache:
    """A cache of the worker's objects that a test lists by a call."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.has_synced = False
        self.listed_from = float("-inf")
        self.began_at = float("-inf")
        self.relists = 0
        self.handlers: list[Callable[[], None]] = []

    def relist(self, since: float) -> None:
        if self.began_at < since:
            self.began_at = self.clock.monotonic()
            self.relists += 1

    def on_listed(self, handler: Callable[[], None]) -> None:
        self.handlers.append(handler)

    def complete(self) -> None:
        self.has_synced, self.listed_from = True, self.began_at
        for handler in self.handlers:
            handler()


async def test_a_worker_that_is_back_counts_only_when_every_cache_was_listed_again() -> None:
    watched = Watched()
    policies, pods, never = (Cache(watched.clock) for _ in range(3))
    for path, cache in (("/policies", policies), ("/pods", pods), ("/never", never)):
        watched.worker_health.relist_on_return(path, cache)
    for cache in (policies, pods):
        cache.relist(0.0)
        cache.complete()
    async with watched.running():
        watched.worker.up = False
        watched.worker_health.failed()
        await watched.clock.advance(ASK_AGAIN_S * 3)
        assert watched.turns == [False]
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S * 2)
        assert watched.turns == [False]  # it answers, and the caches are of before
        assert (policies.relists, pods.relists, never.relists) == (2, 2, 0)
        policies.complete()
        await watched.clock.advance(ASK_AGAIN_S * 2)
        assert watched.turns == [False]
        pods.complete()
        assert watched.turns == [False, True]
        await watched.clock.advance(ASK_EVERY_S)
        assert (policies.relists, pods.relists) == (2, 2)


async def test_a_list_that_does_not_end_after_an_outage_is_named() -> None:
    watched = Watched()
    cache = Cache(watched.clock)
    watched.worker_health.relist_on_return("/pods", cache)
    cache.relist(0.0)
    cache.complete()
    async with watched.running():
        watched.worker.up = False
        watched.worker_health.failed()
        await watched.clock.advance(ASK_AGAIN_S * 3)
        since = watched.worker_health.since
        watched.worker.up = True
        await watched.clock.advance(LIST_WITHIN_S + ASK_AGAIN_S * 2)
        assert watched.worker_health.error == (
            "the worker answers, but could not be listed again: /pods"
        )
        assert watched.worker_health.since == since
        assert watched.turns == [False, False]
        assert cache.relists == 2
        cache.complete()
    assert watched.turns == [False, False, True]


async def test_a_cache_that_was_listed_in_the_middle_of_an_outage_is_listed_again() -> None:
    watched = Watched()
    cache = Cache(watched.clock)
    watched.worker_health.relist_on_return("/pods", cache)
    cache.relist(0.0)
    cache.complete()
    async with watched.running():
        watched.worker.up = False
        watched.worker_health.failed()
        await watched.clock.advance(ASK_AGAIN_S * 3)
        cache.relist(watched.clock.monotonic())
        await watched.clock.advance(ASK_AGAIN_S * 2)  # probes fail meanwhile
        cache.complete()
        assert watched.turns == [False]
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S * 2)
        cache.complete()
    assert watched.turns == [False, True]


async def test_a_single_failure_does_not_lose_the_worker() -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.up = False
        with pytest.raises(Unreachable):
            await watched.transport.send(GET)
        await watched.clock.advance(0)
        watched.worker.up = True
        await watched.clock.advance(ASK_AGAIN_S * 3)
    assert watched.turns == []


async def test_data_of_a_watch_is_a_sign_of_life_and_a_broken_watch_a_doubt() -> None:
    watched = Watched()
    async with watched.running():
        with pytest.raises(Unreachable):
            async with watched.transport.stream(WATCH) as stream:
                for _ in range(10):
                    assert await stream.read()
                    await watched.clock.advance(15)
                assert watched.worker.requests == []
                watched.worker.up = False
                await stream.read()
        await watched.clock.advance(ASK_AGAIN_S * 2)
    assert watched.turns == [False]


class Watcher:
    """Read a watch as an informer does: open it again whenever it ends."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.source = Source(watched.worker)
        watched.transport = watched.worker_health.wrap(self.source)

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
    """A worker whose watches send one line each and are then silent; or do not open at all."""

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
            stream.feed(b"bookmark\n")
        yield stream


async def test_a_quiet_watch_is_renewed_instead_of_a_probe() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    async with watcher.running():
        await watched.clock.advance(1)
        for _ in range(4):
            await watched.clock.advance(ASK_EVERY_S + PATIENCE_S)
    assert watcher.source.opened >= 4
    assert watched.worker.requests == []
    assert watched.worker_health.answers


async def test_a_watch_without_data_is_not_renewed() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    watcher.source.speaks = False
    async with watcher.running():
        await watched.clock.advance(ASK_EVERY_S * 2 + 1)
    assert watcher.source.opened == 1
    assert watched.worker.requests == [NODES_PATH] * 2


async def test_after_a_renewal_without_an_answer_the_worker_is_probed() -> None:
    watched = Watched()
    watcher = Watcher(watched)
    async with watcher.running():
        await watched.clock.advance(1)
        watcher.source.opens = watched.worker.up = False
        await watched.clock.advance(ASK_EVERY_S + PATIENCE_S + 2 * ASK_AGAIN_S)
    assert watched.turns == [False]
    assert set(watched.worker.requests) == {NODES_PATH}


def refusal(status: int, message: str = "injected") -> Response:
    """Return an answer of a Kubernetes API server."""
    return Response(status, {}, b'{"kind":"Status","message":"%s"}' % message.encode())


PAGE = b"<html>default backend</html>"
NO_SERVICE = {
    "401": refusal(401),
    "403": refusal(403),
    "429": refusal(429),
    "500": refusal(500),
    "503": refusal(503),
    "a page with 404": Response(404, {}, PAGE),
    "a page with 502": Response(502, {}, PAGE),
    "a page with 302": Response(302, {}, PAGE),
}


@pytest.mark.parametrize("kind", NO_SERVICE)
async def test_answers_that_prove_no_service_are_no_sign_of_life(kind: str) -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.refusals[""] = NO_SERVICE[kind]
        for _ in range(NODE_LEASE_DURATION_S // 2):
            await watched.transport.send(GET)
            await watched.clock.advance(2)
        assert watched.turns == [False]
        assert not watched.worker_health.answers
        assert watched.worker_health.refused
        assert f"HTTP {NO_SERVICE[kind].status}" in watched.worker_health.error
        watched.worker.refusals.clear()
        await watched.clock.advance(ASK_AGAIN_S)
    assert watched.turns == [False, True]
    assert not watched.worker_health.refused


@pytest.mark.parametrize("status", [404, 409, 410, 422])
async def test_a_status_that_only_an_api_server_returns_is_a_sign_of_life(status: int) -> None:
    watched = Watched()
    watched.worker.refusals["/x"] = refusal(status)
    async with watched.running():
        for _ in range(20):
            await watched.transport.send(GET)
            await watched.clock.advance(10)
    assert watched.worker.requests == ["/x"] * 20


async def test_a_write_that_is_forbidden_is_no_doubt() -> None:
    watched = Watched()
    watched.worker.refusals["/x"] = refusal(403, "exceeded quota")
    async with watched.running():
        for _ in range(5):
            await watched.transport.send(Request("POST", "/x"))
            await watched.clock.advance(1)
    assert watched.worker.requests == ["/x"] * 5
    assert watched.turns == []


async def test_writes_that_fail_are_probed_together() -> None:
    watched = Watched()
    watched.worker.refusals["/x"] = refusal(500, "failed calling webhook")
    async with watched.running():
        for _ in range(100):
            await watched.transport.send(Request("POST", "/x"))
            await watched.clock.advance(0.1)
    assert 1 <= watched.worker.requests.count(NODES_PATH) <= 10 / ASK_AGAIN_S + 1
    assert watched.turns == []


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_worker_that_refuses_a_required_kind_is_lost(status: int) -> None:
    watched = Watched()
    watched.worker_health.require(PODS_PATH)
    watched.worker.refusals[PODS_PATH] = refusal(status, "cannot list pods")
    async with watched.running():
        await watched.transport.send(Request("GET", PODS_PATH))
        for _ in range(10):
            await watched.transport.send(GET)
            await watched.clock.advance(1)
        assert watched.turns == [False]
        assert "cannot list pods" in watched.worker_health.error
        watched.worker.refusals.clear()
        await watched.clock.advance(ASK_AGAIN_S)
    assert watched.turns == [False, True]


async def test_a_kind_that_the_worker_does_not_know_is_no_doubt_of_the_worker() -> None:
    watched = Watched()
    watched.worker_health.require(PODS_PATH)
    watched.worker.refusals[PODS_PATH] = Response(404, {}, b"404 page not found")
    async with watched.running():
        for _ in range(10):
            await watched.transport.send(Request("GET", PODS_PATH))
            await watched.clock.advance(1)
    assert watched.turns == []


async def test_a_watch_that_is_refused_is_no_sign_of_life() -> None:
    watched = Watched()
    watched.worker.refusals[""] = refusal(401)
    async with watched.running():
        for _ in range(5):
            async with watched.transport.stream(WATCH) as stream:
                assert stream.status == 401
                assert await stream.read()
            await watched.clock.advance(ASK_AGAIN_S)
    assert watched.turns == [False]


async def test_a_refusal_after_silence_becomes_the_reason() -> None:
    watched = Watched()
    async with watched.running():
        watched.worker.up = False
        await watched.clock.advance(ASK_EVERY_S + 2 * ASK_AGAIN_S)
        since = watched.worker_health.since
        assert (watched.turns, watched.worker_health.refused) == ([False], False)
        watched.worker.up = True
        watched.worker.refusals[""] = refusal(401)
        await watched.clock.advance(ASK_AGAIN_S)
    assert (watched.turns, watched.worker_health.refused) == ([False, False], True)
    assert watched.worker_health.since == since


async def test_answers_of_another_cluster_are_no_sign_of_life() -> None:
    watched = Watched()
    changes: list[bool] = []
    watched.worker_health.on_change(changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watched.worker_health.run())
        await watched.clock.advance(1)
        watched.worker_health.mistake("it is another")
        assert (watched.worker_health.answers, watched.worker_health.mistaken) == (False, True)
        assert watched.worker_health.error == "it is another"
        await watched.transport.send(Request("GET", "/"))
        await watched.clock.advance(60)
        assert changes == [False]
        watched.worker_health.mistake("")
        await watched.clock.advance(ASK_AGAIN_S)
        assert changes == [False, True]
        assert not watched.worker_health.mistaken
        running.cancel()
