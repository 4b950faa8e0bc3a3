"""Requests are counted by their result, with the host of the present server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import Request, Response
from kubeocean.runtime.transport_layers import CountedTransport

ONE, TWO = "https://one:6443", "https://two:6443/prefix"


class Inner:
    """Answers with a status, or not at all."""

    generation = 3
    status: int = 200
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.closed = False
        self.body = b""

    async def read(self) -> bytes:
        return self.body

    async def send(self, request: Request) -> Response:
        if not self.status:
            raise Unreachable("it is down")
        return Response(self.status, {}, self.body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Inner]:
        if not self.status:
            raise Unreachable("it is down")
        yield self

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Inner]:
        yield self

    async def close(self) -> None:
        self.closed = True


class Source:
    """A source whose server may move."""

    interval_s = 60.0
    refresh_first = True

    def __init__(self) -> None:
        self.server = ONE

    def current(self) -> Access:
        return Access(self.server)

    async def refresh(self, *, rejected: bool = False) -> bool:
        return False


class World:
    def __init__(self) -> None:
        self.inner, self.metrics, self.source = Inner(), Metrics(), Source()
        self.transport = CountedTransport(self.inner, self.source, self.metrics)

    def count(self, code: str, method: str = "GET", host: str = "one:6443") -> float | None:
        labels = {"code": code, "host": host, "method": method}
        return self.metrics.value("rest_client_requests_total", labels)


async def test_answers_are_counted_by_code_and_method() -> None:
    world = World()
    for status, method in ((200, "GET"), (200, "GET"), (409, "PATCH"), (201, "POST")):
        world.inner.status = status
        await world.transport.send(Request(method, "/x"))
    assert (world.count("200"), world.count("409", "PATCH"), world.count("201", "POST")) == (
        2,
        1,
        1,
    )


async def test_a_request_without_an_answer_is_counted_too() -> None:
    world = World()
    world.inner.status = 0
    with pytest.raises(Unreachable):
        await world.transport.send(Request("GET", "/x"))
    with pytest.raises(Unreachable):
        async with world.transport.stream(Request("GET", "/x")):
            pass
    assert world.count("<error>") == 2


async def test_a_stream_is_counted_once_however_it_ends() -> None:
    world = World()
    async with world.transport.stream(Request("GET", "/x")):
        assert world.count("200") == 1
    with pytest.raises(Unreachable):
        async with world.transport.stream(Request("GET", "/x")):
            raise Unreachable("lost the stream")
    assert (world.count("200"), world.count("<error>")) == (2, None)


async def test_a_server_that_moved_takes_its_series_along() -> None:
    world = World()
    other = CountedTransport(world.inner, world.source, world.metrics)
    for transport in (world.transport, other):
        await transport.send(Request("GET", "/x"))
    assert world.count("200") == 2
    world.source.server = TWO
    for transport in (world.transport, other):
        await transport.send(Request("GET", "/x"))
    assert (world.count("200"), world.count("200", host="two:6443")) == (None, 2)


async def test_bytes_are_counted_by_cluster_and_direction() -> None:
    world = World()
    transport = CountedTransport(world.inner, world.source, world.metrics, cluster="worker")
    world.inner.body = b"x" * 10
    await transport.send(Request("POST", "/x", body=b"y" * 3))
    async with transport.stream(Request("GET", "/x")) as stream:
        assert await stream.read() == world.inner.body

    def count(direction: str, cluster: str = "worker") -> float | None:
        labels = {"cluster": cluster, "direction": direction}
        return world.metrics.value("kubeocean_client_bytes_total", labels)

    assert (count("sent"), count("received"), count("sent", "")) == (3, 20, 0)


async def test_everything_else_passes() -> None:
    world = World()
    assert world.transport.generation == 3
    async with world.transport.upgrade(Request("POST", "/x"), "spdy") as tunnel:
        assert tunnel is world.inner
    await world.transport.close()
    assert world.inner.closed
