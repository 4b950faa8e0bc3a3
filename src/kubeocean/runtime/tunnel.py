"""Tunnel: bytes both ways after an HTTP upgrade.

Exec, attach and port-forward switch an HTTP/1.1 connection to SPDY or WebSocket. What flows then is
nobody's business but the two ends': a tunnel carries bytes. It opens only on the server's 101; any
other answer is raised as the API error that it is, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from multidict import MultiMapping
from yarl import URL

from kubeocean.errors import ConfigError, Unreachable, api_error

__all__ = ["Tunnel", "open_tunnel"]

HEAD_LIMIT: Final = 64 * 1024
BODY_LIMIT: Final = 64 * 1024
HANDSHAKE_S: Final = 30.0


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

    async def read(self, limit: int = 64 * 1024) -> bytes:
        """The next bytes; empty when the other side has no more to say."""
        return await self._reader.read(limit)

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side is slower than we are."""
        self._writer.write(data)
        await self._writer.drain()

    def write_eof(self) -> None:
        """Say that no more will come, where the connection can say it (TLS before 1.3 cannot)."""
        if self._writer.can_write_eof():
            self._writer.write_eof()


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
) -> AsyncIterator[Tunnel]:
    """Ask for `protocol` and yield the tunnel once the server agreed.

    :raises ApiError: the server answered with anything but 101, or was not reached.
    """
    doing = f"upgrade {method} {target.partition('?')[0]} to {protocol}"
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await _connect(server, tls, tls_server_name, proxy_url)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            writer.write(_head(server, method, target, headers, protocol))
            status, answer = await _read_head(reader, doing)
            if status != 101:
                body = await _read_body(reader, answer)
                raise api_error(
                    status, body, doing=doing, retry_after=answer.get("retry-after", "")
                )
        yield Tunnel(reader, writer, answer)
    finally:
        writer.close()


async def _connect(
    server: URL, tls: ssl.SSLContext | None, tls_server_name: str | None, proxy_url: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.host or "", server.port or 443
    name = (tls_server_name or host) if tls else None
    if proxy_url is None:
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    reader, writer = await _connect_through(URL(proxy_url), host, port)
    if tls is not None:
        await writer.start_tls(tls, server_hostname=name)
    return reader, writer


async def _connect_through(
    proxy: URL, host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A CONNECT through an HTTP proxy."""
    secure = proxy.scheme == "https"
    reader, writer = await asyncio.open_connection(
        proxy.host or "", proxy.port or 80, ssl=True if secure else None
    )
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    if proxy.user is not None:
        pair = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {pair}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    status, _ = await _read_head(reader, f"connect to {authority} through the proxy")
    if status != 200:
        writer.close()
        raise Unreachable(f"the proxy refused to connect to {authority}: {status}", sent=False)
    return reader, writer


def _head(
    server: URL, method: str, target: str, headers: MultiMapping[str], protocol: str
) -> bytes:
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
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _read_head(reader: asyncio.StreamReader, doing: str) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Unreachable(f"could not {doing}: the answer is not HTTP") from error
    status_line, *fields = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise Unreachable(f"could not {doing}: the answer is not HTTP")
    pairs = (line.partition(":") for line in fields if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Enough of a refusal to tell the user why; it need not be whole."""
    length = headers.get("content-length", "")
    if length.isdigit():
        wanted = min(int(length), BODY_LIMIT)
        return await reader.readexactly(wanted) if wanted else b""
    return await reader.read(BODY_LIMIT)
