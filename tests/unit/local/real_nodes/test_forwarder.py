"""Forwarder: bytes arrive whole, in both directions, and each end is passed on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubeocean.local.real_nodes.forwarder import SocketAddress, serve

HALF = b"x" * 300_000


@asynccontextmanager
async def forwarding(
    server: SocketAddress, tmp_path: Path
) -> AsyncIterator[tuple[SocketAddress, SocketAddress]]:
    """Yield a running forwarder: its address for the API server, and its address for the
    machine."""
    service, machine = socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            serve(service, machine, server=server, ports=tmp_path / "ports"), name="forwarder"
        )
        yield service.getsockname(), ("127.0.0.1", machine.getsockname()[1])
        task.cancel()


async def echo_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after the end of the request."""
    writer.write(await reader.read(-1))
    await writer.drain()
    writer.close()


async def test_a_connection_reaches_the_server_and_half_of_it_can_close(tmp_path: Path) -> None:
    server = await asyncio.start_server(echo_at_the_end, "127.0.0.1", 0)
    async with server, forwarding(server.sockets[0].getsockname(), tmp_path) as (service, _):
        reader, writer = await asyncio.open_connection(*service)
        writer.write(HALF)
        writer.write_eof()
        assert await reader.read(-1) == HALF
        writer.close()
        await writer.wait_closed()


async def test_a_connection_ends_where_no_server_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = gone.getsockname()
    async with forwarding(nowhere, tmp_path) as (service, _):
        reader, writer = await asyncio.open_connection(*service)
        assert await reader.read(-1) == b""
        writer.close()
        await writer.wait_closed()


async def test_a_port_that_is_not_open_is_refused(tmp_path: Path) -> None:
    async with forwarding(("127.0.0.1", 1), tmp_path) as (_, machine):
        reader, writer = await asyncio.open_connection(*machine)
        with contextlib.suppress(ConnectionError):
            assert await reader.read(-1) == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
