"""Front: the doors of the proxier, one for all virtual nodes and one for each.

A connection is TLS from its first byte. Heads are read with a limit on size and time; each goes to
the desk, which answers it. A connection whose request has a body of its own is closed after the
answer, so that no byte of it can be taken for another request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeAlias

from kubeocean.errors import ConfigError, Refusal, Unreachable
from kubeocean.proxier import heads
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.identity import Identity
from kubeocean.runtime.logs import get_logger

__all__ = ["Desk", "Front"]

HEAD_S: Final = 10.0
KEEP_S: Final = 120.0
HANDSHAKE_S: Final = 10.0
MOST: Final = 2_000  # connections in all

_DELIVERY_S: Final = 30.0  # of what was said last, to a caller that is slow
_BUFFER: Final = 64 * 1024  # of each connection: larger than a head may be, for what is carried

Desk: TypeAlias = Callable[[Exchange], Awaitable[bool]]  # whether the connection goes on

_log = get_logger(__name__)


class Front:
    """Listeners by port; `desk` answers what comes through them."""

    def __init__(self, desk: Desk, identity: Identity, *, host: str | None = None) -> None:
        self._desk = desk
        self._identity = identity
        self._host = host or None
        self._doors: dict[int, asyncio.Server] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._doors)

    @property
    def connections(self) -> int:
        return len(self._open)

    async def open(self, port: int, vnode: str = "") -> int:
        """Listen for one virtual node, or for all of them; the port that it became.

        :raises ConfigError: the port cannot be had.
        """

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(reader, writer, vnode)

        try:
            door = await asyncio.start_server(
                connected,
                self._host,
                port,
                ssl=self._identity.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                limit=_BUFFER,
                backlog=512,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on port {port}: {error.strerror}") from error
        made = int(door.sockets[0].getsockname()[1])
        self._doors[made] = door
        return made

    async def shut(self, port: int) -> None:
        """Take no more connections there; those that are open go on."""
        door = self._doors.pop(port, None)
        if door is not None:
            door.close()

    async def drain(self, grace_s: float) -> None:
        """Take no more connections, let sessions end in that time, then cut them."""
        self._closing = True
        for port in tuple(self._doors):
            await self.shut(port)
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s)
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, vnode: str
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closing or len(self._open) >= MOST:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._serve(reader, writer, vnode)
        except (Unreachable, TimeoutError, ssl.SSLError, ConnectionError):
            pass  # the caller is gone, or says nothing
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, vnode: str
    ) -> None:
        patience_s = HEAD_S
        while not self._closing:
            try:
                async with asyncio.timeout(patience_s):
                    head = heads.parse(await reader.readuntil(heads.END))
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                await _refuse(writer, heads.too_large())
                return
            except Refusal as refusal:
                await _refuse(writer, refusal)
                return
            exchange = Exchange(head, reader, writer, vnode=vnode)
            if not await self._desk(exchange) or exchange.has_body or exchange.broken:
                await _close(writer)
                return
            patience_s = KEEP_S


async def _refuse(writer: asyncio.StreamWriter, refusal: Refusal) -> None:
    """An answer to something that is no request."""
    peer, status = writer.get_extra_info("peername"), refusal.status
    _log.warning(
        "Refused request", status=status, error=str(refusal), peer=str(peer[0]) if peer else ""
    )
    body = f"{refusal}\n".encode()
    writer.write(
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Deliver what was written, then end."""
    writer.close()
    try:
        async with asyncio.timeout(_DELIVERY_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass
