"""Tunnels: answers that open a tunnel, answers that do not, and the relayed bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from multidict import CIMultiDict
from yarl import URL

from kubeocean.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    InternalError,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from kubeocean.runtime import tunnel as tunnels
from kubeocean.runtime.tunnel import Tunnel, open_tunnel
from support.servers import Server, echo, head_of, proxying, serving, unused
from support.wait import until

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
MIB = 1 << 20


def opening(url: str, **more: Any) -> Any:
    options: dict[str, Any] = {
        "method": "POST",
        "target": "/exec?command=ls",
        "headers": CIMultiDict[str](),
        "protocol": "SPDY/3.1",
        "tls": None,
        "tls_server_name": None,
        "proxy_url": None,
        "timeout_s": 60.0,
    }
    return open_tunnel(URL(url), **options | more)


async def refused(url: str, **more: Any) -> ApiError:
    """Return the error that opening a tunnel raises."""
    began = time.monotonic()
    with pytest.raises(ApiError) as error:
        async with opening(url, **more):
            raise AssertionError("it must not open")
    assert time.monotonic() - began < 30  # before the time limit of an attempt
    assert "upgrade POST /exec to SPDY/3.1" in str(error.value)
    return error.value


@asynccontextmanager
async def server_of(*pieces: bytes, hang: bool = False) -> AsyncIterator[Server]:
    """Yield a server that sends one answer to any request, then waits or closes; no connection may
    stay open."""

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if hang:
            await reader.read()

    async with serving(handle) as server:
        yield server
        await until(lambda: server.open == 0)


@asynccontextmanager
async def echoing() -> AsyncIterator[Server]:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED + b"and at once")
        await echo(reader, writer)

    async with serving(handle) as server:
        yield server
        await until(lambda: server.open == 0)


async def read_exactly(tunnel: Tunnel, size: int) -> bytes:
    whole = bytearray()
    while len(whole) < size:
        more = await tunnel.read()
        assert more, f"ended after {len(whole)} of {size} bytes"
        whole += more
    return bytes(whole)


# --- relayed bytes


async def test_bytes_go_both_ways_and_each_way_ends_by_itself() -> None:
    async with echoing() as server, opening(server.url) as tunnel:
        assert tunnel.headers["upgrade"] == "SPDY/3.1"
        assert await tunnel.read() == b"and at once"
        await tunnel.write(b"one")
        assert await tunnel.read() == b"one"
        await tunnel.write(b"two")
        tunnel.write_eof()
        assert await tunnel.read() == b"two"
        assert await tunnel.read() == b""
    head = server.heads[0]
    assert head.startswith("POST /exec?command=ls HTTP/1.1\r\n")
    for line in ("Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 0"):
        assert f"\r\n{line}\r\n" in head


async def test_ten_mebibytes_wait_for_a_slow_reader() -> None:
    slow = asyncio.Event()

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        await slow.wait()
        await echo(reader, writer)

    sent = bytes(range(256)) * (10 * MIB // 256)
    async with serving(handle) as server, opening(server.url) as tunnel:
        written = 0

        async def write() -> None:
            nonlocal written
            for at in range(0, len(sent), 1 << 16):
                await tunnel.write(sent[at : at + (1 << 16)])
                written = at
            tunnel.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            before = -1
            while written != before:  # until the kernel and we are full
                before = written
                await asyncio.sleep(0.1)
            assert written < 8 * MIB
            slow.set()
            assert await read_exactly(tunnel, len(sent)) == sent
            assert await tunnel.read() == b""


async def test_what_was_written_last_still_arrives() -> None:
    received = bytearray()
    done = asyncio.Event()

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        while data := await reader.read(1 << 16):
            received.extend(data)
        done.set()

    async with serving(handle) as server:
        async with opening(server.url) as tunnel:
            await tunnel.write(b"x" * MIB)
        await asyncio.wait_for(done.wait(), 5)
        assert len(received) == MIB


async def test_data_sent_before_a_close_is_read_after_a_failed_write() -> None:
    message = b"x" * (1 << 15)  # fits into the reader's socket buffer

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        await reader.read(1)
        writer.write(message)

    async with serving(handle) as server, opening(server.url) as tunnel:
        await tunnel.write(b"?")
        await until(lambda: server.open == 0)
        with pytest.raises(Unreachable, match="lost the tunnel"):
            while True:
                await tunnel.write(b"is anybody there?")
                await asyncio.sleep(0)
        assert await read_exactly(tunnel, len(message)) == message


async def test_a_broken_tunnel_is_unreachable() -> None:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(SWITCHED)
        await reader.read(1)
        writer.transport.abort()

    async with serving(handle) as server, opening(server.url) as tunnel:
        await tunnel.write(b"x")
        with pytest.raises(Unreachable, match="lost the tunnel"):
            while True:
                await tunnel.write(b"x" * MIB)
        tunnel.write_eof()  # of no use, and no harm


async def test_a_tunnel_that_is_aborted_did_not_end_well() -> None:
    async with echoing() as server, opening(server.url) as tunnel:
        await tunnel.read()
        reading = asyncio.ensure_future(tunnel.read())
        await asyncio.sleep(0)
        tunnel.abort()
        with pytest.raises(Unreachable, match="closed the tunnel"):
            await reading


async def test_a_cancelled_user_leaves_at_once() -> None:
    async with echoing() as server:
        entered = asyncio.Event()

        async def use() -> None:
            async with opening(server.url) as tunnel:
                entered.set()
                while True:
                    await tunnel.read()

        using = asyncio.create_task(use())
        await entered.wait()
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using


# --- answers that open no tunnel


async def test_a_tunnel_to_a_closed_port_is_unreachable() -> None:
    error = await refused(f"http://127.0.0.1:{unused()}")
    assert isinstance(error, Unreachable)
    assert not error.sent


async def test_two_hundred_is_not_one_hundred_and_one() -> None:
    async with server_of(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", hang=True) as server:
        error = await refused(server.url)
    assert (type(error), error.status) == (InternalError, 200)


async def test_a_redirect_is_not_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with server_of(moved, hang=True) as server:
        error = await refused(server.url)
        assert error.status == 302
        assert server.lines == ["POST /exec?command=ls"]


STATUS = b'{"kind":"Status","message":"no such pod","reason":"NotFound","code":404}'
LENGTH = b"Content-Length: %d\r\n\r\n" % len(STATUS)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
HALVES = b"%x\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\n\r\n" % (9, STATUS[:9], len(STATUS) - 9, STATUS[9:])


@pytest.mark.parametrize("hang", [False, True], ids=["closes", "keeps"])
@pytest.mark.parametrize(
    "pieces",
    [(LENGTH, STATUS), (LENGTH + STATUS[:20], STATUS[20:]), (CHUNKED, HALVES), (CHUNKED + HALVES,)],
    ids=["length", "in pieces", "chunked", "chunked at once"],
)
async def test_a_refusal_is_raised_with_its_reason(pieces: tuple[bytes, ...], hang: bool) -> None:
    async with server_of(b"HTTP/1.1 404 Not Found\r\n", *pieces, hang=hang) as server:
        error = await refused(server.url)
    assert isinstance(error, NotFound)
    assert str(error).endswith(": no such pod")


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 50\r\n\r\nshort",
        b"Content-Length: \xb2\r\n\r\nshort",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nshort",
        b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\nshort",
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\nshort",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort",
        b"\r\nshort",
        b"\r\n",
    ],
)
@pytest.mark.parametrize("hang", [False, True], ids=["closes", "keeps"])
async def test_a_refusal_without_a_whole_body_is_still_that_refusal(
    body: bytes, hang: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "BODY_S", 0.1)
    async with server_of(b"HTTP/1.1 403 Forbidden\r\n" + body, hang=hang) as server:
        assert isinstance(await refused(server.url), Forbidden)


async def test_a_refusal_may_say_when_to_come_back() -> None:
    later = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    async with server_of(later) as server:
        error = await refused(server.url)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_s == 7


NOT_HTTP = {
    "garbage": (b"\x00\xff\x16\x03\x01\r\n\r\n", "not HTTP"),
    "no number": (b"HTTP/1.1 OK\r\n\r\n", "not HTTP"),
    "a number that is none": (b"HTTP/1.1 \xb2\xb3\xb9 OK\r\n\r\n", "not HTTP"),
    "another version": (b"HTTP/2 101\r\nUpgrade: SPDY/3.1\r\n\r\n", "not HTTP"),
    "half a head": (b"HTTP/1.1 101 Switching\r\nUpgrade", "not HTTP"),
    "an endless line": (b"x" * (1 << 20), "over 64 KiB"),
    "too many headers": (b"HTTP/1.1 101 S\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", "over 64 KiB"),
    "nothing": (b"", "was closed"),
    "another protocol": (SWITCHED.replace(b"SPDY", b"HTTP"), "to protocol 'HTTP/3.1', not to"),
    "no protocol": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "to protocol '', not to"),
}


@pytest.mark.parametrize("how", NOT_HTTP)
async def test_what_is_no_answer_is_unreachable(how: str) -> None:
    message, why = NOT_HTTP[how]
    async with server_of(message) as server:
        error = await refused(server.url)
    assert isinstance(error, Unreachable)
    assert why in str(error)
    assert error.sent


async def test_a_head_that_does_not_come_is_given_up_in_time() -> None:
    for pieces in ((), (b"HTTP/1.1 ",)):
        async with server_of(*pieces, hang=True) as server:
            error = await refused(server.url, timeout_s=0.3)
            assert isinstance(error, Unreachable)
            assert "did not answer in time" in str(error)


async def test_a_head_that_comes_byte_by_byte_is_given_up_in_time() -> None:
    async with server_of(*[b"x"] * 200) as server:
        assert isinstance(await refused(server.url, timeout_s=0.3), Unreachable)


async def test_a_reset_is_unreachable() -> None:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with serving(handle) as server:
        assert isinstance(await refused(server.url), Unreachable)


async def test_nothing_is_smuggled_into_the_head() -> None:
    url = f"http://127.0.0.1:{unused()}"
    bad: list[dict[str, Any]] = [
        {"headers": CIMultiDict({"X": "a\r\nEvil: 1"})},
        {"headers": CIMultiDict({"X\nY": "a"})},
        {"target": "/exec HTTP/1.1\r\nEvil: 1"},
        {"target": "/a b"},
        {"protocol": "SPDY\r\nEvil: 1"},
    ]
    for options in bad:
        with pytest.raises(ConfigError, match=r"line break|cannot have"):
            async with opening(url, **options):
                pass


async def test_headers_may_be_repeated_and_in_any_script() -> None:
    headers = CIMultiDict([("Impersonate-Group", "é"), ("Impersonate-Group", "b")])
    async with echoing() as server, opening(server.url, method="GET", headers=headers):
        pass
    assert "Impersonate-Group: é\r\nImpersonate-Group: b\r\n" in server.heads[0]
    assert "Content-Length" not in server.heads[0]


# --- through a proxy


async def test_a_proxy_is_asked_to_connect_and_then_not_in_the_way() -> None:
    async with echoing() as server, proxying() as proxy:
        existing = proxy.url.replace("//", "//me:secret@")
        async with opening(server.url, proxy_url=existing) as tunnel:
            assert await tunnel.read() == b"and at once"
            await tunnel.write(b"x" * MIB)
            assert await read_exactly(tunnel, MIB) == b"x" * MIB
        assert proxy.targets == [server.url.removeprefix("http://")]
        assert proxy.credentials == ["me:secret"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"HTTP/1.1 407 Who are you\r\n\r\n", "the proxy answered HTTP 407"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 2", "not HTTP"),
    ],
    ids=["refuses", "babbles", "hangs up"],
)
async def test_a_proxy_that_does_not_connect_passed_nothing_on(message: bytes, why: str) -> None:
    async with proxying() as proxy:
        proxy.refuse = message
        with pytest.raises(Unreachable, match=f"through the proxy: .*{why}") as refused:
            async with opening("http://10.255.255.1:80", proxy_url=proxy.url):
                pass
        assert not refused.value.sent
        assert "secret" not in str(refused.value)
