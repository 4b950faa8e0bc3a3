"""Kubelets that do not behave: they are told no secret twice, and keep nobody from the others."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from badges import OWN, Edited, Granting, badge_of
from fronts import pair_of
from kubeocean.api.group import DEFAULT
from kubeocean.errors import ApiError, Refusal, Unauthorized
from kubeocean.local.pki import Authority
from kubeocean.proxier import kubelets as asking
from kubeocean.proxier.exposition import PodName
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.places import Places
from kubeocean.proxier.routes import NodePage
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key
from kubeocean.runtime.pem import load_pair
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import HttpTransport
from servers import Server, head_of, serving
from waiting import until

Handler = Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Vnodes:
    def get(self, key: Key) -> Node | None:
        return Node()


class _Places(Places):
    """Each virtual node stands for a node of that name, and has one pod."""

    def __init__(self) -> None:
        self.domain = DEFAULT
        self.vnodes = _Vnodes()

    def pnode_of(self, vnode: Node) -> str:
        return "n"

    def on(self, vnode: str) -> dict[tuple[str, str], PodName]:
        return {("below", "web-1"): PodName("shop", "web", "u1", "b1")}


class _Kubelets(Kubelets):
    """At the addresses that a test says, in turn."""

    addresses: Iterator[str]

    async def _address(self, node: str) -> str:
        return next(self.addresses)


@asynccontextmanager
async def kubelets(
    *servers: Server,
    authority: Authority,
    worker: Granting | None = None,
    clock: VirtualClock | None = None,
) -> AsyncIterator[_Kubelets]:
    """Asked on behalf of a worker; all of them are one machine's, by their ports."""
    access = Access("https://127.0.0.1:1", ca=authority.certificate, token=Secret(OWN))
    badge = badge_of(worker or Granting(), Edited(access), clock)
    made = _Kubelets(badge._client, badge, port=0)
    lines = {
        f"k{n}": asking._Line(
            HttpTransport(asking._KubeletAccess(badge, server.url, authority.certificate))
        )
        for n, server in enumerate(servers)
    }
    made._lines.update(lines)
    try:
        yield made
    finally:
        await made.close()


def tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = pair_of(authority)
    load_pair(context, pair.certificate, pair.key)
    return context


async def silent(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await head_of(server, reader)
    await reader.read()


def saying(answer: bytes) -> Handler:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(answer)
        await writer.drain()

    return handle


def page(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


async def test_kubelets_that_do_not_answer_keep_nobody_from_those_that_do() -> None:
    authority = Authority.create("kubelets")
    body = b'container_x{namespace="below",pod="web-1"} 1\n'
    async with (
        serving(silent, tls=tls(authority)) as dead,
        serving(saying(page(body)), tls=tls(authority)) as alive,
        kubelets(dead, alive, authority=authority) as asked,
    ):
        pages = Pages(asked._client, _Places(), asked)
        asked.addresses = iter(["k0"] * 30)
        waiting = [
            asyncio.create_task(pages._metrics(NodePage.CADVISOR, f"v{n}")) for n in range(30)
        ]
        await until(lambda: len(dead.heads) == 30)
        asked.addresses = iter(["k1"])
        async with asyncio.timeout(5):
            got = await pages._metrics(NodePage.CADVISOR, "v")
        assert got == b'container_x{namespace="shop",pod="web"} 1\n'
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_kubelet_that_sends_us_elsewhere_is_not_followed() -> None:
    authority = Authority.create("kubelets")
    async with serving(saying(page(b"")), tls=tls(authority)) as other:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {other.url}/\r\nContent-Length: 0\r\n\r\n"
        async with (
            serving(saying(moved.encode()), tls=tls(authority)) as one,
            kubelets(one, authority=authority) as asked,
        ):
            asked.addresses = iter(["k0"])
            with pytest.raises(ApiError):
                async with asked.opened("n", "/metrics") as read:
                    await read()
            assert "Bearer token-1" in one.heads[0]
        assert not other.heads


async def read_page(asked: _Kubelets) -> bytes:
    asked.addresses = iter(["k0"])
    async with asked.opened("n", "/metrics") as read:
        return await read()


async def test_a_hostile_kubelet_never_learns_the_bindings_own_token() -> None:
    """It says no, it fails, it serves, and the worker fails and loses the account meanwhile."""
    authority, clock, worker = Authority.create("kubelets"), VirtualClock(), Granting(may_read=True)
    answers = [b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % code for code in (401, 403, 500)]
    said = [*answers, page(b"figures")]

    async def hostile(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(said[len(server.heads) % len(said)])

    async with (
        serving(hostile, tls=tls(authority)) as one,
        kubelets(one, authority=authority, worker=worker, clock=clock) as asked,
    ):
        for status in (201, 503, 404, 403, 401, 201):
            worker.status = status
            for _ in range(8):
                with suppress(ApiError, Refusal):
                    await read_page(asked)
                await clock.advance(100.0)
        tokens = {re.findall(r"Authorization: Bearer (\S+)", head)[0] for head in one.heads}
        assert len(tokens) > 2
        assert all(each.startswith("token-") for each in tokens)
        assert OWN not in "".join(one.heads)
        assert all(head.count("Authorization") == 1 for head in one.heads)


async def test_a_kubelet_is_not_asked_at_all_while_there_is_nothing_to_show() -> None:
    authority = Authority.create("kubelets")
    async with (
        serving(saying(page(b"")), tls=tls(authority)) as one,
        kubelets(one, authority=authority, worker=Granting(status=403)) as asked,
    ):
        with pytest.raises(Refusal, match="kubeocean join"):
            await read_page(asked)
        assert not one.heads


async def test_a_kubelet_that_wants_another_token_gets_it_in_the_same_breath() -> None:
    authority, clock = Authority.create("kubelets"), VirtualClock()

    async def choosy(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            wanted = "token-2" in await head_of(server, reader)
            no = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
            writer.write(page(b"figures") if wanted else no)

    async with (
        serving(choosy, tls=tls(authority)) as one,
        kubelets(one, authority=authority, clock=clock) as asked,
    ):
        with pytest.raises(Unauthorized):
            await read_page(asked)  # the token is new: who refuses it would refuse the next, too
        await clock.advance(60.0)
        assert await read_page(asked) == b"figures"
        assert len(one.heads) == 3


async def test_a_kubelet_of_another_authority_is_told_no_token() -> None:
    authority = Authority.create("kubelets")
    async with (
        serving(saying(page(b"")), tls=tls(Authority.create("other"))) as one,
        kubelets(one, authority=authority) as asked,
    ):
        asked.addresses = iter(["k0"])
        with pytest.raises(ApiError):
            async with asked.opened("n", "/metrics") as read:
                await read()
        assert not one.heads


async def test_a_kubelet_that_stops_in_the_middle_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_TIMEOUT_S", 0.3)
    authority = Authority.create("kubelets")

    async def begins(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        await reader.read()

    async with (
        serving(begins, tls=tls(authority)) as one,
        kubelets(one, authority=authority) as asked,
    ):
        asked.addresses = iter(["k0"])
        with pytest.raises((Refusal, ApiError)):
            async with asked.opened("n", "/metrics") as read:
                await read()
