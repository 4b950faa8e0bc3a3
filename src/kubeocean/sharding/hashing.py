"""Hashing: which slot a key belongs to, for ever.

A slot is a contiguous range of a 64-bit hash, so that any number of neighbouring slots is one
range. Two hashes, for two kinds of keys:

- `slot_of_uid` takes FNV-1a, which is what an API server's shard selector computes: what the server
  sends for a range of hashes is exactly what we call a slot. It is for UIDs only. Names that
  differ in their last characters differ little in its high bits, and would crowd in few slots.
- `slot_of` takes a hash that mixes well, for names and everything else.

Children follow their owner: they are sharded by the UID of the object that controls them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from kubeocean.runtime.objects import OwnerReference

__all__ = [
    "HASHES",
    "SLOTS",
    "family_uid",
    "fnv1a",
    "hash_ranges",
    "mixed",
    "slot_of",
    "slot_of_uid",
]

SLOTS: Final = 1024  # of a ring that does not say otherwise
HASHES: Final = 1 << 64  # how many there are
_BITS: Final = 64
_BYTES: Final = 8
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3


def fnv1a(text: str) -> int:
    """FNV-1a of 64 bits, of the text in UTF-8."""
    value = _OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _PRIME % HASHES
    return value


def mixed(text: str) -> int:
    """64 bits that depend on every bit of the text alike."""
    return int.from_bytes(blake2b(text.encode(), digest_size=_BYTES).digest(), "big")


def slot_of_uid(uid: str, slots: int = SLOTS) -> int:
    """The slot of an object, by its UID; the same as the server's ranges of hashes."""
    return fnv1a(uid) * slots >> _BITS


def slot_of(key: str, slots: int = SLOTS) -> int:
    """The slot of a name, or of any other key."""
    return mixed(key) * slots >> _BITS


def family_uid(uid: str, owners: Iterable[OwnerReference] | None) -> str:
    """The UID by which an object is sharded: its controller's if it has one, else its own."""
    return next((owner.uid for owner in owners or () if owner.controller and owner.uid), uid)


def hash_ranges(wanted: Iterable[int], slots: int = SLOTS) -> tuple[tuple[int, int], ...]:
    """The hashes of these slots as few half-open ranges, in order; the end of all is `HASHES`."""
    ranges: list[tuple[int, int]] = []
    for slot in sorted(set(wanted)):
        start, end = _first_hash(slot, slots), _first_hash(slot + 1, slots)
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return tuple(ranges)


def _first_hash(slot: int, slots: int) -> int:
    """The least hash h for which h * slots >> 64 is `slot`."""
    return -(-slot * HASHES // slots)
