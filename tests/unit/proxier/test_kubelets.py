"""Kubelets that do not behave: they are told no secret twice, and keep nobody from the others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from fronts import pair_of
from kubeocean.api.group import DEFAULT
from kubeocean.errors import ApiError, Refusal
from kubeocean.local.pki import Authority
from kubeocean.proxier import kubelets as asking
from kubeocean.proxier.exposition import PodName
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.places import Places
from kubeocean.proxier.routes import NodePage
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key
from kubeocean.runtime.pem import load_pair
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import HttpTransport
from servers import Server, head_of, serving
from waiting import until

Handler = Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TOKEN = "token-of-the-worker"


class _Vnodes:
    def get(self, key: Key) -> Node | None:
        return Node()


class _Places(Places):
    """Each virtual node stands for a node of that name, and has one pod."""

    def __init__(self) -> None:
        self.domain = DEFAULT
        self.vnodes = _Vnodes()  # type: ignore[assignment]  # as much of it as is asked

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
async def kubelets(*servers: Server, authority: Authority) -> AsyncIterator[_Kubelets]:
    """Asked as the worker's kubeconfig says; all of them are one machine's, by their ports."""
    access = StaticAccess(
        Access("https://127.0.0.1:1", ca=authority.certificate, token=Secret(TOKEN))
    )
    client = Client(HttpTransport(access), cluster="worker")
    made = _Kubelets(client, access, port=0)
    lines = {
        f"k{n}": asking._Line(
            HttpTransport(asking._KubeletAccess(access, server.url, authority.certificate))
        )
        for n, server in enumerate(servers)
    }
    made._lines.update(lines)
    try:
        yield made
    finally:
        await made.close()
        await client.close()


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
            assert TOKEN in one.heads[0]
        assert not other.heads


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
