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
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from multidict import MultiMapping
from yarl import URL

from kubeocean.errors import ApiError, ConfigError, Unreachable, api_error
from kubeocean.runtime.failures import explain

__all__ = ["Tunnel", "open_tunnel"]

HEAD_LIMIT: Final = 64 * 1024
BODY_LIMIT: Final = 64 * 1024
HANDSHAKE_S: Final = 30.0
# The refusal itself is known by then; its text is worth no more.
BODY_S: Final = 5.0
# For what was written last to go out, to a side that may not read it.
CLOSE_S: Final = 2.0

_DIGITS: Final = 16  # more bytes than any machine has

_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Tunnel:
    """An upgraded connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        headers: Mapping[str, str],
    ) -> None:
        self.headers = headers
        self._reader = reader
        self._writer = writer
        self._aborted = False

    async def read(self, limit: int = 64 * 1024) -> bytes:
        """The next bytes; empty when the other side has no more to say.

        :raises Unreachable: the connection broke.
        """
        try:
            data = await self._reader.read(limit)
        except OSError as error:
            raise _lost(error) from error
        if not data and self._aborted:
            raise Unreachable("the tunnel was cut")
        return data

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side is slower than we are.

        :raises Unreachable: the connection broke.
        """
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise _lost(error) from error

    def write_eof(self) -> None:
        """Say that no more will come, where the connection can say it: TLS cannot."""
        if self._writer.can_write_eof():
            try:
                self._writer.write_eof()
            except OSError as error:
                raise _lost(error) from error

    def abort(self) -> None:
        """Break the connection, whoever is using it."""
        self._aborted = True
        self._writer.transport.abort()


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
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(server, tls, tls_server_name, proxy_url)
            writer.write(head)
            status, answer = await _read_head(reader, doing)
        if status != 101:
            raise await _refusal(reader, status, answer, doing)
        if protocol.lower() not in answer.get("upgrade", "").lower():
            raise Unreachable(f"could not {doing}: the server switched to something else")
    except BaseException as error:
        if writer is not None:
            writer.transport.abort()
        if isinstance(error, OSError):
            why = f"could not reach {server} to {doing}: {explain(error)}"
            raise Unreachable(why, sent=writer is not None) from error
        raise
    try:
        yield Tunnel(reader, writer, answer)
        await _flush(writer)
    finally:
        writer.transport.abort()


async def _flush(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except OSError:
        pass  # whoever used the tunnel has what it wanted of it


async def _connect(
    server: URL, tls: ssl.SSLContext | None, tls_server_name: str | None, proxy_url: str | None
) -> _Connection:
    host, port = server.host or "", server.port or 443
    name = (tls_server_name or host) if tls else None
    if proxy_url is None:
        return await asyncio.open_connection(
            host, port, ssl=tls, server_hostname=name, limit=HEAD_LIMIT
        )
    proxy = URL(proxy_url)
    reader, writer = await asyncio.open_connection(
        proxy.host or "",
        proxy.port or 80,
        ssl=True if proxy.scheme == "https" else None,
        limit=HEAD_LIMIT,
    )
    try:
        await _pass_through(proxy, reader, writer, f"[{host}]" if ":" in host else host, port)
        if tls is not None:
            await writer.start_tls(tls, server_hostname=name)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _pass_through(
    proxy: URL, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    """A CONNECT through an HTTP proxy."""
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if proxy.user is not None:
        pair = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {pair}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    doing = f"connect to {host}:{port} through the proxy"
    try:
        status, _ = await _read_head(reader, doing)
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


async def _refusal(
    reader: asyncio.StreamReader, status: int, answer: Mapping[str, str], doing: str
) -> ApiError:
    body = await _read_body(reader, answer)
    return api_error(status, body, doing=doing, retry_after=answer.get("retry-after", ""))


async def _read_head(reader: asyncio.StreamReader, doing: str) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        why = "the answer is not HTTP" if error.partial else "the connection was closed"
        raise Unreachable(f"could not {doing}: {why}") from error
    except asyncio.LimitOverrunError as error:
        why = f"the head of the answer is over {HEAD_LIMIT // 1024} KiB"
        raise Unreachable(f"could not {doing}: {why}") from error
    status_line, *fields = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    status = _number(rest[:3])
    if not version.startswith("HTTP/1.") or status is None:
        raise Unreachable(f"could not {doing}: the answer is not HTTP")
    pairs = (line.partition(":") for line in fields if line)
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Enough of a refusal to tell the user why; it need not be whole."""
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _number(headers.get("content-length", ""))
    wanted = BODY_LIMIT if length is None else min(length, BODY_LIMIT)
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            while len(body) < wanted and not (chunked and body.endswith(b"\r\n0\r\n\r\n")):
                more = await reader.read(wanted - len(body))
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
