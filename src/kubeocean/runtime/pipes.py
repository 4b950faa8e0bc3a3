"""Pipes: connections whose two directions fail by themselves.

An asyncio transport gives up a connection as soon as a write fails, and with it what has arrived
and was not read. A server that has said all and closes is then not heard to its end. Here, writing
to somebody who is gone is an error of writing only: reading goes on until there is nothing more.

Nothing is read ahead: what nobody asks for stays with the kernel, which makes the sender wait.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol

__all__ = ["Pipe", "SocketPipe", "TlsPipe", "connect"]

_FILL: Final = 64 * 1024


class Pipe(Protocol):
    """Bytes both ways. One task reads, one writes."""

    async def read(self, most: int) -> bytes:
        """What has arrived, at most so much; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Return when it is on its way; that waits for a slow reader."""

    def write_eof(self) -> None:
        """Say that no more will come, where that can be said."""

    def cut(self) -> None:
        """End it for whoever is using it."""

    def close(self) -> None:
        """Give it back; nobody may be using it any more."""


class SocketPipe:
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def read(self, most: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, most)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def write_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        # Not closed: the event loop may be waiting for it, and another socket may get its number.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class TlsPipe:
    """TLS over another pipe."""

    def __init__(self, under: Pipe, context: ssl.SSLContext, server_name: str | None) -> None:
        self._under = under
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=False, server_hostname=server_name
        )
        self._sending = asyncio.Lock()

    async def handshake(self) -> None:
        """Prove who we are, and see who they are.

        :raises OSError: they are not, or do not think that we are.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with suppress(OSError):
                    await self._flush()  # so that they hear why
                raise
            else:
                await self._flush()
                return

    async def read(self, most: int) -> bytes:
        while True:
            try:
                return self._take(most)
            except ssl.SSLWantReadError:
                # An answer of TLS to TLS, such as a new key; who cannot send can still read.
                with suppress(OSError):
                    await self._flush()
                await self._fill()

    def _take(self, most: int) -> bytes:
        """As many records as are there, up to so many bytes."""
        taken = bytearray()
        try:
            while len(taken) < most and (more := self._tls.read(most - len(taken))):
                taken += more
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # said or not, it is the end; it is met again when what was there is taken
        except ssl.SSLWantReadError:
            if not taken:
                raise
        return bytes(taken)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        await self._flush()

    def write_eof(self) -> None:
        """TLS has no half that could be closed."""

    def cut(self) -> None:
        self._under.cut()

    def close(self) -> None:
        self._under.close()

    async def _fill(self) -> None:
        data = await self._under.read(_FILL)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        # Records must leave in the order in which they were made.
        async with self._sending:
            while data := self._outgoing.read():
                await self._under.write(data)


async def connect(host: str, port: int) -> SocketPipe:
    """A connection to the first address that accepts one.

    :raises OSError: none does.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:  # cancelled: nobody else would close it
            made.close()
            raise
        else:
            return SocketPipe(made)
    raise failure
