"""Checks that a kubeconfig still leads to the worker of its binding."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import msgspec
import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import Request, Response
from kubeocean.worker_access.identity import IdentityCheckedTransport, WorkerIdentity
from support.scripted_transport import Scripted, answer
from support.servers import Server, head_of, serving

FIRST = Access("https://first:6443", ca=b"one")
SECOND = Access("https://second:6443", ca=b"two")
REQUEST = Request("POST", "/api/v1/pods")


class Clusters:
    """Clusters by address, each with its UID; None for one that does not let us read it."""

    def __init__(self, **uids: str | None) -> None:
        self.uids = uids
        self.requests: list[str] = []

    def connect(self, source: AccessSource) -> Cluster:
        return Cluster(self, source)


class Cluster(Scripted):
    def __init__(self, clusters: Clusters, source: AccessSource) -> None:
        super().__init__()
        self._clusters = clusters
        self._source = source

    async def send(self, request: Request) -> Response:
        host = self._source.current().server.removeprefix("https://").removesuffix(":6443")
        if host not in self._clusters.uids:
            raise Unreachable(f"{host} is down")
        self._clusters.requests.append(f"{request.method} {host}")
        if request.method != "GET":
            return answer(200)
        if (uid := self._clusters.uids[host]) is None:
            return answer(403)
        namespace = {"metadata": {"name": "kube-system", "uid": uid}}
        return answer(200, msgspec.json.encode(namespace))


class EditedAccess(StaticAccess):
    """A kubeconfig that a test edits."""

    def edit(self, access: Access) -> None:
        self._access = access


class Worker:
    """A worker, and a kubeconfig that a test edits."""

    def __init__(self, access: Access = FIRST, recorded: str = "", **uids: str | None) -> None:
        self.source = EditedAccess(access)
        self.clusters = Clusters(**uids)
        self.recorded = recorded
        self.identity = WorkerIdentity(
            self.source, lambda: self.recorded, connect=self.clusters.connect
        )
        self.errors: list[str] = []
        self.identity.on_change(self.errors.append)
        inner = self.clusters.connect(self.identity)
        self.transport = IdentityCheckedTransport(inner, self.identity)

    async def write(self) -> str:
        """Write, and return the last request that was sent, or why none was."""
        self.clusters.requests.clear()
        try:
            await self.transport.send(REQUEST)
        except Unreachable as error:
            assert not [each for each in self.clusters.requests if each.startswith("POST")]
            return str(error)
        return self.clusters.requests[-1]


async def test_nothing_is_sent_to_another_cluster_until_the_right_one_is_back() -> None:
    worker = Worker(first="a", second="b")
    assert await worker.write() == "POST first"
    assert worker.identity.worker_id == "a"
    worker.source.edit(SECOND)
    error = await worker.write()
    assert error == "the cluster at https://second:6443 is b, and the binding is for a"
    assert worker.errors == [error]
    assert (
        worker.identity.current() is FIRST
    )  # kubelets are not shown a credential of another cluster
    assert await worker.write() == error
    assert worker.clusters.requests == []  # the identity is read once
    worker.source.edit(replace(FIRST))
    assert await worker.write() == "POST first"
    assert worker.errors == [error, ""]


async def test_a_recorded_worker_is_checked_after_a_restart() -> None:
    worker = Worker(SECOND, recorded="a", first="a", second="b")
    assert "is b, and the binding is for a" in await worker.write()
    # A new token for the wrong cluster changes nothing.
    worker.source.edit(replace(SECOND, token=Secret("t")))
    assert "is b, and the binding is for a" in await worker.write()
    worker.source.edit(FIRST)
    assert await worker.write() == "POST first"


async def test_another_address_of_the_worker_is_checked_and_a_new_token_is_not() -> None:
    worker = Worker(first="a", second="a")
    await worker.write()
    worker.source.edit(replace(FIRST, token=Secret("t")))
    assert await worker.write() == "POST first"
    assert worker.clusters.requests == ["POST first"]
    worker.source.edit(SECOND)
    assert await worker.write() == "POST second"
    assert worker.clusters.requests == ["GET second", "POST second"]
    assert worker.errors == []


async def test_a_hidden_identity_is_accepted_while_address_or_ca_stay_the_same() -> None:
    hidden = Worker(recorded="a", first=None, second=None)
    assert await hidden.write() == "POST first"
    assert hidden.identity.worker_id == ""
    hidden.source.edit(SECOND)
    assert "does not permit reading namespace kube-system" in await hidden.write()
    worker = Worker(first="a", second=None, third=None)
    await worker.write()
    worker.source.edit(replace(SECOND, ca=FIRST.ca))
    assert await worker.write() == "POST second"
    worker.source.edit(Access("https://third:6443", ca=b"three"))
    assert "does not permit reading namespace kube-system" in await worker.write()
    # Once the identity can be read, it is compared.
    worker.clusters.uids["third"] = "a"
    assert await worker.write() == "POST third"


async def test_a_cluster_that_is_down_is_checked_again() -> None:
    worker = Worker(second="a")
    assert await worker.write() == "first is down"
    worker.clusters.uids["first"] = "a"
    assert await worker.write() == "POST first"
    assert worker.errors == []


async def test_concurrent_requests_read_the_identity_once() -> None:
    worker = Worker(first="a")
    await asyncio.gather(*(worker.transport.send(REQUEST) for _ in range(5)))
    assert worker.clusters.requests.count("GET first") == 1


async def test_streams_and_tunnels_are_not_sent_to_another_cluster() -> None:
    worker = Worker(SECOND, recorded="a", second="b")
    with pytest.raises(Unreachable, match="the binding is for a"):
        async with worker.transport.stream(REQUEST):
            pass
    with pytest.raises(Unreachable, match="the binding is for a"):
        async with worker.transport.upgrade(REQUEST, "SPDY/3.1"):
            pass


async def test_an_answer_without_end_does_not_fill_the_memory() -> None:
    async def flood(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"metadata":{"name":"')
        for _ in range(64):
            writer.write(b"x" * (1 << 20))
            await writer.drain()

    async with serving(flood) as server:
        source = StaticAccess(Access(server.url))
        identity = WorkerIdentity(source, lambda: "")
        tracemalloc.start()
        try:
            with pytest.raises(Unreachable, match="larger than"):
                await IdentityCheckedTransport(Scripted(), identity).send(REQUEST)
            assert tracemalloc.get_traced_memory()[1] < 24 << 20
        finally:
            tracemalloc.stop()
