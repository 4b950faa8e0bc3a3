"""An exchange: one request on one connection, and the answer to it.

What is answered is plain HTTP/1.1, whole or in chunks; or the connection is switched, and belongs
to whoever switched it. Bytes are counted for the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from kubeocean.errors import Unreachable
from kubeocean.proxier.heads import Head
from kubeocean.runtime.failures import explain

__all__ = ["PLAIN", "Exchange"]

PLAIN: Final = "text/plain; charset=utf-8"


class Exchange:
    """A request that waits for its answer."""

    def __init__(
        self,
        head: Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        vnode: str,
    ) -> None:
        self.head = head
        self.vnode = vnode  # whose door it came through; none if that door is everybody's
        self.status = 0  # as soon as it is answered
        self.sent = 0
        self._reader = reader
        self._writer = writer
        self._chunked = False

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What TLS has verified of the caller."""
        found: Mapping[str, Any] | None = self._writer.get_extra_info("peercert")
        return found

    @property
    def peer(self) -> str:
        """The address that the caller has."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def has_body(self) -> bool:
        """Whether bytes of the request itself may follow its head."""
        length = self.head.headers.get("Content-Length", "0")
        return length != "0" or "Transfer-Encoding" in self.head.headers

    async def answer(self, status: int, body: bytes = b"", content_type: str = PLAIN) -> None:
        """The whole answer."""
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        if self.has_body:
            fields.append(("Connection", "close"))
        await self._head(status, fields)
        await self.write(body)

    async def begin(self, status: int, content_type: str) -> None:
        """The head of an answer in pieces; `send` them, then `end`."""
        self._chunked = True
        await self._head(status, [("Content-Type", content_type), ("Transfer-Encoding", "chunked")])

    async def send(self, piece: bytes) -> None:
        """The next piece; one that is empty would be the end, and is nothing."""
        if piece:
            await self.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")
        self._chunked = False

    async def switch(self, fields: Iterable[tuple[str, str]]) -> None:
        """Say that other bytes than HTTP follow."""
        await self._head(101, fields)

    @property
    def broken(self) -> bool:
        """Whether an answer was begun and cannot be ended any more."""
        return self._chunked

    async def read(self, most: int) -> bytes:
        """What the caller sends after the switch; empty at the end.

        :raises Unreachable: the caller is gone.
        """
        try:
            return await self._reader.read(most)
        except OSError as error:
            raise Unreachable(f"lost the caller: {explain(error)}") from error

    async def write(self, data: bytes) -> None:
        """Send bytes as they are, waiting while the caller is slower than we are.

        :raises Unreachable: the caller is gone.
        """
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Unreachable(f"lost the caller: {explain(error)}") from error
        self.sent += len(data)

    async def _head(self, status: int, fields: Iterable[tuple[str, str]]) -> None:
        self.status = status
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in fields]
        await self.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        self.sent = 0
