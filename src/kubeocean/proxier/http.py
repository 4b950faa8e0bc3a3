"""HTTP/1.1 requests and their responses on one connection.

The head of a request decides whether a caller is authenticated and where bytes are sent, and anyone
can write a head. A head that two parsers could read in two ways is refused: folded lines, spaces
before a colon, control characters, a second Host or Content-Length, a length together with chunks.

An `Exchange` is one request with its response: whole, in chunks, or a switch to another protocol.
Bytes are counted for the audit. A caller that does not read is disconnected after a while.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from multidict import CIMultiDict

from kubeocean.errors import Refusal, Unreachable
from kubeocean.runtime.retries import explain

__all__ = [
    "LARGE_HEAD",
    "MAX_CERTIFIED_HEAD",
    "MAX_HEAD",
    "MAX_HEADERS",
    "PLAIN_TEXT",
    "Exchange",
    "RequestHead",
    "parse_head",
    "read_head",
    "response_head",
]

MAX_HEAD: Final = 16 * 1024
# From a caller with a certificate, as a kubelet: the command of an exec is in the target of the
# request. A head over LARGE_HEAD needs a reservation, because few fit into the memory of a proxier.
MAX_CERTIFIED_HEAD: Final = 1024 * 1024
LARGE_HEAD: Final = 256 * 1024
MAX_HEADERS: Final = 1_000
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
WRITE_TIMEOUT_S: Final = 60.0  # of one write, to a caller that reads slowly

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/([0-9])\.([0-9])")
# Blanks around a value are stripped afterwards: two neighbouring repetitions that both match blanks
# would take quadratic time on a line that ends in a control character.
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_AT_MOST_ONCE: Final = ("Host", "Content-Length", "Transfer-Encoding", "Upgrade", "Authorization")
_RESPONSE_VALUE: Final = re.compile(r"[\t -~]*")
_LOWEST_ERROR: Final = 400


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The request line and the headers of a request."""

    method: str
    target: str  # path and query, as sent
    headers: CIMultiDict[str]

    @property
    def upgrade(self) -> str:
        """The protocol that the caller wants to switch to, in lower case; empty if none."""
        if not self._has_connection_option("upgrade"):
            return ""
        return self.headers.get("Upgrade", "").strip().lower()

    @property
    def closes(self) -> bool:
        """Whether the caller requests to close the connection after the response."""
        return self._has_connection_option("close")

    @property
    def has_body(self) -> bool:
        """Whether a body may follow the head of the request."""
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _has_connection_option(self, option: str) -> bool:
        options = ",".join(self.headers.getall("Connection", [])).lower().split(",")
        return any(each.strip() == option for each in options)


async def read_head(
    reader: asyncio.StreamReader, *, limit: int, reserve: Callable[[], None] = lambda: None
) -> RequestHead:
    """Read and parse the next head of at most `limit` bytes.

    `reserve` is called once for a head over LARGE_HEAD, before its rest is read.

    :raises IncompleteReadError: the connection ended before the head did.
    :raises Refusal: the head is over the limit, or `reserve` or `parse_head` refuses it.
    """
    data, reserved = b"", False
    while not data.endswith(_END):
        try:
            data += await reader.readuntil(_END)
        except asyncio.LimitOverrunError as overrun:
            # The reader's own limit may be smaller than ours: take the buffered bytes and go on.
            data += await reader.readexactly(overrun.consumed)
        if len(data) > limit:
            raise _too_large(limit)
        if len(data) > LARGE_HEAD and not reserved:
            reserve()
            reserved = True
    return parse_head(data, limit=limit)


def parse_head(data: bytes, *, limit: int = MAX_HEAD) -> RequestHead:
    """Parse the head of a request, up to and with its empty line.

    :raises Refusal: the bytes are no head, over the limit, or could be read in two ways.
    """
    if len(data) > limit:
        raise _too_large(limit)
    if not data.endswith(_END):
        raise Refusal(400, "the head of the request does not end")
    first, *lines = data[: -len(_END)].decode("latin-1").split("\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None:
        raise Refusal(400, "the request line is not HTTP/1.1")
    if (request_line[3], request_line[4]) != ("1", "1"):
        raise Refusal(505, "only HTTP/1.1 is supported")
    if len(lines) > MAX_HEADERS:
        raise Refusal(431, f"the request has more than {MAX_HEADERS} headers")
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refusal(400, "a header does not have the form NAME: VALUE")
        headers.add(header[1], header[2].strip(" \t"))
    _check(headers)
    return RequestHead(request_line[1], request_line[2], headers)


def _too_large(limit: int) -> Refusal:
    return Refusal(431, f"the head of the request is over {limit} bytes")


def _check(headers: CIMultiDict[str]) -> None:
    for name in _AT_MOST_ONCE:
        if len(headers.getall(name, [])) > 1:
            raise Refusal(400, f"the header {name} is given twice")
    if "Host" not in headers:
        raise Refusal(400, "the header Host is missing")
    if "Content-Length" in headers and "Transfer-Encoding" in headers:
        raise Refusal(400, "the request has both Content-Length and Transfer-Encoding")


class Exchange:
    """An HTTP request and its response.

    - `vnode`: the virtual node of the port that the request came in on; empty on the common port.
    - `metrics_only`: the request came in on the port for metrics of all virtual nodes.
    """

    def __init__(
        self,
        head: RequestHead,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        vnode: str = "",
        metrics_only: bool = False,
    ) -> None:
        self.head = head
        self.vnode = vnode
        self.metrics_only = metrics_only
        self.status = 0  # set with the head of the response
        self.sent = 0  # bytes of the response, without its head
        self.is_last = head.closes or head.has_body  # no other request follows on the connection
        self.write_timeout_s = WRITE_TIMEOUT_S
        self._is_last_after_chunks = False  # `is_last` once the last chunk was sent
        self._reader = reader
        self._writer = writer

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The caller's certificate as TLS has verified it."""
        certificate: Mapping[str, Any] | None = self._writer.get_extra_info("peercert")
        return certificate

    @property
    def peer(self) -> str:
        """The address of the caller."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def closed(self) -> bool:
        """Whether the connection to the caller is closed or closing."""
        return self._writer.is_closing()

    async def respond(self, status: int, body: bytes = b"", content_type: str = PLAIN_TEXT) -> None:
        """Send a whole response; after an error, the connection is closed."""
        self.is_last = self.is_last or status >= _LOWEST_ERROR
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        await self._send_head(status, headers)
        # The response to HEAD is a head; further bytes would be taken for the next response.
        await self.write(b"" if self.head.method == "HEAD" else body)

    async def begin_chunks(self, status: int, content_type: str) -> None:
        """Send the head of a chunked response; `send_chunk` and `end_chunks` follow."""
        # Until all chunks were sent nothing may follow, whatever happens in between.
        self._is_last_after_chunks, self.is_last = self.is_last, True
        headers = [("Content-Type", content_type), ("Transfer-Encoding", "chunked")]
        await self._send_head(status, headers, closes=self._is_last_after_chunks)

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a chunk; an empty chunk would end the response and is skipped."""
        if chunk:
            await self.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    async def end_chunks(self) -> None:
        """Send the last, empty chunk."""
        await self.write(b"0\r\n\r\n")
        self.is_last = self._is_last_after_chunks

    async def switch_protocols(self, headers: Iterable[tuple[str, str]]) -> None:
        """Send the response 101; bytes of another protocol follow."""
        await self._send_head(101, headers, closes=False)
        self.is_last = True

    async def wait_for_disconnect(self) -> None:
        """Return when the caller has disconnected, also while nothing is being sent."""
        try:
            early = await self._reader.read(1)
        except OSError:
            return
        if early:
            # A request that was sent before the response; it is not served.
            self.is_last = self._is_last_after_chunks = True
            await asyncio.Event().wait()

    async def read(self, limit: int) -> bytes:
        """Read bytes that the caller sends after the protocol switch; empty at the end.

        :raises Unreachable: the connection is lost.
        """
        try:
            return await self._reader.read(limit)
        except OSError as error:
            raise _lost(explain(error)) from error

    async def write(self, data: bytes) -> None:
        """Send bytes as they are, waiting for a caller that reads slowly.

        :raises Unreachable: the connection is lost, or the caller does not read.
        """
        try:
            self._writer.write(data)
            async with asyncio.timeout(self.write_timeout_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise _lost(f"the caller read nothing for {self.write_timeout_s:g} s") from error
        except OSError as error:
            raise _lost(explain(error)) from error
        self.sent += len(data)

    async def _send_head(
        self, status: int, headers: Iterable[tuple[str, str]], *, closes: bool | None = None
    ) -> None:
        self.status = status
        closes = self.is_last if closes is None else closes
        connection = [("Connection", "close")] if closes else []
        await self.write(response_head(status, [*headers, *connection]))
        self.sent = 0


def response_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Format the head of a response; a header with a line break in its value is left out."""
    known = HTTPStatus._value2member_map_.get(status)
    phrase = known.phrase if isinstance(known, HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in headers if _RESPONSE_VALUE.fullmatch(value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _lost(reason: str) -> Unreachable:
    return Unreachable(f"lost the connection to the caller: {reason}")
