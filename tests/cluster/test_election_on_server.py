"""Elections on a real API server: real processes, one of them frozen; a server that stops."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from conftest import NewCluster
from kubeocean.errors import AlreadyExists, Conflict, NotFound
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.election import Election, LeadershipLost, LeaseLock, Record
from kubeocean.runtime.kinds import LEASES, LeaseSpec
from support.background import running
from support.wait import until

LEASE_S, RENEW_S, RETRY_S = 8.0, 5.0, 0.3  # a busy machine may delay a renewal, or an end
CANDIDATE = Path(__file__).parents[1] / "support" / "election_candidate.py"


@dataclass(frozen=True)
class Line:
    """An act of a candidate, and the time for which the candidate might act."""

    at: float
    who: str
    event: str


@dataclass(frozen=True)
class Story:
    """Acts that candidates wrote into a file."""

    path: Path

    def lines(self, event: str) -> list[Line]:
        if not self.path.exists():
            return []
        written = (line.split() for line in self.path.read_text().splitlines())
        received = (Line(float(at), who, did) for at, who, did in written)
        return [line for line in received if line.event == event]

    def tenures(self) -> list[str]:
        """Return the candidates in the order of their acts; two at a time make many changes."""
        acts = sorted(self.lines("act"), key=lambda line: line.at)
        return [who for who, _ in groupby(acts, key=lambda line: line.who)]

    def count(self, who: str, event: str) -> int:
        return sum(line.who == who for line in self.lines(event))

    async def more(
        self, who: str, event: str, *, than: int | None = None, times: int = 1, within: float = 30
    ) -> None:
        """Wait until candidate `who` has `times` more lines of an event than now, or than
        `than`."""
        enough = (self.count(who, event) if than is None else than) + times
        await until(
            lambda: self.count(who, event) >= enough, within=within, waiting_for=f"{who}: {event}"
        )


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "story")


@asynccontextmanager
async def candidate(
    who: str, *, cluster: Cluster, namespace: str, story: Story
) -> AsyncIterator[Process]:
    """Yield a process that is a candidate until the block ends."""
    durations = (str(LEASE_S), str(RENEW_S), str(RETRY_S))
    process = Process(
        who,
        [sys.executable, CANDIDATE, cluster.kubeconfig, namespace, who, story.path, *durations],
        log=story.path.with_name(f"{who}.log"),
        env={"PATH": os.environ["PATH"]},
    )
    await process.start()
    try:
        yield process
    finally:
        ended = await process.stop()
        assert ended == 0, process.tail()


async def test_a_paused_leader_never_acts_beside_its_successor(
    cluster: Cluster, namespace: str, story: Story
) -> None:
    async with (
        candidate("ann", cluster=cluster, namespace=namespace, story=story) as ann,
        candidate("bob", cluster=cluster, namespace=namespace, story=story) as bob,
    ):
        acts = await until(lambda: story.lines("act"))
        first, second = (ann, bob) if acts[0].who == "ann" else (bob, ann)
        await story.more(first.name, "act", times=50)
        for leader, other in ((first, second), (second, first), (first, second)):
            leader.pause()
            await story.more(other.name, "act", times=10, within=LEASE_S + 10)
            ends = story.count(leader.name, "end")
            leader.resume()
            # The paused candidate stops as soon as it runs; meanwhile the other goes on.
            await story.more(leader.name, "end", than=ends)
            await story.more(other.name, "act", times=50)
        # One act while a successor leads would be two changes more than there were elections.
        assert len(story.tenures()) == len(story.lines("begin")) == 4


async def test_a_leader_that_is_asked_to_end_hands_over_at_its_rivals_next_look(
    cluster: Cluster, namespace: str, story: Story
) -> None:
    async with candidate("ann", cluster=cluster, namespace=namespace, story=story) as ann:
        await story.more("ann", "act", than=0)
        async with candidate("bob", cluster=cluster, namespace=namespace, story=story):
            await story.more("bob", "see-ann", than=0)
            await ann.stop()
            await story.more("bob", "act", than=0, within=10)
            (ended,), (begun,) = story.lines("end"), story.lines("begin")[1:]
            assert 0 < begun.at - ended.at < LEASE_S - 1
            assert story.tenures() == ["ann", "bob"]


class Leader:
    """A leader in this process, which only remembers whether it leads."""

    def __init__(self, client: Client, namespace: str, identity: str = "ann") -> None:
        self.election = Election(
            client,
            namespace=namespace,
            name="leaders",
            identity=identity,
            lease_s=LEASE_S,
            renew_s=RENEW_S,
            retry_s=RETRY_S,
        )
        self.leads = False
        self.ended_at = 0.0

    async def lead(self) -> None:
        self.leads = True
        try:
            await asyncio.Event().wait()
        finally:
            self.leads = False
            self.ended_at = time.monotonic()

    async def run(self) -> None:
        await self.election.run(self.lead, rejoin=True)


async def test_a_server_that_stands_still_or_is_gone_ends_leadership_in_time(
    new_cluster: NewCluster,
) -> None:
    cluster = await new_cluster()
    client = cluster.client()
    leader = Leader(client, "default")
    async with running(leader):
        await until(lambda: leader.leads)
        cluster.pause("kube-apiserver")
        paused_at = time.monotonic()
        await until(lambda: not leader.leads, within=RENEW_S + 5)
        assert leader.ended_at - paused_at < LEASE_S
        assert not leader.election.is_leader
        with pytest.raises(LeadershipLost):
            leader.election.check()
        cluster.resume("kube-apiserver")
        await until(lambda: leader.leads)
        leader.election.check()

        await cluster.kill("kube-apiserver")
        await until(lambda: not leader.leads, within=RENEW_S + 5)
        await cluster.restart("kube-apiserver")
        await until(lambda: leader.leads)
    await client.close()


async def spec_of(client: Client, namespace: str) -> LeaseSpec:
    return (await client.get(LEASES, "leaders", namespace)).spec


async def renewals(client: Client, namespace: str, count: int = 1) -> None:
    """Wait until the lease was renewed so many times."""
    seen: set[str | None] = set()

    async def enough() -> bool:
        seen.add((await spec_of(client, namespace)).renew_time)
        return len(seen) > count

    await until(enough)


async def test_what_is_written_is_what_client_go_writes(client: Client, namespace: str) -> None:
    leader = Leader(client, namespace)
    async with running(leader):
        await until(lambda: leader.leads)
        spec = await spec_of(client, namespace)
        assert (spec.holder_identity, spec.lease_duration_seconds) == ("ann", LEASE_S)
        assert spec.lease_transitions == 0
        for message in (spec.acquire_time, spec.renew_time):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", message or "")
        await renewals(client, namespace)
        assert (await spec_of(client, namespace)).acquire_time == spec.acquire_time
    spec = await spec_of(client, namespace)
    assert not spec.holder_identity
    assert spec.lease_duration_seconds == 1


async def test_what_others_keep_on_the_lease_stays_and_ends_nothing(
    client: Client, namespace: str
) -> None:
    leader = Leader(client, namespace)
    async with running(leader):
        await until(lambda: leader.leads)
        labels = MergePatch({"metadata": {"labels": {"team": "a"}}})
        await client.patch(LEASES, "leaders", labels, namespace)
        await renewals(client, namespace, 2)
        lease = await client.get(LEASES, "leaders", namespace)
        assert lease.labels == {"team": "a"}
        assert lease.spec.lease_transitions == 0
        assert leader.ended_at == 0


async def test_a_lock_changes_only_upon_the_version_that_was_read(
    client: Client, namespace: str
) -> None:
    lock = LeaseLock(client, namespace=namespace, name="register")
    message = "2026-01-01T00:00:00.000000Z"
    ann = Record("ann", 15, acquired=message, renewed=message)
    bob = replace(ann, holder="bob", transitions=1)
    assert await lock.read() is None
    with pytest.raises(NotFound):
        await lock.update(ann, "1")
    created = await lock.create(ann)
    assert created.record == ann
    assert await lock.read() == created
    with pytest.raises(AlreadyExists):
        await lock.create(bob)
    updated = await lock.update(bob, created.version)
    assert updated.record == bob
    with pytest.raises(Conflict):
        await lock.update(ann, created.version)
    assert await lock.read() == updated


async def test_a_candidate_of_client_go_and_ours_respect_each_other(
    cluster: Cluster, client: Client, assets: Assets, namespace: str, tmp_path: Path
) -> None:
    """The other candidate is a kube-scheduler, which does nothing before it leads."""
    scheduler = Process(
        "kube-scheduler",
        [
            assets.path("kube-scheduler"),
            f"--kubeconfig={cluster.kubeconfig}",
            "--secure-port=0",
            "--leader-elect=true",
            f"--leader-elect-lease-duration={LEASE_S}s",
            f"--leader-elect-renew-deadline={RENEW_S}s",
            f"--leader-elect-retry-period={RETRY_S}s",
            "--leader-elect-resource-name=leaders",
            f"--leader-elect-resource-namespace={namespace}",
        ],
        log=tmp_path / "scheduler.log",
        env={"PATH": os.environ["PATH"]},
    )
    leader = Leader(client, namespace)

    async def theirs() -> bool:
        return (await spec_of(client, namespace)).holder_identity not in (None, "", "ann")

    try:
        async with running(leader):
            await until(lambda: leader.leads)
            await scheduler.start()
            await until(lambda: any("attempting to acquire" in line for line in scheduler.tail()))
            await renewals(client, namespace, 2 + int(LEASE_S / RETRY_S))
            assert leader.ended_at == 0
        await until(theirs)
        async with running(leader):
            await until(lambda: leader.election.holder not in ("", "ann"))
            assert not leader.leads
            scheduler.pause()
            await until(lambda: leader.leads)
            scheduler.resume()
            # The candidate reads that it has lost the lease, and ends.
            await scheduler.wait()
            assert leader.leads
    finally:
        await scheduler.stop()
