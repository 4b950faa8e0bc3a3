"""Attacks on a running server, by callers with and without a certificate."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from kubeocean.local.pki import Subject
from kubeocean.proxier import connection_limits
from kubeocean.proxier import server as server_module
from kubeocean.proxier.audit import AuditEntry
from kubeocean.proxier.connection_limits import RateLimits
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.pod_lookup import PodLocation
from kubeocean.proxier.routes import Logs, Run, Session
from kubeocean.proxier.server import accept, listen, start_tls
from kubeocean.proxier.sessions import Sessions
from support.proxier_handler import ENTERS, READS, FixedRights, handler_of
from support.proxier_server import RunningServer
from support.wait import until

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
LOGS = b"GET /containerLogs/ns/pod/main HTTP/1.1\r\n"
EXEC = b"GET /exec/ns/pod/main?command=id&output=1 HTTP/1.1\r\n"


class _Sessions(Sessions):
    """Records the sessions that would be opened in the worker."""

    def __init__(self) -> None:
        self.routes: list[Logs | Session | Run] = []

    async def logs(self, exchange: Exchange, route: Logs, location: PodLocation) -> None:
        self.routes.append(route)
        await exchange.respond(200, b"a log")

    async def stream(
        self, exchange: Exchange, route: Session, location: PodLocation, entry: AuditEntry
    ) -> None:
        self.routes.append(route)
        await exchange.respond(400, b"no")

    async def run(
        self, exchange: Exchange, route: Run, location: PodLocation, entry: AuditEntry
    ) -> None:
        self.routes.append(route)
        await exchange.respond(200, b"ran")


@pytest.fixture
def sessions() -> _Sessions:
    return _Sessions()


@pytest.fixture
async def proxier(tmp_path: Path, sessions: _Sessions) -> AsyncIterator[RunningServer]:
    handler = handler_of(FixedRights(READS), sessions)
    async with RunningServer.running(handler.handle, tmp_path) as running:
        yield running


# Authentication


@pytest.mark.parametrize("kind", ["server", "both", "neither"])
async def test_a_certificate_that_is_not_for_clients_authenticates_nothing(
    proxier: RunningServer, tmp_path: Path, kind: str
) -> None:
    """A cluster signs certificates of servers with the same CA."""
    subject = Subject("caller", (), ("127.0.0.1",), server=kind != "neither", client=kind == "both")
    proxier.authority.issue(subject).save(tmp_path, "odd")
    context = proxier.context(certified=False)
    context.load_cert_chain(tmp_path / "odd.crt", tmp_path / "odd.key")
    try:
        answer = await proxier.send(LOGS + b"Host: h\r\nConnection: close\r\n\r\n", context)
    except ssl.SSLError:
        answer = b""
    assert (b" 200 " in answer) == (kind == "both")


async def test_the_caller_of_a_connection_cannot_change(proxier: RunningServer) -> None:
    """Neither by renegotiation nor by a certificate after the handshake."""
    options = proxier.tls.context.options
    assert options & ssl.OP_NO_RENEGOTIATION
    context = proxier.context()
    context.post_handshake_auth = True
    assert b" 200 " in await proxier.send(LOGS + b"Host: h\r\nConnection: close\r\n\r\n", context)


# Smuggling


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
        b"Content-Length: 0, 5\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: 0x0\r\n\r\n",
        b"Content-Length:\r\n\r\n",
        b"Content-Length : 5\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n",
        b"X: a\r\n Content-Length: 5\r\n\r\n",
        b"X: a\rContent-Length: 5\r\n\r\n",
        b"X: a\nContent-Length: 5\r\n\r\n",
        b"X\x00: a\r\n\r\n",
        b": a\r\n\r\n",
        b"Connection: upgrade\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_bytes_after_an_ambiguous_head_are_not_taken_for_a_request(
    proxier: RunningServer, sessions: _Sessions, head: bytes
) -> None:
    request = LOGS + b"Host: h\r\n" + head + EXEC + b"Host: h\r\n\r\n" + LOGS + b"Host: h\r\n\r\n"
    answer = await proxier.send(request, proxier.context())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(sessions.routes) <= 1
    assert not any(isinstance(each, Session | Run) for each in sessions.routes)


@pytest.mark.parametrize(
    "line",
    [
        b"GET /containerLogs/ns/pod/main",
        b"GET /containerLogs/ns/pod/main HTTP/1.0",
        b"GET /containerLogs/ns/pod/main HTTP/1.10",
        b"GET https://h/containerLogs/ns/pod/main HTTP/1.1",
        b"GET //h/containerLogs/ns/pod/main HTTP/1.1",
        b"GET /./containerLogs/ns/pod/main HTTP/1.1",
        b"GET /x/../containerLogs/ns/pod/main HTTP/1.1",
        b"GET /containerLogs//ns/pod/main HTTP/1.1",
        b"GET /containerLogs/ns/pod/main/ HTTP/1.1",
        b"GET /containerLogs/ns/pod%2fmain HTTP/1.1",
        b"GET /containerLogs/ns/pod/main%00 HTTP/1.1",
        b"GET /containerLogs\\ns\\pod\\main HTTP/1.1",
        b"GET /containerlogs/ns/pod/main HTTP/1.1",
        b"GET /containerLogs/NS/pod/main HTTP/1.1",
        b"GET /containerLogs/ns/pod/main;x HTTP/1.1",
        b"GET /containerLogs/ns/pod/main\tHTTP/1.1",
        b"CONNECT 10.0.0.1:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"TRACE /containerLogs/ns/pod/main HTTP/1.1",
        b"PRI * HTTP/2.0",
    ],
)
async def test_no_other_form_of_a_target_leads_to_a_pod(
    proxier: RunningServer, sessions: _Sessions, line: bytes
) -> None:
    answer = await proxier.send(line + b"\r\nHost: h\r\n\r\n", proxier.context())
    assert answer[9:10] in (b"4", b"5"), answer
    assert not sessions.routes


async def test_an_upgrade_of_a_log_is_ignored_and_an_exec_after_it_is_refused(
    proxier: RunningServer, sessions: _Sessions
) -> None:
    upgrade = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    answer = await proxier.send(LOGS + upgrade + EXEC + upgrade, proxier.context())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"a logHTTP/1.1 403 Forbidden\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 2
    assert [type(each) for each in sessions.routes] == [Logs]


async def test_no_request_follows_a_refused_upgrade(tmp_path: Path) -> None:
    """The bytes after it were meant for another protocol."""
    sessions = _Sessions()
    async with RunningServer.running(
        handler_of(FixedRights(ENTERS), sessions).handle, tmp_path
    ) as proxier:
        upgrade = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        answer = await proxier.send(EXEC + upgrade + LOGS + b"Host: h\r\n\r\n", proxier.context())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(sessions.routes) == 1


# Exhaustion


async def test_a_connection_without_a_certificate_gets_one_health_check(
    proxier: RunningServer,
) -> None:
    answer = await proxier.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 1000)
    assert answer.count(b" 200 ") == 1


async def from_address(proxier: RunningServer, address: str, tls: ssl.SSLContext | None) -> bytes:
    """Return the response to a health check from this address."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", proxier.port, ssl=tls, local_addr=(address, 0)
    )
    proxier.opened.append(writer)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    try:
        return await reader.read(100)
    except ConnectionError:
        return b""


async def test_silent_connections_of_one_address_leave_handshakes_for_others(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_HANDSHAKES_PER_NETWORK", 5)
    silent = [await asyncio.open_connection("127.0.0.1", proxier.port) for _ in range(8)]
    await until(lambda: proxier.server.connections == 5)
    with pytest.raises(OSError):
        await proxier.connect(proxier.context())
    assert b" 200 " in await from_address(proxier, "127.0.0.7", proxier.context())
    for _, writer in silent:
        writer.transport.abort()
    await until(lambda: proxier.server.connections <= 1)
    assert b" 200 " in await from_address(proxier, "127.0.0.1", proxier.context(certified=False))


async def test_one_address_without_a_certificate_leaves_connections_for_others(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_ANONYMOUS_PER_NETWORK", 4)
    for _ in range(4):
        await proxier.connect()
    await until(lambda: proxier.server.connections == 4)
    assert await from_address(proxier, "127.0.0.1", proxier.context(certified=False)) == b""
    assert b" 200 " in await from_address(proxier, "127.0.0.7", proxier.context(certified=False))


async def test_one_subject_cannot_use_up_all_connections(
    proxier: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_PER_SUBJECT", 3)
    for _ in range(3):
        await proxier.connect(proxier.context())
    await until(lambda: proxier.server.connections == 3)
    assert await proxier.send(LAST, proxier.context()) == b""
    proxier.authority.issue(Subject("other", (), client=True)).save(tmp_path, "other")
    other = proxier.context(certified=False)
    other.load_cert_chain(tmp_path / "other.crt", tmp_path / "other.key")
    assert await proxier.send(LAST, other) != b""


class _Endless(_Sessions):
    """Sessions that do not end."""

    async def logs(self, exchange: Exchange, route: Logs, location: PodLocation) -> None:
        self.routes.append(route)
        await exchange.begin_chunks(200, "text/plain")
        await exchange.wait_for_disconnect()


async def test_one_namespace_cannot_use_up_the_sessions_of_a_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server connects with one certificate for all of its users."""
    monkeypatch.setattr(connection_limits, "MAX_SESSIONS_PER_NAMESPACE", 3)
    sessions = _Endless()
    async with RunningServer.running(
        handler_of(FixedRights(READS), sessions).handle, tmp_path
    ) as proxier:
        for _ in range(3):
            _, writer = await proxier.connect(proxier.context())
            writer.write(LOGS + b"Host: h\r\n\r\n")
        await until(lambda: len(sessions.routes) == 3)
        assert b" 429 " in await proxier.send(LOGS + b"Host: h\r\n\r\n", proxier.context())
        reader, writer = await proxier.connect(proxier.context())
        writer.write(LOGS.replace(b"/ns/", b"/other/") + b"Host: h\r\n\r\n")
        assert b" 200 " in await reader.readline()
        proxier.opened[0].transport.abort()

        async def again() -> bool:
            reader, writer = await proxier.connect(proxier.context())
            writer.write(LOGS + b"Host: h\r\n\r\n")
            return b" 200 " in await reader.readline()

        await until(again)


async def test_one_namespace_cannot_use_up_the_requests_of_a_caller(
    tmp_path: Path, sessions: _Sessions
) -> None:
    handler = handler_of(FixedRights(READS), sessions, rate_limits=RateLimits(rate=1e-6, burst=8.0))
    ours = LOGS + b"Host: h\r\nConnection: close\r\n\r\n"
    async with RunningServer.running(handler.handle, tmp_path) as proxier:
        answers = [await proxier.send(ours, proxier.context()) for _ in range(5)]
        assert [b" 429 " in each for each in answers] == [False] * 4 + [True]
        theirs = ours.replace(b"/ns/", b"/other/")
        assert b" 200 " in await proxier.send(theirs, proxier.context())
        # A request without a route has no namespace, and counts for the caller.
        answers = [await proxier.send(LAST, proxier.context()) for _ in range(4)]
        assert [b" 429 " in each for each in answers] == [False] * 3 + [True]


async def test_callers_without_a_certificate_cannot_fill_the_audit_log(
    proxier: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    context = proxier.context(certified=False)
    for _ in range(40):
        assert b" 400 " in await proxier.send(b"nonsense\r\n\r\n", context)
    assert 10 <= len(caplog.records) <= 30
    # Each request of a caller with a certificate leaves a line.
    before = len(caplog.records)
    for _ in range(40):
        await proxier.send(b"nonsense\r\n\r\n", proxier.context())
    assert len(caplog.records) == before + 40


async def test_a_flood_of_headers_ends_the_connection(proxier: RunningServer) -> None:
    reader, writer = await proxier.connect(proxier.context(certified=False))
    writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n")
    writer.write(b"X: y\r\n" * 100_000)
    with suppress(ConnectionError):  # the server may close while the client is still sending
        async with asyncio.timeout(5):
            assert b" 431 " in await reader.read(200)
    await until(lambda: proxier.server.connections == 0)


async def test_a_failed_connection_does_not_end_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux reports network errors of a connection in accept(2)."""
    (listening, *others) = await listen("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    really, fails = loop.sock_accept, [errno.EPROTO, errno.EHOSTUNREACH, errno.ECONNABORTED]

    async def failing(each: socket.socket) -> tuple[socket.socket, object]:
        if fails:
            raise OSError(fails.pop(), "injected")
        return await really(each)

    monkeypatch.setattr(loop, "sock_accept", failing)
    _, writer = await asyncio.open_connection(*listening.getsockname())
    (await accept(listening)).close()
    writer.close()
    for each in (listening, *others):
        each.close()
    assert not fails


async def test_little_is_buffered_for_a_caller_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand such callers must fit into memory."""
    writers: list[asyncio.StreamWriter] = []
    piece = b"x" * (64 << 10)

    async def recorded(
        connection: socket.socket, context: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await start_tls(connection, context)
        writers.append(writer)
        return reader, writer

    async def much(exchange: Exchange) -> None:
        await exchange.begin_chunks(200, "text/plain")
        while True:
            await exchange.write(piece)

    monkeypatch.setattr(server_module, "start_tls", recorded)
    async with RunningServer.running(much, tmp_path) as proxier:
        _, writer = await proxier.connect(proxier.context())
        writer.transport.pause_reading()
        writer.write(GET)
        sizes = [0]

        def stalled() -> bool:
            sizes.append(writers[0].transport.get_write_buffer_size() if writers else 0)
            return 0 < sizes[-1] == sizes[-2]

        await until(stalled, every=0.2)
        assert sizes[-1] <= 2 * len(piece)


async def test_callers_that_do_not_read_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    async def much(exchange: Exchange) -> None:
        exchange.write_timeout_s = 3600.0
        await exchange.begin_chunks(200, "text/plain")
        while True:
            await exchange.send_chunk(b"x" * 100_000)

    async with RunningServer.running(much, tmp_path) as proxier:
        for context in (proxier.context(), proxier.context(certified=False)):
            reader, writer = await proxier.connect(context)
            writer.write(GET)
            await reader.readuntil(b"xxxx")
            writer.transport.pause_reading()
        _, silent = await asyncio.open_connection("127.0.0.1", proxier.port)
        proxier.opened.append(silent)
        await until(lambda: proxier.server.connections == 3)
        async with asyncio.timeout(5):
            await proxier.server.drain(0.5, linger_s=0.0)
        assert proxier.server.connections == 0
