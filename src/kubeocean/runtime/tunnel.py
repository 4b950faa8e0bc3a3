"""Tunnels: byte streams in both directions after an HTTP upgrade.

Exec, attach and port-forward switch an HTTP/1.1 connection to SPDY or WebSocket. A tunnel opens
only on the server's 101 with the requested protocol; any other answer raises its `ApiError`, and
redirects are not followed. A tunnel relays bytes and does not interpret them. Its connection is
closed when its block ends.

A `Pipe` is a connection whose two directions fail independently. An asyncio transport drops
received data as soon as a write fails, so the last bytes of a server that closes are lost. A pipe
reports a failed write to the writer only, and reading continues until the end of the stream. A pipe
does not read ahead: unread data stays in the kernel, which makes the sender wait.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Protocol

from multidict import MultiMapping
from yarl import URL

from kubeocean.errors import ApiError, ConfigError, Unreachable, api_error
from kubeocean.runtime.retries import explain
from kubeocean.runtime.sockets import connect

__all__ = ["Pipe", "PipeReader", "SocketPipe", "TlsPipe", "Tunnel", "open_tunnel"]

_FILL: Final = 64 * 1024
_SHOWN: Final = 64  # characters of a server's protocol in an error


class Pipe(Protocol):
    """Connection with bytes in both directions. One task reads, one writes."""

    async def read(self, most: int) -> bytes:
        """Return data that has arrived, at most `most` bytes; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send data; return when the kernel has accepted all of it, which waits for a slow
        reader."""

    def write_eof(self) -> None:
        """Signal the end of the outgoing stream, if the protocol supports that."""

    def cut(self) -> None:
        """Break the connection, also for tasks that still use it."""

    def close(self) -> None:
        """Close the connection, which no task may use any more."""


class SocketPipe:
    """`Pipe` over a connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def read(self, most: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, most)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def write_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        # Not closed: the event loop may wait for this socket, and another socket may get its
        # number.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class TlsPipe:
    """`Pipe` with TLS over another pipe."""

    def __init__(self, under: Pipe, context: ssl.SSLContext, server_name: str | None) -> None:
        self._under = under
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=False, server_hostname=server_name
        )
        self._sending = asyncio.Lock()

    async def handshake(self) -> None:
        """Perform the TLS handshake.

        :raises OSError: the server or this client was not authenticated, or the connection broke.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with suppress(OSError):
                    await self._flush()  # so that the server gets the TLS alert
                raise
            else:
                await self._flush()
                return

    async def read(self, most: int) -> bytes:
        while True:
            try:
                return self._take(most)
            except ssl.SSLWantReadError:
                # The answer to a TLS message, such as a key update; a pipe that cannot send can
                # still read.
                with suppress(OSError):
                    await self._flush()
                await self._fill()

    def _take(self, most: int) -> bytes:
        """Return the decrypted data that has arrived, at most `most` bytes."""
        taken = bytearray()
        try:
            while len(taken) < most and (more := self._tls.read(most - len(taken))):
                taken += more
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # end of the stream either way, after the buffered data
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
        """Do nothing: TLS cannot close one direction."""

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
        # TLS records must be sent in the order in which they were created.
        async with self._sending:
            while data := self._outgoing.read():
                await self._under.write(data)


HEAD_LIMIT: Final = 64 * 1024
BODY_LIMIT: Final = 64 * 1024
HANDSHAKE_S: Final = 30.0
# The refusal itself is known by then; its text is not worth a longer wait.
BODY_S: Final = 5.0
_END: Final = b"\r\n\r\n"
_DIGITS: Final = 16  # digits of a number of bytes; more than any machine has


class Tunnel:
    """Upgraded connection, with bytes in both directions."""

    def __init__(self, line: PipeReader, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._line = line
        self._aborted = False

    async def read(self, limit: int = 64 * 1024) -> bytes:
        """Return the next bytes; empty at the end of the peer's stream.

        :raises Unreachable: the connection broke.
        """
        try:
            data = await self._line.read(limit)
        except OSError as error:
            raise _lost(error) from error
        if not data and self._aborted:
            raise Unreachable("this process closed the tunnel")
        return data

    async def write(self, data: bytes) -> None:
        """Send data, waiting while the peer is slower.

        Data that has already arrived can still be read after a failed write.

        :raises Unreachable: the connection broke.
        """
        try:
            await self._line.pipe.write(data)
        except OSError as error:
            raise _lost(error) from error

    def write_eof(self) -> None:
        """Send the end of the outgoing stream, if the protocol supports that: TLS does not."""
        with suppress(OSError):  # the peer has disconnected
            self._line.pipe.write_eof()

    def abort(self) -> None:
        """Break the connection, also for tasks that still use it."""
        self._aborted = True
        self._line.pipe.cut()


class PipeReader:
    """Reader of a pipe: first up to a delimiter, later in pieces of any size."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self._held = b""

    async def read(self, most: int) -> bytes:
        if not self._held:
            return await self.pipe.read(most)
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    async def read_until(self, end: bytes, limit: int) -> bytes | None:
        """Read up to and including `end`. Returns the partial data at the end of the stream; None
        if more than `limit` bytes come before `end`."""
        while (at := self._held.find(end)) < 0:
            if len(self._held) > limit:
                return None
            more = await self.pipe.read(limit)
            if not more:
                break
            self._held += more
        size = at + len(end) if at >= 0 else len(self._held)
        taken, self._held = self._held[:size], self._held[size:]
        return taken if size <= limit else None


def _lost(error: OSError) -> Unreachable:
    return Unreachable(f"lost the tunnel: {explain(error)}")


@asynccontextmanager
async def open_tunnel(
    server: URL,
    *,
    method: str,
    target: str,
    headers: MultiMapping[str],
    protocol: str,
    tls: ssl.SSLContext | None,
    tls_server_name: str | None,
    proxy_url: str | None,
    timeout_s: float = HANDSHAKE_S,
) -> AsyncIterator[Tunnel]:
    """Request an upgrade to `protocol` and yield the tunnel once the server has agreed, within
    `timeout_s`.

    :raises ApiError: the server answered with anything but 101, or was not reached.
    """
    doing = f"upgrade {method} {target.partition('?')[0]} to {protocol}"
    head = _head(server, method, target, headers, protocol)
    sent = False
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(timeout_s):
                line = await _connect(server, tls, tls_server_name, proxy_url, stack)
                sent = True
                await line.pipe.write(head)
                status, answer = await _read_head(line, doing)
            if status != 101:
                raise await _refusal(line, status, answer, doing)
        except OSError as error:
            why = f"could not reach {server} to {doing}: {explain(error)}"
            raise Unreachable(why, sent=sent) from error
        switched = answer.get("upgrade", "")
        if protocol.lower() not in switched.lower():
            why = f"the server switched to protocol {switched[:_SHOWN]!r}, not to {protocol!r}"
            raise Unreachable(f"could not {doing}: {why}")
        yield Tunnel(line, answer)


async def _connect(
    server: URL,
    tls: ssl.SSLContext | None,
    tls_server_name: str | None,
    proxy_url: str | None,
    stack: AsyncExitStack,
) -> PipeReader:
    """Return a connection to the server, which the stack closes."""
    host, port = server.host or "", server.port or 443
    if proxy_url is None:
        pipe: Pipe = SocketPipe(await connect(host, port))
        stack.callback(pipe.close)
    else:
        pipe = await _proxied(URL(proxy_url), host, port, stack)
    if tls is not None:
        pipe = await _secured(pipe, tls, tls_server_name or host)
    return PipeReader(pipe)


async def _secured(pipe: Pipe, tls: ssl.SSLContext, name: str) -> Pipe:
    secured = TlsPipe(pipe, tls, name)
    await secured.handshake()
    return secured


async def _proxied(proxy: URL, host: str, port: int, stack: AsyncExitStack) -> Pipe:
    """Return a connection to a host through an HTTP proxy, which the stack closes."""
    pipe: Pipe = SocketPipe(await connect(proxy.host or "", proxy.port or 80))
    stack.callback(pipe.close)
    if proxy.scheme == "https":
        pipe = await _secured(pipe, ssl.create_default_context(), proxy.host or "")
    await _pass_through(proxy, PipeReader(pipe), f"[{host}]" if ":" in host else host, port)
    return pipe


async def _pass_through(proxy: URL, line: PipeReader, host: str, port: int) -> None:
    """Send CONNECT to the proxy; after its answer all bytes go to the server."""
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if proxy.user is not None:
        pair = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {pair}")
    await line.pipe.write("\r\n".join([*lines, "", ""]).encode())
    doing = f"connect to {host}:{port} through the proxy"
    try:
        status, _ = await _read_head(line, doing)
    except Unreachable as error:
        raise Unreachable(str(error), sent=False) from error
    if not 200 <= status < 300:
        raise Unreachable(f"could not {doing}: the proxy answered HTTP {status}", sent=False)


def _head(
    server: URL, method: str, target: str, headers: MultiMapping[str], protocol: str
) -> bytes:
    if any(char <= " " or char == "\x7f" for char in method + target):
        raise ConfigError("has a character that a URL cannot have", field="path", value=target)
    fields = [
        ("Host", server.raw_authority.rpartition("@")[2]),
        ("Connection", "Upgrade"),
        ("Upgrade", protocol),
        *([] if method == "GET" else [("Content-Length", "0")]),
        *headers.items(),
    ]
    for name, value in fields:
        if any(c in name + value for c in "\r\n\0"):
            raise ConfigError("must not contain a line break", field=f"header {name}")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode()


async def _refusal(
    line: PipeReader, status: int, answer: Mapping[str, str], doing: str
) -> ApiError:
    body = await _read_body(line, answer)
    return api_error(status, body, doing=doing, retry_after=answer.get("retry-after", ""))


async def _read_head(line: PipeReader, doing: str) -> tuple[int, dict[str, str]]:
    head = await line.read_until(_END, HEAD_LIMIT)
    if head is None:
        why = f"the head of the answer is over {HEAD_LIMIT // 1024} KiB"
        raise Unreachable(f"could not {doing}: {why}")
    if not head.endswith(_END):
        why = "the answer is not HTTP" if head else "the connection was closed"
        raise Unreachable(f"could not {doing}: {why}")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    status = _number(rest[:3])
    if not version.startswith("HTTP/1.") or status is None:
        raise Unreachable(f"could not {doing}: the answer is not HTTP")
    pairs = (line.partition(":") for line in fields if line)
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(line: PipeReader, headers: Mapping[str, str]) -> bytes:
    """Return the start of the body of an error answer, enough for a description."""
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _number(headers.get("content-length", ""))
    size = BODY_LIMIT if length is None else min(length, BODY_LIMIT)
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            while len(body) < size and not (chunked and body.endswith(b"\r\n0\r\n\r\n")):
                more = await line.read(size - len(body))
                if not more:
                    break
                body += more
    except OSError:
        pass  # the data that has arrived is used
    return _joined(body) if chunked else body


def _joined(chunks: bytes) -> bytes:
    """Return the content of an HTTP body with chunked encoding, up to the first broken chunk."""
    content = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            break
        if length <= 0:
            break
        content += rest[:length]
        chunks = rest[length + 2 :]
    return content


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None
