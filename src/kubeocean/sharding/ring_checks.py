"""Checks of a replica against its ring: configuration, controllers and name.

A replica that does not fit into its ring ends with a ConfigError before it works on a slot:
replicas of the ring have other settings (see `identity`), another running replica has its name, or
the ring is that of another program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.sharding.heartbeat import read_members
from kubeocean.sharding.identity import (
    RingIdentity,
    SettingDifference,
    differences,
    other_controllers,
    program_difference,
    refusal,
    ring_keeper,
)
from kubeocean.sharding.members import MemberRecord
from kubeocean.sharding.names import Names
from kubeocean.sharding.stores import LoadedTable, TableStore, Unreadable
from kubeocean.sharding.table import name_of

__all__ = ["RingChecks"]


class RingChecks:
    """Compares a replica with the other replicas of its ring.

    - `own`: returns the record of this replica, which is not one of the others.
    - `identity`: the settings of this replica; the ring adds those of its controllers.
    - `recorded`: the settings of the replicas that wrote the table.
    - `error`: set when the table shows that this replica must end.
    """

    def __init__(
        self,
        client: Client,
        tables: TableStore,
        *,
        namespace: str,
        names: Names,
        identity: RingIdentity,
        own: Callable[[], MemberRecord],
        clock: Clock,
    ) -> None:
        self._client = client
        self._tables = tables
        self._namespace = namespace
        self._names = names
        self._own = own
        self._clock = clock
        self.identity = identity
        self.recorded: RingIdentity = {}
        self.error: ConfigError | None = None

    async def check_configuration(self) -> None:
        """Read the settings of the ring.

        :raises ConfigError: they differ from those of this replica, or the table cannot be read.
        """
        try:
            self.recorded = (await self._tables.load()).identity
        except Unreadable as error:
            if error.differences:
                raise await self.refusal(error.differences) from None
            table = f"ConfigMap {self._namespace}/{self._names.table}"
            raise ConfigError(
                f"{table} has no table of shards: {error}; restore the ConfigMap, or delete it "
                "while no replica of the ring runs"
            ) from None

    async def check_name(self, replica: str, *, wait_s: float) -> str:
        """Return the ID of the last replica of this name, which is dead; empty if there is none.

        :raises ConfigError: it is alive: it renewed its Lease within `wait_s`.
        """
        namesakes = {
            record.id: record.pulse
            for record in await self._members()
            if name_of(record.id) == replica
        }
        if not namesakes:
            return ""
        await self._clock.sleep(wait_s)
        for record in await self._members():
            if namesakes.get(record.id, record.pulse) != record.pulse:
                raise ConfigError(
                    f"another running replica of ring {self._names.ring} has this name; set "
                    "POD_NAME or node.identity to another one",
                    field="node.identity",
                    value=replica,
                )
        return max(namesakes)

    async def check_setting(self, field: str, value: str) -> None:
        """Raise ConfigError if other replicas have another value of a setting."""
        if differing := differences({field: value}, self.recorded):
            raise await self.refusal(differing)

    async def check_controllers(self, *, wait_s: float) -> None:
        """Check that no running replica of another program uses the ring: each program would leave
        the keys in the shards of the other one alone.

        :raises ConfigError: such a replica renewed its Lease within `wait_s`.
        """
        while True:
            recorded = self.recorded
            members = await self._members()
            if ring_keeper(self._own(), members, self.recorded) is not None:
                before = {record.id: record.pulse for record in members}
                await self._clock.sleep(wait_s)  # a replica that crashed left its Lease, too
                members = await self._members()
                alive = [record for record in members if before.get(record.id) != record.pulse]
                keeper = ring_keeper(self._own(), alive, self.recorded)
                if keeper is not None:
                    raise self._other_program(keeper)
            # No await between this line and the end of the preparation.
            if self.recorded == recorded:
                return

    def see_renewed(self, record: MemberRecord, running: Sequence[MemberRecord]) -> None:
        """Compare this replica with the `running` ones, of which `record` has renewed its Lease.
        Sets `error` if the renewed one is of another program, which may use the ring."""
        keeper = ring_keeper(self._own(), running, self.recorded)
        if keeper is not None and keeper.id == record.id and self.error is None:
            self.error = self._other_program(keeper)

    def _other_program(self, keeper: MemberRecord) -> ConfigError:
        difference = program_difference(self._own(), keeper, self.recorded)
        return refusal(self._names.ring, [difference], [keeper.id])

    def see(self, loaded: LoadedTable, *, prepared: bool) -> None:
        """Record the settings in a new table. Sets `error` if another program, which started at the
        same time as this `prepared` replica, has written the table."""
        before, self.recorded = self.recorded, loaded.identity
        if not prepared or self.recorded == before:
            return
        differing = other_controllers(self.identity, self.recorded)
        if differing is not None:
            message = str(refusal(self._names.ring, [differing], ()))
            self.error = Unreadable(message, version=loaded.version, differences=[differing])

    async def raise_error(self) -> None:
        """Raise `error`, if there is one, with the names of the other replicas."""
        if isinstance(self.error, Unreadable) and self.error.differences:
            raise await self.refusal(self.error.differences)
        if self.error is not None:
            raise self.error

    async def refusal(self, differing: Sequence[SettingDifference]) -> ConfigError:
        """Return the error for settings in which this replica differs from the other replicas."""
        return refusal(self._names.ring, differing, await self._others())

    async def _others(self) -> list[str]:
        return [record.id for record in await self._members() if record.id != self._own().id]

    async def _members(self) -> list[MemberRecord]:
        """Return the replicas of the ring that have not released their Leases."""
        members = await read_members(self._client, self._namespace, self._names)
        return [record for record in members if not record.released]
