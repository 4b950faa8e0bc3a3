"""Servers for tests that do not speak Kubernetes: hostile ones, an echo, a proxy.

Every connection that such a server still has open is closed with it.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["Proxy", "Server", "connections_to", "echo", "head_of", "proxying", "serving", "unused"]

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A running server, and the heads of the requests that it has read."""

    port: int
    tls: bool
    heads: list[str] = field(default_factory=list)
    open: int = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        """The request lines, without the version."""
        return [head.partition(" HTTP/")[0] for head in self.heads]


@asynccontextmanager
async def serving(
    handler: Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Serve on a port of the loopback; errors of a handler other than a lost peer are raised."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.open += 1
        try:
            # asyncio logs a handler that is cancelled, which is how these end.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(server, reader, writer)
        finally:
            tasks.discard(task)
            server.open -= 1
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server = Server(listening.sockets[0].getsockname()[1], tls is not None)
    try:
        yield server
    finally:
        listening.close()
        waiting = list(tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def head_of(server: Server, reader: asyncio.StreamReader) -> str:
    """Read the head of the next request and add it to the server's heads."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    server.heads.append(head)
    return head


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send all received bytes back, until the connection ends."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@dataclass
class Proxy:
    """An HTTP proxy; `refuse` is the response instead of a connection."""

    url: str = ""
    refuse: bytes = b""
    targets: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)


@asynccontextmanager
async def proxying() -> AsyncIterator[Proxy]:
    """Yield a proxy for CONNECT only."""
    proxy = Proxy()

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        method, target, *_ = (head := await head_of(server, reader)).split()
        assert method == "CONNECT"
        proxy.targets.append(target)
        _, given, basic = head.partition("Proxy-Authorization: Basic ")
        proxy.credentials.append(base64.b64decode(basic.split()[0]).decode() if given else "")
        if proxy.refuse:
            writer.write(proxy.refuse)
            return
        host, _, port = target.rpartition(":")
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_copy(reader, target_writer), _copy(target_reader, writer))
        finally:
            target_writer.close()

    async with serving(handle) as server:
        proxy.url = server.url
        yield proxy


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


def unused() -> int:
    """Return a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def connections_to(port: int) -> int:
    """Count the connections of this process to a port of the loopback."""
    import psutil

    connections = psutil.Process().net_connections("tcp")
    return sum(1 for c in connections if c.raddr and c.raddr.port == port and c.status != "NONE")
