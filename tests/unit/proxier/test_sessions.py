"""Sessions with workers that misbehave, their audit lines and their metrics."""

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

from kubeocean.proxier import sessions
from kubeocean.proxier.metrics import KINDS, REASONS, ProxierMetrics
from kubeocean.proxier.sessions import Sessions
from kubeocean.proxier.websocket import handshake
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import HttpTransport
from support.proxier_handler import ENTERS, FixedRights, handler_of
from support.proxier_server import RunningServer
from support.servers import Server, head_of, serving
from support.wait import until

Worker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EXEC = (
    b"POST /exec/ns/pod/main?command=id&output=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
    b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
    b"Authorization: Bearer secret-of-the-caller\r\n\r\n"
)
LOGS = b"GET /containerLogs/ns/pod/main?follow=true HTTP/1.1\r\nHost: h\r\n\r\n"
RUN = b"POST /run/ns/pod/main?cmd=id HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def pod_response(uid: str) -> bytes:
    """Return the worker's response for a pod with this UID."""
    body = json.dumps({"metadata": {"name": "pod-1", "namespace": "worker", "uid": uid}}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def proxier_of(
    worker: Worker,
    directory: Path,
    *,
    idle_s: float = 30.0,
    metrics: Metrics | None = None,
    uids: Iterable[str] = (),
) -> AsyncIterator[tuple[RunningServer, Server]]:
    """Yield a server for this worker, in which the pod has these UIDs, one after the other."""
    pod_uids = chain(uids, repeat("b1"))

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await head_of(server, reader)
        if head.startswith("GET /api/v1/namespaces/worker/pods/pod-1 HTTP"):
            server.heads.pop()
            writer.write(pod_response(next(pod_uids)))
        else:
            await worker(reader, writer)
        await writer.drain()

    async with serving(handle) as server:
        client = Client(HttpTransport(StaticAccess(Access(server.url))), cluster="worker")
        handler = handler_of(
            FixedRights(ENTERS),
            Sessions(client, idle_s=idle_s),
            metrics=ProxierMetrics(metrics),
        )
        async with RunningServer.running(handler.handle, directory) as proxier:
            yield proxier, server
        await client.close()


def answering(answer: bytes) -> Worker:
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
async def test_only_the_requested_switch_of_protocols_is_relayed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: bytes, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    async with proxier_of(answering(answer), tmp_path) as (proxier, server):
        response = await proxier.send(EXEC, proxier.context())
    assert response.startswith(f"HTTP/1.1 {status} ".encode()), response
    assert b"Location" not in response
    (line,) = [each.msg for each in caplog.records if each.name == "kubeocean.audit"]
    assert isinstance(line, dict)
    assert line["msg"] == "Refused kubelet request"
    assert {"status": status, "what": "exec", "pod": "ns/pod"}.items() <= line.items()
    assert len(server.heads) == 1
    assert "secret-of-the-caller" not in server.heads[0]
    assert server.lines == [
        "POST /api/v1/namespaces/worker/pods/pod-1/exec?container=main&command=id&stdout=true"
    ]


async def test_headers_of_a_worker_cannot_inject_headers(tmp_path: Path) -> None:
    chosen = b"Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
    odd = b"Sec-WebSocket-Accept: a\nInjected: b\r\nSet-Cookie: c=d\r\n\r\nbytes"
    async with proxier_of(answering(SWITCH + chosen + odd), tmp_path) as (proxier, _):
        response = await proxier.send(EXEC, proxier.context())
    head, _, rest = response.partition(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        b"X-Stream-Protocol-Version: v4.channel.k8s.io"
    )
    assert rest == b"bytes"


async def test_a_request_with_a_body_is_not_switched(tmp_path: Path) -> None:
    async with proxier_of(answering(b""), tmp_path) as (proxier, server):
        odd = EXEC.replace(b"Content-Length: 0", b"Content-Length: 4")
        assert b" 400 " in await proxier.send(odd + b"abcd", proxier.context())
    assert not server.heads


async def test_a_log_is_plain_text_whatever_the_worker_sends(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<b>"
    async with proxier_of(answering(answer), tmp_path) as (proxier, _):
        reader, writer = await proxier.connect(proxier.context())
        writer.write(LOGS)
        response = await reader.readuntil(b"0\r\n\r\n")
    assert b"Content-Type: text/plain" in response
    assert b"<b>" in response


async def test_a_log_that_breaks_off_does_not_end_like_a_whole_one(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
    async with proxier_of(answering(answer), tmp_path) as (proxier, _):
        response = await proxier.send(LOGS, proxier.context())
    assert b"begun" in response
    assert not response.endswith(b"0\r\n\r\n")


async def test_a_log_is_closed_when_the_caller_disconnects(tmp_path: Path) -> None:
    """Also before the worker has sent anything."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with proxier_of(silent, tmp_path) as (proxier, server):
        _, writer = await proxier.connect(proxier.context())
        writer.write(LOGS)
        await until(lambda: server.open == 1)
        writer.close()
        await until(lambda: server.open == 0)
        await until(lambda: proxier.server.connections == 0)


async def test_a_followed_log_may_begin_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server sends nothing before the container prints; any other log begins at once."""
    monkeypatch.setattr(sessions, "_HEAD_S", 0.1)

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(0.5):
            await reader.read()

    async def awake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError):
            await late(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nawake")

    async with proxier_of(awake, tmp_path) as (proxier, _):
        reader, writer = await proxier.connect(proxier.context())
        writer.write(LOGS)
        assert b"awake" in await reader.readuntil(b"0\r\n\r\n")
        plain = LOGS.replace(b"?follow=true", b"")
        assert b" 502 " in await proxier.send(plain, proxier.context())


async def test_an_idle_session_ends(tmp_path: Path) -> None:
    async def switching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n")
        await reader.read()

    async with proxier_of(switching, tmp_path, idle_s=0.3) as (proxier, _):
        response = await proxier.send(EXEC, proxier.context())
    assert b" 101 " in response


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (LOGS, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
        (EXEC, SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n"),
    ],
    ids=["logs", "exec"],
)
async def test_a_caller_that_does_not_read_makes_the_worker_wait(
    tmp_path: Path, request_: bytes, answer: bytes
) -> None:
    """Only the kernel buffers of three connections are filled."""
    sent = [0]

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent[0] += 65_536

    async with proxier_of(endless, tmp_path) as (proxier, _):
        reader, writer = await proxier.connect(proxier.context())
        writer.write(request_)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        last = [-1]

        def waits() -> bool:
            previous, last[0] = last[0], sent[0]
            return previous == sent[0]

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
        (frame(3, b"nonsense"), 500, b"cannot be read"),
        (b"\x81\xff" + b"\0" * 8, 502, b"does not answer"),
        (b"\x82\x7f" + b"\xff" * 8, 502, b"does not answer"),
    ],
)
async def test_the_response_to_run_is_the_output_and_the_failure_of_the_command(
    tmp_path: Path, frames: bytes, status: int, text: bytes
) -> None:
    async with proxier_of(answering(UPGRADED + frames), tmp_path) as (proxier, _):
        response = await proxier.send(RUN, proxier.context())
    assert response.startswith(f"HTTP/1.1 {status} ".encode()), response
    assert text in response


async def test_requests_are_counted_by_kind_and_reason_only(tmp_path: Path) -> None:
    metrics = Metrics()
    switch = SWITCH + b"Upgrade: SPDY/3.1\r\n\r\n" + b"x" * 1000
    async with proxier_of(answering(switch), tmp_path, metrics=metrics) as (proxier, _):
        await proxier.send(EXEC + b"y" * 10, proxier.context())
        await proxier.send(LOGS)
        context = proxier.context()
        for n in range(5):
            await proxier.send(f"GET /x{n} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), context)
    value = metrics.value
    assert value("kubeocean_proxier_bytes_total", {"kind": "exec", "direction": "out"}) == 1000
    assert value("kubeocean_proxier_sessions", {"kind": "exec"}) == 0
    assert value("kubeocean_proxier_refusals_total", {"reason": "unauthenticated"}) == 1
    assert value("kubeocean_proxier_refusals_total", {"reason": "not_found"}) == 5
    page = metrics.render().decode()
    assert page.count("kubeocean_proxier_refusals_total{") == len(REASONS)
    assert page.count("kubeocean_proxier_sessions{") == len(KINDS)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (LOGS, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"),
        (EXEC, SWITCH + b"Upgrade: SPDY/3.1\r\n\r\nsecret"),
        (RUN, UPGRADED + frame(1, b"secret") + frame(3, b'{"status":"Success"}')),
    ],
    ids=["logs", "exec", "run"],
)
@pytest.mark.parametrize("uids", [("other",), ("b1", "other")], ids=["before", "meanwhile"])
async def test_no_session_is_opened_with_another_pod_that_took_the_name(
    tmp_path: Path, request_: bytes, answer: bytes, uids: tuple[str, ...]
) -> None:
    if request_ is LOGS:
        uids = uids[-1:]  # of a log nothing is sent before the second check
    async with proxier_of(answering(answer), tmp_path, uids=uids) as (proxier, server):
        response = await proxier.send(request_, proxier.context())
    assert response.startswith(b"HTTP/1.1 404 "), response
    assert b"secret" not in response
    # The command was not started where the first check failed.
    assert len(server.heads) == (0 if uids == ("other",) and request_ is not LOGS else 1)


async def test_a_redirect_of_a_log_is_not_followed(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with proxier_of(answering(answer), tmp_path) as (proxier, server):
        response = await proxier.send(LOGS, proxier.context())
    assert response.startswith(b"HTTP/1.1 502 ")
    assert b"Location" not in response
    assert len(server.heads) == 1


async def test_commands_and_their_output_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    status = b'{"status":"Failure","message":"no such program: canary-word"}'
    frames = frame(1, b"canary-output") + frame(3, status)
    run = RUN.replace(b"cmd=id", b"cmd=canary-command")
    async with proxier_of(answering(UPGRADED + frames), tmp_path) as (proxier, _):
        response = await proxier.send(run, proxier.context())
    assert b"canary-word: canary-output" in response
    (line,) = [each for each in caplog.records if each.name == "kubeocean.audit"]
    assert "the command failed" in str(line.__dict__)
    assert not any("canary" in str(each.__dict__) for each in caplog.records)


HOSTILE = (
    b"Impersonate-User: admin\r\nX-Remote-User: admin\r\nX-Forwarded-For: 1.2.3.4\r\n"
    b"Cookie: a=b\r\nVia: x\r\nTE: trailers\r\nOrigin: https://evil\r\n"
)


async def test_only_protocol_headers_of_a_caller_reach_the_worker(
    tmp_path: Path,
) -> None:
    odd = EXEC.replace(b"command=id", b"command=a%26container%3dother%0d%0aX:%20y&container=other")
    odd = odd.replace(b"Host: h\r\n", b"Host: h\r\n" + HOSTILE)
    async with proxier_of(answering(b""), tmp_path) as (proxier, server):
        await proxier.send(odd, proxier.context())
    (head,) = server.heads
    line, *fields = head.strip().split("\r\n")
    assert line.startswith("POST /api/v1/namespaces/worker/pods/pod-1/exec?container=main&command=")
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


def test_the_key_of_a_websocket_handshake_has_16_bytes() -> None:
    assert len(base64.b64decode(handshake()["Sec-WebSocket-Key"])) == 16


@pytest.mark.parametrize("page", ["/pods", "/runningpods"])
async def test_a_page_that_lists_pods_leaves_an_audit_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: str
) -> None:
    """A pod list shows the environment of every container; pages that are scraped leave none."""
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    async with proxier_of(answering(b""), tmp_path) as (proxier, _):
        proxier.port = await proxier.server.open_port(0, "v1")
        for target in ("/metrics/resource", page):
            head = f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            assert b" 200 " in await proxier.send(head.encode(), proxier.context())
    (line,) = [each.msg for each in caplog.records if each.name == "kubeocean.audit"]
    assert isinstance(line, dict)
    assert line["msg"] == "Served kubelet request"
    assert {"status": 200, "what": page[1:], "user": "caller", "node": "v1"}.items() <= line.items()
