"""Connections: a peer that vanishes is noticed, and a host is reached by any of its addresses."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from multidict import CIMultiDict
from yarl import URL

from kubeocean.errors import Unreachable
from kubeocean.runtime import sockets
from kubeocean.runtime.access import Access
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.sockets import KeepAlive
from kubeocean.runtime.transport import HttpTransport, Request
from kubeocean.runtime.tunnel import Tunnel, open_tunnel
from support.servers import Server, echo, head_of, serving

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
SO_ATTACH_FILTER = 26
LIMIT_S = 30.0  # much less than the two hours of a kernel's default keep-alive


def cut_off(connection: socket.socket) -> None:
    """Drop every packet that arrives here: to its peer this end has vanished without a FIN."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    header = struct.pack("HL", 1, ctypes.addressof(program))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, header)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "KEEP_ALIVE", KeepAlive(idle_s=1, interval_s=1, probes=2))


@asynccontextmanager
async def vanishing(answer: bytes) -> AsyncIterator[Server]:
    """Yield a server that answers a request and then disappears."""

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(answer)
        await asyncio.sleep(0.1)  # until the client's acknowledgement has arrived
        cut_off(writer.get_extra_info("socket"))
        await asyncio.Event().wait()

    async with serving(handle) as server:
        yield server


@asynccontextmanager
async def tunnel_to(url: str) -> AsyncIterator[Tunnel]:
    async with open_tunnel(
        URL(url),
        method="POST",
        target="/exec",
        headers=CIMultiDict[str](),
        protocol="SPDY/3.1",
        tls=None,
        tls_server_name=None,
        proxy_url=None,
        timeout_s=10.0,
    ) as tunnel:
        yield tunnel


async def test_an_idle_tunnel_to_a_vanished_server_ends() -> None:
    async with vanishing(SWITCHED) as server, tunnel_to(server.url) as tunnel:
        with pytest.raises(Unreachable, match="lost the tunnel"):
            async with asyncio.timeout(LIMIT_S):
                await tunnel.read()


async def test_an_idle_stream_from_a_vanished_server_ends() -> None:
    async with vanishing(ENDLESS) as server:
        transport = HttpTransport(StaticAccess(Access(server.url)))
        try:
            async with transport.stream(Request("GET", "/log", timeout_s=10.0)) as stream:
                assert await stream.read() == b"{}"
                with pytest.raises(Unreachable, match="lost the stream"):
                    async with asyncio.timeout(LIMIT_S):
                        await stream.read()
        finally:
            await transport.close()


async def test_a_tunnel_waits_for_a_peer_that_does_not_read() -> None:
    resume = asyncio.Event()

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        await resume.wait()
        await echo(reader, writer)

    size = 16 << 20  # more than the buffers of both kernels
    async with serving(handle) as server, tunnel_to(server.url) as tunnel:
        writing = asyncio.ensure_future(tunnel.write(bytes(size)))
        _, unfinished = await asyncio.wait([writing], timeout=2.0 * sockets.KEEP_ALIVE.total_s)
        assert unfinished, "the peer read everything, or the connection was cut"
        resume.set()
        arrived = 0
        while arrived < size:
            arrived += len(await tunnel.read())
        await writing


def black_hole() -> tuple[socket.socket, list[socket.socket]]:
    """Return a listening socket whose queue is full: the kernel drops further connections."""
    listening = socket.socket()
    listening.bind(("127.0.0.2", 0))
    listening.listen(0)
    fillers = []
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listening.getsockname())
        fillers.append(filler)
    return listening, fillers


async def test_a_tunnel_opens_though_the_first_address_of_its_host_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        await echo(reader, writer)

    silent, fillers = black_hole()
    with closing(silent):
        async with serving(handle) as server:
            stream = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")

            async def resolve(host: str, port: int, **_: object) -> list[object]:
                return [(*stream, silent.getsockname()), (*stream, ("127.0.0.1", port))]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            async with tunnel_to(f"http://worker.example:{server.port}") as tunnel:
                await tunnel.write(b"reached")
                assert await tunnel.read() == b"reached"
    for filler in fillers:
        filler.close()
