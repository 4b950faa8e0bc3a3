"""Front: the doors of the proxier, one for all virtual nodes and one for each.

A connection is TLS from its first byte. Heads are read with a limit on size and time; each goes to
the desk, which answers it. A connection whose request has a body of its own is closed after the
answer, so that no byte of it can be taken for another request.

Who shows a certificate finds room though others come in numbers: those are fewer, and are given
less time. When the authority of certificates changes, connections that it vouched for are used for
no further request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from kubeocean.errors import ConfigError, Refusal, Unreachable
from kubeocean.proxier import heads
from kubeocean.proxier.audit import unreadable, untrusted
from kubeocean.proxier.exchange import PLAIN, Exchange, answer_head
from kubeocean.proxier.figures import Figures
from kubeocean.proxier.identity import Identity
from kubeocean.proxier.listening import accept, agree, listen
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.rooms import Rooms
from kubeocean.runtime.failures import explain
from kubeocean.runtime.logs import get_logger

__all__ = ["Desk", "Front"]

HEAD_S: Final = 10.0
KEEP_S: Final = 120.0
LINGER_S: Final = 3.0  # doors stay open after we are told to go: not everybody has heard of it

_DELIVERY_S: Final = 30.0  # of what was said last, to a caller that is slow
_TOLD_RATE: Final = 1.0  # lines about somebody who has no name and made no request, a second
_TOLD_BURST: Final = 20.0

Desk: TypeAlias = Callable[[Exchange], Awaitable[None]]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Door:
    """Where somebody comes in: for one virtual node, for all, or for metrics of all."""

    vnode: str = ""
    metrics_only: bool = False


class Front:
    """Listeners by port; `desk` answers what comes through them, within the block of the front."""

    def __init__(
        self,
        desk: Desk,
        identity: Identity,
        *,
        host: str | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._desk = desk
        self._identity = identity
        self._host = host or None
        self._figures = figures or Figures()
        self._group = asyncio.TaskGroup()
        self._began = asyncio.Event()
        self._doors: dict[int, list[asyncio.Task[None]]] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()  # waiting for a request
        self._rooms = Rooms()
        self._told = Paces(rate=_TOLD_RATE, burst=_TOLD_BURST)
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._context = copy_context()
        self._began.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut whatever is left."""
        for port in tuple(self._doors):
            await self.shut(port)
        for task in tuple(self._open):
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._doors)

    @property
    def connections(self) -> int:
        return len(self._open)

    async def open(
        self, port: int, vnode: str = "", *, host: str | None = None, metrics_only: bool = False
    ) -> int:
        """Listen for one virtual node, or for all of them; the port that it became.

        :raises ConfigError: the port cannot be had.
        """
        await self._began.wait()
        sockets = await listen(host or self._host, port)
        if self._closing:
            for each in sockets:
                each.close()
            raise ConfigError(f"cannot listen on port {port}: it is the end")
        made = int(sockets[0].getsockname()[1])
        door = _Door(vnode, metrics_only)
        # What is logged of callers must not tell of whoever opened the door for them.
        self._doors[made] = [
            self._group.create_task(self._accept(each, door), context=self._context.copy())
            for each in sockets
        ]
        return made

    async def shut(self, port: int) -> None:
        """Take no more connections there; those that are open go on."""
        accepting = self._doors.pop(port, [])
        for task in accepting:
            task.cancel()
        if accepting:
            await asyncio.wait(accepting)

    async def drain(self, grace_s: float, *, linger_s: float = LINGER_S) -> None:
        """Take no more connections, let sessions end in that time, then cut them."""
        linger_s = min(linger_s, grace_s / 2)
        await asyncio.sleep(linger_s)
        self._closing = True
        for port in tuple(self._doors):
            await self.shut(port)
        for task in tuple(self._idle):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s - linger_s)
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _accept(self, listening: socket.socket, door: _Door) -> None:
        with closing(listening):
            while True:
                connection = await accept(listening)
                peer = _address(connection)
                if not self._rooms.knock(peer):
                    self._figures.turned_away()
                    connection.close()
                    continue
                task = self._group.create_task(self._welcome(connection, peer, door))
                task.add_done_callback(self._open.discard)
                self._open.add(task)

    async def _welcome(self, connection: socket.socket, peer: str, door: _Door) -> None:
        """A connection from its first byte to its last."""
        try:
            await self._connect(connection, peer, door)
        except (Unreachable, TimeoutError, ssl.SSLError, ConnectionError):
            pass  # the caller is gone, or says nothing
        except Exception as error:  # of one connection, which must not end the others
            _log.error("Connection failed", peer=peer, error=error, exc_info=error)

    async def _connect(self, connection: socket.socket, peer: str, door: _Door) -> None:
        try:
            try:
                reader, writer = await agree(connection, self._identity.context)
            finally:
                self._rooms.knocked(peer)
        except OSError as error:
            self._figures.turned_away()
            # Who only looks whether there is a port is no news; others are told of, within limits.
            if isinstance(error, ssl.SSLError) and self._told.allows(peer):
                untrusted(explain(error), peer)
            return
        try:
            await self._connected(reader, writer, peer, door)
        finally:
            writer.transport.abort()

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str, door: _Door
    ) -> None:
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        name = _named(writer.get_extra_info("peercert"))
        # A resumed session was vouched for by whoever was believed when it began.
        resumed = tls is None or tls.session_reused
        if resumed or self._closing or not self._rooms.enter(peer, name):
            self._figures.turned_away()
            return

        def made(head: heads.Head) -> Exchange:
            return Exchange(head, reader, writer, vnode=door.vnode, metrics_only=door.metrics_only)

        self._figures.connections(len(self._open))
        try:
            await self._serve(reader, writer, made, stranger=not name)
        finally:
            self._rooms.leave(peer, name)
            self._figures.connections(len(self._open) - 1)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        make: Callable[[heads.Head], Exchange],
        *,
        stranger: bool,
    ) -> None:
        patience_s, believed = HEAD_S, self._identity.epoch
        while not self._closing:
            try:
                head = heads.parse(await self._read(reader, patience_s))
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                await self._refuse(writer, heads.too_large(), stranger=stranger)
                return
            except Refusal as refusal:
                await self._refuse(writer, refusal, stranger=stranger)
                return
            if believed != self._identity.epoch:
                return  # who vouched for the caller may not be believed any more
            exchange = make(head)
            await self._desk(exchange)
            if exchange.last:
                break
            patience_s = HEAD_S if stranger else KEEP_S
        await _close(writer)

    async def _read(self, reader: asyncio.StreamReader, patience_s: float) -> bytes:
        """The next head, if it comes in time."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            async with asyncio.timeout(patience_s):
                return await reader.readuntil(heads.END)
        finally:
            self._idle.discard(task)

    async def _refuse(
        self, writer: asyncio.StreamWriter, refusal: Refusal, *, stranger: bool
    ) -> None:
        """An answer to something that is no request."""
        found = writer.get_extra_info("peername")
        peer = str(found[0]) if found else ""
        # Nobody without a name can fill our log with nonsense.
        if not stranger or self._told.allows(peer):
            unreadable(refusal, peer)
        self._figures.refused(refusal.status)
        body = f"{refusal}\n".encode()
        fields = [("Content-Type", PLAIN), ("Content-Length", str(len(body)))]
        writer.write(answer_head(refusal.status, [*fields, ("Connection", "close")]) + body)
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Deliver what was written, then end."""
    writer.close()
    try:
        async with asyncio.timeout(_DELIVERY_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass


def _named(certificate: Mapping[str, Any] | None) -> str:
    """What a verified certificate is told from others by; nothing without one."""
    return repr(certificate.get("subject", ())) if certificate else ""


def _address(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""
