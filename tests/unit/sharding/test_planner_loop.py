"""The planner loop decides again when a member that was silent renews its Lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import Lease
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import decode_object
from kubeocean.sharding.members import MemberRecord, MemberState, encode_member
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.names import Names
from kubeocean.sharding.planner import Planner
from kubeocean.sharding.planner_loop import PlannerLoop
from kubeocean.sharding.stores import LoadedTable
from kubeocean.sharding.table import Table, empty_table
from kubeocean.sharding.timing import Timing

NAMES = Names("ring")
SLOTS = 8
TIMING = Timing()
SILENT_S = TIMING.renew_s + 1  # a Lease that has not expired, of a member that gets no slots


def lease_of(record: MemberRecord, version: int) -> Lease:
    """Return the Lease of a member as the API server stores it."""
    metadata = {
        "name": NAMES.member(record.id),
        "resourceVersion": str(version),
        "annotations": {NAMES.record: encode_member(record)},
    }
    spec = {"holderIdentity": record.id, "leaseDurationSeconds": int(TIMING.lease_s)}
    body = msgspec.json.encode({"metadata": metadata, "spec": spec})
    return decode_object(Lease, body, keep_raw=False)


class Store:
    """A table in memory."""

    def __init__(self) -> None:
        self.loaded = LoadedTable(empty_table(NAMES.ring, SLOTS), "1", (0,) * SLOTS)

    async def load(self) -> LoadedTable:
        return self.loaded

    def records(self, loaded: LoadedTable) -> bool:
        return True

    async def save(
        self, table: Table, upon: LoadedTable, *, principals: Mapping[str, str]
    ) -> LoadedTable:
        assert upon is self.loaded
        grants = tuple(entry.epoch for entry in table.entries)
        self.loaded = LoadedTable(table, str(table.epoch), grants)
        return self.loaded

    @property
    def heirs(self) -> set[str]:
        """Present and next owners."""
        return {entry.to or entry.owner for entry in self.loaded.table.entries}


@dataclass
class Members:
    """The Leases of the members: for lists of a client, and for the handler of an informer."""

    leases: dict[str, Lease] = field(default_factory=dict)
    handlers: list[Callable[[Lease | None, Lease | None], None]] = field(default_factory=list)
    version: int = 0

    def on_change(self, handler: Callable[[Lease | None, Lease | None], None]) -> None:
        self.handlers.append(handler)

    async def list(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(items=list(self.leases.values()))

    def renew(self, member: str) -> None:
        """Let a healthy member write its Lease."""
        self.version += 1
        record = MemberRecord(id=member, pulse="", state=MemberState.HEALTHY)
        before = self.leases.get(member)
        self.leases[member] = lease_of(record, self.version)
        for handler in self.handlers:
            handler(before, self.leases[member])


@dataclass
class World:
    """A planner loop with members a and b."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    store: Store = field(default_factory=Store)
    members: Members = field(default_factory=Members)

    def __post_init__(self) -> None:
        self.loop = PlannerLoop(
            self.members,  # type: ignore[arg-type]
            Planner(timing=TIMING),
            self.store,  # type: ignore[arg-type]
            namespace="default",
            names=NAMES,
            clock=self.clock,
            metrics=RingMetrics(Metrics(), NAMES.ring),
            informer=self.members,  # type: ignore[arg-type]
        )

    @asynccontextmanager
    async def elected(self) -> AsyncIterator[None]:
        """Let the loop decide until the block ends."""
        task = asyncio.create_task(self.loop.run())
        try:
            await self.clock.advance(0)
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def silence(self) -> None:
        """Let both join, and only a renew its Lease."""
        self.members.renew("a_1")
        self.members.renew("b_1")
        await self.clock.advance(SILENT_S)
        self.members.renew("a_1")


async def test_a_member_gets_slots_as_soon_as_it_renews_its_lease_again() -> None:
    world = World()
    await world.silence()
    async with world.elected():
        assert world.store.heirs == {"a_1"}
        world.members.renew("b_1")
        await world.clock.advance(0)
        assert world.store.heirs == {"a_1", "b_1"}


async def test_a_replica_that_was_the_planner_sees_that_a_member_is_healthy_again() -> None:
    world = World()
    await world.silence()
    async with world.elected():
        assert world.loop.others("a_1") == []
    world.members.renew("b_1")
    assert [record.id for record in world.loop.others("a_1")] == ["b_1"]
    await world.clock.advance(SILENT_S)
    assert world.loop.others("a_1") == []
