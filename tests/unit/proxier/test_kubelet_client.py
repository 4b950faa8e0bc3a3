"""Kubelets that misbehave: they see no lasting secret, and hold up no request to others."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.errors import ApiError, Refusal, Unauthorized
from kubeocean.local.pki import LocalAuthority
from kubeocean.proxier import kubelet_client
from kubeocean.proxier.kubelet_client import KubeletClient
from kubeocean.proxier.metrics_text import PodName
from kubeocean.proxier.node_pages import NodePages
from kubeocean.proxier.pod_lookup import PodLookup
from kubeocean.proxier.routes import NodePage
from kubeocean.runtime.access import Access, load_pair
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import HttpTransport
from support.kubelet_tokens import OWN, EditedAccess, TokenIssuer, credential_of
from support.proxier_server import pair_of
from support.servers import Server, head_of, serving
from support.wait import until

Handler = Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Vnodes:
    def get(self, key: Key) -> Node | None:
        return Node()


class _OnePod(PodLookup):
    """Each virtual node has the same pod."""

    def __init__(self) -> None:
        self.domain = DEFAULT
        self.vnodes = _Vnodes()

    def pnode_of(self, vnode: Node) -> str:
        return "n"

    def pods_on(self, vnode: str) -> dict[tuple[str, str], PodName]:
        return {("worker", "web-1"): PodName("shop", "web", "u1", "b1")}


class _Kubelets(KubeletClient):
    """Kubelets at the addresses that a test sets, one after the other."""

    addresses: Iterator[str]

    async def _address(self, node: str) -> str:
        return next(self.addresses)


@asynccontextmanager
async def kubelets(
    *servers: Server,
    authority: LocalAuthority,
    worker: TokenIssuer | None = None,
    clock: VirtualClock | None = None,
) -> AsyncIterator[_Kubelets]:
    """Yield a client for these servers, as kubelets with the addresses `k0`, `k1` and so on."""
    access = Access("https://127.0.0.1:1", ca=authority.certificate, token=Secret(OWN))
    credential = credential_of(worker or TokenIssuer(), EditedAccess(access), clock)
    client = _Kubelets(credential._client, credential, port=0)
    transports = {
        f"k{n}": kubelet_client._Kubelet(
            HttpTransport(
                kubelet_client._KubeletAccess(credential, server.url, authority.certificate)
            )
        )
        for n, server in enumerate(servers)
    }
    client._kubelets.update(transports)
    try:
        yield client
    finally:
        await client.close()


def tls(authority: LocalAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = pair_of(authority)
    load_pair(context, pair.certificate, pair.key)
    return context


async def silent(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await head_of(server, reader)
    await reader.read()


def answering(answer: bytes) -> Handler:
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


async def test_kubelets_that_do_not_answer_hold_up_no_request_to_others() -> None:
    authority = LocalAuthority.create("kubelets")
    body = b'container_x{namespace="worker",pod="web-1"} 1\n'
    async with (
        serving(silent, tls=tls(authority)) as dead,
        serving(answering(page(body)), tls=tls(authority)) as alive,
        kubelets(dead, alive, authority=authority) as client,
    ):
        pages = NodePages(client._client, _OnePod(), client)
        client.addresses = iter(["k0"] * 30)
        waiting = [
            asyncio.create_task(pages._metrics(NodePage.CADVISOR, f"v{n}")) for n in range(30)
        ]
        await until(lambda: len(dead.heads) == 30)
        client.addresses = iter(["k1"])
        async with asyncio.timeout(5):
            text = await pages._metrics(NodePage.CADVISOR, "v")
        assert text == b'container_x{namespace="shop",pod="web"} 1\n'
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_cpu_seconds_of_a_node_survive_a_scrape_without_its_pod() -> None:
    authority = LocalAuthority.create("kubelets")
    pod = b'pod_cpu_usage_seconds_total{namespace="worker",pod="web-1"} %d %d\n'
    scrapes = [pod % (10_000, 1_000), b"", pod % (10_001, 31_000)]

    async def scraped(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(page(scrapes[len(server.heads) - 1]))

    async with (
        serving(scraped, tls=tls(authority)) as one,
        kubelets(one, authority=authority) as client,
    ):
        pages = NodePages(client._client, _OnePod(), client)
        client.addresses = iter(["k0"] * 3)
        texts = [(await pages._metrics(NodePage.RESOURCE, "v")).decode() for _ in scrapes]
    counts = [re.findall(r"^node_cpu_usage_seconds_total (.*)$", text, re.M) for text in texts]
    assert counts == [["10000.0 1000"], ["10000.0"], ["10001.0 31000"]]
    assert 'pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 10001 31000\n' in texts[2]


async def test_a_redirect_of_a_kubelet_is_not_followed() -> None:
    authority = LocalAuthority.create("kubelets")
    async with serving(answering(page(b"")), tls=tls(authority)) as other:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {other.url}/\r\nContent-Length: 0\r\n\r\n"
        async with (
            serving(answering(moved.encode()), tls=tls(authority)) as one,
            kubelets(one, authority=authority) as client,
        ):
            client.addresses = iter(["k0"])
            with pytest.raises(ApiError):
                async with client.opened("n", "/metrics") as read:
                    await read()
            assert "Bearer token-1" in one.heads[0]
        assert not other.heads


async def read_page(client: _Kubelets) -> bytes:
    client.addresses = iter(["k0"])
    async with client.opened("n", "/metrics") as read:
        return await read()


async def test_a_hostile_kubelet_never_sees_the_bindings_own_token() -> None:
    """For every answer of the kubelet, also if the worker fails or the account is deleted."""
    authority, clock, worker = (
        LocalAuthority.create("kubelets"),
        VirtualClock(),
        TokenIssuer(may_read=True),
    )
    answers = [b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % code for code in (401, 403, 500)]
    responses = [*answers, page(b"metrics")]

    async def hostile(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(responses[len(server.heads) % len(responses)])

    async with (
        serving(hostile, tls=tls(authority)) as one,
        kubelets(one, authority=authority, worker=worker, clock=clock) as client,
    ):
        for status in (201, 503, 404, 403, 401, 201):
            worker.status = status
            for _ in range(8):
                with suppress(ApiError, Refusal):
                    await read_page(client)
                await clock.advance(100.0)
        tokens = {re.findall(r"Authorization: Bearer (\S+)", head)[0] for head in one.heads}
        assert len(tokens) > 2
        assert all(each.startswith("token-") for each in tokens)
        assert OWN not in "".join(one.heads)
        assert all(head.count("Authorization") == 1 for head in one.heads)


async def test_a_kubelet_is_not_requested_without_a_credential() -> None:
    authority = LocalAuthority.create("kubelets")
    async with (
        serving(answering(page(b"")), tls=tls(authority)) as one,
        kubelets(one, authority=authority, worker=TokenIssuer(status=403)) as client,
    ):
        with pytest.raises(Refusal, match="kubeocean join") as refused:
            await read_page(client)
        assert refused.value.status == 502
        assert not one.heads


async def test_a_token_that_a_kubelet_refuses_is_replaced_within_the_request() -> None:
    authority, clock = LocalAuthority.create("kubelets"), VirtualClock()

    async def refusing_first_token(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            accepted = "token-2" in await head_of(server, reader)
            no = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
            writer.write(page(b"metrics") if accepted else no)

    async with (
        serving(refusing_first_token, tls=tls(authority)) as one,
        kubelets(one, authority=authority, clock=clock) as client,
    ):
        with pytest.raises(Unauthorized):
            await read_page(client)  # the token is new: the next one would be refused, too
        await clock.advance(60.0)
        assert await read_page(client) == b"metrics"
        assert len(one.heads) == 3


async def test_a_kubelet_with_a_certificate_of_another_ca_sees_no_token() -> None:
    authority = LocalAuthority.create("kubelets")
    async with (
        serving(answering(page(b"")), tls=tls(LocalAuthority.create("other"))) as one,
        kubelets(one, authority=authority) as client,
    ):
        client.addresses = iter(["k0"])
        with pytest.raises(ApiError):
            async with client.opened("n", "/metrics") as read:
                await read()
        assert not one.heads


async def test_a_kubelet_that_stops_in_the_middle_of_a_page_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet_client, "_TIMEOUT_S", 0.3)
    authority = LocalAuthority.create("kubelets")

    async def begins(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        await reader.read()

    async with (
        serving(begins, tls=tls(authority)) as one,
        kubelets(one, authority=authority) as client,
    ):
        client.addresses = iter(["k0"])
        with pytest.raises((Refusal, ApiError)):
            async with client.opened("n", "/metrics") as read:
                await read()
