"""Workers that do not behave: what their answers can do to a caller, and what they cannot."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from desks import ENTERS, Rule, desk_of
from fronts import Facade
from kubeocean.proxier import sessions
from kubeocean.proxier.figures import KINDS, REASONS, Figures
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import HttpTransport
from servers import Server, head_of, serving
from waiting import until

Worker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EXEC = (
    b"POST /exec/ns/pod/main?command=id&output=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
    b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
    b"Authorization: Bearer secret-of-the-caller\r\n\r\n"
)
LOGS = b"GET /containerLogs/ns/pod/main?follow=true HTTP/1.1\r\nHost: h\r\n\r\n"
RUN = b"POST /run/ns/pod/main?cmd=id HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def named(uid: str) -> bytes:
    """What a worker says of a pod with this UID."""
    body = json.dumps({"metadata": {"name": "pod-1", "namespace": "below", "uid": uid}}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def before(
    worker: Worker,
    directory: Path,
    *,
    idle_s: float = 30.0,
    metrics: Metrics | None = None,
    uids: Iterable[str] = (),
) -> AsyncIterator[tuple[Facade, Server]]:
    """A front before such a worker, where the pod has these UIDs, one after the other."""
    said = chain(uids, repeat("b1"))

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await head_of(server, reader)
        if head.startswith("GET /api/v1/namespaces/below/pods/pod-1 HTTP"):
            server.heads.pop()
            writer.write(named(next(said)))
        else:
            await worker(reader, writer)
        await writer.drain()

    async with serving(handle) as server:
        client = Client(HttpTransport(StaticAccess(Access(server.url))), cluster="worker")
        figures = Figures(metrics)
        desk = desk_of(Rule(ENTERS), Sessions(client, idle_s=idle_s), figures=figures)
        async with Facade.running(desk.answer, directory) as facade:
            yield facade, server
        await client.close()


def saying(answer: bytes) -> Worker:
    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return worker


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: https://10.0.0.1/\r\nContent-Length: 0\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 502),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", 400),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno", 502),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 502),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404),
        (b"HTTP/1.1 599 Odd\r\nContent-Length: 2\r\n\r\nno", 599),
        (b"HTTP/1.1 999 Odder\r\nContent-Length: 2\r\n\r\nno", 502),
        (SWITCH + b"Upgrade: h2c\r\n\r\n", 502),
        (SWITCH + b"Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: other\r\n\r\n", 502),
        (b"what?\r\n\r\n", 502),
        (b"", 502),
    ],
)
async def test_only_the_switch_that_was_asked_for_opens_a_tunnel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: bytes, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    async with before(saying(answer), tmp_path) as (facade, server):
        said = await facade.say(EXEC, facade.context())
    assert said.startswith(f"HTTP/1.1 {status} ".encode()), said
    assert b"Location" not in said
    (line,) = [each.msg for each in caplog.records if each.name == "kubeocean.audit"]
    assert isinstance(line, dict)
    assert line["event"] == "Refused kubelet request"
    assert {"status": status, "what": "exec", "pod": "ns/pod"}.items() <= line.items()
    assert len(server.heads) == 1
    assert "secret-of-the-caller" not in server.heads[0]
    assert server.lines == [
        "POST /api/v1/namespaces/below/pods/pod-1/exec?container=main&command=id&stdout=true"
    ]


async def test_headers_of_a_worker_cannot_write_ours(tmp_path: Path) -> None:
    chosen = b"Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
    odd = b"Sec-WebSocket-Accept: a\nInjected: b\r\nSet-Cookie: c=d\r\n\r\nbytes"
    async with before(saying(SWITCH + chosen + odd), tmp_path) as (facade, _):
        said = await facade.say(EXEC, facade.context())
    head, _, rest = said.partition(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        b"X-Stream-Protocol-Version: v4.channel.k8s.io"
    )
    assert rest == b"bytes"


async def test_a_request_with_a_body_is_not_switched(tmp_path: Path) -> None:
    async with before(saying(b""), tmp_path) as (facade, server):
        odd = EXEC.replace(b"Content-Length: 0", b"Content-Length: 4")
        assert b" 400 " in await facade.say(odd + b"abcd", facade.context())
    assert not server.heads


async def test_a_log_is_plain_text_whatever_the_worker_says(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<b>"
    async with before(saying(answer), tmp_path) as (facade, _):
        reader, writer = await facade.connect(facade.context())
        writer.write(LOGS)
        said = await reader.readuntil(b"0\r\n\r\n")
    assert b"Content-Type: text/plain" in said
    assert b"<b>" in said


async def test_a_log_that_breaks_off_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
    async with before(saying(answer), tmp_path) as (facade, _):
        said = await facade.say(LOGS, facade.context())
    assert b"begun" in said
    assert not said.endswith(b"0\r\n\r\n")


async def test_a_log_is_let_go_of_when_nobody_listens(tmp_path: Path) -> None:
    """Before the worker has said a word, and though it never will."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with before(silent, tmp_path) as (facade, server):
        _, writer = await facade.connect(facade.context())
        writer.write(LOGS)
        await until(lambda: server.open == 1)
        writer.close()
        await until(lambda: server.open == 0)
        await until(lambda: facade.front.connections == 0)


async def test_a_followed_log_may_begin_when_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server says nothing before the container does; any other log begins at once."""
    monkeypatch.setattr(sessions, "_HEAD_S", 0.1)

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(0.5):
            await reader.read()

    async def awake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError):
            await late(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nawake")

    async with before(awake, tmp_path) as (facade, _):
        reader, writer = await facade.connect(facade.context())
        writer.write(LOGS)
        assert b"awake" in await reader.readuntil(b"0\r\n\r\n")
        plain = LOGS.replace(b"?follow=true", b"")
        assert b" 502 " in await facade.say(plain, facade.context())


async def test_a_session_that_is_silent_for_too_long_ends(tmp_path: Path) -> None:
    async def switching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n")
        await reader.read()

    async with before(switching, tmp_path, idle_s=0.3) as (facade, _):
        said = await facade.say(EXEC, facade.context())
    assert b" 101 " in said


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (LOGS, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
        (EXEC, SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n"),
    ],
    ids=["logs", "exec"],
)
async def test_a_caller_that_does_not_read_makes_the_worker_wait(
    tmp_path: Path, asked: bytes, answer: bytes
) -> None:
    """Nothing piles up in between but what kernels hold of three connections."""
    sent = [0]

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent[0] += 65_536

    async with before(endless, tmp_path) as (facade, _):
        reader, writer = await facade.connect(facade.context())
        writer.write(asked)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        last = [-1]

        def waits() -> bool:
            before, last[0] = last[0], sent[0]
            return before == sent[0]

        await until(waits, every=0.3)
        assert sent[0] < 32 << 20


def frame(channel: int, content: bytes, *, opcode: int = 2) -> bytes:
    payload = bytes((channel,)) + content
    return bytes((0x80 | opcode, 126)) + len(payload).to_bytes(2, "big") + payload


UPGRADED = SWITCH + b"Upgrade: websocket\r\n\r\n"
FAILURE = b'{"status":"Failure","message":"command terminated with exit code 3"}'


@pytest.mark.parametrize(
    ("frames", "status", "text"),
    [
        (frame(1, b"a") + frame(2, b"b") + frame(3, b'{"status":"Success"}'), 200, b"ab"),
        (frame(1, b"out") + frame(3, FAILURE), 500, b"exit code 3: out"),
        (frame(1, b"a"), 500, b"command failed"),
        (frame(3, b"nonsense"), 500, b"nobody can tell"),
        (b"\x81\xff" + b"\0" * 8, 502, b"does not answer"),
        (b"\x82\x7f" + b"\xff" * 8, 502, b"does not answer"),
    ],
)
async def test_a_command_is_answered_with_what_it_printed_and_how_it_ended(
    tmp_path: Path, frames: bytes, status: int, text: bytes
) -> None:
    async with before(saying(UPGRADED + frames), tmp_path) as (facade, _):
        said = await facade.say(RUN, facade.context())
    assert said.startswith(f"HTTP/1.1 {status} ".encode()), said
    assert text in said


async def test_sessions_are_counted_by_kind_and_reason_and_nothing_else(tmp_path: Path) -> None:
    metrics = Metrics()
    switch = SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n" + b"x" * 1000
    async with before(saying(switch), tmp_path, metrics=metrics) as (facade, _):
        await facade.say(EXEC + b"y" * 10, facade.context())
        await facade.say(LOGS)
        context = facade.context()
        for n in range(5):
            await facade.say(f"GET /x{n} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), context)
    value = metrics.value
    assert value("kubeocean_proxier_bytes_total", {"kind": "exec", "direction": "out"}) == 1000
    assert value("kubeocean_proxier_sessions", {"kind": "exec"}) == 0
    assert value("kubeocean_proxier_refusals_total", {"reason": "unauthenticated"}) == 1
    assert value("kubeocean_proxier_refusals_total", {"reason": "not_found"}) == 5
    page = metrics.render().decode()
    assert page.count("kubeocean_proxier_refusals_total{") == len(REASONS)
    assert page.count("kubeocean_proxier_sessions{") == len(KINDS)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (LOGS, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"),
        (EXEC, SWITCH + b"Upgrade: SPDY/3.1\r\n\r\nsecret"),
        (RUN, UPGRADED + frame(1, b"secret") + frame(3, b'{"status":"Success"}')),
    ],
    ids=["logs", "exec", "run"],
)
@pytest.mark.parametrize("uids", [("other",), ("b1", "other")], ids=["before", "meanwhile"])
async def test_nobody_gets_into_a_pod_that_has_come_in_the_others_place(
    tmp_path: Path, asked: bytes, answer: bytes, uids: tuple[str, ...]
) -> None:
    if asked is LOGS:
        uids = uids[-1:]  # a log is only read, and nothing of it is shown before
    async with before(saying(answer), tmp_path, uids=uids) as (facade, server):
        said = await facade.say(asked, facade.context())
    assert said.startswith(b"HTTP/1.1 404 "), said
    assert b"secret" not in said
    # A command did not even begin, if it could be known.
    assert len(server.heads) == (0 if uids == ("other",) and asked is not LOGS else 1)


async def test_a_log_that_was_moved_is_not_looked_for(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with before(saying(answer), tmp_path) as (facade, server):
        said = await facade.say(LOGS, facade.context())
    assert said.startswith(b"HTTP/1.1 502 ")
    assert b"Location" not in said
    assert len(server.heads) == 1


async def test_what_a_command_printed_is_not_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    why = b'{"status":"Failure","message":"no such program: canary-word"}'
    frames = frame(1, b"canary-output") + frame(3, why)
    run = RUN.replace(b"cmd=id", b"cmd=canary-command")
    async with before(saying(UPGRADED + frames), tmp_path) as (facade, _):
        said = await facade.say(run, facade.context())
    assert b"canary-word: canary-output" in said
    (line,) = [each for each in caplog.records if each.name == "kubeocean.audit"]
    assert "the command failed" in str(line.__dict__)
    assert not any("canary" in str(each.__dict__) for each in caplog.records)


HOSTILE = (
    b"Impersonate-User: admin\r\nX-Remote-User: admin\r\nX-Forwarded-For: 1.2.3.4\r\n"
    b"Cookie: a=b\r\nVia: x\r\nTE: trailers\r\nOrigin: https://evil\r\n"
)


async def test_no_header_of_a_caller_but_those_of_the_protocol_reaches_the_worker(
    tmp_path: Path,
) -> None:
    odd = EXEC.replace(b"command=id", b"command=a%26container%3dother%0d%0aX:%20y&container=other")
    odd = odd.replace(b"Host: h\r\n", b"Host: h\r\n" + HOSTILE)
    async with before(saying(b""), tmp_path) as (facade, server):
        await facade.say(odd, facade.context())
    (head,) = server.heads
    line, *fields = head.strip().split("\r\n")
    assert line.startswith("POST /api/v1/namespaces/below/pods/pod-1/exec?container=main&command=")
    assert "container=other" not in line
    assert {field.partition(":")[0].lower() for field in fields} == {
        "host",
        "connection",
        "upgrade",
        "content-length",
        "accept",
        "user-agent",
        "x-stream-protocol-version",
    }


def test_the_key_of_a_websocket_is_as_long_as_it_must_be() -> None:
    from kubeocean.proxier.frames import handshake

    assert len(base64.b64decode(handshake()["Sec-WebSocket-Key"])) == 16
