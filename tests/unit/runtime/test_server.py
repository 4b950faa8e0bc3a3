"""Servers: they listen on the configured address, or the error names the cause."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import ClientConnectionError, ClientSession, web

from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.server import Server
from support.wait import until


def hello() -> web.Application:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", page)
    return app


async def get(host: str, port: int) -> str:
    async with ClientSession() as session, session.get(f"http://{host}:{port}/") as response:
        return await response.text()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_answers_on_its_address(host: str) -> None:
    async with Server(hello(), BindAddress(host, 0)) as server:
        assert server.address.port > 0
        assert await get(host, server.address.port) == "hello"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("bound", ["", "::1"])
async def test_ipv6_is_served(bound: str) -> None:
    async with Server(hello(), BindAddress(bound, 0)) as server:
        assert await get("[::1]", server.address.port) == "hello"


async def test_no_host_is_every_interface() -> None:
    async with Server(hello(), BindAddress("", 0)) as server:
        assert await get("127.0.0.1", server.address.port) == "hello"


async def test_no_host_is_every_ipv4_interface_where_there_is_no_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with Server(hello(), BindAddress("", 0)) as server:
        assert await get("127.0.0.1", server.address.port) == "hello"


async def test_a_port_in_use_is_an_error_with_address_and_flag() -> None:
    async with Server(hello(), BindAddress("127.0.0.1", 0)) as first:
        taken = BindAddress("127.0.0.1", first.address.port, "--metrics-bind-address")
        with pytest.raises(ConfigError) as refused:
            await Server(hello(), taken).start()
    assert str(refused.value) == (
        f"--metrics-bind-address: cannot listen on {taken}: Address already in use; "
        "stop the program that listens there, or choose another address"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a" * 70])
async def test_an_address_of_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(ConfigError, match="--flag: cannot listen on"):
        await Server(hello(), BindAddress(host, 0, "--flag")).start()


async def test_the_port_is_free_again_after_the_stop() -> None:
    async with Server(hello(), BindAddress("127.0.0.1", 0)) as server:
        port = server.address.port
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
            assert response.status == 200
    with pytest.raises(ClientConnectionError):
        await get("127.0.0.1", port)
    async with Server(hello(), BindAddress("127.0.0.1", port)):
        assert await get("127.0.0.1", port) == "hello"


async def test_run_serves_until_it_is_cancelled() -> None:
    server = Server(hello(), BindAddress("127.0.0.1", 0))
    running = asyncio.create_task(server.run())
    await until(lambda: server.address.port)
    assert await get("127.0.0.1", server.address.port) == "hello"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ClientConnectionError):
        await get("127.0.0.1", server.address.port)
