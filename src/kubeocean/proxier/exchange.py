"""An exchange: one request on one connection, and the answer to it.

What is answered is plain HTTP/1.1, whole or in chunks; or the connection is switched, and belongs
to whoever switched it. Bytes are counted for the audit. A caller that does not take what it asked
for is given up after a while.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from kubeocean.errors import Unreachable
from kubeocean.proxier.heads import Head
from kubeocean.runtime.failures import explain

__all__ = ["PLAIN", "Exchange", "answer_head"]

PLAIN: Final = "text/plain; charset=utf-8"
DELIVERY_S: Final = 60.0  # of one piece, to a caller that is slow
_LOWEST_ERROR: Final = 400
_VALUE: Final = re.compile(r"[\t -~]*")


class Exchange:
    """A request that waits for its answer."""

    def __init__(
        self,
        head: Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        vnode: str = "",
        metrics_only: bool = False,
    ) -> None:
        self.head = head
        self.vnode = vnode  # whose door it came through; none if that door is everybody's
        self.metrics_only = metrics_only  # that door is for metrics of any node
        self.status = 0  # as soon as it is answered
        self.sent = 0
        self.last = head.closes or head.has_body  # no other request may follow on the connection
        self.patience_s = DELIVERY_S
        self._ended = False  # what `last` is once an answer in pieces was said
        self._reader = reader
        self._writer = writer

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

    async def answer(self, status: int, body: bytes = b"", content_type: str = PLAIN) -> None:
        """The whole answer; one that is an error is the last on its connection."""
        self.last = self.last or status >= _LOWEST_ERROR
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        await self._head(status, fields)
        # The answer to HEAD is a head; anything after it would be taken for the next answer.
        await self.write(b"" if self.head.method == "HEAD" else body)

    async def begin(self, status: int, content_type: str) -> None:
        """The head of an answer in pieces; `send` them, then `end`."""
        self._ended, self.last = self.last, True  # until all of it was said
        fields = [("Content-Type", content_type), ("Transfer-Encoding", "chunked")]
        await self._head(status, fields, closing=self._ended)

    async def send(self, piece: bytes) -> None:
        """The next piece; one that is empty would be the end, and is nothing."""
        if piece:
            await self.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")
        self.last = self._ended

    async def switch(self, fields: Iterable[tuple[str, str]]) -> None:
        """Say that other bytes than HTTP follow."""
        await self._head(101, fields, closing=False)
        self.last = True

    async def gone(self) -> None:
        """Return when the caller has left, though nothing is being sent to it."""
        try:
            more = await self._reader.read(1)
        except OSError:
            return
        if more:
            # Somebody who asks again before the answer was there; what it asked is not kept.
            self.last = self._ended = True
            await asyncio.Event().wait()

    async def read(self, most: int) -> bytes:
        """What the caller sends after the switch; empty at the end.

        :raises Unreachable: the caller is gone.
        """
        try:
            return await self._reader.read(most)
        except OSError as error:
            raise _lost(explain(error)) from error

    @property
    def closed(self) -> bool:
        """Whether there is no connection to the caller any more."""
        return self._writer.is_closing()

    async def write(self, data: bytes) -> None:
        """Send bytes as they are, waiting while the caller is slower than we are.

        :raises Unreachable: the caller is gone, or does not read.
        """
        try:
            self._writer.write(data)
            async with asyncio.timeout(self.patience_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise _lost("it does not read") from error
        except OSError as error:
            raise _lost(explain(error)) from error
        self.sent += len(data)

    async def _head(
        self, status: int, fields: Iterable[tuple[str, str]], *, closing: bool | None = None
    ) -> None:
        self.status = status
        closing = self.last if closing is None else closing
        closes = [("Connection", "close")] if closing else []
        await self.write(answer_head(status, [*fields, *closes]))
        self.sent = 0


def answer_head(status: int, fields: Iterable[tuple[str, str]]) -> bytes:
    """The first lines of an answer; a value that would be two lines is left out."""
    known = HTTPStatus._value2member_map_.get(status)
    phrase = known.phrase if isinstance(known, HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in fields if _VALUE.fullmatch(value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _lost(why: str) -> Unreachable:
    return Unreachable(f"lost the caller: {why}")
