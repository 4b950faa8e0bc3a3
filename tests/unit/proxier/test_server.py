"""The TLS server: handshakes, heads, limits on connections, and shutdown."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.pki import LocalAuthority
from kubeocean.proxier import connection_limits
from kubeocean.proxier import server as server_module
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.server import listen
from kubeocean.runtime.logs import bound
from support.proxier_server import RunningServer, pair_of
from support.wait import until

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


async def echo_handler(exchange: Exchange) -> None:
    """Respond with method and target; `/<number>` is the status."""
    target = exchange.head.target
    if target == "/held":
        await exchange.begin_chunks(200, "text/plain")
        await exchange.send_chunk(b"begun")
        await exchange.wait_for_disconnect()
        return
    if target == "/much":
        exchange.write_timeout_s = 0.2
        for _ in range(1000):
            await exchange.write(b"x" * 100_000)
    status = int(target[1:]) if target[1:].isdigit() else 200
    await exchange.respond(status, f"{exchange.head.method} {target}".encode())


@pytest.fixture
async def proxier(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with RunningServer.running(echo_handler, tmp_path) as running:
        yield running


async def test_a_connection_serves_several_requests(proxier: RunningServer) -> None:
    reader, writer = await proxier.connect(proxier.context())
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
async def test_no_request_follows_one_whose_body_could_be_taken_for_it(
    proxier: RunningServer, request_: bytes
) -> None:
    answer = await proxier.send(request_ + GET, proxier.context())
    assert answer.count(b"Content-Length") == 1
    assert b"Connection: close\r\n" in answer


async def test_the_response_to_head_has_no_body(proxier: RunningServer) -> None:
    request = b"HEAD /405 HTTP/1.1\r\nHost: h\r\n\r\n"
    assert (await proxier.send(request, proxier.context())).endswith(b"\r\n\r\n")


async def test_a_caller_with_a_certificate_may_send_a_long_command(proxier: RunningServer) -> None:
    def request(size: int) -> bytes:
        target = b"/exec?command=" + b"a" * size
        return b"GET " + target + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

    assert b" 200 " in await proxier.send(request(1_048_000), proxier.context())
    assert b" 431 " in await proxier.send(request(1_048_576), proxier.context())
    assert b" 200 " in await proxier.send(request(16_000))
    assert b" 431 " in await proxier.send(request(17_000))


async def test_few_requests_with_large_heads_are_served_at_one_time(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_LARGE_HEADS_PER_SUBJECT", 1)

    def request(target: bytes, size: int = 300_000) -> bytes:
        return b"GET " + target + b" HTTP/1.1\r\nHost: h\r\nX: " + b"a" * size + b"\r\n\r\n"

    reader, writer = await proxier.connect(proxier.context())
    writer.write(request(b"/held"))
    await reader.readuntil(b"begun")
    assert b" 429 " in await proxier.send(request(b"/404"), proxier.context())
    assert b" 404 " in await proxier.send(request(b"/404", 200_000), proxier.context())
    writer.close()
    await until(lambda: proxier.server.connections == 0)
    # Each request releases its reservation, also where the connection stays open.
    reader, writer = await proxier.connect(proxier.context())
    for _ in range(3):
        writer.write(request(b"/x"))
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"GET /x")


async def test_an_older_version_of_http_is_refused_with_505(proxier: RunningServer) -> None:
    assert b" 505 " in await proxier.send(b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n")


async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    assert await proxier.send(b"GET /x HT") == b""
    await until(lambda: proxier.server.connections == 0)


async def test_a_caller_that_does_not_read_is_disconnected(proxier: RunningServer) -> None:
    _, writer = await proxier.connect()
    writer.transport.pause_reading()
    writer.write(b"GET /much HTTP/1.1\r\nHost: h\r\n\r\n")
    await until(lambda: proxier.server.connections == 1)
    await until(lambda: proxier.server.connections == 0)


async def test_a_caller_that_disconnects_while_nothing_is_sent_is_noticed(
    proxier: RunningServer,
) -> None:
    reader, writer = await proxier.connect()
    writer.write(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"begun")
    assert proxier.server.connections == 1
    writer.close()
    await until(lambda: proxier.server.connections == 0)


async def test_callers_without_a_certificate_do_not_use_up_all_connections(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_ANONYMOUS", 3)
    for _ in range(3):
        await proxier.connect()
    await until(lambda: proxier.server.connections == 3)
    assert await proxier.send(GET) == b""
    request = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    assert b" 200 " in await proxier.send(request, proxier.context())


async def test_a_resumed_tls_session_is_rejected(proxier: RunningServer) -> None:
    context = proxier.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool]:
        import socket

        with (
            socket.create_connection(("127.0.0.1", proxier.port)) as plain,
            context.wrap_socket(plain, session=session, do_handshake_on_connect=False) as tls,
        ):
            try:
                tls.do_handshake()
                tls.sendall(GET)
                return tls.recv(1000), tls.session, bool(tls.session_reused)
            except OSError:
                return b"", tls.session, True

    answer, session, reused = await asyncio.to_thread(connect, None)
    assert (b" 200 " in answer, reused) == (True, False)
    answer, _, reused = await asyncio.to_thread(connect, session)
    assert not reused or answer == b""


async def test_a_certificate_of_a_replaced_client_ca_is_rejected(proxier: RunningServer) -> None:
    reader, writer = await proxier.connect(proxier.context())
    writer.write(GET)
    await reader.readuntil(b"GET /x")
    other = LocalAuthority.create("other")
    proxier.tls.trust_clients(other.certificate)
    writer.write(GET)
    assert await reader.read() == b""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        reader, writer = await proxier.connect(proxier.context())
        writer.write(GET)
        assert not await reader.read()
        raise ConnectionError
    assert b" 200 " in await proxier.send(
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", proxier.context(by=other)
    )


async def test_a_new_certificate_is_used_from_the_next_connection_on(
    proxier: RunningServer,
) -> None:
    reader, writer = await proxier.connect(proxier.context())
    proxier.tls.use_certificate(pair_of(proxier.authority, "127.0.0.1", "renewed"))
    writer.write(GET)
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    _, writer = await proxier.connect(proxier.context())
    names = writer.get_extra_info("peercert")["subjectAltName"]
    assert ("DNS", "renewed") in names


async def test_a_drained_server_waits_for_sessions_and_not_for_idle_connections(
    proxier: RunningServer,
) -> None:
    _, idle = await proxier.connect(proxier.context())
    idle.write(GET)
    reader, writer = await proxier.connect(proxier.context())
    writer.write(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"begun")
    await until(lambda: proxier.server.connections == 2)
    draining = asyncio.create_task(proxier.server.drain(30.0, linger_s=0.0))
    await until(lambda: proxier.server.connections == 1)
    assert not proxier.server.ports
    with pytest.raises(ConfigError, match="shutting down"):
        await proxier.server.open_port(0)
    writer.close()
    async with asyncio.timeout(5):
        await draining


async def test_without_a_host_every_address_of_the_machine_is_listened_on() -> None:
    sockets = await listen(None, 0)
    names = [each.getsockname() for each in sockets]
    for each in sockets:
        each.close()
    assert {"0.0.0.0"} <= {name[0] for name in names} <= {"0.0.0.0", "::"}
    assert len({name[1] for name in names}) == 1


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_a_port_can_be_opened_on_one_address(proxier: RunningServer, host: str) -> None:
    port = await proxier.server.open_port(0, host=host)
    try:
        context = proxier.context(certified=False)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await reader.read()
        writer.close()
    finally:
        await proxier.server.close_port(port)
    with pytest.raises(OSError):
        await asyncio.open_connection(host, port)


async def test_log_lines_of_a_caller_have_no_field_of_the_task_that_opened_the_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    async with RunningServer.running(echo_handler, tmp_path) as proxier:
        with bound(reconcile="of-the-port"):
            proxier.port = await proxier.server.open_port(0, "v1")
        await proxier.send(b"nonsense\r\n\r\n", proxier.context())
    assert len(caplog.records) == 1
    assert "of-the-port" not in str(caplog.records[0].__dict__)


async def test_a_port_that_is_in_use_cannot_be_opened(proxier: RunningServer) -> None:
    with pytest.raises(ConfigError, match=str(proxier.port)):
        await proxier.server.open_port(proxier.port)
    assert proxier.port in proxier.server.ports


async def test_the_number_of_handshakes_is_limited(
    proxier: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_HANDSHAKES", 3)
    opened = [await asyncio.open_connection("127.0.0.1", proxier.port) for _ in range(3)]
    writers = [writer for _, writer in opened]
    await until(lambda: proxier.server.connections == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxier.port)
    assert await reader.read() == b""
    for each in (*writers, writer):
        each.close()
    await until(lambda: proxier.server.connections == 0)


async def test_an_unexpected_error_ends_one_connection_only(tmp_path: Path) -> None:
    async def failing(exchange: Exchange) -> None:
        if exchange.head.target == "/error":
            raise ZeroDivisionError
        await echo_handler(exchange)

    async with RunningServer.running(failing, tmp_path) as proxier:
        assert await proxier.send(b"GET /error HTTP/1.1\r\nHost: h\r\n\r\n") == b""
        good = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        assert b" 200 " in await proxier.send(good)
