"""Slot sets: many slots in few characters.

A set is written as ranges (`0-3,8`) or as a bitmap (`#` and base64), whichever is shorter. A
thousand slots in any pattern take less than 180 characters.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["MOST", "decode_slots", "encode_slots"]

_BITMAP: Final = "#"
MOST: Final = 1 << 20  # no ring has more slots; a range beyond is a mistake, not a wish for memory


def encode_slots(slots: Iterable[int]) -> str:
    """The slots as text; the same text for the same slots, whatever their order."""
    ordered = sorted(set(slots))
    ranges = _ranges(ordered)
    if not ordered or len(ranges) <= ordered[-1] // 6:  # a bitmap cannot be shorter
        return ranges
    bitmap = _bitmap(ordered)
    return min(ranges, bitmap, key=len)


def decode_slots(text: str) -> frozenset[int]:
    """The slots of a text.

    :raises ConfigError: it is no set of slots.
    """
    try:
        if text.startswith(_BITMAP):
            octets = b64decode(text[1:], validate=True)
            return frozenset(
                index * 8 + bit
                for index, octet in enumerate(octets)
                for bit in range(8)
                if octet >> bit & 1
            )
        return frozenset(slot for part in text.split(",") if part for slot in _range(part))
    except (ValueError, binascii.Error) as error:
        raise ConfigError("is no set of slots, such as 0-3,8", field="slots", value=text) from error


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
