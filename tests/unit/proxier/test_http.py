"""Heads of requests: parsed in one way, or refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import Refusal
from kubeocean.proxier.http import (
    LARGE_HEAD,
    MAX_CERTIFIED_HEAD,
    MAX_HEAD,
    MAX_HEADERS,
    RequestHead,
    parse_head,
    read_head,
    response_head,
)


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def field(*lines: str) -> bytes:
    return head("GET / HTTP/1.1", "Host: h", *lines)


def test_a_head_is_parsed() -> None:
    parsed = parse_head(head("GET /pods?a=b HTTP/1.1", "Host: here", "X-A: 1", "x-a:2 "))
    assert (parsed.method, parsed.target) == ("GET", "/pods?a=b")
    assert parsed.headers.getall("X-A") == ["1", "2"]
    assert parsed.upgrade == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("X:", ""),
        ("X: \t ", ""),
        ("X:\t a  b\tc \t", "a  b\tc"),
        ("X: \xa0\xff~ ", "\xa0\xff~"),
    ],
)
def test_blanks_around_a_value_are_stripped(text: str, value: str) -> None:
    assert parse_head(head("GET / HTTP/1.1", "Host: h", text)).headers["X"] == value


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        (("Connection: Upgrade", "Upgrade: SPDY/3.1"), "spdy/3.1"),
        (("Connection: keep-alive, upgrade", "Upgrade: websocket"), "websocket"),
        (("Upgrade: websocket",), ""),
        (("Connection: close", "Upgrade: websocket"), ""),
    ],
)
def test_an_upgrade_needs_the_connection_option(fields: tuple[str, ...], protocol: str) -> None:
    assert parse_head(head("POST /exec HTTP/1.1", "Host: here", *fields)).upgrade == protocol


@pytest.mark.parametrize(
    "lines",
    [
        ("GET /pods HTTP/2", "Host: h"),
        ("GET pods HTTP/1.1", "Host: h"),
        ("GET http://h/pods HTTP/1.1", "Host: h"),
        ("get /pods HTTP/1.1", "Host: h"),
        ("GET /a b HTTP/1.1", "Host: h"),
        ("GET  /pods HTTP/1.1", "Host: h"),
        ("GET /p\x7f HTTP/1.1", "Host: h"),
        ("GET /pods HTTP/1.1",),
        ("GET /pods HTTP/1.1", "Host: h", "Host: i"),
        ("GET /pods HTTP/1.1", "Host: h", "Content-Length: 1", "Content-Length: 1"),
        ("GET /pods HTTP/1.1", "Host: h", "Content-Length: 1", "Transfer-Encoding: chunked"),
        ("GET /pods HTTP/1.1", "Host: h", "Authorization: a", "authorization: b"),
        ("GET /pods HTTP/1.1", "Host: h", "Bad Name: x"),
        ("GET /pods HTTP/1.1", "Host: h", "Name : x"),
        ("GET /pods HTTP/1.1", "Host: h", " folded: x"),
        ("GET /pods HTTP/1.1", "Host: h", "nothing"),
        ("GET /pods HTTP/1.1", "Host: h", "X: a\nY: b"),
        ("GET /pods HTTP/1.1", "Host: h", "X: a\x00b"),
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(Refusal) as refused:
        parse_head(head(*lines))
    assert refused.value.status == 400


@pytest.mark.parametrize("version", ["0.9", "1.0", "1.2", "2.0", "2.1"])
def test_another_version_of_http_is_not_supported(version: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_head(head(f"GET /pods HTTP/{version}", "Host: h"))
    assert refused.value.status == 505


def test_a_head_that_does_not_end_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        parse_head(b"GET / HTTP/1.1\r\nHost: h\r\n")
    assert refused.value.status == 400


def test_a_head_over_the_limit_is_refused() -> None:
    rest = MAX_HEAD - len(field("X: "))
    assert parse_head(field("X: " + "a" * rest)).headers["X"] == "a" * rest
    with pytest.raises(Refusal, match=str(MAX_HEAD)) as refused:
        parse_head(field("X: " + "a" * (rest + 1)))
    assert refused.value.status == 431


@pytest.mark.parametrize("limit", [MAX_HEAD, MAX_CERTIFIED_HEAD])
@pytest.mark.parametrize("piece", [1 << 20, 65_536, 1_000])
async def test_a_head_is_read_up_to_its_limit(limit: int, piece: int) -> None:
    """However the bytes arrive, and though the limit of the stream reader is smaller."""

    async def read(data: bytes) -> RequestHead:
        reader = asyncio.StreamReader(limit=1 << 12)
        for start in range(0, len(data), piece):
            reader.feed_data(data[start : start + piece])
        reader.feed_eof()
        return await read_head(reader, limit=limit)

    rest = limit - len(field("X: "))
    largest = field("X: " + "a" * rest)
    assert (await read(largest + field())).headers["X"] == "a" * rest
    with pytest.raises(Refusal, match=str(limit)) as refused:
        await read(field("X: " + "a" * (rest + 1)) + field())
    assert refused.value.status == 431
    with pytest.raises(asyncio.IncompleteReadError):
        await read(largest[:-1])


async def test_a_large_head_is_reserved_once() -> None:
    reserved: list[str] = []

    async def read(data: bytes, reserve: Callable[[], None]) -> RequestHead:
        reader = asyncio.StreamReader(limit=1 << 12)
        reader.feed_data(data)
        reader.feed_eof()
        return await read_head(reader, limit=MAX_CERTIFIED_HEAD, reserve=reserve)

    rest = LARGE_HEAD - len(field("X: "))
    await read(field("X: " + "a" * rest), lambda: reserved.append("largest"))
    assert reserved == []
    for data in (field("X: " + "a" * (rest + 1)), field("X: " + "a" * 2 * rest)):
        await read(data, lambda: reserved.append("large"))
    assert reserved == ["large", "large"]

    def refuse() -> None:
        raise Refusal(429, "too many")

    with pytest.raises(Refusal, match="too many"):
        await read(field("X: " + "a" * 2 * rest), refuse)


def test_a_head_with_too_many_headers_is_refused() -> None:
    most = ["X: a"] * (MAX_HEADERS - 1)  # besides Host
    assert len(parse_head(field(*most)).headers) == MAX_HEADERS
    with pytest.raises(Refusal, match=f"more than {MAX_HEADERS} headers") as refused:
        parse_head(field(*most, "X: a"))
    assert refused.value.status == 431


# Heads on which a careless expression backtracks; each function makes one of about that size.
COSTLY: dict[str, Callable[[int], bytes]] = {
    "blanks before a control byte": lambda size: field("X:" + " " * size + "\x00"),
    "blanks and tabs before a control byte": lambda size: field(
        "X:" + " \t" * (size // 2) + "\x7f"
    ),
    "words before a control byte": lambda size: field("X:" + "a " * (size // 2) + "\x00"),
    "blanks around a letter": lambda size: field(
        "X:" + " " * (size // 2) + "a" + " " * (size // 2)
    ),
    "blanks before the colon": lambda size: field("X" + " " * size + ":"),
    "a name without a colon": lambda size: field("X" * size),
    "a name before a control byte": lambda size: field("X" * size + "\x00:"),
    "colons": lambda size: field(":" * size),
    "a method that does not end": lambda size: head("A" * size + " / HTTP/1.1", "Host: h"),
    "a target that does not end": lambda size: head("GET /" + "a" * size, "Host: h"),
    "a target before a control byte": lambda size: head(
        "GET /" + "a" * size + "\x00 HTTP/1.1", "Host: h"
    ),
    "many versions": lambda size: head("GET /" + " HTTP/1.1" * (size // 9) + "x", "Host: h"),
    "a version that does not end": lambda size: head("GET / HTTP/1." + "1" * size, "Host: h"),
    "one name many times": lambda size: field(*["X:"] * (size // 4)),
    "many names": lambda size: field(*[f"X{number:04}:" for number in range(size // 10)]),
    "a second Host many times": lambda size: field(*["Host:"] * (size // 7)),
    "many options of the connection": lambda size: field("Connection:" + " ," * (size // 2)),
    "empty lines": lambda size: field(*[""] * (size // 2)),
}


def cost_s(data: bytes, times: int) -> float:
    """Return the least processor time that `times` readings of a head took."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(times):
            with suppress(Refusal):
                parsed = parse_head(data, limit=MAX_CERTIFIED_HEAD)
                assert (parsed.upgrade, parsed.closes) == ("", False)
        best = min(best, time.thread_time() - began)
    return best


@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY.keys())
def test_the_time_to_read_a_head_is_proportional_to_its_length(
    make: Callable[[int], bytes],
) -> None:
    small, large = make(60_000), make(960_000)
    assert 720_000 < len(large) <= MAX_CERTIFIED_HEAD
    # In linear time both are alike; in quadratic time the second is 16 times the first.
    whole_s = cost_s(large, 1)
    assert whole_s < 4 * cost_s(small, 16)
    assert whole_s < 0.25


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for candidate in (data, data + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            parsed = parse_head(candidate)
        except Refusal:
            continue
        assert parsed.target.startswith("/")
        assert not any(c in v for v in parsed.headers.values() for c in "\r\n\0")


def test_a_response_header_with_a_line_break_is_left_out() -> None:
    head = response_head(101, [("Upgrade", "websocket"), ("X", "a\nInjected: b"), ("Y", "a\rb")])
    assert head == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert response_head(599, []).startswith(b"HTTP/1.1 599 ")
