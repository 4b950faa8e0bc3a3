"""What somebody with bad intentions says to a running front: with and without a name."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from desks import ENTERS, READS, Rule, desk_of
from fronts import Facade, pair_of
from kubeocean.errors import ConfigError
from kubeocean.local.pki import Authority, Subject
from kubeocean.proxier import front as fronts
from kubeocean.proxier import identity as identities
from kubeocean.proxier import rooms
from kubeocean.proxier.audit import Entry
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.identity import Identity
from kubeocean.proxier.listening import accept, agree, listen
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.places import Place
from kubeocean.proxier.routes import Logs, Run, Session
from kubeocean.proxier.sessions import Sessions
from waiting import until

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
LOGS = b"GET /containerLogs/ns/pod/main HTTP/1.1\r\n"
EXEC = b"GET /exec/ns/pod/main?command=id&output=1 HTTP/1.1\r\n"


class _Sessions(Sessions):
    """Writes down what would be asked of the worker."""

    def __init__(self) -> None:
        self.asked: list[Logs | Session | Run] = []

    async def logs(self, exchange: Exchange, asked: Logs, place: Place) -> None:
        self.asked.append(asked)
        await exchange.answer(200, b"a log")

    async def enter(self, exchange: Exchange, asked: Session, place: Place, entry: Entry) -> None:
        self.asked.append(asked)
        await exchange.answer(400, b"no")

    async def run(self, exchange: Exchange, asked: Run, place: Place, entry: Entry) -> None:
        self.asked.append(asked)
        await exchange.answer(200, b"ran")


@pytest.fixture
def asked() -> _Sessions:
    return _Sessions()


@pytest.fixture
async def facade(tmp_path: Path, asked: _Sessions) -> AsyncIterator[Facade]:
    desk = desk_of(Rule(READS), asked)
    async with Facade.running(desk.answer, tmp_path) as running:
        yield running


# Who


@pytest.mark.parametrize("kind", ["server", "both", "neither"])
async def test_a_certificate_that_is_not_for_clients_is_nobodys(
    facade: Facade, tmp_path: Path, kind: str
) -> None:
    """A cluster signs certificates of servers with the same authority."""
    subject = Subject("caller", (), ("127.0.0.1",), server=kind != "neither", client=kind == "both")
    facade.authority.issue(subject).save(tmp_path, "odd")
    context = facade.context(named=False)
    context.load_cert_chain(tmp_path / "odd.crt", tmp_path / "odd.key")
    try:
        answer = await facade.say(LOGS + b"Host: h\r\nConnection: close\r\n\r\n", context)
    except ssl.SSLError:
        answer = b""
    assert (b" 200 " in answer) == (kind == "both")


async def test_a_caller_cannot_become_another_one_on_its_connection(facade: Facade) -> None:
    """Neither by asking for another handshake nor by showing its certificate later."""
    options = facade.identity.context.options
    assert options & ssl.OP_NO_RENEGOTIATION
    context = facade.context()
    context.post_handshake_auth = True
    assert b" 200 " in await facade.say(LOGS + b"Host: h\r\nConnection: close\r\n\r\n", context)


# Smuggling


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
        b"Content-Length: 0, 5\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: 0x0\r\n\r\n",
        b"Content-Length:\r\n\r\n",
        b"Content-Length : 5\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n",
        b"X: a\r\n Content-Length: 5\r\n\r\n",
        b"X: a\rContent-Length: 5\r\n\r\n",
        b"X: a\nContent-Length: 5\r\n\r\n",
        b"X\x00: a\r\n\r\n",
        b": a\r\n\r\n",
        b"Connection: upgrade\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_what_follows_an_odd_head_is_not_taken_for_a_request(
    facade: Facade, asked: _Sessions, head: bytes
) -> None:
    said = LOGS + b"Host: h\r\n" + head + EXEC + b"Host: h\r\n\r\n" + LOGS + b"Host: h\r\n\r\n"
    answer = await facade.say(said, facade.context())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(asked.asked) <= 1
    assert not any(isinstance(each, Session | Run) for each in asked.asked)


@pytest.mark.parametrize(
    "line",
    [
        b"GET /containerLogs/ns/pod/main",
        b"GET /containerLogs/ns/pod/main HTTP/1.0",
        b"GET /containerLogs/ns/pod/main HTTP/1.10",
        b"GET https://h/containerLogs/ns/pod/main HTTP/1.1",
        b"GET //h/containerLogs/ns/pod/main HTTP/1.1",
        b"GET /./containerLogs/ns/pod/main HTTP/1.1",
        b"GET /x/../containerLogs/ns/pod/main HTTP/1.1",
        b"GET /containerLogs//ns/pod/main HTTP/1.1",
        b"GET /containerLogs/ns/pod/main/ HTTP/1.1",
        b"GET /containerLogs/ns/pod%2fmain HTTP/1.1",
        b"GET /containerLogs/ns/pod/main%00 HTTP/1.1",
        b"GET /containerLogs\\ns\\pod\\main HTTP/1.1",
        b"GET /containerlogs/ns/pod/main HTTP/1.1",
        b"GET /containerLogs/NS/pod/main HTTP/1.1",
        b"GET /containerLogs/ns/pod/main;x HTTP/1.1",
        b"GET /containerLogs/ns/pod/main\tHTTP/1.1",
        b"CONNECT 10.0.0.1:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"TRACE /containerLogs/ns/pod/main HTTP/1.1",
        b"PRI * HTTP/2.0",
    ],
)
async def test_no_other_form_of_a_target_leads_to_a_pod(
    facade: Facade, asked: _Sessions, line: bytes
) -> None:
    answer = await facade.say(line + b"\r\nHost: h\r\n\r\n", facade.context())
    assert answer[9:10] in (b"4", b"5"), answer
    assert not asked.asked


async def test_a_log_with_an_upgrade_is_a_log_and_a_shell_behind_it_is_none(
    facade: Facade, asked: _Sessions
) -> None:
    upgrade = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    answer = await facade.say(LOGS + upgrade + EXEC + upgrade, facade.context())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"a logHTTP/1.1 403 Forbidden\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 2
    assert [type(each) for each in asked.asked] == [Logs]


async def test_nothing_follows_an_upgrade_that_was_refused(tmp_path: Path) -> None:
    """What comes behind it was for somebody who speaks another protocol."""
    asked = _Sessions()
    async with Facade.running(desk_of(Rule(ENTERS), asked).answer, tmp_path) as facade:
        upgrade = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        answer = await facade.say(EXEC + upgrade + LOGS + b"Host: h\r\n\r\n", facade.context())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(asked.asked) == 1


# Exhaustion


async def test_who_has_no_name_asks_for_our_health_once(facade: Facade) -> None:
    answer = await facade.say(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 1000)
    assert answer.count(b" 200 ") == 1


async def from_address(facade: Facade, address: str, tls: ssl.SSLContext | None) -> bytes:
    """What somebody is answered who comes from that address."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", facade.port, ssl=tls, local_addr=(address, 0)
    )
    facade.opened.append(writer)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    try:
        return await reader.read(100)
    except ConnectionError:
        return b""


async def test_an_address_that_says_nothing_leaves_room_for_others(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_SHAKING_ALIKE", 5)
    silent = [await asyncio.open_connection("127.0.0.1", facade.port) for _ in range(8)]
    await until(lambda: facade.front.connections == 5)
    with pytest.raises(OSError):
        await facade.connect(facade.context())
    assert b" 200 " in await from_address(facade, "127.0.0.7", facade.context())
    for _, writer in silent:
        writer.transport.abort()
    await until(lambda: facade.front.connections <= 1)
    assert b" 200 " in await from_address(facade, "127.0.0.1", facade.context(named=False))


async def test_an_address_without_a_name_leaves_room_for_other_strangers(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_STRANGERS_ALIKE", 4)
    for _ in range(4):
        await facade.connect()
    await until(lambda: facade.front.connections == 4)
    assert await from_address(facade, "127.0.0.1", facade.context(named=False)) == b""
    assert b" 200 " in await from_address(facade, "127.0.0.7", facade.context(named=False))


async def test_one_name_cannot_take_all_the_room(
    facade: Facade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_NAMESAKES", 3)
    for _ in range(3):
        await facade.connect(facade.context())
    await until(lambda: facade.front.connections == 3)
    assert await facade.say(LAST, facade.context()) == b""
    facade.authority.issue(Subject("other", (), client=True)).save(tmp_path, "other")
    other = facade.context(named=False)
    other.load_cert_chain(tmp_path / "other.crt", tmp_path / "other.key")
    assert await facade.say(LAST, other) != b""


class _Endless(_Sessions):
    """Sessions that nobody ends."""

    async def logs(self, exchange: Exchange, asked: Logs, place: Place) -> None:
        self.asked.append(asked)
        await exchange.begin(200, "text/plain")
        await exchange.gone()


async def test_one_namespace_cannot_take_all_the_room_behind_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server comes in its own name, whoever it comes for."""
    monkeypatch.setattr(rooms, "MOST_SEATS", 3)
    sessions = _Endless()
    async with Facade.running(desk_of(Rule(READS), sessions).answer, tmp_path) as facade:
        for _ in range(3):
            _, writer = await facade.connect(facade.context())
            writer.write(LOGS + b"Host: h\r\n\r\n")
        await until(lambda: len(sessions.asked) == 3)
        assert b" 429 " in await facade.say(LOGS + b"Host: h\r\n\r\n", facade.context())
        reader, writer = await facade.connect(facade.context())
        writer.write(LOGS.replace(b"/ns/", b"/other/") + b"Host: h\r\n\r\n")
        assert b" 200 " in await reader.readline()
        facade.opened[0].transport.abort()

        async def again() -> bool:
            reader, writer = await facade.connect(facade.context())
            writer.write(LOGS + b"Host: h\r\n\r\n")
            return b" 200 " in await reader.readline()

        await until(again)


async def test_one_namespace_cannot_use_up_what_is_everybodys(
    tmp_path: Path, asked: _Sessions
) -> None:
    desk = desk_of(Rule(READS), asked, paces=Paces(rate=1e-6, burst=8.0))
    ours = LOGS + b"Host: h\r\nConnection: close\r\n\r\n"
    async with Facade.running(desk.answer, tmp_path) as facade:
        said = [await facade.say(ours, facade.context()) for _ in range(5)]
        assert [b" 429 " in each for each in said] == [False] * 4 + [True]
        theirs = ours.replace(b"/ns/", b"/other/")
        assert b" 200 " in await facade.say(theirs, facade.context())
        # Nonsense is counted, too: it has no namespace, and uses up what is the caller's own.
        answers = [await facade.say(LAST, facade.context()) for _ in range(4)]
        assert [b" 429 " in each for each in answers] == [False] * 3 + [True]


async def test_strangers_cannot_fill_the_log_with_nonsense(
    facade: Facade, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kubeocean.audit")
    context = facade.context(named=False)
    for _ in range(40):
        assert b" 400 " in await facade.say(b"nonsense\r\n\r\n", context)
    assert 10 <= len(caplog.records) <= 30
    # Who has a name is told of each time.
    before = len(caplog.records)
    for _ in range(40):
        await facade.say(b"nonsense\r\n\r\n", facade.context())
    assert len(caplog.records) == before + 40


async def test_a_flood_of_headers_is_let_go_of(facade: Facade) -> None:
    reader, writer = await facade.connect(facade.context(named=False))
    writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n")
    writer.write(b"X: y\r\n" * 100_000)
    with suppress(ConnectionError):  # it may be cut while it is still speaking
        async with asyncio.timeout(5):
            assert b" 431 " in await reader.read(200)
    await until(lambda: facade.front.connections == 0)


async def test_a_connection_that_was_never_made_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux tells of errors of the network when a connection is accepted."""
    (listening, *others) = await listen("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    really, fails = loop.sock_accept, [errno.EPROTO, errno.EHOSTUNREACH, errno.ECONNABORTED]

    async def failing(each: socket.socket) -> tuple[socket.socket, object]:
        if fails:
            raise OSError(fails.pop(), "so it goes")
        return await really(each)

    monkeypatch.setattr(loop, "sock_accept", failing)
    _, writer = await asyncio.open_connection(*listening.getsockname())
    (await accept(listening)).close()
    writer.close()
    for each in (listening, *others):
        each.close()
    assert not fails


async def test_little_is_held_for_who_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them must leave memory for others."""
    writers: list[asyncio.StreamWriter] = []
    piece = b"x" * (64 << 10)

    async def agreed(
        connection: socket.socket, context: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await agree(connection, context)
        writers.append(writer)
        return reader, writer

    async def much(exchange: Exchange) -> None:
        await exchange.begin(200, "text/plain")
        while True:
            await exchange.write(piece)

    monkeypatch.setattr(fronts, "agree", agreed)
    async with Facade.running(much, tmp_path) as facade:
        _, writer = await facade.connect(facade.context())
        writer.transport.pause_reading()
        writer.write(GET)
        sizes = [0]

        def stalled() -> bool:
            sizes.append(writers[0].transport.get_write_buffer_size() if writers else 0)
            return 0 < sizes[-1] == sizes[-2]

        await until(stalled, every=0.2)
        assert sizes[-1] <= 2 * len(piece)


async def test_the_end_is_not_put_off_by_who_does_not_read(tmp_path: Path) -> None:
    async def much(exchange: Exchange) -> None:
        exchange.patience_s = 3600.0
        await exchange.begin(200, "text/plain")
        while True:
            await exchange.send(b"x" * 100_000)

    async with Facade.running(much, tmp_path) as facade:
        for context in (facade.context(), facade.context(named=False)):
            reader, writer = await facade.connect(context)
            writer.write(GET)
            await reader.readuntil(b"xxxx")
            writer.transport.pause_reading()
        _, silent = await asyncio.open_connection("127.0.0.1", facade.port)
        facade.opened.append(silent)
        await until(lambda: facade.front.connections == 3)
        async with asyncio.timeout(5):
            await facade.front.drain(0.5, linger_s=0.0)
        assert facade.front.connections == 0


# Certificates


def test_a_certificate_that_tls_cannot_use_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else we would show the old one, and believe that we show the new one."""
    identity, authority = Identity(), Authority.create("a")
    identity.believe(authority.certificate)
    good = pair_of(authority)
    identity.show(good)

    def unusable(*_: object) -> None:
        error = ssl.SSLError(1, "no")
        error.reason = "NO"
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(identities, "load_pair", unusable)
        with pytest.raises(ConfigError):
            identity.show(pair_of(authority, "127.0.0.1", "other"))
        epoch = identity.epoch
        with pytest.raises(ConfigError):
            identity.believe(Authority.create("b").certificate)
    assert identity.pair == good
    assert identity.epoch == epoch
    renewed = pair_of(authority, "127.0.0.1", "renewed")
    assert identity.show(renewed)
    assert identity.pair == renewed
