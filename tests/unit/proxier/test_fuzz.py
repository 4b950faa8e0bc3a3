"""Any bytes at a running server: a response or an end, in time, and no unauthorized session.

The handler is the real one. Callers with a certificate may read, callers without one are not
authenticated; sessions that would be opened in the worker are recorded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeocean.proxier.audit import AuditEntry
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.pod_lookup import PodLocation
from kubeocean.proxier.routes import Logs, Run, Session
from kubeocean.proxier.sessions import Sessions
from support.proxier_handler import READS, FixedRights, handler_of
from support.proxier_server import RunningServer


@dataclass
class _Sessions(Sessions):
    routes: list[Logs | Session | Run] = field(default_factory=list)

    async def logs(self, exchange: Exchange, route: Logs, location: PodLocation) -> None:
        self.routes.append(route)
        await exchange.respond(200, b"a log")

    async def stream(
        self, exchange: Exchange, route: Session, location: PodLocation, entry: AuditEntry
    ) -> None:
        self.routes.append(route)

    async def run(
        self, exchange: Exchange, route: Run, location: PodLocation, entry: AuditEntry
    ) -> None:
        self.routes.append(route)


@dataclass
class Fuzzed:
    proxier: RunningServer
    rights: FixedRights
    sessions: _Sessions
    contexts: dict[bool, ssl.SSLContext]


@pytest.fixture(scope="module")
async def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fuzzed]:
    rights, sessions = FixedRights(READS), _Sessions()
    handler = handler_of(rights, sessions)
    directory: Path = tmp_path_factory.mktemp("fuzz")
    async with RunningServer.running(handler.handle, directory) as proxier:
        contexts = {each: proxier.context(certified=each) for each in (True, False)}
        yield Fuzzed(proxier, rights, sessions, contexts)


TARGETS = [
    "/pods",
    "/metrics",
    "/healthz",
    "/exec/ns/pod/main?command=id&output=1",
    "/run/ns/pod/main?cmd=id",
    "/portForward/ns/pod?port=80",
    "/attach/ns/pod/main?output=1",
    "/containerLogs/ns/pod/main?follow=true",
    "/containerLogs/ns/../main",
    "/containerLogs/ns/%2e%2e/main",
    "/../exec/ns/pod/main?command=id&output=1",
    "//exec/ns/pod/main?command=id&output=1",
]
FIELDS = [
    "Host: h",
    "Connection: Upgrade",
    "Connection: close",
    "Upgrade: SPDY/3.1",
    "Upgrade: websocket",
    "Content-Length: 0",
    "Content-Length: 30",
    "Transfer-Encoding: chunked",
    "Authorization: Bearer x",
    "X-Remote-User: admin",
    "Host : h",
    " folded",
    "X: a\x00b",
]


def heads() -> st.SearchStrategy[bytes]:
    """Return a strategy of requests that are nearly valid, and of invalid ones."""
    piece = st.one_of(st.sampled_from(TARGETS), st.text(max_size=30).map(lambda text: "/" + text))
    line = st.tuples(
        st.sampled_from(["GET", "POST", "HEAD", "PUT", "get", ""]),
        piece,
        st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2"]),
    ).map(" ".join)
    fields = st.lists(st.sampled_from(FIELDS), max_size=5).map(lambda few: ["Host: h", *few])
    end = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"])
    whole = st.builds(lambda first, rest, by: by.join([first, *rest, "", ""]), line, fields, end)
    written = whole.map(lambda text: text.encode("utf-8", "replace"))
    return st.one_of(
        st.lists(written, min_size=1, max_size=3).map(b"".join), st.binary(max_size=80)
    )


async def answer_to(fuzzed: Fuzzed, data: bytes, *, certified: bool) -> bytes:
    """Return all answers until the connection ends; the last request asks to close it."""
    reader, writer = await fuzzed.proxier.connect(fuzzed.contexts[certified])
    fuzzed.proxier.opened.remove(writer)
    try:
        writer.write(
            data + b"GET /containerLogs/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@given(data=heads(), certified=st.booleans())
@settings(suppress_health_check=list(HealthCheck))
async def test_any_bytes_get_a_response_and_open_no_unauthorized_session(
    fuzzed: Fuzzed, data: bytes, certified: bool
) -> None:
    before, authorized = len(fuzzed.sessions.routes), fuzzed.rights.authorized
    answer = await answer_to(fuzzed, data, certified=certified)
    routes = fuzzed.sessions.routes[before:]
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer
    assert len(routes) <= fuzzed.rights.authorized - authorized
    assert not any(isinstance(each, Session | Run) for each in routes)
    assert certified or not routes
    assert fuzzed.proxier.server.ports


async def test_the_server_still_serves_a_log_after_the_fuzzing(fuzzed: Fuzzed) -> None:
    request = b"GET /containerLogs/ns/pod/main HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    assert b"a log" in await fuzzed.proxier.send(request, fuzzed.proxier.context())
    # An authorized session is opened, or the fuzzing would prove nothing.
    assert isinstance(fuzzed.sessions.routes[-1], Logs)
