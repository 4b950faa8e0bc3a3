"""The head of a request: read in one way, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import Refusal
from kubeocean.proxier.heads import LIMIT, parse


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_request_is_read() -> None:
    read = parse(head("GET /pods?a=b HTTP/1.1", "Host: here", "X-A: 1", "x-a:2 "))
    assert (read.method, read.target) == ("GET", "/pods?a=b")
    assert read.headers.getall("X-A") == ["1", "2"]
    assert read.upgrade == ""


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        (("Connection: Upgrade", "Upgrade: SPDY/3.1"), "spdy/3.1"),
        (("Connection: keep-alive, upgrade", "Upgrade: websocket"), "websocket"),
        (("Upgrade: websocket",), ""),
        (("Connection: close", "Upgrade: websocket"), ""),
    ],
)
def test_an_upgrade_is_one_only_if_the_connection_says_so(
    fields: tuple[str, ...], protocol: str
) -> None:
    assert parse(head("POST /exec HTTP/1.1", "Host: here", *fields)).upgrade == protocol


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
def test_what_could_be_read_in_two_ways_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(Refusal):
        parse(head(*lines))


def test_a_head_that_does_not_end_is_refused() -> None:
    with pytest.raises(Refusal):
        parse(b"GET / HTTP/1.1\r\nHost: h\r\n")


def test_a_head_over_the_limit_is_refused() -> None:
    with pytest.raises(Refusal, match=str(LIMIT)):
        parse(head("GET / HTTP/1.1", "Host: h", "X: " + "a" * LIMIT))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for candidate in (data, data + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            read = parse(candidate)
        except Refusal:
            continue
        assert read.target.startswith("/")
        assert not any(c in v for v in read.headers.values() for c in "\r\n\0")
