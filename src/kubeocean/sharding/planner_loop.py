"""Planner loop: gives members and tables to the planner, and writes its decisions.

Every replica watches the members' Leases, so that a newly elected planner knows since when each
Lease has not changed. Only the elected replica decides: when a member's record or the table
changed, and at the time that the last decision set. Nothing is polled at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from kubeocean.errors import ApiError, ConfigError, Conflict, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.heartbeat import MEMBER, read_members, record_of
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.names import Names
from kubeocean.sharding.nodes import NodeInfo
from kubeocean.sharding.planner import Planner, PlanningResult
from kubeocean.sharding.stores import ABSENT, LoadedTable, TableStore, Unreadable
from kubeocean.sharding.table import Table, empty_table, name_of

__all__ = ["PlannerLoop"]

_AT_LEAST_S: Final = 0.05  # between two lists of the members, whatever a decision says
_AGAIN_S: Final = 1.0  # after a failed request

_log = get_logger(__name__)


class PlannerLoop:
    """Watches the members of a ring in every replica, and plans the table while elected."""

    def __init__(
        self,
        client: Client,
        planner: Planner,
        store: TableStore,
        *,
        namespace: str,
        names: Names,
        clock: Clock,
        metrics: RingMetrics,
        informer: Informer[Lease] | None = None,
        wrote: Callable[[Table], None] | None = None,
        on_member: Callable[[], None] | None = None,
        on_renewed: Callable[[MemberRecord], None] | None = None,
        on_saved: Callable[[LoadedTable], None] | None = None,
    ) -> None:
        self._client = client
        self._planner = planner
        self._store = store
        self._namespace = namespace
        self._names = names
        self._clock = clock
        self._metrics = metrics
        self._wrote = wrote or _ignore
        self._on_member = on_member or _nothing
        self._on_renewed = on_renewed or _ignore_renewal
        self._on_saved = on_saved or _ignore_save
        self._last: LoadedTable | None = None  # the table as this replica last read or wrote it
        self._table = empty_table(names.ring, 1)  # the last table seen, of whichever writer
        self._records: dict[str, MemberRecord] = {}
        self._principals: dict[str, str] = {}
        self._states: dict[str, MemberState] = {}
        self._news = asyncio.Event()
        self._doubt = True  # the members have to be listed again
        self._gone = False  # the table was deleted, or made unreadable
        self.agreed = asyncio.Event()  # the stored table has the settings of this replica
        self.leases = informer or Informer(
            client, LEASES, namespace=namespace, labels=names.selects(MEMBER), clock=clock
        )
        self.leases.on_change(self._heard)

    # In every replica, elected or not

    def others(self, member: str) -> list[MemberRecord]:
        """Return the other healthy members, which could get the slots of `member`."""
        # Not `_states`: those of a replica that is not elected are of its last decision.
        states = self._planner.states(self._clock.monotonic())
        return [
            record
            for record in self._records.values()
            if record.id != member and states.get(record.id) is MemberState.HEALTHY
        ]

    def running(self) -> list[MemberRecord]:
        """Return the replicas that have not released their Leases, and renewed them in time."""
        states = self._planner.states(self._clock.monotonic())
        return [
            record
            for record in self._records.values()
            if not record.released and states.get(record.id) is not MemberState.UNHEALTHY
        ]

    def nodes(self) -> list[NodeInfo]:
        """Return the replicas of the ring as this replica sees them."""
        now, wall = self._clock.monotonic(), self._clock.now()
        states = self._planner.states(now)
        return [
            NodeInfo(
                id=record.id,
                name=name_of(record.id),
                address=record.address,
                status=MemberState.LEAVING if record.released else states[record.id],
                shards=tuple(sorted(self._table.owned_by(record.id))),
                last_seen=wall - timedelta(seconds=self._planner.silence(record.id, now)),
            )
            for record in self._records.values()
            if record.id in states
        ]

    def saw(self, table: Table) -> None:
        """Record a table of slot owners that was written by any replica."""
        self._table = table
        self._news.set()

    def lost(self) -> None:
        """Record that the table of slot owners was deleted, or replaced with content that no
        replica wrote."""
        self._gone = True
        self._news.set()

    def _heard(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        record = record_of(lease, self._names)
        if record is None:
            return
        if new is None:
            self._records.pop(record.id, None)
            self._principals.pop(record.id, None)
            self._doubt = True
            self._news.set()
            self._on_member()
            return
        before = self._records.get(record.id)
        self._records[record.id] = record
        self._principals[record.id] = lease.annotations.get(self._names.principal, "")
        self._planner.observe(
            [record], started=None, now=self._clock.monotonic(), table=self._table
        )
        renewed = before is not None and before.pulse != record.pulse
        if renewed:
            self._on_renewed(record)
        # A member that was silent at the last decision could not get slots then.
        recovered = renewed and self._states.get(record.id) is MemberState.UNHEALTHY
        if before is None or recovered or _decisive(before) != _decisive(record):
            self._news.set()
            self._on_member()

    # While elected

    async def run(self) -> None:
        """Plan and write the table of slot owners until cancelled."""
        self._doubt = True
        self._metrics.is_planner.set(1)
        loaded: LoadedTable | None = None
        try:
            while True:
                self._news.clear()  # before anything is read: later changes set the event again
                try:
                    if loaded is None or self._gone or loaded.table.epoch < self._table.epoch:
                        loaded = await self._load()
                    if not self._store.records(loaded):
                        # Written by an earlier version of the program, or before a controller was
                        # added.
                        loaded = await self._save(loaded.table.changed({}), loaded)
                    self.agreed.set()
                    loaded = await self._round(loaded)
                except Conflict:
                    loaded = None  # a conflicting write: read, and decide again
                except ApiError as error:
                    _log.warning("Failed to assign shards", ring=self._names.ring, error=str(error))
                    loaded = None
                    await self._clock.sleep(_AGAIN_S)
        finally:
            self._metrics.is_planner.set(0)

    async def _load(self) -> LoadedTable:
        self._gone = False
        known, why = self._table, ""
        try:
            loaded = await self._store.load()
            version = loaded.version
            if version == ABSENT:
                why = "it was deleted"
            elif loaded.table.epoch <= known.epoch and loaded.table != known:
                why = "it was set back, or changed without a new epoch"
            if not why or not known.epoch:
                self._last = loaded
                return loaded
        except Unreadable as error:
            if not known.epoch:
                raise
            version, why = error.version, str(error)
        # Replicas act by the last table that they saw, and epochs must not start again.
        _log.error("Replaced shard table with the last known one", ring=self._names.ring, why=why)
        grants = tuple(entry.epoch for entry in known.entries)
        if self._last is None:
            before = LoadedTable(known, version, grants)
        else:
            before = replace(self._last, table=known, version=version, grants=grants)
        return await self._save(known.changed({}), before)

    async def _save(self, table: Table, upon: LoadedTable) -> LoadedTable:
        self._last = await self._store.save(table, upon, principals=self._principals)
        self._on_saved(self._last)
        return self._last

    async def _round(self, loaded: LoadedTable) -> LoadedTable:
        """Plan once and write the table of slot owners if it changes; else wait for the next
        change."""
        if self._doubt:
            await self._look(loaded.table)
        decision = self._decide(loaded.table)
        if decision is None:
            await self._clock.sleep(_AGAIN_S)
            return loaded
        self._tell()
        await self._evict(decision)
        if decision.table is not None:
            return await self._write(decision, decision.table, loaded)
        wait_s = decision.look_at - self._clock.monotonic()
        if wait_s <= 0:
            self._doubt = True
            wait_s = _AT_LEAST_S
        with suppress(TimeoutError):
            await within(self._clock, wait_s, self._news.wait)
        return loaded

    def _decide(self, table: Table) -> PlanningResult | None:
        """Return the next decision; None if the algorithm of the user failed and there are owners,
        who go on with the present table."""
        try:
            return self._planner.decide(table, self._clock.monotonic())
        except ConfigError as error:
            if not table.owners:
                raise
            _log.error("Failed to assign shards", ring=self._names.ring, error=str(error))
            return None

    async def _look(self, table: Table) -> None:
        started = self._clock.monotonic()
        records = await read_members(self._client, self._namespace, self._names)
        self._doubt = False
        self._planner.observe(records, started=started, now=self._clock.monotonic(), table=table)

    async def _write(
        self, decision: PlanningResult, table: Table, upon: LoadedTable
    ) -> LoadedTable:
        written = await self._save(table, upon)
        self._metrics.rebalances.inc()
        self._metrics.moves.inc(len(decision.moves))
        _log.info(
            "Wrote shard table",
            ring=self._names.ring,
            epoch=table.epoch,
            moves=len(decision.moves),
            granted=sum(move.granted for move in decision.moves),
        )
        self._wrote(table)
        return written

    async def _evict(self, decision: PlanningResult) -> None:
        for record in decision.evict:
            try:
                await self._client.delete(
                    LEASES,
                    self._names.member(record.id),
                    self._namespace,
                    uid=record.uid,
                    resource_version=record.pulse,
                )
            except (Conflict, NotFound) as error:
                _log.debug(
                    "Kept replica in ring, its Lease had changed",
                    replica=record.id,
                    error=str(error),
                )
            else:
                _log.info(
                    "Deleted Lease of replica that is dead or hands over too slowly",
                    ring=self._names.ring,
                    replica=record.id,
                )
            self._doubt = True

    def _tell(self) -> None:
        """Log changes of members' states, and set their metrics."""
        states = self._planner.states(self._clock.monotonic())
        for member, state in states.items():
            if self._states.get(member) is not state:
                _log.info(
                    "Health status of replica changed",
                    ring=self._names.ring,
                    node_id=member,
                    status=state.value,
                )
        self._states = states
        self._metrics.seen(states)


def _decisive(record: MemberRecord) -> tuple[object, ...]:
    """Return the fields of a member's record that decisions depend on, without those that every
    renewal changes."""
    fields = (record.state, record.released, record.capacity, record.template)
    return *fields, record.seen, dict(record.acks)


def _ignore(table: Table) -> None:
    pass


def _ignore_renewal(record: MemberRecord) -> None:
    pass


def _ignore_save(loaded: LoadedTable) -> None:
    pass


def _nothing() -> None:
    pass
