"""Tunnel: bytes both ways after an HTTP upgrade.

Exec, attach and port-forward switch an HTTP/1.1 connection to SPDY or WebSocket. What flows then is
nobody's business but the two ends': a tunnel carries bytes. It opens only on the server's 101 to
the protocol that was asked for; any other answer is raised as the API error that it is, and
redirects are not followed. When the block of a tunnel is left, its connection is gone.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from multidict import MultiMapping
from yarl import URL

from kubeocean.errors import ApiError, ConfigError, Unreachable, api_error
from kubeocean.runtime.failures import explain
from kubeocean.runtime.pipes import Pipe, TlsPipe, connect

__all__ = ["Line", "Tunnel", "open_tunnel"]

HEAD_LIMIT: Final = 64 * 1024
BODY_LIMIT: Final = 64 * 1024
HANDSHAKE_S: Final = 30.0
# The refusal itself is known by then; its text is worth no more.
BODY_S: Final = 5.0
_END: Final = b"\r\n\r\n"
_DIGITS: Final = 16  # more bytes than any machine has


class Tunnel:
    """An upgraded connection."""

    def __init__(self, line: Line, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._line = line
        self._aborted = False

    async def read(self, limit: int = 64 * 1024) -> bytes:
        """The next bytes; empty when the other side has no more to say.

        :raises Unreachable: the connection broke.
        """
        try:
            data = await self._line.read(limit)
        except OSError as error:
            raise _lost(error) from error
        if not data and self._aborted:
            raise Unreachable("the tunnel was cut")
        return data

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side is slower than we are.

        What the other side has said already can still be read after this has failed.

        :raises Unreachable: the connection broke.
        """
        try:
            await self._line.pipe.write(data)
        except OSError as error:
            raise _lost(error) from error

    def write_eof(self) -> None:
        """Say that no more will come, where the connection can say it: TLS cannot."""
        with suppress(OSError):  # to one who is gone nothing need be said
            self._line.pipe.write_eof()

    def abort(self) -> None:
        """Break the connection, whoever is using it."""
        self._aborted = True
        self._line.pipe.cut()


class Line:
    """A pipe that is read line by line until it is read as it comes."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self._held = b""

    async def read(self, most: int) -> bytes:
        if not self._held:
            return await self.pipe.read(most)
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    async def read_until(self, end: bytes, limit: int) -> bytes | None:
        """All up to and with `end`; what there was of it if it does not come; None: too much."""
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
    """Ask for `protocol` and yield the tunnel once the server agreed, within the time.

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
        if protocol.lower() not in answer.get("upgrade", "").lower():
            raise Unreachable(f"could not {doing}: the server switched to something else")
        yield Tunnel(line, answer)


async def _connect(
    server: URL,
    tls: ssl.SSLContext | None,
    tls_server_name: str | None,
    proxy_url: str | None,
    stack: AsyncExitStack,
) -> Line:
    """A connection to the server, which the stack gives back."""
    host, port = server.host or "", server.port or 443
    if proxy_url is None:
        pipe: Pipe = await connect(host, port)
        stack.callback(pipe.close)
    else:
        pipe = await _proxied(URL(proxy_url), host, port, stack)
    if tls is not None:
        pipe = await _secured(pipe, tls, tls_server_name or host)
    return Line(pipe)


async def _secured(pipe: Pipe, tls: ssl.SSLContext, name: str) -> Pipe:
    secured = TlsPipe(pipe, tls, name)
    await secured.handshake()
    return secured


async def _proxied(proxy: URL, host: str, port: int, stack: AsyncExitStack) -> Pipe:
    """A connection through an HTTP proxy."""
    pipe: Pipe = await connect(proxy.host or "", proxy.port or 80)
    stack.callback(pipe.close)
    if proxy.scheme == "https":
        pipe = await _secured(pipe, ssl.create_default_context(), proxy.host or "")
    await _pass_through(proxy, Line(pipe), f"[{host}]" if ":" in host else host, port)
    return pipe


async def _pass_through(proxy: URL, line: Line, host: str, port: int) -> None:
    """Have the proxy connect; after its answer it is not in the way."""
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
        raise Unreachable(f"could not {doing}: it refused ({status})", sent=False)


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
            raise ConfigError("has a line break in it", field=f"header {name}")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode()


async def _refusal(line: Line, status: int, answer: Mapping[str, str], doing: str) -> ApiError:
    body = await _read_body(line, answer)
    return api_error(status, body, doing=doing, retry_after=answer.get("retry-after", ""))


async def _read_head(line: Line, doing: str) -> tuple[int, dict[str, str]]:
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


async def _read_body(line: Line, headers: Mapping[str, str]) -> bytes:
    """Enough of a refusal to tell the user why; it need not be whole."""
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _number(headers.get("content-length", ""))
    wanted = BODY_LIMIT if length is None else min(length, BODY_LIMIT)
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            while len(body) < wanted and not (chunked and body.endswith(b"\r\n0\r\n\r\n")):
                more = await line.read(wanted - len(body))
                if not more:
                    break
                body += more
    except OSError:
        pass  # what has arrived must do
    return _joined(body) if chunked else body


def _joined(chunks: bytes) -> bytes:
    """The content of an HTTP body in chunks, as far as it goes."""
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
