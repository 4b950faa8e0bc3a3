"""The proof of sharding: replicas are killed, frozen, skewed, scaled and replaced under load.

In all cases each object is reconciled by one owner at a time, and none is forgotten. The evidence
is outside of the replicas: the lines that they wrote into a file before they knew the outcome, and
the objects in the API server at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubeocean.errors import ConfigError
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.sharding.admin import RingAdmin, RingState
from kubeocean.sharding.admission import admission_objects, guard
from kubeocean.sharding.members import MemberState
from kubeocean.sharding.names import Names
from kubeocean.sharding.slots import slot_of
from kubeocean.sharding.table import name_of
from support.sharding_worker import CHILD, RING, SLOTS
from support.wait import until

__all__ = ["Account", "Line", "Proof", "read_account"]

WORKER = Path(__file__).with_name("sharding_worker.py")
GROUP = "shard-workers"
_POLICIES = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


@dataclass(frozen=True, slots=True)
class Line:
    """Event of a replica, with the time span in which the replica was allowed to work."""

    at: float
    who: str
    event: str
    slot: int
    epoch: int
    key: str


@dataclass
class Account:
    """Everything that was done, in the order of time."""

    lines: list[Line]

    def count(self, event: str, *, since: float = 0.0) -> int:
        return sum(line.event == event and line.at >= since for line in self.lines)

    def check(self, *, disturbed: Iterable[str] = ()) -> None:
        """Check that each key had one owner at a time. `disturbed` replicas were stopped or killed:
        the end of their work is not known."""
        self._check_grants()
        self._check_order()
        self._check_overlap(set(disturbed))

    def _check_grants(self) -> None:
        """Check that each epoch of a slot belongs to one replica."""
        owners: dict[tuple[int, int], str] = {}
        for line in self.lines:
            assert owners.setdefault((line.slot, line.epoch), line.who) == line.who, line

    def _check_order(self) -> None:
        """Check that a replica neither begins nor writes after another replica took the key."""
        newest: dict[int, Line] = {}
        for line in self.lines:
            if line.event not in ("begin", "wrote"):
                continue
            last = newest.get(line.slot)
            assert last is None or line.epoch >= last.epoch, (last, line)
            newest[line.slot] = line

    def _check_overlap(self, disturbed: set[str]) -> None:
        """Check that no key has two reconciles at a time."""
        inside: dict[str, Line] = {}
        for line in self.lines:
            if line.who in disturbed or line.event not in ("begin", "end"):
                continue
            if line.event == "begin":
                assert line.key not in inside, (inside.get(line.key), line)
                inside[line.key] = line
            else:
                inside.pop(line.key, None)

    def moves(self, owners: Sequence[str], *, since: float) -> list[int]:
        """Return how often each key changed its owner since a time, with these owners of slots."""
        last: dict[str, str] = {}
        count: dict[str, int] = {}
        for line in self.lines:
            if line.event == "begin" and line.at >= since:
                before = last.get(line.key, owners[line.slot])
                count[line.key] = count.get(line.key, 0) + (line.who != before)
                last[line.key] = line.who
        return list(count.values())


def read_account(path: Path) -> Account:
    """Return the events that the replicas wrote; a killed replica may have left half a line."""
    lines = []
    for text in path.read_text().splitlines():
        words = text.split(" ")
        if len(words) == 6:
            at, who, event, slot, epoch, key = words
            lines.append(Line(float(at), who, event, int(slot), int(epoch), key))
    return Account(sorted(lines, key=lambda line: line.at))


@dataclass
class Proof:
    """The stage: a cluster, objects, replicas in processes of their own."""

    cluster: Cluster
    client: Client
    namespace: str
    directory: Path
    objects: int
    lease_s: float = 3.0
    slots: int = SLOTS
    environ: dict[str, str] = field(default_factory=dict)
    labelled: bool = False  # the creator of the objects labels them with their slots
    worker: Path = WORKER  # the program of a replica
    replicas: dict[str, Process] = field(default_factory=dict)
    disturbed: set[str] = field(default_factory=set)
    seqs: dict[str, int] = field(default_factory=dict)
    moves: dict[str, float] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.overseer = RingAdmin(self.client, Names(RING), namespace=self.namespace)
        self.file = self.directory / "account"
        self._chance = random.Random(7)
        self._children = Informer(self.client, CONFIG_MAPS, namespace=self.namespace, labels=CHILD)
        self._following: asyncio.Task[None] | None = None

    @property
    def account(self) -> Account:
        return read_account(self.file)

    def _noted(self, event: str) -> int:
        """Return the counts of the events so far, as text."""
        return self.file.read_text().count(f" {event} ")

    # The stage

    async def prepare(self) -> None:
        """Make the objects, and let the API server guard them."""
        self._following = asyncio.create_task(self._children.run())
        label, value = "app", "sharded"
        limit = asyncio.Semaphore(32)

        async def make(number: int) -> None:
            labels = {label: value}
            if self.labelled:
                key = f"{self.namespace}/o{number}"
                labels[Names(RING).slot_label] = str(slot_of(key, self.slots))
            body = {"metadata": {"name": f"o{number}", "labels": labels}, "data": {"seq": "0"}}
            async with limit:
                await self.client.create(CONFIG_MAPS, body, namespace=self.namespace)
            self.seqs[f"o{number}"] = 0

        async with asyncio.TaskGroup() as group:
            for number in range(self.objects):
                group.create_task(make(number))
        for body in admission_objects(
            Names(RING), namespace=self.namespace, guarded=[guard(CONFIG_MAPS)], groups=[GROUP]
        ):
            plural = _POLICIES[body["kind"]]
            kind = Resource(
                "admissionregistration.k8s.io", "v1", plural, body["kind"], False, Untyped
            )
            await self.client.create(kind, body)

    async def start(self, count: int, *, template: str = "v1", skew_s: float = 0.0) -> list[str]:
        """Start so many more."""
        names = []
        for _ in range(count):
            self._number += 1
            name = f"w{self._number}"
            kubeconfig = self.cluster.user(f"shard-{name}", groups=["system:masters", GROUP])
            words = [kubeconfig, self.namespace, name, self.file, template, skew_s, self.lease_s]
            process = Process(
                name,
                [sys.executable, self.worker, *(str(word) for word in words)],
                log=self.directory / f"{name}.log",
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(WORKER.parents[1]),  # for `support`
                    "SHARD_SLOTS": str(self.slots),
                    **self.environ,
                },
            )
            await process.start()
            self.replicas[name] = process
            names.append(name)
        return names

    async def joined(self, *names: str) -> None:
        """Wait until these may be given slots, as a Deployment waits for a ready pod."""

        async def healthy() -> bool:
            self.check_alive()
            members = (await self.overseer.state()).members
            ready = {
                name_of(each.record.id)
                for each in members
                if each.record.state is MemberState.HEALTHY
            }
            return ready >= set(names)

        await until(healthy, within=60, waiting_for=f"{names} to join")

    async def stop(self, *names: str) -> None:
        """End them as SIGTERM does; each has to end well."""

        async def end(name: str) -> None:
            process = self.replicas.pop(name)
            code = await process.stop(within_s=60)
            assert code == 0, process.tail()

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(end(name))

    async def kill(self, name: str) -> None:
        await self._disturb(name)
        await self.replicas.pop(name).kill()

    async def taken_over(self, name: str) -> float:
        """Kill one; the seconds until the last of its slots was taken up by another."""
        state = await self.overseer.state()
        (dead,) = (each for each in state.living if name_of(each) == name)
        theirs, at = state.table.owned_by(dead), time.clock_gettime(time.CLOCK_BOOTTIME)
        await self.kill(name)
        await self.settled(within=120)
        await self.synced(within=300)
        first: dict[int, float] = {}
        for line in self.account.lines:
            if line.at > at and line.slot in theirs and line.event == "begin":
                first.setdefault(line.slot, line.at)
        return round(max(first.values(), default=at) - at, 2)

    async def freeze(self, name: str, seconds: float, *, hanging: bool) -> None:
        """Stop a replica with SIGSTOP for a time, on request between the fence and the network."""
        await self._disturb(name)
        process = self.replicas[name]
        if hanging:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGUSR1)
            hung = self._noted("hangs")

            async def hangs() -> bool:
                await self.touch(20)
                return self._noted("hangs") > hung

            await until(hangs, waiting_for=f"a write of {name} to hang")
        process.pause()
        await self._while_loaded(seconds)
        process.resume()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        for process in self.replicas.values():
            await process.kill()

    async def _disturb(self, name: str) -> None:
        state = await self.overseer.state()
        self.disturbed |= {
            each.record.id for each in state.members if name_of(each.record.id) == name
        }

    # The load

    async def touch(self, count: int) -> None:
        """Change so many objects, each at another time of its own."""

        async def change(name: str) -> None:
            self.seqs[name] += 1
            patch = MergePatch({"data": {"seq": str(self.seqs[name])}})
            await self.client.patch(CONFIG_MAPS, name, patch, self.namespace)

        some = self._chance.sample(sorted(self.seqs), min(count, len(self.seqs)))
        async with asyncio.TaskGroup() as group:
            for name in some:
                group.create_task(change(name))

    async def _while_loaded(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self.touch(10)
            await asyncio.sleep(0.2)

    # Objects and replicas

    async def settled(self, *, within: float = 120) -> None:
        """Wait until all slots are shared among the running replicas, and none is being moved."""

        def fair(state: RingState) -> bool:
            living = [id_ for id_ in state.living if name_of(id_) in self.replicas]
            counts = [len(state.table.owned_by(id_)) for id_ in living]
            return (
                len(living) == len(self.replicas)
                and sum(counts) == self.slots
                and all(counts)
                and not state.table.draining()
            )

        async def probe() -> bool:
            self.check_alive()
            try:
                return fair(await self.overseer.state())
            except ConfigError:
                return False  # there is no table yet

        await until(
            probe, within=within, every=0.2, waiting_for=f"{sorted(self.replicas)} to share"
        )

    async def synced(self, *, within: float = 60) -> None:
        """Wait until every child has the seq of its owner: nothing is forgotten."""

        def behind(children: Iterable[ConfigMap]) -> bool:
            seqs = {item.name: (item.data or {}).get("seq") for item in children}
            return any(seqs.get(f"{name}-child") != str(seq) for name, seq in self.seqs.items())

        async def none() -> bool:
            self.check_alive()
            # A list of thousands of objects is expensive for the server; the cache is read first.
            if behind(self._children.items()):
                return False
            listing = await self.client.list(CONFIG_MAPS, self.namespace, labels=CHILD)
            return not behind(listing.items)

        await until(none, within=within, every=0.1, waiting_for="all children")

    def check_alive(self) -> None:
        for process in self.replicas.values():
            assert process.running, f"{process.name} ended:\n{process.tail()}"

    async def assigner(self) -> str:
        async def elected() -> str:
            held = name_of((await self.overseer.state()).assigner)
            return held if held in self.replicas else ""

        return await until(elected, waiting_for="an assigner")

    async def rebalancing(self) -> None:
        """Wait until slots are on their way."""

        async def draining() -> bool:
            return bool((await self.overseer.state()).table.draining())

        await until(draining, every=0.02, waiting_for="slots on their way")
