"""Any bytes at a running front: an answer or an end, in time; and nothing that was not permitted.

The desk is the real one. Whoever comes with the certificate of `reader` may read, whoever comes
without one is nobody; what would be asked of the worker is written down instead.
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

from desks import READS, Rule, desk_of
from fronts import Facade
from kubeocean.proxier.audit import Entry
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.places import Place
from kubeocean.proxier.routes import Logs, Run, Session
from kubeocean.proxier.sessions import Sessions


@dataclass
class _Sessions(Sessions):
    asked: list[Logs | Session | Run] = field(default_factory=list)

    async def logs(self, exchange: Exchange, asked: Logs, place: Place) -> None:
        self.asked.append(asked)
        await exchange.answer(200, b"a log")

    async def enter(self, exchange: Exchange, asked: Session, place: Place, entry: Entry) -> None:
        self.asked.append(asked)

    async def run(self, exchange: Exchange, asked: Run, place: Place, entry: Entry) -> None:
        self.asked.append(asked)


@dataclass
class Fuzzed:
    facade: Facade
    rule: Rule
    sessions: _Sessions
    contexts: dict[bool, ssl.SSLContext]


@pytest.fixture(scope="module")
async def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fuzzed]:
    rule, sessions = Rule(READS), _Sessions()
    desk = desk_of(rule, sessions)
    directory: Path = tmp_path_factory.mktemp("fuzz")
    async with Facade.running(desk.answer, directory) as facade:
        contexts = {named: facade.context(named=named) for named in (True, False)}
        yield Fuzzed(facade, rule, sessions, contexts)


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
    """Requests that are nearly right, and some that are not at all."""
    piece = st.one_of(st.sampled_from(TARGETS), st.text(max_size=30).map(lambda text: "/" + text))
    line = st.tuples(
        st.sampled_from(["GET", "POST", "HEAD", "PUT", "get", ""]),
        piece,
        st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2"]),
    ).map(" ".join)
    fields = st.lists(st.sampled_from(FIELDS), max_size=5).map(lambda got: ["Host: h", *got])
    end = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"])
    whole = st.builds(lambda first, rest, by: by.join([first, *rest, "", ""]), line, fields, end)
    written = whole.map(lambda text: text.encode("utf-8", "replace"))
    return st.one_of(
        st.lists(written, min_size=1, max_size=3).map(b"".join), st.binary(max_size=80)
    )


async def spoken(fuzzed: Fuzzed, data: bytes, *, named: bool) -> bytes:
    """What is answered until the end, which the last request asks for."""
    reader, writer = await fuzzed.facade.connect(fuzzed.contexts[named])
    fuzzed.facade.opened.remove(writer)
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


@given(data=heads(), named=st.booleans())
@settings(suppress_health_check=list(HealthCheck))
async def test_any_bytes_lead_to_an_answer_and_to_nothing_that_was_not_permitted(
    fuzzed: Fuzzed, data: bytes, named: bool
) -> None:
    before, permitted = len(fuzzed.sessions.asked), fuzzed.rule.permitted
    answer = await spoken(fuzzed, data, named=named)
    asked = fuzzed.sessions.asked[before:]
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer
    assert len(asked) <= fuzzed.rule.permitted - permitted
    assert not any(isinstance(each, Session | Run) for each in asked)
    assert named or not asked
    assert fuzzed.facade.front.ports


async def test_the_front_still_answers_after_all_that(fuzzed: Fuzzed) -> None:
    said = b"GET /containerLogs/ns/pod/main HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    assert b"a log" in await fuzzed.facade.say(said, fuzzed.facade.context())
    # And a session that is permitted comes through, or the test above would prove nothing.
    assert isinstance(fuzzed.sessions.asked[-1], Logs)
