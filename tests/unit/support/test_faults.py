"""The plan of faults, on a transport in memory: here it is the plan that is under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.errors import ConfigError, Forbidden, Unreachable
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.sockets import connect
from kubeocean.runtime.transport import Request, Stream, Transport
from kubeocean.runtime.tunnel import PipeReader, SocketPipe, Tunnel
from support.faults import Crashed, Faults, SkewedClock, anything, reads, watches, writes
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.servers import Server, echo, serving

GET, POST = Request("GET", "/x"), Request("POST", "/x")
WATCH = Request("GET", "/x", query=(("watch", "true"),))


class World:
    """A plan between a caller and a server, on a clock of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.faults = Faults(seed, clock=self.clock)
        self.server = Scripted()
        self.transport: Transport = self.faults.wrap(self.server)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[tuple[ScriptedStream, Listener]]:
        """Yield an open watch: the server's end of it and the caller's."""
        source = ScriptedStream()
        self.server.streams.append(source)
        async with self.transport.stream(WATCH) as stream:
            listener = Listener(stream)
            listening = asyncio.create_task(listener.listen())
            try:
                yield source, listener
            finally:
                listening.cancel()
                await asyncio.wait([listening])


class Listener:
    """Watcher that keeps the received events and the reason of its end."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.data = b""
        self.end: str | type[BaseException] = ""

    async def listen(self) -> None:
        try:
            while more := await self.stream.read():
                self.data += more
            self.end = "ended"
        except (Unreachable, Crashed) as error:
            self.end = type(error)

    async def soon(self) -> bytes:
        for _ in range(20):
            await asyncio.sleep(0)
        return self.data


@pytest.fixture
def world() -> World:
    return World()


# --- requests


def test_requests_are_told_apart() -> None:
    patterns = (anything, writes, reads, watches)
    assert [when(POST) for when in patterns] == [True, True, False, False]
    assert [when(GET) for when in patterns] == [True, False, True, False]
    assert [when(WATCH) for when in patterns] == [True, False, False, True]


async def test_without_a_plan_nothing_is_different(world: World) -> None:
    assert (await world.transport.send(POST)).status == 200
    assert world.faults.requests == world.server.requests == [POST]
    assert world.faults.writes == 1
    world.server.generation = 3
    assert world.transport.generation == 3
    await world.transport.close()
    assert world.server.closed


async def test_rules_follow_each_other_one_a_request(world: World) -> None:
    world.faults.answer(503, reason="NotNow", headers={"Retry-After": "1"}, when=reads)
    world.faults.refuse(when=reads)
    world.faults.answer(500, times=2, when=writes)
    first = await world.transport.send(GET)
    assert (first.status, first.headers["retry-after"]) == (503, "1")
    assert b'"reason":"NotNow"' in first.body
    with pytest.raises(Unreachable) as refused:
        await world.transport.send(GET)
    assert not refused.value.sent
    assert (await world.transport.send(GET)).status == 200
    assert [(await world.transport.send(POST)).status for _ in range(3)] == [500, 500, 200]
    assert len(world.server.requests) == 2
    assert world.faults.writes == 1


async def test_a_lost_answer_is_to_something_that_happened(world: World) -> None:
    world.faults.lose_answer()
    assert (await world.transport.send(GET)).status == 200
    with pytest.raises(Unreachable, match="answer lost") as lost:
        await world.transport.send(POST)
    assert lost.value.sent
    assert world.faults.writes == 1
    assert world.server.requests == [GET, POST]


async def test_delays_come_on_top_of_whatever_else(world: World) -> None:
    world.faults.delay(1, when=reads)
    world.faults.delay(2, times=1)
    world.faults.answer(503, when=reads)
    slow = asyncio.create_task(world.transport.send(GET))
    await world.clock.advance(2.9)
    assert not slow.done()
    await world.clock.advance(0.2)
    assert (await slow).status == 503
    later = asyncio.create_task(world.transport.send(GET))
    await world.clock.advance(1)
    assert (await later).status == 200
    assert (await world.transport.send(POST)).status == 200


async def test_a_refused_write_is_no_write(world: World) -> None:
    world.server.script = [answer(409), answer(200)]
    await world.transport.send(POST)
    assert world.faults.writes == 0
    await world.transport.send(POST)
    assert world.faults.writes == 1


async def test_what_is_refused_twice_is_two_errors(world: World) -> None:
    world.faults.refuse(times=2)
    errors = []
    for _ in range(2):
        with pytest.raises(Unreachable) as error:
            await world.transport.send(GET)
        errors.append(error.value)
    assert errors[0] is not errors[1]  # or its traceback would grow and grow


# --- partitions


async def test_nothing_gets_through_a_partition(world: World) -> None:
    async with world.watching() as (_, listener):
        world.faults.partition()
        for request in (GET, POST):
            with pytest.raises(Unreachable, match="partitioned") as cut:
                await world.transport.send(request)
            assert not cut.value.sent
        with pytest.raises(Unreachable):
            async with world.transport.stream(WATCH):
                pass
        await listener.soon()
        assert listener.end is Unreachable
    assert len(world.faults.requests) == 4
    assert world.server.requests == [WATCH]
    world.faults.rejoin()
    assert (await world.transport.send(GET)).status == 200


async def test_a_partition_catches_what_is_on_its_way(world: World) -> None:
    world.faults.delay(1)
    going = asyncio.create_task(world.transport.send(POST))
    await world.clock.advance(0.5)
    world.faults.partition()
    await world.clock.advance(1)
    with pytest.raises(Unreachable) as cut:
        await going
    assert not cut.value.sent
    world.faults.heal()

    class Meanwhile(Scripted):
        async def send(self, request: Request) -> object:
            world.faults.partition()
            return await super().send(request)

    with pytest.raises(Unreachable) as lost:
        await world.faults.wrap(Meanwhile()).send(POST)
    assert lost.value.sent
    assert world.faults.writes == 1


async def test_healing_ends_everything_but_a_crash(world: World) -> None:
    faults = world.faults
    faults.partition()
    faults.answer(500, times=9)
    faults.lag(9)
    faults.lose(1)
    faults.repeat(9)
    faults.freeze()
    faults.heal()
    assert (await world.transport.send(POST)).status == 200
    async with world.watching() as (source, listener):
        source.feed(b"{}\n")
        assert await listener.soon() == b"{}\n"
    faults.crash_after_write(1)
    with pytest.raises(Crashed):
        await world.transport.send(POST)
    faults.heal()
    with pytest.raises(Crashed):
        await world.transport.send(GET)


# --- crashes


async def test_the_program_ends_after_its_nth_write(world: World) -> None:
    killed: list[int] = []
    await world.transport.send(POST)
    world.faults.crash_after_write(2, by=lambda: killed.append(1))
    async with world.watching() as (_, listener):
        await world.transport.send(POST)
        await world.transport.send(GET)
        assert not killed
        with pytest.raises(Crashed):
            await world.transport.send(POST)
        assert killed == [1]
        await listener.soon()
        assert listener.end is Crashed
    assert world.server.requests.count(POST) == 3  # the last one was carried out
    for request in (GET, POST):
        with pytest.raises(Crashed):
            await world.transport.send(request)
    with pytest.raises(Crashed):
        async with world.transport.stream(WATCH):
            pass
    assert world.server.requests.count(POST) == 3
    assert killed == [1]


def test_a_crash_is_nothing_that_a_handler_of_errors_survives() -> None:
    assert not issubclass(Crashed, Exception)


# --- watches


async def test_a_refused_watch_is_an_answer(world: World) -> None:
    world.faults.answer(410, when=watches, reason="Expired")
    async with world.transport.stream(WATCH) as stream:
        assert stream.status == 410
        assert b"Expired" in await stream.read()
        assert await stream.read() == b""
    world.faults.refuse(when=watches)
    with pytest.raises(Unreachable):
        async with world.transport.stream(WATCH):
            pass


async def test_lines_pass_whole_whatever_the_pieces_are(world: World) -> None:
    async with world.watching() as (source, listener):
        source.feed(b'{"a":', b"1}\n{", b'"b":2}\n{"c"')
        assert await listener.soon() == b'{"a":1}\n{"b":2}\n'
        source.feed(b":3}\n", b"half", b"")
        assert await listener.soon() == b'{"a":1}\n{"b":2}\n{"c":3}\nhalf'
        assert listener.end == "ended"


async def test_a_stream_that_is_no_watch_passes_as_it_is(world: World) -> None:
    log = ScriptedStream()
    refusal = ScriptedStream(410)
    world.server.streams = [log, refusal]
    world.faults.lose(1)
    world.faults.repeat(5)
    async with world.transport.stream(GET) as stream:
        log.feed(b"no line end", b"")
        assert [await stream.read(), await stream.read()] == [b"no line end", b""]
    async with world.transport.stream(WATCH) as stream:
        refusal.feed(b"no\n", b"")
        assert [await stream.read(), await stream.read()] == [b"no\n", b""]


async def test_a_cut_reaches_a_reader_of_a_quiet_watch(world: World) -> None:
    async with world.watching() as (_, first), world.watching() as (_, second):
        world.faults.cut()
        await first.soon()
        assert first.end is second.end is Unreachable


async def test_a_watch_that_breaks_by_itself_breaks(world: World) -> None:
    async with world.watching() as (source, listener):
        source.feed(b"{}\n", Unreachable("for real"))
        assert await listener.soon() == b"{}\n"
        assert listener.end is Unreachable


async def test_a_frozen_watch_says_nothing_not_even_that_it_ended(world: World) -> None:
    async with world.watching() as (source, listener):
        world.faults.freeze()
        source.feed(b"{}\n", b"")
        assert await listener.soon() == b""
        assert not listener.end
        world.faults.thaw()
        assert await listener.soon() == b"{}\n"
        assert listener.end == "ended"


async def test_each_event_is_late_by_the_same_time(world: World) -> None:
    async with world.watching() as (source, listener):
        world.faults.lag(1)
        source.feed(b"1\n", b"2\n")
        await world.clock.advance(0.5)
        source.feed(b"3\n")
        assert await listener.soon() == b""
        await world.clock.advance(0.6)
        assert await listener.soon() == b"1\n2\n"
        await world.clock.advance(0.5)
        assert await listener.soon() == b"1\n2\n3\n"


async def test_a_share_of_the_events_is_lost_but_no_bookmark() -> None:
    lines = [b'{"type":"ADDED","n":%d}\n' % n for n in range(200)]
    marks = [b'{"type":"BOOKMARK","n":%d}\n' % n for n in range(20)]
    heard_by_seed = []
    for seed in (1, 1, 2):
        world = World(seed)
        world.faults.lose(0.5)
        async with world.watching() as (source, listener):
            source.feed(b"".join(lines + marks))
            got = await listener.soon()
        assert 50 < got.count(b"ADDED") < 150
        assert got.count(b"BOOKMARK") == 20
        heard_by_seed.append(got)
    assert heard_by_seed[0] == heard_by_seed[1] != heard_by_seed[2]


async def test_events_are_repeated_and_rewound(world: World) -> None:
    async with world.watching() as (source, listener):
        world.faults.repeat(1)
        source.feed(b"1\n2\n")
        assert await listener.soon() == b"1\n1\n2\n2\n"
        world.faults.repeat(0)
        source.feed(b"3\n")
        await listener.soon()
        listener.data = b""
        world.faults.rewind(2)
        assert await listener.soon() == b"2\n3\n"
        world.faults.rewind(0)
        world.faults.rewind(99)
        assert await listener.soon() == b"2\n3\n1\n2\n3\n"
    async with world.watching() as (_, fresh):
        world.faults.rewind(5)
        assert await fresh.soon() == b""


async def test_several_clients_may_share_one_plan(world: World) -> None:
    other = world.faults.wrap(world.server)
    world.faults.answer(500)
    assert (await other.send(GET)).status == 500
    assert (await world.transport.send(GET)).status == 200
    assert len(world.faults.requests) == 2


# --- tunnels


@asynccontextmanager
async def real_tunnel() -> AsyncIterator[Tunnel]:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await echo(reader, writer)

    async with serving(handle) as server:
        pipe = SocketPipe(await connect("127.0.0.1", server.port))
        yield Tunnel(PipeReader(pipe), {})
        pipe.close()


async def test_a_tunnel_is_refused_as_a_request_and_broken_by_a_partition(world: World) -> None:
    async with real_tunnel() as tunnel:
        world.server.tunnel = tunnel
        world.faults.answer(403)
        with pytest.raises(Forbidden, match="upgrade POST /x to SPDY: injected 403"):
            async with world.transport.upgrade(POST, "SPDY"):
                pass
        world.faults.refuse()
        with pytest.raises(Unreachable):
            async with world.transport.upgrade(POST, "SPDY"):
                pass
        async with world.transport.upgrade(POST, "SPDY") as through:
            await through.write(b"hello")
            assert await through.read() == b"hello"
            world.faults.cut()  # watches, not tunnels
            await through.write(b"again")
            assert await through.read() == b"again"
            world.faults.partition()
            with pytest.raises(Unreachable, match="closed the tunnel"):
                await through.read()
        assert len(world.faults.requests) == 3


# --- clocks


async def test_a_skewed_clock_is_off_and_runs_at_its_own_rate() -> None:
    inner = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    fast = SkewedClock(3600, rate=2, inner=inner)
    assert fast.now() - inner.now() == timedelta(hours=1)
    await inner.advance(10)
    assert fast.monotonic() == 20
    assert fast.now() == datetime(2026, 1, 1, 1, 0, 20, tzinfo=UTC)
    sleeping = asyncio.create_task(fast.sleep(4))
    await inner.advance(1.9)
    assert not sleeping.done()
    await inner.advance(0.2)
    assert sleeping.done()
    with pytest.raises(ConfigError, match="rate: must be positive"):
        SkewedClock(rate=0)
