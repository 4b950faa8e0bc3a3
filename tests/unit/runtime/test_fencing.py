"""A fenced transport: reads pass, and writes only while they may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeocean.errors import InvariantError
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.election import LeadershipLost
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.retries import repeatable
from kubeocean.runtime.transport import Request, Response
from kubeocean.runtime.transport_layers import Fenced, FencedTransport


class Inner:
    """Records the requests that pass the fence."""

    generation = 3

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.closed = False

    async def send(self, request: Request) -> Response:
        self.passed.append(request.method)
        return Response(200, {}, b"{}")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[object]:
        self.passed.append(f"stream {request.method}")
        yield self

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[object]:
        self.passed.append(f"upgrade {request.method}")
        yield self

    async def close(self) -> None:
        self.closed = True


class Gate:
    leads = True

    def check(self) -> None:
        if not self.leads:
            raise LeadershipLost("ann does not lead")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def fenced(inner: Inner, gate: Gate) -> FencedTransport:
    return FencedTransport(inner, gate.check)


async def test_a_leader_passes(inner: Inner, fenced: FencedTransport) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        await fenced.send(Request(method, "/x"))
    async with fenced.stream(Request("POST", "/x")), fenced.upgrade(Request("GET", "/x"), "p"):
        pass
    assert inner.passed == ["GET", "POST", "PUT", "PATCH", "DELETE", "stream POST", "upgrade GET"]
    assert fenced.generation == 3
    await fenced.close()
    assert inner.closed


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_who_does_not_lead_writes_nothing(
    inner: Inner, gate: Gate, fenced: FencedTransport, method: str
) -> None:
    gate.leads = False
    with pytest.raises(Fenced, match=f"could not {method} /x: ann does not lead"):
        await fenced.send(Request(method, "/x"))
    with pytest.raises(Fenced):
        async with fenced.stream(Request(method, "/x")):
            pass
    assert inner.passed == []


async def test_tunnels_are_for_leaders_whatever_their_method(
    inner: Inner, gate: Gate, fenced: FencedTransport
) -> None:
    gate.leads = False
    with pytest.raises(Fenced):
        async with fenced.upgrade(Request("GET", "/exec"), "p"):
            pass
    assert inner.passed == []


async def test_anybody_may_read(inner: Inner, gate: Gate, fenced: FencedTransport) -> None:
    gate.leads = False
    await fenced.send(Request("GET", "/x"))
    async with fenced.stream(Request("GET", "/x", query=(("watch", "true"),))):
        pass
    assert inner.passed == ["GET", "stream GET"]


async def test_a_refusal_is_not_repeated(gate: Gate, fenced: FencedTransport) -> None:
    gate.leads = False
    assert not repeatable(Fenced("no"), idempotent=True)
    client = Client(fenced, clock=VirtualClock())  # a clock that stands still: no retry can wait
    with pytest.raises(Fenced):
        await client.delete(NAMESPACES, "x", uid="u")


async def test_each_request_is_asked_for_anew(
    inner: Inner, gate: Gate, fenced: FencedTransport
) -> None:
    await fenced.send(Request("POST", "/x"))
    gate.leads = False
    with pytest.raises(Fenced):
        await fenced.send(Request("POST", "/x"))
    gate.leads = True
    await fenced.send(Request("POST", "/x"))
    assert inner.passed == ["POST", "POST"]


async def test_a_check_that_is_broken_lets_nothing_through(inner: Inner) -> None:
    def broken() -> None:
        raise InvariantError("cannot be")

    with pytest.raises(Fenced, match="cannot be"):
        await FencedTransport(inner, broken).send(Request("POST", "/x"))
    assert inner.passed == []
