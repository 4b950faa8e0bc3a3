"""The TLS server of the proxier: a port for all virtual nodes, one for each, and one for metrics.

A connection is TLS from its first byte. Heads are read with a limit on size and time, and each
request is passed to the handler. A request with a body is the last one on its connection, so that
no byte of the body can be taken for another request.

Sockets are accepted by this module and not by asyncio, so that the number of handshakes is limited
by client address, and failed ones are audited. Callers without a certificate get fewer connections
and less time. When the CA of client certificates changes, connections that it verified serve no
further request.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeAlias

from kubeocean.errors import ConfigError, Refusal, Unreachable
from kubeocean.proxier.audit import log_failed_handshake, log_unreadable_request
from kubeocean.proxier.connection_limits import ConnectionLimits, RateLimits
from kubeocean.proxier.http import (
    LARGE_HEAD,
    MAX_CERTIFIED_HEAD,
    MAX_HEAD,
    PLAIN_TEXT,
    Exchange,
    RequestHead,
    read_head,
    response_head,
)
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.proxier.server_tls import ServerTls
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.retries import explain

__all__ = ["ExchangeHandler", "KubeletServer", "accept", "listen", "start_tls"]

HANDSHAKE_S: Final = 10.0
HEAD_S: Final = 10.0  # for the first head of a connection, and each one without a certificate
KEEP_ALIVE_S: Final = 120.0
LINGER_S: Final = 3.0  # for which ports stay open while clients learn that this replica ends

_CLOSE_S: Final = 30.0  # for a slow caller to read the rest
_LOG_RATE: Final = 1.0  # lines a second about connections of one address without a certificate
_LOG_BURST: Final = 20.0
_BACKLOG: Final = 512
_BUFFER: Final = 64 * 1024  # bytes of each connection
_KEEPALIVE_IDLE_S: Final = 60
_FAMILY_UNAVAILABLE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESOURCES_PAUSE_S: Final = 0.5
_FAILED_CONNECTION: Final = (  # errors of one connection that accept(2) passes on
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
)

ExchangeHandler: TypeAlias = Callable[[Exchange], Awaitable[None]]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _ServedPort:
    """A port that serves one virtual node, all of them, or metrics of all of them."""

    vnode: str
    metrics_only: bool
    accepting: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Connection:
    """The state of a connection, from its acceptance to its end."""

    port: _ServedPort
    peer: str
    task: asyncio.Task[None] | None = None
    subject: str = ""  # of the verified certificate; empty without one
    idle: bool = False  # waiting for a head
    has_large_head: bool = False  # a large head of the current request is reserved


class KubeletServer:
    """Serves kubelet requests on ports that are opened and closed while it runs.

    Listeners and connections live within the `async with` block of the server.
    """

    def __init__(
        self,
        handler: ExchangeHandler,
        tls: ServerTls,
        *,
        host: str | None = None,
        metrics: ProxierMetrics | None = None,
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._host = host or None
        self._metrics = metrics or ProxierMetrics()
        self._group = asyncio.TaskGroup()
        self._started = asyncio.Event()
        self._ports: dict[int, _ServedPort] = {}
        self._connections: set[_Connection] = set()
        self._limits = ConnectionLimits()
        self._log_limits = RateLimits(rate=_LOG_RATE, burst=_LOG_BURST)
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._context = copy_context()
        self._started.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every port and cut every connection."""
        for port in tuple(self._ports):
            await self.close_port(port)
        for task in self._tasks():
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._ports)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def open_port(
        self, port: int, vnode: str = "", *, host: str | None = None, metrics_only: bool = False
    ) -> int:
        """Listen for one virtual node or for all of them; return the port number.

        Port 0 means any free port.

        :raises ConfigError: the port cannot be listened on, or the server is shutting down.
        """
        await self._started.wait()
        sockets = await listen(host or self._host, port)
        if self._closing:
            for each in sockets:
                each.close()
            raise ConfigError(f"cannot listen on port {port}: the server is shutting down")
        number = int(sockets[0].getsockname()[1])
        opened = self._ports[number] = _ServedPort(vnode, metrics_only)
        # In the server's context: log lines about callers must not carry the fields of whatever
        # task opened the port.
        opened.accepting.extend(
            self._group.create_task(self._accept(each, opened), context=self._context.copy())
            for each in sockets
        )
        return number

    async def close_port(self, port: int) -> None:
        """Accept no more connections on a port; open connections stay."""
        closed = self._ports.pop(port, None)
        if closed is None:
            return
        for task in closed.accepting:
            task.cancel()
        await asyncio.wait(closed.accepting)

    async def drain(self, grace_s: float, *, linger_s: float = LINGER_S) -> None:
        """Close all ports, wait up to `grace_s` for sessions to end, then close the rest."""
        linger_s = min(linger_s, grace_s / 2)
        await asyncio.sleep(linger_s)
        self._closing = True
        for port in tuple(self._ports):
            await self.close_port(port)
        for task in self._tasks(idle_only=True):
            task.cancel()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=grace_s - linger_s)
        for task in self._tasks():
            task.cancel()
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    def _tasks(self, *, idle_only: bool = False) -> list[asyncio.Task[None]]:
        return [
            connection.task
            for connection in self._connections
            if connection.task is not None and (connection.idle or not idle_only)
        ]

    async def _accept(self, listening: socket.socket, port: _ServedPort) -> None:
        """Accept connections until cancelled, each in a task of its own."""
        with closing(listening):
            while True:
                accepted = await accept(listening)
                connection = _Connection(port, _address(accepted))
                if not self._limits.start_handshake(connection.peer):
                    self._metrics.count_rejected_connection()
                    accepted.close()
                    continue
                self._connections.add(connection)
                connection.task = self._group.create_task(self._handle(accepted, connection))
                connection.task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: _Connection, _: asyncio.Task[None]) -> None:
        self._connections.discard(connection)

    async def _handle(self, accepted: socket.socket, connection: _Connection) -> None:
        """Serve a connection from its first byte to its last."""
        try:
            streams = await self._establish(accepted, connection)
            if streams is not None:
                await self._serve(connection, *streams)
        except (Unreachable, TimeoutError, ssl.SSLError, ConnectionError):
            pass  # the caller has disconnected, or sends nothing
        except Exception as error:  # of one connection, which must not end the others
            _log.error(
                "Failed to serve connection", peer=connection.peer, error=error, exc_info=error
            )

    async def _establish(
        self, accepted: socket.socket, connection: _Connection
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Establish TLS on an accepted connection; None if that failed or a limit is reached."""
        peer = connection.peer
        try:
            reader, writer = await start_tls(accepted, self._tls.context)
        except OSError as error:
            self._metrics.count_rejected_connection()
            # A port scan that closes the connection is not worth a line.
            if isinstance(error, ssl.SSLError) and self._log_limits.allows(peer):
                log_failed_handshake(explain(error), peer)
            return None
        finally:
            self._limits.end_handshake(peer)
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        certificate = writer.get_extra_info("peercert")
        connection.subject = repr(certificate.get("subject", ())) if certificate else ""
        # A resumed session was verified with the CA that was trusted when it began.
        resumed = tls is None or tls.session_reused
        if resumed or self._closing or not self._limits.admit(peer, connection.subject):
            self._metrics.count_rejected_connection()
            writer.transport.abort()
            return None
        # No await between `admit` and `_serve`, which releases the connection.
        return reader, writer

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one request after the other, then release the connection."""
        timeout_s, trust_epoch = HEAD_S, self._tls.trust_epoch
        self._metrics.set_connections(len(self._connections))
        try:
            while not self._closing:
                try:
                    head = await self._next_head(connection, reader, timeout_s)
                except asyncio.IncompleteReadError:
                    return
                except Refusal as refusal:
                    await self._refuse(connection, writer, refusal)
                    return
                if trust_epoch != self._tls.trust_epoch:
                    return  # the CA that verified the caller may not be trusted any more
                port = connection.port
                exchange = Exchange(
                    head, reader, writer, vnode=port.vnode, metrics_only=port.metrics_only
                )
                await self._handler(exchange)
                self._release_large_head(connection)
                if exchange.is_last:
                    break
                timeout_s = KEEP_ALIVE_S if connection.subject else HEAD_S
            await _close(writer)
        finally:
            writer.transport.abort()
            self._release_large_head(connection)
            self._limits.release(connection.peer, connection.subject)
            self._metrics.set_connections(len(self._connections) - 1)

    async def _next_head(
        self, connection: _Connection, reader: asyncio.StreamReader, timeout_s: float
    ) -> RequestHead:
        def reserve() -> None:
            if not self._limits.start_large_head(connection.subject):
                raise Refusal(429, f"too many requests with heads over {LARGE_HEAD} bytes")
            connection.has_large_head = True

        limit = MAX_CERTIFIED_HEAD if connection.subject else MAX_HEAD
        connection.idle = True
        try:
            async with asyncio.timeout(timeout_s):
                return await read_head(reader, limit=limit, reserve=reserve)
        finally:
            connection.idle = False

    def _release_large_head(self, connection: _Connection) -> None:
        if connection.has_large_head:
            connection.has_large_head = False
            self._limits.end_large_head(connection.subject)

    async def _refuse(
        self, connection: _Connection, writer: asyncio.StreamWriter, refusal: Refusal
    ) -> None:
        """Respond with an error to bytes that are not an HTTP request."""
        # Callers without a certificate cannot fill the log.
        if connection.subject or self._log_limits.allows(connection.peer):
            log_unreadable_request(refusal, connection.peer)
        self._metrics.count_refusal(refusal.status)
        body = f"{refusal}\n".encode()
        headers = [("Content-Type", PLAIN_TEXT), ("Content-Length", str(len(body)))]
        writer.write(response_head(refusal.status, [*headers, ("Connection", "close")]) + body)
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection after the bytes written to it were delivered."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass


def _address(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


async def listen(host: str | None, port: int) -> list[socket.socket]:
    """Listen on one port of every address of a host, or of the machine.

    :raises ConfigError: the port cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        addresses = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        unavailable: OSError | None = None
        for family, *_, address in dict.fromkeys(addresses):
            try:
                sockets.append(_listening_socket(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _FAMILY_UNAVAILABLE:
                    raise
                unavailable = error
            else:
                port = int(sockets[0].getsockname()[1])
        if unavailable is not None and not sockets:
            raise unavailable
    except OSError as error:
        for each in sockets:
            each.close()
        raise ConfigError(f"cannot listen on port {port}: {error.strerror}") from error
    return sockets


def _listening_socket(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException:  # also a cancellation: nothing else would close the socket
        listening.close()
        raise
    return listening


async def accept(listening: socket.socket) -> socket.socket:
    """Accept the next connection, after a pause if the machine is out of resources."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except ConnectionError:
            continue  # the client disconnected before it was accepted
        except OSError as error:
            if error.errno not in (*_OUT_OF_RESOURCES, *_FAILED_CONNECTION):
                raise
            await asyncio.sleep(_RESOURCES_PAUSE_S if error.errno in _OUT_OF_RESOURCES else 0)
            continue
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        except OSError:
            connection.close()  # the client has disconnected already
            continue
        return connection


async def start_tls(
    connection: socket.socket, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Do the server's side of a TLS handshake.

    :raises OSError: the handshake failed, or took too long.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
    )
    # By default TLS would buffer half a megabyte for a caller that does not read.
    transport.set_write_buffer_limits(_BUFFER)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
