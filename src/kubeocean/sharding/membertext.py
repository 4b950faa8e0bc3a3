"""Member text: what a replica writes on its Lease beside the Lease's own fields.

Two annotations: one with what it says of itself and which slots it has let go, which changes with
every hand-over, and one with what its slots cost, which is longer and changes seldom.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.slotsets import decode_slots, encode_slots

__all__ = ["decode_loads", "decode_member", "encode_loads", "encode_member"]

_LARGEST = 65504.0  # of a half-precision number
_SAID = (MemberState.JOINING, MemberState.HEALTHY, MemberState.LEAVING)


class _Wire(msgspec.Struct, omit_defaults=True):
    state: MemberState = MemberState.HEALTHY
    released: bool = False
    template: str = ""
    predecessor: str = ""
    capacity: float = 1.0
    acks: dict[str, str] = {}  # epoch: slots
    seen: int = 0


def encode_member(record: MemberRecord) -> str:
    """What a replica says of itself, as JSON."""
    acks: dict[int, list[int]] = {}
    for slot, epoch in record.acks.items():
        acks.setdefault(epoch, []).append(slot)
    wire = _Wire(
        state=record.state,
        released=record.released,
        template=record.template,
        predecessor=record.predecessor,
        capacity=record.capacity,
        acks={str(epoch): encode_slots(slots) for epoch, slots in sorted(acks.items())},
        seen=record.seen,
    )
    return msgspec.json.encode(wire).decode()


def decode_member(
    member: str, *, text: str, pulse: str, lease_s: float = 0.0, loads: str = "", uid: str = ""
) -> MemberRecord:
    """The record of a Lease's annotations.

    :raises ConfigError: they are not what a replica writes.
    """
    try:
        wire = msgspec.json.decode(text, type=_Wire)
        acks = {
            slot: int(epoch) for epoch, slots in wire.acks.items() for slot in decode_slots(slots)
        }
    except (msgspec.MsgspecError, ValueError, ConfigError) as error:
        raise ConfigError(f"is no record: {error}", field=f"member {member}", value=text) from error
    if wire.state not in _SAID:
        raise ConfigError("says this of nobody", field=f"member {member}.state", value=wire.state)
    if not 0 < wire.capacity < float("inf"):
        raise ConfigError(
            "must be more than 0", field=f"member {member}.capacity", value=wire.capacity
        )
    return MemberRecord(
        id=member,
        pulse=pulse,
        lease_s=lease_s,
        state=wire.state,
        released=wire.released,
        template=wire.template,
        predecessor=wire.predecessor,
        capacity=wire.capacity,
        acks=acks,
        seen=wire.seen,
        loads=decode_loads(loads),
        uid=uid,
    )


def encode_loads(loads: Mapping[int, float]) -> str:
    """Loads to three significant digits; two bytes for each slot."""
    ordered = sorted(loads)
    halves = struct.pack(f"<{len(ordered)}e", *(min(loads[s], _LARGEST) for s in ordered))
    return f"{encode_slots(ordered)} {b64encode(halves).decode()}" if ordered else ""


def decode_loads(text: str) -> dict[int, float]:
    """The loads of a text.

    :raises ConfigError: it has none.
    """
    if not text:
        return {}
    slots, _, halves = text.partition(" ")
    ordered = sorted(decode_slots(slots))
    try:
        values = struct.unpack(f"<{len(ordered)}e", b64decode(halves, validate=True))
    except (struct.error, binascii.Error) as error:
        raise ConfigError(f"has no loads: {error}", field="loads", value=text) from error
    # Nobody measures less than nothing, or infinity; a nonsense load must not stop a ring.
    return {s: v for s, v in zip(ordered, values, strict=True) if 0 <= v < float("inf")}
