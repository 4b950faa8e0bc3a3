"""Overseer: a ring as people see and steer it.

It reads the table and the members, and writes the table as the assigner does: upon the version that
it decided from. What replicas rely on stays true, so everything may be done while they work, and
while there is no assigner at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeocean.errors import ConfigError, Conflict, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES, Lease
from kubeocean.sharding.heartbeat import MEMBER, record_of
from kubeocean.sharding.members import MemberRecord
from kubeocean.sharding.names import Names
from kubeocean.sharding.stores import ConfigMapStore
from kubeocean.sharding.table import Table, name_of
from kubeocean.sharding.tables import TABLE, Loaded, TableStore, admission_view, loaded_of

__all__ = ["Member", "Overseer", "RingState", "find_rings"]

_TRIES: Final = 30  # while shards change hands, the assigner writes many times a second


@dataclass(frozen=True, slots=True)
class Member:
    """A replica, and when it last said that it lives, on its own wall clock."""

    record: MemberRecord
    renewed: datetime | None
    principal: str


@dataclass(frozen=True, slots=True)
class RingState:
    """A ring at one moment."""

    table: Table
    members: tuple[Member, ...]
    assigner: str

    @property
    def living(self) -> list[str]:
        """Members that have not said that they are gone."""
        return [each.record.id for each in self.members if not each.record.released]

    def member(self, named: str) -> str:
        """The id of a replica that is named by its name or its id.

        :raises ConfigError: there is none, or there are several.
        """
        found = [id_ for id_ in self.living if named in (id_, name_of(id_))]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(self.living)) or "none"
        problem = "there are several of this name" if found else "there is no such replica"
        raise ConfigError(f"{problem}; replicas: {known}", field="replica", value=named)


class Overseer:
    """One ring, from outside."""

    def __init__(self, client: Client, names: Names, *, namespace: str) -> None:
        self.names = names
        self.namespace = namespace
        self._client = client
        self._store = ConfigMapStore(
            client, namespace=namespace, labels=names.labels(TABLE), beside=admission_view
        )

    async def state(self) -> RingState:
        """The ring as it is now.

        :raises ConfigError: there is no such ring.
        """
        loaded = await self._load()
        members = await self._members()
        return RingState(loaded.table, members, await self._assigner())

    async def change(self, change: Callable[[RingState], Table]) -> tuple[Table, Table]:
        """Write what `change` makes of the ring, and make it again if somebody else was quicker;
        the table before and after.
        """
        for tries_left in reversed(range(_TRIES)):
            members = await self._members()
            loaded = await self._load()  # last, so that few can be quicker
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
        raise AssertionError("unreachable")

    async def _load(self) -> Loaded:
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
        found = [self._member(lease) for lease in listing.items]
        known = [member for member in found if member is not None]
        return tuple(sorted(known, key=lambda member: member.record.id))

    def _member(self, lease: Lease) -> Member | None:
        record = record_of(lease, self.names)
        if record is None:
            return None
        renewed = lease.spec.renew_time
        at = datetime.fromisoformat(renewed) if renewed else None
        return Member(record, at, lease.annotations.get(self.names.principal, ""))

    async def _assigner(self) -> str:
        # A ring that took over from a single leader is elected on what that one was elected on.
        for name in (self.names.assigner, self.names.ring):
            try:
                lease = await self._client.get(LEASES, name, self.namespace)
            except NotFound:
                continue
            return lease.spec.holder_identity or ""
        return ""


async def find_rings(client: Client, names: Names, *, namespace: str = "") -> list[tuple[str, str]]:
    """The namespaces and names of rings, in order; `names` gives the domain."""
    role = f"{names.role_label}={TABLE}"
    listing = await client.list(CONFIG_MAPS, namespace, labels=role)
    return sorted(
        (found.namespace, found.labels[names.ring_label])
        for found in listing.items
        if names.ring_label in found.labels
    )
