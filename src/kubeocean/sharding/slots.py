"""Slots: the hash that maps a key to its slot, and the encoding of sets of slots.

A slot is a contiguous range of a 64-bit hash, so that neighbouring slots form one range. There are
two hashes for two kinds of keys:

- `slot_of_uid` uses FNV-1a, the hash of an API server's shard selector: the objects that the server
  sends for a range of hashes are exactly those of a slot. It is for UIDs only. Names that differ in
  their last characters differ little in its high bits and would collect in few slots.
- `slot_of` uses a hash that mixes well, for names and all other keys.

A set of slots is encoded as ranges (`0-3,8`) or as a bitmap (`#` and base64), whichever is shorter.
A thousand slots in any pattern take less than 180 characters.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from kubeocean.errors import ConfigError

__all__ = [
    "HASHES",
    "MOST",
    "SLOTS",
    "decode_slots",
    "encode_slots",
    "fnv1a",
    "hash_ranges",
    "mixed",
    "slot_of",
    "slot_of_uid",
]

SLOTS: Final = 1024  # of a ring without another setting
HASHES: Final = 1 << 64  # number of hash values
_BITS: Final = 64
_BYTES: Final = 8
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3


def fnv1a(text: str) -> int:
    """Return the 64-bit FNV-1a hash of the text in UTF-8."""
    value = _OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _PRIME % HASHES
    return value


def mixed(text: str) -> int:
    """Return a 64-bit hash of the text that mixes well: every bit depends on every bit of the
    text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=_BYTES).digest(), "big")


def slot_of_uid(uid: str, slots: int = SLOTS) -> int:
    """Return the slot of a UID by its FNV-1a hash, which API servers use for shard selectors."""
    return fnv1a(uid) * slots >> _BITS


def slot_of(key: str, slots: int = SLOTS) -> int:
    """Return the slot of a name, or of any other key except a UID."""
    return mixed(key) * slots >> _BITS


def hash_ranges(wanted: Iterable[int], slots: int = SLOTS) -> tuple[tuple[int, int], ...]:
    """Return the hashes of these slots as few half-open ranges, in order, within `HASHES`."""
    ranges: list[tuple[int, int]] = []
    for slot in sorted(set(wanted)):
        start, end = _first_hash(slot, slots), _first_hash(slot + 1, slots)
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return tuple(ranges)


def _first_hash(slot: int, slots: int) -> int:
    """Return the least hash h for which h * slots >> 64 is `slot`."""
    return -(-slot * HASHES // slots)


_BITMAP: Final = "#"
MOST: Final = 1 << 20  # slots of the largest ring; a text that lists more is refused


def encode_slots(slots: Iterable[int]) -> str:
    """Return the slots as text; the same text for the same slots, whatever their order."""
    ordered = sorted(set(slots))
    ranges = _ranges(ordered)
    if not ordered or len(ranges) <= ordered[-1] // 6:  # a bitmap cannot be shorter
        return ranges
    bitmap = _bitmap(ordered)
    return min(ranges, bitmap, key=len)


def decode_slots(text: str) -> frozenset[int]:
    """Return the slots that a text lists; the work is bounded by `MOST` and the text's length.

    :raises ConfigError: the text is no set of slots, or lists more than `MOST` of them.
    """
    try:
        if text.startswith(_BITMAP):
            return _decode_bitmap(text[len(_BITMAP) :])
        ranges = [_range(part) for part in text.split(",") if part]
        if sum(map(len, ranges)) > MOST:  # repeats count: each costs time
            raise ValueError(text)
        return frozenset(slot for each in ranges for slot in each)
    except (ValueError, binascii.Error) as error:
        raise ConfigError(
            "is not a set of slots, such as 0-3,8", field="slots", value=text
        ) from error


def _decode_bitmap(text: str) -> frozenset[int]:
    octets = b64decode(text, validate=True)
    if len(octets) > MOST // 8:
        raise ValueError(text)
    return frozenset(
        index * 8 + bit
        for index, octet in enumerate(octets)
        for bit in range(8)
        if octet >> bit & 1
    )


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    start, end = int(first), int(last or first)
    if not 0 <= start <= end < MOST:
        raise ValueError(part)
    return range(start, end + 1)


def _ranges(ordered: list[int]) -> str:
    parts: list[list[int]] = []
    for slot in ordered:
        if parts and parts[-1][1] == slot - 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in parts)


def _bitmap(ordered: list[int]) -> str:
    octets = bytearray(ordered[-1] // 8 + 1)
    for slot in ordered:
        octets[slot // 8] |= 1 << slot % 8
    return _BITMAP + b64encode(octets).decode()
