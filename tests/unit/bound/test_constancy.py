"""Whether a kubeconfig still leads to the worker of its binding."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from kubeocean.bound.constancy import Constancy, ConstantTransport
from kubeocean.errors import Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import Request, Response
from scripted import Scripted, answer

HERE = Access("https://here:6443", ca=b"one")
THERE = Access("https://there:6443", ca=b"two")
REQUEST = Request("POST", "/api/v1/pods")


class Clusters:
    """Some clusters by their address, each with a UID; None is one that does not say it."""

    def __init__(self, **uids: str | None) -> None:
        self.uids = uids
        self.asked: list[str] = []

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
        self._clusters.asked.append(f"{request.method} {host}")
        if request.method != "GET":
            return answer(200)
        if (uid := self._clusters.uids[host]) is None:
            return answer(403)
        found = {"metadata": {"name": "kube-system", "uid": uid}}
        return answer(200, msgspec.json.encode(found))


class Edited(StaticAccess):
    """A kubeconfig that somebody edits."""

    def edit(self, access: Access) -> None:
        self._access = access


class Bound:
    """A binding whose kubeconfig is edited."""

    def __init__(self, access: Access = HERE, recorded: str = "", **uids: str | None) -> None:
        self.source = Edited(access)
        self.clusters = Clusters(**uids)
        self.recorded = recorded
        self.constancy = Constancy(
            self.source, lambda: self.recorded, connect=self.clusters.connect
        )
        self.told: list[str] = []
        self.constancy.on_change(self.told.append)
        inner = self.clusters.connect(self.constancy)
        self.transport = ConstantTransport(inner, self.constancy)

    async def write(self) -> str:
        """What comes of a write: who got it, or why nobody did."""
        self.clusters.asked.clear()
        try:
            await self.transport.send(REQUEST)
        except Unreachable as error:
            assert not [each for each in self.clusters.asked if each.startswith("POST")]
            return str(error)
        return self.clusters.asked[-1]


async def test_nothing_is_sent_to_another_cluster_until_the_right_one_is_back() -> None:
    bound = Bound(here="a", there="b")
    assert await bound.write() == "POST here"
    assert bound.constancy.worker_id == "a"
    bound.source.edit(THERE)
    said = await bound.write()
    assert said == "the cluster at https://there:6443 is b, and the binding is for a"
    assert bound.told == [said]
    assert bound.constancy.current() is HERE  # who asks kubelets has no credential of others
    assert await bound.write() == said
    assert bound.clusters.asked == []  # it is asked once
    bound.source.edit(replace(HERE))
    assert await bound.write() == "POST here"
    assert bound.told == [said, ""]


async def test_a_restart_changes_nothing() -> None:
    bound = Bound(THERE, recorded="a", here="a", there="b")
    assert "is b, and the binding is for a" in await bound.write()
    # Nor does a new token for the wrong one.
    bound.source.edit(replace(THERE, token=Secret("t")))
    assert "is b, and the binding is for a" in await bound.write()
    bound.source.edit(HERE)
    assert await bound.write() == "POST here"


async def test_a_worker_that_moves_is_followed_and_a_new_token_needs_no_question() -> None:
    bound = Bound(here="a", there="a")
    await bound.write()
    bound.source.edit(replace(HERE, token=Secret("t")))
    assert await bound.write() == "POST here"
    assert bound.clusters.asked == ["POST here"]
    bound.source.edit(THERE)
    assert await bound.write() == "POST there"
    assert bound.clusters.asked == ["GET there", "POST there"]
    assert bound.told == []


async def test_one_that_does_not_say_who_it_is_is_believed_as_far_as_it_goes() -> None:
    silent = Bound(recorded="a", here=None, there=None)
    assert await silent.write() == "POST here"
    assert silent.constancy.worker_id == ""
    silent.source.edit(THERE)
    assert "does not let us read namespace kube-system" in await silent.write()
    bound = Bound(here="a", there=None, far=None)
    await bound.write()
    bound.source.edit(replace(THERE, ca=HERE.ca))
    assert await bound.write() == "POST there"
    bound.source.edit(Access("https://far:6443", ca=b"three"))
    assert "does not let us read namespace kube-system" in await bound.write()
    # As soon as it says so, it is known.
    bound.clusters.uids["far"] = "a"
    assert await bound.write() == "POST far"


async def test_who_cannot_be_asked_is_no_answer_and_is_asked_again() -> None:
    bound = Bound(there="a")
    assert await bound.write() == "here is down"
    bound.clusters.uids["here"] = "a"
    assert await bound.write() == "POST here"
    assert bound.told == []


async def test_all_who_wait_ask_once() -> None:
    bound = Bound(here="a")
    await asyncio.gather(*(bound.transport.send(REQUEST) for _ in range(5)))
    assert bound.clusters.asked.count("GET here") == 1


async def test_streams_and_tunnels_do_not_go_elsewhere_either() -> None:
    bound = Bound(THERE, recorded="a", there="b")
    with pytest.raises(Unreachable, match="the binding is for a"):
        async with bound.transport.stream(REQUEST):
            pass
    with pytest.raises(Unreachable, match="the binding is for a"):
        async with bound.transport.upgrade(REQUEST, "SPDY/3.1"):
            pass
