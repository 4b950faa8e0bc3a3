"""Tests of how a watch restarts: delay, number of requests, and the resourceVersion.

Watches on real servers are in the cluster tests; the servers here have faults that real ones lack.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import Request
from kubeocean.runtime.watch import Changed, Listed, Restarted, Scope, Watch
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.wait import until

LISTED = b"""\
{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"5"}}}
{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7",\
"annotations":{"k8s.io/initial-events-end":"true"}}}}
"""
EXPIRED = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
BROKEN = b'{"type":"ERROR","object":{"kind":"Status","code":500}}\n'
DEEP = b'{"type":"ADDED","object":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n"
NAMELESS = b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"5"}}}\n'
END = b""


class Server(Scripted):
    """Answers each watch with the stream that a test has created for it."""

    def __init__(self, make: Callable[[Request], ScriptedStream | Unreachable]) -> None:
        super().__init__()
        self.make = make

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[ScriptedStream]:
        self.requests.append(request)
        made = self.make(request)
        if isinstance(made, Unreachable):
            raise made
        yield made

    @property
    def lists(self) -> list[bool]:
        """Return for each request whether it was a full list."""
        return ["sendInitialEvents" in dict(request.query) for request in self.requests]


def stream_of(*pieces: bytes | BaseException, status: int = 200) -> ScriptedStream:
    stream = ScriptedStream(status)
    stream.feed(*pieces)
    return stream


class Following:
    """A watch that runs, and its account."""

    def __init__(self, server: Scripted, **options: Any) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics()
        client = Client(server, cluster="c", clock=self.clock)
        scope = Scope(CONFIG_MAPS)
        self.watch: Watch[ConfigMap] = Watch(
            client, scope, clock=self.clock, metrics=self.metrics, **options
        )
        self.account: list[Restarted | Changed[ConfigMap] | Listed] = []

    async def run(self) -> None:
        async with aclosing(self.watch.follow()) as account:
            async for news in account:
                self.account.append(news)

    def restarts(self, why: str) -> float:
        labels = {"cluster": "c", "resource": "configmaps", "why": why}
        return self.metrics.value("kubeocean_watch_restarts_total", labels) or 0.0

    @property
    def fallbacks(self) -> float:
        labels = {"cluster": "c", "resource": "configmaps"}
        return self.metrics.value("kubeocean_watch_list_fallbacks_total", labels) or 0.0

    @property
    def listings(self) -> int:
        return sum(isinstance(news, Listed) for news in self.account)


@asynccontextmanager
async def following(server: Scripted, **options: Any) -> AsyncIterator[Following]:
    follower = Following(server, **options)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_it_outlives_hours_of_failure() -> None:
    server = Server(lambda _: Unreachable("refused", sent=False))
    async with following(server) as follower:
        await follower.clock.advance(6000)
        assert len(server.requests) > 1100  # 2 to that power is more than a float can hold
        assert follower.restarts("failed") == len(server.requests)


HURRIED = {
    "ends without a word": lambda request: stream_of(END),
    "fails in its first word": lambda request: stream_of(BROKEN),
    "breaks off while listing": lambda request: stream_of(LISTED[:75], Unreachable("reset")),
    "is void as soon as it is listed": lambda request: (
        stream_of(LISTED, EXPIRED)
        if "sendInitialEvents" in dict(request.query)
        else stream_of(EXPIRED)
    ),
    "says what cannot be read": lambda request: stream_of(DEEP),
    "lists an object without a name": lambda request: stream_of(NAMELESS),
}


@pytest.mark.parametrize("how", HURRIED)
async def test_a_server_in_trouble_is_not_hurried(how: str) -> None:
    server = Server(HURRIED[how])
    server.script = [answer(403)]  # nor does it list in pages
    async with following(server) as follower:
        await follower.clock.advance(60)
        # Doubling from 0.2 s to 5 s: some fifteen to thirty requests a minute.
        assert 10 < len(server.requests) < 40
        requested = len(server.requests)
        await follower.clock.advance(60)
        assert 10 < len(server.requests) - requested < 30


async def test_patience_returns_with_the_first_word() -> None:
    troubles = 8

    def make(request: Request) -> ScriptedStream | Unreachable:
        if len(server.requests) <= troubles:
            return Unreachable("refused")
        streams.append(stream_of(LISTED) if len(server.requests) == troubles + 1 else stream_of())
        return streams[-1]

    server, streams = Server(make), list[ScriptedStream]()
    async with following(server) as follower:
        await follower.clock.advance(60)
        assert follower.listings == 1
        meta = b'{"name":"a","resourceVersion":"9"}'
        streams[0].feed(b'{"type":"ADDED","object":{"metadata":%s}}\n' % meta)
        await follower.clock.advance(0)
        streams[0].feed(Unreachable("reset"))
        await follower.clock.advance(0.2)  # as after a first failure
        assert len(server.requests) == troubles + 2
        assert dict(server.requests[-1].query)["resourceVersion"] == "9"
        assert not server.lists[-1]


async def test_a_version_of_thousands_of_digits_ends_no_watch() -> None:
    server = Server(lambda request: stream_of(LISTED.replace(b'"7"', b'"%s"' % (b"9" * 5_000))))
    async with following(server) as follower:
        await follower.clock.advance(0)
        assert follower.listings == 1


async def test_one_expiry_is_answered_at_once() -> None:
    def make(request: Request) -> ScriptedStream:
        first = len(server.requests) == 1
        return stream_of(LISTED, EXPIRED) if first else stream_of(LISTED)

    server = Server(make)
    async with following(server) as follower:
        await follower.clock.advance(0)
        assert server.lists == [True, True]
        assert follower.listings == 2
        assert follower.restarts("gone") == 1


async def test_silence_resumes_but_a_stream_that_never_spoke_is_not_believed() -> None:
    def make(request: Request) -> ScriptedStream:
        return stream_of(LISTED) if "sendInitialEvents" in dict(request.query) else stream_of()

    server = Server(make)
    async with following(server, silence_s=0.05) as follower:
        await until(lambda: len(server.requests) >= 3, within=5)
        assert server.lists[:3] == [True, False, True]
        assert follower.restarts("silent") >= 2


async def test_a_refusal_whose_words_do_not_come_is_a_refusal() -> None:
    def make(request: Request) -> ScriptedStream:
        return stream_of(b"half a", status=503) if len(server.requests) == 1 else stream_of(LISTED)

    server = Server(make)
    async with following(server, silence_s=0.05) as follower:
        await until(lambda: follower.restarts("failed") == 1, within=5)
        await follower.clock.advance(1)
        assert follower.listings == 1


async def test_another_server_is_listed_whether_it_is_noticed_before_or_after() -> None:
    streams: list[ScriptedStream] = []

    def make(request: Request) -> ScriptedStream:
        streams.append(
            stream_of(LISTED) if "sendInitialEvents" in dict(request.query) else stream_of()
        )
        if len(server.requests) == 2:
            server.generation += 1  # by this very request
        return streams[-1]

    server = Server(make)
    async with following(server) as follower:
        await follower.clock.advance(0)
        streams[0].feed(Unreachable("cut"))
        await follower.clock.advance(1)
        assert server.lists == [True, False, True]
        assert follower.restarts("gone") == 1

        server.generation += 1  # by a request of another component
        streams[-1].feed(Unreachable("cut"))
        await follower.clock.advance(2)
        assert server.lists == [True, False, True, True]
        assert follower.listings == 3


async def test_what_comes_in_one_block_with_an_error_comes_again() -> None:
    """The event was not delivered, so the watch must not go on after it."""
    news = b'{"type":"ADDED","object":{"metadata":{"name":"b","resourceVersion":"9"}}}\n'

    def make(request: Request) -> ScriptedStream:
        match len(server.requests):
            case 1:
                return stream_of(LISTED, END)
            case 2:
                return stream_of(news + BROKEN)
        return stream_of()

    server = Server(make)
    async with following(server) as follower:
        await follower.clock.advance(10)
        assert follower.listings == 1
    assert [dict(request.query).get("resourceVersion") for request in server.requests] == [
        None,
        "7",
        "7",
    ]


async def test_a_listing_that_an_error_voids_is_begun_again() -> None:
    server = Server(lambda request: stream_of(LISTED + BROKEN))
    async with following(server) as follower:
        await follower.clock.advance(3)
        assert follower.listings == 0
    assert all(server.lists)
    assert len(server.lists) > 1


async def test_a_retry_after_of_a_day_is_capped() -> None:
    def make(request: Request) -> ScriptedStream:
        if len(server.requests) > 1:
            return stream_of(LISTED)
        page = stream_of(b"under maintenance", END, status=503)
        page.headers["Retry-After"] = "86400"
        return page

    server = Server(make)
    async with following(server) as follower:
        await follower.clock.advance(29)
        assert len(server.requests) == 1
        await follower.clock.advance(1)
        assert follower.listings == 1


PAGED = answer(200, b'{"metadata":{"resourceVersion":"7"},"items":[]}')
ADDED = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"5"}}}\n'
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6"}}}\n'
CHANGE = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"6"}}}\n'


@pytest.mark.parametrize("news", [BOOKMARK, CHANGE])
async def test_a_streaming_list_without_an_end_becomes_a_list_in_pages(news: bytes) -> None:
    def make(request: Request) -> ScriptedStream:
        streams.append(
            stream_of(ADDED) if "sendInitialEvents" in dict(request.query) else stream_of()
        )
        return streams[-1]

    server, streams = Server(make), list[ScriptedStream]()
    server.script = [PAGED]
    async with following(server) as follower:
        for _ in range(29):
            await follower.clock.advance(1)
            streams[0].feed(news)
        await follower.clock.advance(0)
        assert (follower.listings, follower.fallbacks) == (0, 0)
        await follower.clock.advance(1)
        streams[0].feed(news)
        await follower.clock.advance(5)
        assert (follower.listings, follower.fallbacks) == (1, 1)
        assert follower.restarts("endless") == 1
    assert server.lists == [True, False, False]  # the stream, the pages, the watch


async def test_a_streaming_list_of_many_objects_may_take_its_time() -> None:
    stream = stream_of()
    server = Server(lambda request: stream)
    async with following(server) as follower:
        for _ in range(10):
            stream.feed(ADDED)
            await follower.clock.advance(20)
        stream.feed(LISTED)
        await follower.clock.advance(0)
        assert (follower.listings, follower.fallbacks) == (1, 0)


async def test_a_list_to_which_objects_are_added_for_ever_becomes_a_list_in_pages() -> None:
    stream = stream_of()
    server = Server(lambda request: stream)
    server.script = [PAGED]
    async with following(server) as follower:
        for _ in range(31):
            stream.feed(ADDED)
            await follower.clock.advance(10)
        await follower.clock.advance(5)
        assert (follower.listings, follower.fallbacks) == (1, 1)


async def test_a_streaming_list_that_says_nothing_more_becomes_a_list_in_pages() -> None:
    def make(request: Request) -> ScriptedStream:
        return stream_of(ADDED) if "sendInitialEvents" in dict(request.query) else stream_of()

    server = Server(make)
    server.script = [PAGED]
    async with following(server, silence_s=0.05) as follower:

        async def listed() -> bool:
            await follower.clock.advance(1)
            return follower.listings > 0

        await until(listed, within=5)
        assert follower.fallbacks >= 1


@pytest.mark.parametrize("trouble", ["refuses", "breaks", "ends"])
async def test_a_second_failure_of_a_streaming_list_leads_to_a_list_in_pages(trouble: str) -> None:
    def make(request: Request) -> ScriptedStream:
        if "sendInitialEvents" not in dict(request.query):
            return stream_of()
        match trouble:
            case "refuses":
                return stream_of(b"", status=500)
            case "breaks":
                return stream_of(ADDED, Unreachable("reset"))
        return stream_of(ADDED, END)

    server = Server(make)
    server.script = [PAGED]
    async with following(server) as follower:
        await follower.clock.advance(5)
        assert (follower.listings, follower.fallbacks) == (1, 1)
    assert server.lists == [True, True, False, False]


async def test_a_watch_that_is_asked_to_lists_again_at_once() -> None:
    server = Server(lambda _: stream_of(LISTED))  # and then silence
    async with following(server) as follower:
        await until(lambda: follower.listings == 1)
        for _ in range(4):  # the read that is under way ends only once
            follower.watch.relist()
            await asyncio.sleep(0)
        await until(lambda: follower.listings >= 2)
        assert server.lists[:2] == [True, True]
        assert follower.restarts("relisted") >= 1
        assert follower.restarts("silent") == 0


async def test_a_list_that_is_under_way_is_given_up_for_a_new_one() -> None:
    streams = [stream_of(LISTED[:40]), stream_of(LISTED)]
    server = Server(lambda _: streams.pop(0))
    async with following(server) as follower:
        await until(lambda: len(server.requests) == 1)
        follower.watch.relist()
        await until(lambda: follower.listings == 1)
        assert server.lists == [True, True]
