"""Members of a ring: their records on Leases, and the rules by which members live or expire.

Each replica keeps a Lease. An observer judges a member only by how long the observer has seen the
Lease unchanged, on its own monotonic clock; times that others wrote are not used. A sign of life
may come from any source, such as a watch. Expiry is concluded only from a consistent read that
*began* after the patience had passed and still showed the same record: a lagging watch proves
nothing.

An expired member stays expired: a replica whose own deadline has passed once does not act again
under that ID (see `slot_lease`), so a late judgement is never wrong.

A member's record is stored in two annotations: its state and the slots whose loss it acknowledged,
which change with every hand-over, and the loads of its slots, which are longer and change seldom.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.sharding.slots import decode_slots, encode_slots
from kubeocean.sharding.timing import Timing

__all__ = [
    "NEVER",
    "MemberRecord",
    "MemberSighting",
    "MemberState",
    "certain_at",
    "decode_loads",
    "decode_member",
    "encode_loads",
    "encode_member",
    "expired",
    "judge",
    "observe",
]

NEVER: Final = float("-inf")


class MemberState(StrEnum):
    """State of a replica in a ring."""

    JOINING = "Joining"  # renews its Lease, and is not ready for slots
    HEALTHY = "Healthy"  # may get slots
    UNHEALTHY = "Unhealthy"  # its Lease was not renewed in time; gets no slots
    LEAVING = "Leaving"  # works until other replicas have its slots


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """Record that a replica publishes about itself on its Lease.

    - `pulse`: changes with every write of the Lease, as a resourceVersion does.
    - `lease_s`: the Lease duration that the replica states; the longer of this one and the
      observer's counts.
    - `state`: Joining, Healthy or Leaving, as the replica reports itself.
    - `released`: all work of the replica has ended, and the replica will never act again.
    - `template`: the version of the program; a rolling update replaces one by another.
    - `address`: where the replica can be reached, for people and for `NodeInfo`.
    - `predecessor`: the ID or the name of the replica that this one replaces.
    - `acks`: the slots whose drain the replica acknowledged, each with the epoch of the drain.
    - `seen`: the replica acts by a table of at least this epoch, and its work on slots that this
      table took from it has ended. Published when the planner waits for it, not with every table.
    - `unplaced`: the number of objects whose slot the replica cannot compute, for people.
    - `controllers`: the names of the replica's controllers; empty if it publishes none.
    - `joined`: the resourceVersion of the Lease's creation, by which replicas have one order for
      all observers; 0 if the replica does not publish it.
    - `loads`: the measured load of each slot.
    """

    id: str
    pulse: str
    lease_s: float = 0.0
    state: MemberState = MemberState.HEALTHY
    released: bool = False
    template: str = ""
    predecessor: str = ""
    address: str = ""
    capacity: float = 1.0
    acks: Mapping[int, int] = field(default_factory=dict)
    seen: int = 0
    unplaced: int = 0
    controllers: tuple[str, ...] = ()
    joined: int = 0
    loads: Mapping[int, float] = field(default_factory=dict)
    uid: str = ""


@dataclass(frozen=True, slots=True)
class MemberSighting:
    """Observation of a member's Lease by another replica, with times of the observer's clock.

    `record` is None for a member that the table names and that has no Lease. `changed` is the time
    at which the observer first saw this record; `confirmed` is the start of the last consistent
    read that still showed it.
    """

    record: MemberRecord | None
    changed: float
    confirmed: float = NEVER


def observe(
    before: Mapping[str, MemberSighting],
    records: Iterable[MemberRecord],
    *,
    expected: Iterable[str] = (),
    started: float | None,
    now: float,
) -> dict[str, MemberSighting]:
    """Return the sightings of members after `records` were received at `now`.

    With `started`, `records` are those of all members, from a consistent read that began at that
    time; an `expected` member without a record is recorded as absent. Without `started`, `records`
    are those of some members, from a watch.
    """
    after: dict[str, MemberSighting] = {} if started is not None else dict(before)
    confirmed = NEVER if started is None else started
    for record in records:
        old = before.get(record.id)
        same = old is not None and old.record is not None and old.record.pulse == record.pulse
        after[record.id] = MemberSighting(
            record,
            old.changed if same and old else now,
            max(confirmed, old.confirmed if same and old else NEVER),
        )
    if started is not None:
        for member in expected:
            if member not in after:
                old = before.get(member)
                gone = old is not None and old.record is None
                after[member] = MemberSighting(None, old.changed if gone and old else now, started)
    return after


def certain_at(sighting: MemberSighting, timing: Timing) -> float:
    """Return the time after which a consistent read that shows an unchanged Lease proves that the
    member is dead."""
    record = sighting.record
    promised = record.lease_s - timing.lease_s if record is not None else 0.0
    return sighting.changed + timing.patience_s + (promised if promised > 0 else 0.0)


def expired(sighting: MemberSighting, timing: Timing) -> bool:
    """Return whether a member certainly never acts again: it released its Lease, or the Lease
    expired."""
    record = sighting.record
    if record is not None and record.released:
        return True
    return sighting.confirmed >= certain_at(sighting, timing)


def judge(sighting: MemberSighting, now: float, timing: Timing) -> MemberState:
    """Return the state of a member at `now`, as one observer sees it."""
    record = sighting.record
    if record is None or record.released or now - sighting.changed >= timing.renew_s:
        return MemberState.UNHEALTHY
    return record.state


_LARGEST = 65504.0  # the largest half-precision number
_WRITTEN_STATES = (MemberState.JOINING, MemberState.HEALTHY, MemberState.LEAVING)


class _StoredMember(msgspec.Struct, omit_defaults=True):
    state: MemberState = MemberState.HEALTHY
    released: bool = False
    template: str = ""
    predecessor: str = ""
    address: str = ""
    capacity: float = 1.0
    acks: dict[str, str] = {}  # epoch: slots
    seen: int = 0
    unplaced: int = 0
    controllers: tuple[str, ...] = ()
    joined: int = 0


def encode_member(record: MemberRecord) -> str:
    """Return a member's record, without its loads, as JSON for the Lease's annotation."""
    acks: dict[int, list[int]] = {}
    for slot, epoch in record.acks.items():
        acks.setdefault(epoch, []).append(slot)
    wire = _StoredMember(
        state=record.state,
        released=record.released,
        template=record.template,
        predecessor=record.predecessor,
        address=record.address,
        capacity=record.capacity,
        acks={str(epoch): encode_slots(slots) for epoch, slots in sorted(acks.items())},
        seen=record.seen,
        unplaced=record.unplaced,
        controllers=record.controllers,
        joined=record.joined,
    )
    return msgspec.json.encode(wire).decode()


def decode_member(
    member: str,
    *,
    text: str,
    pulse: str,
    lease_s: float = 0.0,
    loads: str = "",
    uid: str = "",
) -> MemberRecord:
    """Return the record of a member from the annotations of its Lease.

    :raises ConfigError: the annotations are not as a replica writes them.
    """
    try:
        wire = msgspec.json.decode(text, type=_StoredMember)
        acks = _decode_acks(wire.acks)
    except (msgspec.MsgspecError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"is not a record of a member: {error}", field=f"member {member}", value=text
        ) from error
    if wire.state not in _WRITTEN_STATES:
        raise ConfigError(
            "is not a state that a replica reports",
            field=f"member {member}.state",
            value=wire.state,
        )
    if not 0 < wire.capacity < float("inf"):
        raise ConfigError(
            "must be a finite number above 0",
            field=f"member {member}.capacity",
            value=wire.capacity,
        )
    return MemberRecord(
        id=member,
        pulse=pulse,
        lease_s=lease_s,
        state=wire.state,
        released=wire.released,
        template=wire.template,
        predecessor=wire.predecessor,
        address=wire.address,
        capacity=wire.capacity,
        acks=acks,
        seen=wire.seen,
        unplaced=wire.unplaced,
        controllers=wire.controllers,
        joined=wire.joined,
        loads=decode_loads(loads),
        uid=uid,
    )


def _decode_acks(texts: Mapping[str, str]) -> dict[int, int]:
    """Return the epoch of each acknowledged slot; `texts` has the encoded slots of each epoch."""
    acks: dict[int, int] = {}
    for epoch, text in texts.items():
        slots = decode_slots(text)
        # The sets of a replica are disjoint; so decoding all of them costs no more than one set of
        # all slots.
        if not acks.keys().isdisjoint(slots):
            raise ValueError(f"epoch {epoch} acknowledges a slot of another epoch")
        acks |= dict.fromkeys(slots, int(epoch))
    return acks


def encode_loads(loads: Mapping[int, float]) -> str:
    """Return the loads as text: three significant digits, two bytes for each slot."""
    ordered = sorted(loads)
    halves = struct.pack(f"<{len(ordered)}e", *(min(loads[s], _LARGEST) for s in ordered))
    return f"{encode_slots(ordered)} {b64encode(halves).decode()}" if ordered else ""


def decode_loads(text: str) -> dict[int, float]:
    """Return the loads of slots that `encode_loads` encoded.

    :raises ConfigError: the text is not in that encoding.
    """
    if not text:
        return {}
    slots, _, halves = text.partition(" ")
    ordered = sorted(decode_slots(slots))
    try:
        values = struct.unpack(f"<{len(ordered)}e", b64decode(halves, validate=True))
    except (struct.error, binascii.Error) as error:
        raise ConfigError(
            f"is not an encoding of loads: {error}", field="loads", value=text
        ) from error
    # Negative and infinite loads are ignored: a nonsense load must not stop a ring.
    return {s: v for s, v in zip(ordered, values, strict=True) if 0 <= v < float("inf")}
