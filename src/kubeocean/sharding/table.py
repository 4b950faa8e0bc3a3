"""Table: the owner of each slot, as the one agreed record of a ring.

A slot goes through

    Unowned ──► Owned(A) ──► Draining(A → B) ──► Owned(B)
                   └────────── A is dead ───────────┘

and each change gives the slot the epoch of the write that made the change. Epochs only grow: the
epoch of an Owned slot is the fencing token of its owner. Owners are incarnations of replicas, not
replicas: a process that restarts gets a new ID.

A table is an immutable value. A change returns another table, which is written with the version
from which the change was decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.sharding.slots import SLOTS, encode_slots

__all__ = [
    "HISTORY",
    "UNOWNED",
    "Past",
    "SlotEntry",
    "SlotState",
    "Table",
    "assignment",
    "empty_table",
    "moved_slots",
    "name_of",
]

HISTORY: Final = 5  # how many earlier assignments a table remembers


class SlotState(StrEnum):
    """State of a slot in the table."""

    OWNED = "Owned"
    DRAINING = "Draining"
    UNOWNED = "Unowned"


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """Entry of one slot in the table. `owner` may act on the slot (empty: no replica); `to` is the
    next owner while the slot drains."""

    owner: str = ""
    epoch: int = 0
    to: str = ""

    @property
    def state(self) -> SlotState:
        if not self.owner:
            return SlotState.UNOWNED
        return SlotState.DRAINING if self.to else SlotState.OWNED

    @property
    def heir(self) -> str:
        """Owner of the slot after its present hand-over."""
        return self.to or self.owner


UNOWNED: Final = SlotEntry()


@dataclass(frozen=True, slots=True)
class Past:
    """Earlier assignment of the slots: their owners up to an epoch."""

    epoch: int
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Owner of each slot of a ring, and the operators' settings.

    - `epoch`: the number of the last write.
    - `frozen`: slots move only by an operator's command, or because their owner is dead.
    - `pins`: slots that stay at a replica, which is given by name or ID.
    - `drained`: replicas, by name or ID, that get no slots, and whose slots move to others.
    - `history`: earlier assignments, the newest last.
    """

    ring: str
    epoch: int
    entries: tuple[SlotEntry, ...]
    frozen: bool = False
    pins: Mapping[int, str] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    history: tuple[Past, ...] = ()

    @property
    def slots(self) -> int:
        return len(self.entries)

    @property
    def next_owners(self) -> tuple[str, ...]:
        """Return the owner of each slot after the hand-overs in progress."""
        return tuple([entry.to or entry.owner for entry in self.entries])

    @property
    def owners(self) -> frozenset[str]:
        """Return all members that own a slot now or next."""
        named = {entry.owner for entry in self.entries} | {entry.to for entry in self.entries}
        return frozenset(named - {""})

    def owned_by(self, member: str) -> frozenset[int]:
        """Return the slots on which `member` may act, draining ones included."""
        return frozenset([slot for slot, each in enumerate(self.entries) if each.owner == member])

    def draining(self) -> dict[int, SlotEntry]:
        """Return the entries of the slots that are being handed over."""
        return {slot: each for slot, each in enumerate(self.entries) if each.to and each.owner}

    def changed(self, entries: Mapping[int, SlotEntry]) -> Table:
        """Return the next table, with these entries replaced; their epochs are set here."""
        epoch = self.epoch + 1
        merged = list(self.entries)
        for slot, entry in entries.items():
            merged[slot] = SlotEntry(entry.owner, epoch, entry.to)
        after = Table(
            self.ring, epoch, tuple(merged), self.frozen, self.pins, self.drained, self.history
        )
        next_owners = self.next_owners
        if after.next_owners == next_owners or not any(next_owners):
            return after
        return replace(after, history=(*self.history, Past(self.epoch, next_owners))[-HISTORY:])

    def names_member(self, words: Iterable[str], member: str) -> bool:
        """Return whether `words`, which are names or IDs of replicas, contain this member."""
        return member in words or name_of(member) in words


def empty_table(ring: str, slots: int = SLOTS) -> Table:
    """Return the table of a ring before its first replica.

    :raises ConfigError: `slots` is less than 1.
    """
    if slots < 1:
        raise ConfigError("must be at least 1", field="sharding.slots", value=slots)
    return Table(ring, 0, (UNOWNED,) * slots)


def name_of(member: str) -> str:
    """Return the name of the replica of which `member` is an incarnation."""
    return member.rpartition("_")[0] or member


def assignment(table: Table | None) -> dict[str, str]:
    """Return the slots of each replica, for a log line."""
    if table is None:
        return {}
    return {owner: encode_slots(table.owned_by(owner)) for owner in sorted(table.owners)}


def moved_slots(before: Table | None, after: Table) -> list[tuple[int, str, str]]:
    """Return the slots whose owner changed: slot, old owner, new owner."""
    if before is None or before.slots != after.slots:
        return []
    pairs = zip(before.entries, after.entries, strict=True)
    return [
        (slot, old.owner, new.owner)
        for slot, (old, new) in enumerate(pairs)
        if old.owner != new.owner
    ]
