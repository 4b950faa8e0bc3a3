"""Tables: a ring's table in a state store.

Beside the table stand the *grants*: for each slot the epoch of the grant under which its owner may
write, which is the table's own epoch for the slot, but while the slot drains still that of the
owner who lets go. They are what an admission policy compares a writer's epoch with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.objects import Json
from kubeocean.sharding.stores import ABSENT, StateStore, Stored, Unreadable
from kubeocean.sharding.table import SlotState, Table, empty_table
from kubeocean.sharding.tabletext import decode_table, encode_table

__all__ = ["TABLE", "Loaded", "TableStore", "admission_view", "loaded_of"]

_TABLE: Final = "table"
_GRANTS: Final = "grants"
_PRINCIPALS: Final = "principals"
TABLE: Final = "table"  # the role of the object


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as it was read, with the version that the next write has to name."""

    table: Table
    version: str
    grants: tuple[int, ...]


class TableStore:
    """The table of one ring."""

    def __init__(self, store: StateStore, *, key: str, ring: str, slots: int) -> None:
        self._store = store
        self._key = key
        self._ring = ring
        self._slots = slots

    async def load(self) -> Loaded:
        """The table as it is now; the empty one if there is none yet.

        :raises Unreadable: it is none, or not of this ring, or has another number of slots.
        """
        stored = await self._store.load(self._key)
        if stored is None:
            return Loaded(empty_table(self._ring, self._slots), ABSENT, (0,) * self._slots)
        return self.read(stored)

    def read(self, stored: Stored) -> Loaded:
        """The table in a state.

        :raises Unreadable: as of `load`.
        """
        try:
            loaded = loaded_of(stored, ring=self._ring)
            if loaded.table.slots != self._slots:
                raise ConfigError(
                    f"the ring {self._ring} has {loaded.table.slots}, and cannot be cut anew",
                    field="sharding.slots",
                    value=self._slots,
                )
        except ConfigError as error:
            raise Unreadable(str(error), version=stored.version) from error
        return loaded

    async def save(
        self, table: Table, upon: Loaded, *, principals: Mapping[str, str] | None = None
    ) -> Loaded:
        """Write the table, if `upon` is still what is there.

        :raises Conflict: it is not.
        """
        grants = _grants(table, upon)
        state = {
            _TABLE: msgspec.json.decode(encode_table(table)),
            _GRANTS: list(grants),
            _PRINCIPALS: {
                member: principal
                for member, principal in sorted((principals or {}).items())
                if member in table.owners
            },
        }
        version = await self._store.save(self._key, state, upon.version)
        return Loaded(table, version, grants)


def loaded_of(stored: Stored, *, ring: str) -> Loaded:
    """The table in a state.

    :raises ConfigError: there is none, or it is of another ring.
    """
    table = decode_table(msgspec.json.encode(stored.state.get(_TABLE)), ring=ring)
    try:
        grants = msgspec.convert(stored.state.get(_GRANTS), tuple[int, ...])
    except msgspec.ValidationError:
        grants = ()
    if len(grants) != table.slots:  # as written by hand: no grant is known to be older
        grants = tuple(entry.epoch for entry in table.entries)
    return Loaded(table, stored.version, grants)


def admission_view(state: Json) -> dict[str, str]:
    """What an admission policy reads: for each slot its grant, and who may write under it."""
    table = decode_table(msgspec.json.encode(state[_TABLE]))
    known: Mapping[str, str] = state.get(_PRINCIPALS) or {}
    # The first is nobody: who owns nothing, and whom the API server does not know.
    principals = ["", *sorted(set(known.values()))]
    number = {member: principals.index(principal) for member, principal in known.items()}
    return {
        "epoch": str(table.epoch),
        "grants": ",".join(str(grant) for grant in state[_GRANTS]),
        "owners": ",".join(str(number.get(entry.owner, 0)) for entry in table.entries),
        "principals": "\n".join(principals),
    }


def _grants(table: Table, upon: Loaded) -> tuple[int, ...]:
    before = upon.table.entries
    return tuple(
        upon.grants[slot]
        if entry.state is SlotState.DRAINING and before[slot].owner == entry.owner
        else entry.epoch
        for slot, entry in enumerate(table.entries)
    )
