"""Tests that an unsharded process starts when no replica of the ring works any more."""

from __future__ import annotations

import asyncio

import msgspec

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Json
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Request, Response
from kubeocean.sharding.config import Config, ShardingSection
from kubeocean.sharding.exclusive_start import ExclusiveStart
from kubeocean.sharding.members import MemberRecord, encode_member
from support.scripted_transport import Scripted, answer

CONFIG = Config(sharding=ShardingSection(ring="r", namespace="n"))


class Server(Scripted):
    """Lists the Leases of members, which renew by themselves while they are `beating`."""

    def __init__(self, *members: str, status: int = 200, allowed: bool = True) -> None:
        super().__init__()
        self.allowed = allowed
        self.members = dict.fromkeys(members, False)
        self.beating = True
        self.status = status
        self._version = 0

    async def send(self, request: Request) -> Response:
        if self.status != 200:
            return answer(self.status)
        if request.method == "POST":
            assert b'"verb":"list"' in (request.body or b"")
            return answer(201, msgspec.json.encode({"status": {"allowed": self.allowed}}))
        assert self.allowed
        assert "/namespaces/n/leases" in request.path
        self._version += self.beating
        items = [self._lease(member, gone) for member, gone in self.members.items()]
        listing = {"metadata": {"resourceVersion": "1"}, "items": items}
        return answer(200, msgspec.json.encode(listing))

    def _lease(self, member: str, gone: bool) -> Json:
        record = MemberRecord(id=member, pulse="", released=gone)
        annotations = {CONFIG.names.record: encode_member(record)}
        name = CONFIG.names.member(member)
        meta = {"name": name, "namespace": "n", "annotations": annotations}
        return {
            "metadata": {**meta, "resourceVersion": str(self._version)},
            "spec": {"holderIdentity": member, "leaseDurationSeconds": 15},
        }


class Candidate:
    """A replica that was elected to start alone."""

    def __init__(self, server: Server, group: asyncio.TaskGroup) -> None:
        self.clock = VirtualClock()
        client = Client(server, clock=self.clock, retry=RetryPolicy(attempts=1))
        self.vacancy = ExclusiveStart(client, CONFIG, clock=self.clock)
        self._task = group.create_task(self.vacancy.wait())

    async def begins(self, after_s: float) -> bool:
        await self.clock.advance(after_s)
        assert self.vacancy.waits is not self._task.done()
        return self._task.done()


async def test_without_other_replicas_a_candidate_begins_at_once() -> None:
    async with asyncio.TaskGroup() as group:
        assert await Candidate(Server(), group).begins(after_s=0)
        # A replica that shares may read the Leases; one without that right sends no request.
        assert await Candidate(Server("a_1", allowed=False), group).begins(after_s=0)


async def test_a_replica_that_lives_is_waited_for_until_it_lets_go() -> None:
    server = Server("a_1", "b_1")
    async with asyncio.TaskGroup() as group:
        candidate = Candidate(server, group)
        assert not await candidate.begins(after_s=120)
        server.members["a_1"] = True
        assert not await candidate.begins(after_s=30)
        del server.members["b_1"]
        assert await candidate.begins(after_s=5)


async def test_one_that_is_silent_is_waited_for_until_it_has_certainly_stopped() -> None:
    server = Server("a_1")
    server.beating = False
    async with asyncio.TaskGroup() as group:
        candidate = Candidate(server, group)
        assert not await candidate.begins(after_s=CONFIG.timing().patience_s - 1)
        assert await candidate.begins(after_s=6)


async def test_while_the_server_does_not_answer_one_does_not_begin() -> None:
    server = Server(status=503)
    async with asyncio.TaskGroup() as group:
        candidate = Candidate(server, group)
        assert not await candidate.begins(after_s=60)
        server.status = 200
        assert await candidate.begins(after_s=5)
