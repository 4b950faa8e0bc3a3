"""Encoding of a table as compact JSON, and strict decoding.

Slots with the same entry are written together, and members by number: a ring of 1,024 slots and ten
replicas takes 3 KB, its history another 2 KB for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.sharding.slots import MOST, decode_slots, encode_slots
from kubeocean.sharding.table import Past, SlotEntry, Table

__all__ = ["decode_table", "encode_table"]

_VERSION: Final = 1
_NOBODY: Final = -1


class _Past(msgspec.Struct):
    epoch: int
    owners: dict[str, str]  # the number of a member: its slots


class _StoredTable(msgspec.Struct, omit_defaults=True):
    version: int
    ring: str
    slots: int
    epoch: int
    members: list[str] = []
    groups: list[tuple[int, int, int, str]] = []  # owner, to, epoch, slots
    frozen: bool = False
    pins: dict[str, str] = {}  # member as it was written: slots
    drained: list[str] = []
    history: list[_Past] = []


def encode_table(table: Table) -> str:
    """Return the table as JSON; equal tables have equal texts."""
    named = {each for past in table.history for each in past.owners} | table.owners
    members = sorted(named - {""})
    number = {member: index for index, member in enumerate(members)} | {"": _NOBODY}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for slot, each in enumerate(table.entries):
        groups.setdefault((number[each.owner], number[each.to], each.epoch), []).append(slot)
    pins: dict[str, list[int]] = {}
    for slot, member in table.pins.items():
        pins.setdefault(member, []).append(slot)
    wire = _StoredTable(
        version=_VERSION,
        ring=table.ring,
        slots=table.slots,
        epoch=table.epoch,
        members=members,
        groups=[(*key, encode_slots(slots)) for key, slots in sorted(groups.items())],
        frozen=table.frozen,
        pins={member: encode_slots(slots) for member, slots in sorted(pins.items())},
        drained=sorted(table.drained),
        history=[_past(past, number) for past in table.history],
    )
    return msgspec.json.encode(wire).decode()


def decode_table(text: str | bytes, *, ring: str | None = None) -> Table:
    """Return the table that a JSON text encodes.

    :raises ConfigError: the text is no table, or not of `ring`; `field` names the invalid part.
    """
    try:
        wire = msgspec.json.decode(text, type=_StoredTable)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"is not a shard table: {error}", field="table") from error
    _require(wire.version == _VERSION, "is not known", "version", wire.version)
    _require(ring in (None, wire.ring), f"must be {ring!r}", "ring", wire.ring)
    _require(1 <= wire.slots <= MOST, f"must be from 1 to {MOST}", "slots", wire.slots)
    _require(wire.epoch >= 0, "must not be negative", "epoch", wire.epoch)
    _require("" not in wire.members, "must not have an empty one", "members", wire.members)
    return Table(
        wire.ring,
        wire.epoch,
        _entries(wire),
        wire.frozen,
        {
            slot: member
            for member, slots in wire.pins.items()
            for slot in _some(slots, wire.slots, "pins")
        },
        frozenset(wire.drained),
        tuple(_decode_past(past, wire, f"history[{i}]") for i, past in enumerate(wire.history)),
    )


def _past(past: Past, number: dict[str, int]) -> _Past:
    owners: dict[str, list[int]] = {}
    for slot, owner in enumerate(past.owners):
        if owner:
            owners.setdefault(str(number[owner]), []).append(slot)
    return _Past(past.epoch, {owner: encode_slots(slots) for owner, slots in owners.items()})


def _entries(wire: _StoredTable) -> tuple[SlotEntry, ...]:
    entries: list[SlotEntry | None] = [None] * wire.slots
    for index, (owner, to, epoch, slots) in enumerate(wire.groups):
        field = f"groups[{index}]"
        _require(0 <= epoch <= wire.epoch, "has a higher epoch than the table", field, epoch)
        _require(to == _NOBODY or owner != _NOBODY, "has a next owner, but no owner", field, to)
        _require(to == _NOBODY or owner != to, "has its owner as the next owner", field, to)
        entry = SlotEntry(_member(wire, owner, field), epoch, _member(wire, to, field))
        for slot in _some(slots, wire.slots, field):
            _require(entries[slot] is None, "has a slot that is in another group", field, slot)
            entries[slot] = entry
    missing = [slot for slot, entry in enumerate(entries) if entry is None]
    _require(not missing, "does not have all slots", "groups", encode_slots(missing))
    return tuple([entry for entry in entries if entry is not None])


def _decode_past(past: _Past, wire: _StoredTable, field: str) -> Past:
    _require(0 <= past.epoch <= wire.epoch, "has a higher epoch than the table", field, past.epoch)
    owners = [""] * wire.slots
    for number, slots in past.owners.items():
        _require(number.isdecimal(), "names no member", field, number)
        for slot in _some(slots, wire.slots, field):
            owners[slot] = _member(wire, int(number), field)
    return Past(past.epoch, tuple(owners))


def _member(wire: _StoredTable, number: int, field: str) -> str:
    if number == _NOBODY:
        return ""
    _require(0 <= number < len(wire.members), "names no member", field, number)
    return wire.members[number]


def _some(text: str, slots: int, field: str) -> Sequence[int]:
    try:
        ordered = sorted(decode_slots(text))
    except ConfigError as error:
        raise ConfigError(
            "is not a set of slots, such as 0-3,8", field=f"table.{field}", value=text
        ) from error
    _require(not ordered or ordered[-1] < slots, f"has a slot beyond {slots - 1}", field, text)
    return ordered


def _require(held: bool, message: str, field: str, value: object) -> None:
    if not held:
        raise ConfigError(message, field=f"table.{field}", value=value)
