"""Administration of a ring (the replicas that share a controller's keys) from outside.

`RingAdmin` reads the table of slot owners and the members' Leases, and writes the table as the
planner does: each write names the version of the table from which the change was made. All
guarantees of the replicas stay valid, so every operation may be used while replicas work, and also
while no planner is elected.

`switch` changes the configuration that all replicas of a ring must share. All replicas of the ring
must have stopped: replicas with two configurations would work on the same keys.

The table and expired Leases stay when the last replica has ended, so that replicas which start
again resume with their slots. `remove_ring_objects` deletes the table and these Leases when no
replica will start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from kubeocean.errors import ConfigError, Conflict, Forbidden, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import ObjectT, Resource
from kubeocean.sharding.config import Config
from kubeocean.sharding.handover import HANDOVER, HandoverPages
from kubeocean.sharding.heartbeat import MEMBER, may_see, record_of
from kubeocean.sharding.identity import (
    EARLIER,
    SLOTS_FIELD,
    ConfigurationRecord,
    RingIdentity,
    differences,
    identity_of,
    with_filter,
)
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.names import Names
from kubeocean.sharding.stores import (
    TABLE,
    ConfigMapStore,
    LoadedTable,
    TableStore,
    admission_view,
    loaded_of,
)
from kubeocean.sharding.table import Table, empty_table, name_of

__all__ = ["Member", "RingAdmin", "RingState", "find_rings", "remove_ring_objects"]

_PATIENCE: Final = 1.2  # Lease durations without a renewal until a replica is dead
_EVERY_S: Final = 1.0  # between two looks at the Leases
_TRIES: Final = 30  # while shards change owners, the planner writes many times a second


@dataclass(frozen=True, slots=True)
class Member:
    """Replica of a ring, and the wall-clock time at which it last renewed its Lease."""

    record: MemberRecord
    renewed: datetime | None
    principal: str

    def status(self, now: datetime) -> str:
        """Return the state to display: the one that the replica reports, unless it has left, or
        has not renewed its Lease in time by the clocks of both machines."""
        if self.record.released:
            return "Left"
        silent = self.renewed is None or (now - self.renewed).total_seconds() > self.record.lease_s
        return (MemberState.UNHEALTHY if silent else self.record.state).value


@dataclass(frozen=True, slots=True)
class RingState:
    """State of a ring at one moment: its table, members, planner (`assigner`) and configuration."""

    table: Table
    members: tuple[Member, ...]
    assigner: str
    identity: RingIdentity = field(default_factory=dict)
    earlier: tuple[ConfigurationRecord, ...] = ()
    written: str = ""

    @property
    def living(self) -> list[str]:
        """Members that have not released their Lease."""
        return [each.record.id for each in self.members if not each.record.released]

    def member(self, named: str) -> str:
        """Return the ID of the live replica with the name or ID `named`.

        :raises ConfigError: no live replica, or more than one, has this name or ID.
        """
        matching = [id_ for id_ in self.living if named in (id_, name_of(id_))]
        if len(matching) == 1:
            return matching[0]
        known = ", ".join(sorted(self.living)) or "none"
        problem = "there are several of this name" if matching else "there is no such replica"
        raise ConfigError(f"{problem}; replicas: {known}", field="replica", value=named)


class RingAdmin:
    """Reads and changes the table and the configuration of one ring from outside its replicas."""

    def __init__(self, client: Client, names: Names, *, namespace: str) -> None:
        self.names = names
        self.namespace = namespace
        self._client = client
        self._store = ConfigMapStore(
            client, namespace=namespace, labels=names.labels(TABLE), beside=admission_view
        )

    async def state(self) -> RingState:
        """Read the state of the ring from the API server.

        :raises ConfigError: there is no such ring.
        """
        loaded = await self._load()
        members = await self._members()
        return RingState(
            loaded.table,
            members,
            await self._assigner(),
            loaded.identity,
            loaded.earlier,
            loaded.written,
        )

    async def change(self, change: Callable[[RingState], Table]) -> tuple[Table, Table]:
        """Write the table that `change` returns, and return the tables before and after. After a
        conflicting write, `change` is called again with the new state."""
        for tries_left in reversed(range(_TRIES)):
            members = await self._members()
            loaded = await self._load()  # read last, to make a conflicting write less likely
            state = RingState(loaded.table, members, "")
            after = change(state)
            principals = {each.record.id: each.principal for each in state.members}
            tables = TableStore(
                self._store, key=self.names.table, ring=self.names.ring, slots=after.slots
            )
            try:
                await tables.save(after, loaded, principals=principals)
            except Conflict:
                if not tries_left:
                    raise
            else:
                return loaded.table, after
        raise AssertionError("the last attempt returns or raises")

    async def switch(self, config: Config, *, clock: Clock | None = None) -> RingState:
        """Change the configuration of a stopped ring, and return the ring's new state.

        Slots get new owners when replicas with that configuration start. Pins and hand-over pages
        are removed, because objects may be in other slots under the new configuration.

        :raises ConfigError: replicas of the ring still run, or the ring has this configuration
            already.
        """
        recorded = (await self._load()).identity
        identity = identity_of(config, config.algorithm())
        return await self._replace(with_filter(identity, recorded, config.sharding.filter), clock)

    async def switch_back(self, *, clock: Clock | None = None) -> RingState:
        """Restore the configuration that a stopped ring had before its present one.

        :raises ConfigError: the ring has no earlier configuration, or replicas of the ring still
            run.
        """
        earlier = (await self._load()).earlier
        if not earlier:
            raise ConfigError("has no earlier configuration", field="ring", value=self.names.ring)
        return await self._replace(earlier[-1].identity, clock)

    async def _replace(self, identity: RingIdentity, clock: Clock | None) -> RingState:
        clock = clock or RealClock()
        await self._check_stopped(clock)
        loaded = await self._load()
        theirs = {**loaded.identity, SLOTS_FIELD: str(loaded.table.slots)}
        if not differences(identity, theirs):
            raise ConfigError("has this configuration already", field="ring", value=self.names.ring)
        slots = int(identity[SLOTS_FIELD])
        # The epoch is larger than that of every grant, and of every object written under one.
        table = replace(
            empty_table(self.names.ring, slots),
            epoch=loaded.table.epoch + 1,
            drained=loaded.table.drained,
        )
        before = ConfigurationRecord(theirs, clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        upon = replace(loaded, identity={}, earlier=(*loaded.earlier, before)[-EARLIER:])
        tables = TableStore(
            self._store,
            key=self.names.table,
            ring=self.names.ring,
            slots=slots,
            identity=identity,
            clock=clock,
        )
        await tables.save(table, upon)
        await HandoverPages(self._client, namespace=self.namespace, names=self.names).clear()
        return await self.state()

    async def _check_stopped(self, clock: Clock) -> None:
        """Raise ConfigError if a replica of the ring still renews its Lease."""
        before = {each.record.id: each.record for each in await self._members()}
        silent = [record.lease_s for record in before.values() if not record.released]
        # A replica that crashed left its Lease. A replica is dead if the Lease was not renewed for
        # all of this time, and alive as soon as it was.
        end = clock.monotonic() + _PATIENCE * max(silent, default=0.0)
        while not (alive := await self._renewed_since(before)):
            left = end - clock.monotonic()
            if left <= 0:
                return
            await clock.sleep(min(left, _EVERY_S))
        raise ConfigError(
            f"still has running replicas: {', '.join(alive)}; stop all of them first, for "
            "example with `kubectl scale --replicas=0`",
            field="ring",
            value=self.names.ring,
        )

    async def _renewed_since(self, before: Mapping[str, MemberRecord]) -> list[str]:
        """Return the replicas that have renewed or created their Leases since `before` was read."""
        return [
            each.record.id
            for each in await self._members()
            if not each.record.released
            and (each.record.id not in before or before[each.record.id].pulse != each.record.pulse)
        ]

    async def _load(self) -> LoadedTable:
        stored = await self._store.load(self.names.table)
        if stored is None:
            raise ConfigError(
                f"there is no such ring in namespace {self.namespace}",
                field="ring",
                value=self.names.ring,
            )
        return loaded_of(stored, ring=self.names.ring)

    async def _members(self) -> tuple[Member, ...]:
        selected = self.names.selects(MEMBER)
        listing = await self._client.list(LEASES, self.namespace, labels=selected)
        members = [self._member(lease) for lease in listing.items]
        known = [member for member in members if member is not None]
        return tuple(sorted(known, key=lambda member: member.record.id))

    def _member(self, lease: Lease) -> Member | None:
        record = record_of(lease, self.names)
        if record is None:
            return None
        renewed = lease.spec.renew_time
        at = datetime.fromisoformat(renewed) if renewed else None
        return Member(record, at, lease.annotations.get(self.names.principal, ""))

    async def _assigner(self) -> str:
        # A ring that replaced a single leader elects its planner on the Lease of that leader.
        for name in (self.names.assigner, self.names.ring):
            try:
                lease = await self._client.get(LEASES, name, self.namespace)
            except NotFound:
                continue
            return lease.spec.holder_identity or ""
        return ""


async def find_rings(client: Client, names: Names, *, namespace: str = "") -> list[tuple[str, str]]:
    """Return namespace and name of each ring whose objects have the domain of `names`, in order."""
    role = f"{names.role_label}={TABLE}"
    listing = await client.list(CONFIG_MAPS, namespace, labels=role)
    return sorted(
        (table.namespace, table.labels[names.ring_label])
        for table in listing.items
        if names.ring_label in table.labels
    )


_log = get_logger(__name__)


async def remove_ring_objects(client: Client, names: Names, namespace: str) -> None:
    """Delete the table, Leases and hand-over pages that a ring left, as far as this account may.

    Does nothing if there is no ring.

    :raises ApiError: the API server did not answer.
    """
    try:
        if not await may_see(client, namespace):
            return  # there is no ring
        # The table is deleted last: as long as the table exists, another attempt finds the rest.
        table = await client.get(CONFIG_MAPS, names.table, namespace)
        leases = await client.list(LEASES, namespace, labels=names.selects(MEMBER))
        for lease in leases.items:
            await _delete(client, LEASES, lease)
        await _delete_pages(client, names, namespace)
        await _delete(client, CONFIG_MAPS, table)
    except (NotFound, Conflict):
        return  # another client deletes the table, or a replica uses the table
    except Forbidden as error:
        _log.debug(
            "Was not allowed to delete objects of ring",
            ring=names.ring,
            namespace=namespace,
            error=str(error),
        )
        return
    _log.info(
        "Deleted objects of ring", ring=names.ring, namespace=namespace, members=len(leases.items)
    )


async def _delete_pages(client: Client, names: Names, namespace: str) -> None:
    """Delete a ring's hand-over pages; if this account may not list them, the ring has no handlers
    and no pages."""
    try:
        pages = await client.list(CONFIG_MAPS, namespace, labels=names.selects(HANDOVER))
    except Forbidden:
        return
    for page in pages.items:
        await _delete(client, CONFIG_MAPS, page)


async def _delete(client: Client, kind: Resource[ObjectT], obj: ObjectT) -> None:
    """Delete an object if the object is unchanged since it was read."""
    await client.delete(
        kind, obj.name, obj.namespace, uid=obj.uid, resource_version=obj.resource_version
    )
