"""Doors: TLS from the first byte, heads in time, room for those who have a name."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from fronts import Facade, pair_of
from kubeocean.errors import ConfigError
from kubeocean.local.pki import Authority
from kubeocean.proxier import front as doors
from kubeocean.proxier import rooms
from kubeocean.proxier.exchange import Exchange, answer_head
from kubeocean.proxier.identity import Identity
from kubeocean.proxier.listening import listen
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.logs import bound
from waiting import until

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


async def desk(exchange: Exchange) -> None:
    """Answers with what was asked for."""
    target = exchange.head.target
    if target == "/held":
        await exchange.begin(200, "text/plain")
        await exchange.send(b"begun")
        await exchange.gone()
        return
    if target == "/much":
        exchange.patience_s = 0.2
        for _ in range(1000):
            await exchange.write(b"x" * 100_000)
    status = int(target[1:]) if target[1:].isdigit() else 200
    await exchange.answer(status, f"{exchange.head.method} {target}".encode())


@pytest.fixture
async def facade(tmp_path: Path) -> AsyncIterator[Facade]:
    async with Facade.running(desk, tmp_path) as running:
        yield running


async def test_a_connection_serves_several_requests(facade: Facade) -> None:
    reader, writer = await facade.connect(facade.context())
    for _ in range(3):
        writer.write(GET)
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"GET /x")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /404 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nGET ",
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\nContent-Length: 00\r\n\r\n",
        b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost : h\r\n\r\n",
    ],
)
async def test_no_second_request_follows_where_it_could_be_another_ones_body(
    facade: Facade, request_: bytes
) -> None:
    answer = await facade.say(request_ + GET, facade.context())
    assert answer.count(b"Content-Length") == 1
    assert b"Connection: close\r\n" in answer


async def test_an_answer_to_head_has_no_body(facade: Facade) -> None:
    said = b"HEAD /405 HTTP/1.1\r\nHost: h\r\n\r\n"
    assert (await facade.say(said, facade.context())).endswith(b"\r\n\r\n")


async def test_old_versions_are_refused_by_name(facade: Facade) -> None:
    assert b" 505 " in await facade.say(b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n")


async def test_a_head_that_does_not_come_is_not_waited_for(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "HEAD_S", 0.2)
    assert await facade.say(b"GET /x HT") == b""
    await until(lambda: facade.front.connections == 0)


async def test_who_does_not_read_is_given_up(facade: Facade) -> None:
    _, writer = await facade.connect()
    writer.transport.pause_reading()
    writer.write(b"GET /much HTTP/1.1\r\nHost: h\r\n\r\n")
    await until(lambda: facade.front.connections == 1)
    await until(lambda: facade.front.connections == 0)


async def test_it_is_noticed_when_a_silent_caller_leaves(facade: Facade) -> None:
    reader, writer = await facade.connect()
    writer.write(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"begun")
    assert facade.front.connections == 1
    writer.close()
    await until(lambda: facade.front.connections == 0)


async def test_strangers_leave_room_for_those_with_a_name(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_STRANGERS", 3)
    for _ in range(3):
        await facade.connect()
    await until(lambda: facade.front.connections == 3)
    assert await facade.say(GET) == b""
    named = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    assert b" 200 " in await facade.say(named, facade.context())


async def test_a_resumed_session_is_not_let_in(facade: Facade) -> None:
    context = facade.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def visit(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool]:
        import socket

        with (
            socket.create_connection(("127.0.0.1", facade.port)) as plain,
            context.wrap_socket(plain, session=session, do_handshake_on_connect=False) as tls,
        ):
            try:
                tls.do_handshake()
                tls.sendall(GET)
                return tls.recv(1000), tls.session, bool(tls.session_reused)
            except OSError:
                return b"", tls.session, True

    answer, session, reused = await asyncio.to_thread(visit, None)
    assert (b" 200 " in answer, reused) == (True, False)
    answer, _, reused = await asyncio.to_thread(visit, session)
    assert not reused or answer == b""


async def test_nobody_is_believed_for_what_another_authority_said(facade: Facade) -> None:
    reader, writer = await facade.connect(facade.context())
    writer.write(GET)
    await reader.readuntil(b"GET /x")
    other = Authority.create("other")
    facade.identity.believe(other.certificate)
    writer.write(GET)
    assert await reader.read() == b""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        reader, writer = await facade.connect(facade.context())
        writer.write(GET)
        assert not await reader.read()
        raise ConnectionError
    assert b" 200 " in await facade.say(
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", facade.context(by=other)
    )


async def test_a_new_certificate_is_shown_to_the_next_and_troubles_nobody(facade: Facade) -> None:
    reader, writer = await facade.connect(facade.context())
    facade.identity.show(pair_of(facade.authority, "127.0.0.1", "renewed"))
    writer.write(GET)
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    _, writer = await facade.connect(facade.context())
    names = writer.get_extra_info("peercert")["subjectAltName"]
    assert ("DNS", "renewed") in names


async def test_a_drained_front_lets_sessions_end_and_idlers_go(facade: Facade) -> None:
    _, idle = await facade.connect(facade.context())
    idle.write(GET)
    reader, writer = await facade.connect(facade.context())
    writer.write(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"begun")
    await until(lambda: facade.front.connections == 2)
    draining = asyncio.create_task(facade.front.drain(30.0, linger_s=0.0))
    await until(lambda: facade.front.connections == 1)
    assert not facade.front.ports
    with pytest.raises(ConfigError, match="the end"):
        await facade.front.open(0)
    writer.close()
    async with asyncio.timeout(5):
        await draining


async def test_a_certificate_that_ended_opens_nothing() -> None:
    clock = VirtualClock()
    identity, authority = Identity(clock=clock), Authority.create("a", clock=clock)
    identity.believe(authority.certificate)
    assert not identity.ready
    assert identity.show(pair_of(authority))
    assert identity.ready
    await clock.advance(timedelta(days=4000).total_seconds())
    assert not identity.ready


async def test_a_certificate_that_does_not_hold_replaces_none_that_does() -> None:
    clock = VirtualClock()
    identity, authority = Identity(clock=clock), Authority.create("a", clock=clock)
    identity.believe(authority.certificate)
    future = VirtualClock()
    await future.advance(timedelta(days=400).total_seconds())
    good, early = pair_of(authority), pair_of(Authority.create("b", clock=future))
    assert identity.show(good)
    assert not identity.show(early)
    assert identity.pair == good
    assert good.names == {"127.0.0.1"}


def test_a_value_of_two_lines_is_not_said() -> None:
    head = answer_head(101, [("Upgrade", "websocket"), ("X", "a\nInjected: b"), ("Y", "a\rb")])
    assert head == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert answer_head(599, []).startswith(b"HTTP/1.1 599 ")


async def test_every_address_of_the_machine_is_listened_on() -> None:
    sockets = await listen(None, 0)
    names = [each.getsockname() for each in sockets]
    for each in sockets:
        each.close()
    assert {"0.0.0.0"} <= {name[0] for name in names} <= {"0.0.0.0", "::"}
    assert len({name[1] for name in names}) == 1


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_an_address_of_either_kind_can_be_named(facade: Facade, host: str) -> None:
    port = await facade.front.open(0, host=host)
    try:
        context = facade.context(named=False)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await reader.read()
        writer.close()
    finally:
        await facade.front.shut(port)
    with pytest.raises(OSError):
        await asyncio.open_connection(host, port)


async def test_what_is_logged_of_a_caller_tells_not_of_whoever_opened_the_door(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    async with Facade.running(desk, tmp_path) as facade:
        with bound(reconcile="of-the-door"):
            facade.port = await facade.front.open(0, "v1")
        await facade.say(b"nonsense\r\n\r\n", facade.context())
    assert len(caplog.records) == 1
    assert "of-the-door" not in str(caplog.records[0].__dict__)


async def test_a_port_that_somebody_has_is_not_had(facade: Facade) -> None:
    with pytest.raises(ConfigError, match=str(facade.port)):
        await facade.front.open(facade.port)
    assert facade.port in facade.front.ports


async def test_many_who_agree_on_nothing_are_not_waited_for(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_SHAKING", 3)
    opened = [await asyncio.open_connection("127.0.0.1", facade.port) for _ in range(3)]
    writers = [writer for _, writer in opened]
    await until(lambda: facade.front.connections == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", facade.port)
    assert await reader.read() == b""
    for each in (*writers, writer):
        each.close()
    await until(lambda: facade.front.connections == 0)


async def test_a_mistake_of_ours_ends_one_connection_only(tmp_path: Path) -> None:
    async def mistaken(exchange: Exchange) -> None:
        if exchange.head.target == "/mistake":
            raise ZeroDivisionError
        await desk(exchange)

    async with Facade.running(mistaken, tmp_path) as facade:
        assert await facade.say(b"GET /mistake HTTP/1.1\r\nHost: h\r\n\r\n") == b""
        good = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        assert b" 200 " in await facade.say(good)
