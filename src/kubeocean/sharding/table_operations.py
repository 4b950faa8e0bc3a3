"""Operations of an operator on the table: move, pin, drain, freeze, roll back.

Each operation returns a new table, to be written with the version from which it was made. No
operation breaks an invariant on which replicas rely.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kubeocean.errors import ConfigError
from kubeocean.sharding.table import UNOWNED, SlotEntry, Table, name_of

__all__ = ["drain", "freeze", "move", "pin", "release", "rollback", "undrain", "unpin"]


def freeze(table: Table, on: bool = True) -> Table:
    """Freeze or unfreeze the table of slot owners: while frozen, slots move only by a command, or
    from a dead owner."""
    return replace(table, frozen=on, epoch=table.epoch + 1)


def drain(table: Table, replica: str) -> Table:
    """Move all slots of a replica, given by name or ID, to other replicas, and assign none to
    it."""
    if not replica:
        raise ConfigError("must be the name or ID of a replica", field="replica", value=replica)
    return replace(table, drained=table.drained | {replica}, epoch=table.epoch + 1)


def undrain(table: Table, replica: str) -> Table:
    """Allow a drained replica to own slots again."""
    if replica not in table.drained:
        raise ConfigError("is not drained", field="replica", value=replica)
    return replace(table, drained=table.drained - {replica}, epoch=table.epoch + 1)


def pin(table: Table, slots: Iterable[int], replica: str) -> Table:
    """Keep slots at a replica, given by name or ID, whenever that replica can own slots."""
    pins = {**table.pins, **dict.fromkeys(_checked(table, slots), replica)}
    return replace(table, pins=pins, epoch=table.epoch + 1)


def unpin(table: Table, slots: Iterable[int]) -> Table:
    """Remove the pins of slots, so that balancing may move the slots."""
    free = set(_checked(table, slots))
    pins = {slot: replica for slot, replica in table.pins.items() if slot not in free}
    return replace(table, pins=pins, epoch=table.epoch + 1)


def move(table: Table, slots: Iterable[int], to: str) -> Table:
    """Request a hand-over of slots to the member `to`; unowned slots are not changed."""
    if not to:
        raise ConfigError("must be the ID of a replica", field="to", value=to)
    changes: dict[int, SlotEntry] = {}
    for slot in _checked(table, slots):
        entry = table.entries[slot]
        if not entry.owner or entry.heir == to:
            continue
        changes[slot] = SlotEntry(to) if entry.owner == to else SlotEntry(entry.owner, to=to)
    return table.changed(changes)


def rollback(table: Table, epoch: int, living: Iterable[str]) -> Table:
    """Request the assignment of an earlier epoch, for the slots whose owners are still members.

    A live replica with the name of an earlier owner counts as that owner. The table is frozen:
    otherwise balancing would move the slots again.
    """
    past = next((each for each in reversed(table.history) if each.epoch == epoch), None)
    if past is None:
        known = ", ".join(str(each.epoch) for each in table.history) or "none"
        raise ConfigError(
            f"is not in the history of assignments; known epochs: {known}",
            field="epoch",
            value=epoch,
        )
    present = {name_of(member): member for member in living}
    wanted: dict[str, list[int]] = {}
    for slot, owner in enumerate(past.owners):
        if to := present.get(name_of(owner)):
            wanted.setdefault(to, []).append(slot)
    changes = {
        slot: entry
        for to, slots in wanted.items()
        for slot, entry in enumerate(move(table, slots, to).entries)
        if entry != table.entries[slot]
    }
    return replace(table.changed(changes), frozen=True)


def release(table: Table, slots: Iterable[int]) -> Table:
    """Take slots from their owners by force, without a hand-over.

    The slots are granted again when all live members have seen the new table. An owner that has no
    Lease any more is not waited for: make sure that it is dead.
    """
    return table.changed(dict.fromkeys(_checked(table, slots), UNOWNED))


def _checked(table: Table, slots: Iterable[int]) -> list[int]:
    ordered = sorted(set(slots))
    if not ordered:
        raise ConfigError("must contain at least one slot", field="slots")
    if not 0 <= ordered[0] <= ordered[-1] < table.slots:
        raise ConfigError(f"must be from 0 to {table.slots - 1}", field="slots", value=ordered)
    return ordered
