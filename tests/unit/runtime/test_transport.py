"""The transport against servers that misbehave, on sockets of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from kubeocean.errors import ApiError, Forbidden, Unauthorized, Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import LARGE, HttpTransport, Request
from support.servers import Server, connections_to, echo, head_of, serving, unused
from support.wait import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
Handle = Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Source(StaticAccess):
    """Credentials that a test changes; `next` are found by the next refresh."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.next: Access | None = None
        self.refreshes = 0
        self.interval = 3600.0
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def interval_s(self) -> float:
        return self.interval

    async def refresh(self, *, rejected: bool = False) -> bool:
        self.refreshes += 1
        await self.gate.wait()
        if self.next is None:
            return False
        self._access, self.next = self.next, None
        return True


@asynccontextmanager
async def transport_to(url: str, **more: object) -> AsyncIterator[tuple[HttpTransport, Source]]:
    source = Source(Access(url, **more))
    transport = HttpTransport(source, clock=VirtualClock())
    try:
        yield transport, source
    finally:
        await transport.close()


@asynccontextmanager
async def linked(
    handler: Handle, **more: object
) -> AsyncIterator[tuple[Server, HttpTransport, Source]]:
    """Yield a server and a transport to it."""
    async with (
        serving(handler) as server,
        transport_to(server.url, **more) as (transport, source),
    ):
        yield server, transport, source


async def answering(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer each request with 200, and drop its body."""
    while True:
        head = await head_of(server, reader)
        _, _, length = head.lower().partition("content-length: ")
        await reader.readexactly(int(length.split()[0]) if length else 0)
        writer.write(OK)


def knowing(token: str) -> Handle:
    """Return a server that accepts only this token."""

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            head = await head_of(server, reader)
            known = f"Bearer {token}\r\n" in head
            if known and "Upgrade: " in head:
                writer.write(SWITCHED)
                await echo(reader, writer)
                return
            writer.write(OK if known else UNAUTHORIZED)

    return handle


def saying(*pieces: bytes, then: Callable[[asyncio.StreamWriter], None] | None = None) -> Handle:
    """Return a server that answers a request with these pieces, and hangs up or does something
    worse."""

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        if then is not None:
            then(writer)

    return handle


async def silent(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await head_of(server, reader)
    await reader.read()


async def everything_of(transport: HttpTransport, request: Request) -> bytes:
    async with transport.stream(request) as stream:
        whole = b""
        while more := await stream.read():
            whole += more
        return whole


# --- servers that do not answer


async def test_a_request_to_a_closed_port_was_not_sent() -> None:
    async with transport_to(f"http://127.0.0.1:{unused()}") as (transport, _):
        attempts: list[Awaitable[object]] = [
            transport.send(Request("POST", "/x")),
            everything_of(transport, Request("GET", "/x")),
        ]
        for attempt in attempts:
            with pytest.raises(
                Unreachable, match=r"could not reach http://127\.0\.0\.1"
            ) as refused:
                await attempt
            assert not refused.value.sent


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async with transport_to("http://nowhere.invalid") as (transport, _):
        with pytest.raises(Unreachable, match=r"nowhere\.invalid") as refused:
            await transport.send(Request("POST", "/x"))
        assert not refused.value.sent


async def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    async with linked(silent) as (server, transport, _):
        attempts: list[Awaitable[object]] = [
            transport.send(Request("GET", "/x", timeout_s=0.2)),
            everything_of(transport, Request("GET", "/x", timeout_s=0.2)),
        ]
        for attempt in attempts:
            began = time.monotonic()
            with pytest.raises(Unreachable, match="did not answer in time") as late:
                await attempt
            assert time.monotonic() - began < 15
            assert late.value.sent
        await until(lambda: server.open == 0)


async def test_tls_to_a_plain_server_is_named_in_the_error() -> None:
    async def puzzled(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(puzzled) as server:
        url = server.url.replace("http:", "https:")
        async with transport_to(url, insecure=True) as (transport, _):
            with pytest.raises(Unreachable, match="TLS failed") as refused:
                await transport.send(Request("GET", "/x"))
            assert not refused.value.sent
            with pytest.raises(Unreachable, match="TLS failed") as refused:
                async with transport.upgrade(Request("POST", "/u"), "SPDY/3.1"):
                    pass
            assert not refused.value.sent


# --- answers that are broken (a chunk that is none, in the middle, is noticed by deadlines only:
# aiohttp closes the connection without telling the reader)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


HEAD = b"HTTP/1.1 200 OK\r\n"
BROKEN = {
    "nothing": ((), None),
    "no HTTP": ((b"\x00\x01\x02\r\n\r\n",), None),
    "half a head": ((b"HTTP/1.1 200",), None),
    "too short": ((HEAD + b"Content-Length: 50\r\n\r\n", b"hello"), None),
    "no last chunk": ((HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n"), None),
    "not gzip": ((HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",), None),
    "a reset": ((HEAD + b"Content-Length: 50\r\n\r\n", b"hello"), reset),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_answer_is_unreachable_and_may_have_been_carried_out(how: str) -> None:
    pieces, then = BROKEN[how]
    async with linked(saying(*pieces, then=then)) as (_, transport, _):
        for attempt in (
            transport.send(Request("DELETE", "/x", timeout_s=5)),
            everything_of(transport, Request("GET", "/x", timeout_s=5)),
        ):
            with pytest.raises(Unreachable) as broken:
                await attempt
            assert broken.value.sent
            assert "timeout" not in str(broken.value)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH"])
async def test_nothing_is_sent_twice_when_a_kept_connection_breaks(method: str) -> None:
    async def once(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(OK)
        await head_of(server, reader)  # read, carried out perhaps, never answered

    async with linked(once) as (server, transport, _):
        await transport.send(Request("GET", "/first"))
        with pytest.raises(Unreachable) as lost:
            await transport.send(Request(method, "/second"))
        assert lost.value.sent
        assert server.lines == ["GET /first", f"{method} /second"]


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with linked(saying(moved)) as (server, transport, _):
        response = await transport.send(Request("GET", "/x"))
        assert (response.status, response.headers["location"]) == (302, "/elsewhere")
        assert server.lines == ["GET /x"]


async def test_an_answer_that_does_not_end_is_given_up_where_it_is_too_long() -> None:
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"

    async def endless(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    async with serving(endless) as server:
        source = StaticAccess(Access(server.url))
        transport = HttpTransport(source, clock=VirtualClock(), largest=1 << 16)
        with pytest.raises(Unreachable, match="the response is larger than 65536 bytes") as cut:
            await transport.send(Request("GET", "/version", timeout_s=30))
        assert cut.value.sent
        await until(lambda: connections_to(server.port) == 0)
        await transport.close()


async def test_an_answer_that_is_not_too_long_comes_whole() -> None:
    async with serving(answering) as server:
        source = StaticAccess(Access(server.url))
        transport = HttpTransport(source, clock=VirtualClock(), largest=2)
        for _ in range(2):
            assert (await transport.send(Request("GET", "/version"))).body == b"{}"
        assert connections_to(server.port) == 1
        await transport.close()


async def test_a_body_over_the_limit_goes_in_pieces_and_whole() -> None:
    received: list[bytes] = []

    async def take(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await head_of(server, reader)
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        received.append(await reader.readexactly(length))
        writer.write(OK)

    async with linked(take) as (server, transport, _):
        body = bytes(range(256)) * (LARGE // 100)
        await transport.send(Request("POST", "/x", body=body, content_type="a/b"))
        assert received == [body]
        assert "Content-Type: a/b\r\n" in server.heads[0]


async def test_what_is_asked_stands_in_the_request_line_as_it_is() -> None:
    async with (
        serving(answering) as server,
        transport_to(server.url + "/clusters/a%2Fb") as (transport, _),
    ):
        query = (("labelSelector", "a in (b, ü)"), ("watch", "true"))
        request = Request("GET", "/api/v1/x%2Fy", query=query, headers={"X-Mine": "1"})
        assert request.watches
        await transport.send(request)
        path = "/clusters/a%2Fb/api/v1/x%2Fy"
        requested = "labelSelector=a+in+%28b%2C+%C3%BC%29&watch=true"
        assert server.lines == [f"GET {path}?{requested}"]
        assert "X-Mine: 1\r\n" in server.heads[0]
        assert "User-Agent: kubeocean/" in server.heads[0]


# --- credentials that change


async def test_only_rejected_requests_refresh_and_all_of_them_are_repeated() -> None:
    async with linked(knowing("new"), token=Secret("old")) as (server, transport, source):
        with_new = replace(source.current(), token=Secret("new"))
        assert (await transport.send(Request("GET", "/x"))).status == 401
        assert source.refreshes == 2  # the first request's, and the rejected one's
        source.next = with_new
        answers = await asyncio.gather(
            *(transport.send(Request("POST", f"/{n}")) for n in range(20))
        )
        assert {answer.status for answer in answers} == {200}
        assert len(server.heads) == 1 + 20 + 20
        assert transport.generation == 0


async def test_a_stream_and_a_tunnel_ask_again_too() -> None:
    async with serving(knowing("new")) as server:
        for kind in ("stream", "upgrade"):
            async with transport_to(server.url, token=Secret("old")) as (transport, source):
                await transport.send(Request("GET", "/x"))
                source.next = replace(source.current(), token=Secret("new"))
                if kind == "stream":
                    assert await everything_of(transport, Request("GET", "/s")) == b"{}"
                    continue
                async with transport.upgrade(Request("POST", "/u"), "SPDY/3.1") as tunnel:
                    await tunnel.write(b"hello")
                    assert await tunnel.read() == b"hello"
            await until(lambda: server.open == 0)


async def test_what_is_rejected_again_stays_rejected() -> None:
    async with linked(knowing("nobody's"), token=Secret("old")) as (server, transport, source):
        source.next = None
        async with transport.stream(Request("GET", "/s")) as stream:
            assert stream.status == 401
        with pytest.raises(Unauthorized):
            async with transport.upgrade(Request("POST", "/u"), "SPDY/3.1"):
                pass
        source.next = replace(source.current(), token=Secret("new"))
        with pytest.raises(Unauthorized):
            async with transport.upgrade(Request("POST", "/u"), "SPDY/3.1"):
                pass
        assert len(server.heads) == 4


async def test_what_the_block_of_a_tunnel_raises_is_its_own() -> None:
    async with linked(knowing("t"), token=Secret("t")) as (server, transport, source):
        for error in (Unauthorized("mine"), TimeoutError("mine"), OSError("mine")):
            source.next = replace(source.current(), namespace="other")
            with pytest.raises(type(error), match="mine"):
                async with transport.upgrade(Request("POST", "/u"), "SPDY/3.1"):
                    raise error
        assert len(server.heads) == 3
        with pytest.raises(Forbidden):
            async with transport.stream(Request("GET", "/s")):
                raise Forbidden("mine")


async def test_connections_are_kept_when_only_headers_change() -> None:
    async with linked(answering, token=Secret("old")) as (server, transport, source):
        source.interval = 0.0
        await transport.send(Request("GET", "/1"))
        for n, change in enumerate(
            ({"token": Secret("new")}, {"namespace": "other"}, {"origin": "elsewhere"})
        ):
            source.next = replace(source.current(), **change)
            await transport.send(Request("GET", f"/{n}"))
        assert connections_to(server.port) == 1
        assert "Bearer new" in server.heads[1]


async def test_another_name_of_the_server_cuts_whatever_is_open() -> None:
    async def half(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await head_of(server, reader)
        if "Upgrade: " in head:
            writer.write(SWITCHED)
        elif "/half" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.read()

    async with serving(answering) as new, linked(half) as (old, transport, source):
        async with (
            transport.stream(Request("GET", "/half")) as stream,
            transport.upgrade(Request("POST", "/u"), "SPDY/3.1") as tunnel,
        ):
            assert await stream.read() == b"half"
            waiting = [
                asyncio.ensure_future(attempt)
                for attempt in (
                    stream.read(),
                    tunnel.read(),
                    transport.send(Request("GET", "/half")),
                    transport.send(Request("GET", "/never")),
                )
            ]
            await until(lambda: len(old.heads) == 4)
            source.next = replace(source.current(), server=new.url)
            source.interval = 0.0
            transport._refresh_at = 0.0
            assert (await transport.send(Request("GET", "/new"))).status == 200
            assert transport.generation == 1
            for answer in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(answer, Unreachable)
        await until(lambda: old.open == 0)


async def test_a_watch_outlives_a_new_way_until_it_ends_itself() -> None:
    """Another proxy or certificate: the same server, so there is no reason to cut."""
    message = asyncio.Event()

    async def slowly(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if "/watch" not in await head_of(server, reader):
            writer.write(OK)
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        await message.wait()
        writer.write(b"cd")
        await reader.read()

    async with linked(slowly) as (server, transport, source):
        source.interval = 0.0
        async with transport.stream(Request("GET", "/watch")) as stream:
            assert await stream.read() == b"ab"
            source.next = replace(source.current(), certificate=b"another")
            await transport.send(Request("GET", "/new"))
            assert transport.generation == 0
            message.set()
            assert await stream.read() == b"cd"
        await until(lambda: server.open == 1, within=2)


# --- closing


async def test_waiting_requests_fail_when_the_transport_is_closed() -> None:
    async with linked(silent) as (server, transport, _):
        sending = asyncio.ensure_future(transport.send(Request("GET", "/x")))
        await until(lambda: server.heads)
        await transport.close()
        with pytest.raises(Unreachable):
            await sending
        with pytest.raises(Unreachable, match="client was closed") as closed:
            await transport.send(Request("GET", "/x"))
        assert not closed.value.sent


async def test_a_cancelled_close_leaves_no_connection_open() -> None:
    async with serving(saying(OK)) as server, transport_to(server.url) as (transport, _):
        await transport.send(Request("GET", "/"))
        link = transport._link
        assert link is not None
        closing = asyncio.create_task(transport.close())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        assert link._unary.closed
        assert link._streams.closed


async def test_nothing_is_opened_when_closed_while_credentials_are_read() -> None:
    async with transport_to(f"http://127.0.0.1:{unused()}") as (transport, source):
        source.gate.clear()
        sending = asyncio.ensure_future(transport.send(Request("GET", "/x")))
        await until(lambda: source.refreshes == 1)
        await transport.close()
        source.gate.set()
        with pytest.raises(Unreachable, match="client was closed"):
            await sending


async def test_a_cancelled_request_leaves_no_connection() -> None:
    async with linked(silent) as (server, transport, _):
        attempts: list[Awaitable[object]] = [
            transport.send(Request("GET", "/x")),
            everything_of(transport, Request("GET", "/x")),
        ]
        for attempt in attempts:
            requested = len(server.heads)
            task = asyncio.ensure_future(attempt)
            await until(lambda requested=requested: len(server.heads) > requested)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: server.open == 0, within=2)


async def test_secrets_do_not_show_in_what_is_raised_or_printed() -> None:
    request = Request("POST", "/x", body=b"hush", headers={"Authorization": "hush"})
    assert "hush" not in repr(request)
    async with transport_to(f"http://127.0.0.1:{unused()}", token=Secret("hush")) as (transport, _):
        with pytest.raises(ApiError) as error:
            await transport.send(request)
        assert "hush" not in str(error.value)
