"""Cache budget: how many bytes all objects of one cluster may take in memory together.

A cluster with another owner may return objects of any number and size. Each informer of a client
that has a budget charges it with the size of each object that it holds. An object that does not fit
is left out, and the cache counts as not synced until a list fits: a truncated cache decides
nothing. Lists without a cache charge the same budget while they are read.

The size of an object is that of its decoded values, and not the number of its bytes: three bytes of
JSON may become a struct of 80 bytes, and one emoji makes each character of a text four bytes wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import getsizeof
from typing import Final

import msgspec

from kubeocean.runtime.objects import Object, encode

__all__ = ["CacheBudget", "memory_limit", "size_of"]

# Bytes of memory for each quote in the JSON text of an object: a text has two of them and takes 50
# bytes more than its characters, and an entry of a mapping takes some 20 more than its two texts. A
# field of a struct takes less than the quotes of its name.
_QUOTE: Final = 30
# Bytes of memory for each bracket that opens a struct, mapping or list, besides its characters: a
# struct of which all fields have their defaults may be `{}`.
_BRACKET: Final = 90
_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_NO_LIMIT: Final = 1 << 60  # cgroup v1 writes a number near 2**63


class CacheBudget:
    """Sum of the bytes that all caches of one cluster hold, and its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> bool:
        """Charge the budget with `size` bytes, which may be negative; False if they do not fit."""
        if size > 0 and self.held + size > self.limit:
            return False
        self.held += size
        return True


def size_of(obj: Object) -> int:
    """Return an estimate of the memory that an object takes, in bytes: close to the real amount for
    ordinary objects, and never far below.

    The object is encoded for that: counting in the text is much faster than visiting all values.
    """
    text = encode(msgspec.structs.replace(obj, raw=b"") if obj.raw else obj)
    empty = _empty(type(obj))
    width = 1 if text.isascii() else 4
    return (
        empty.size
        + getsizeof(obj.raw)
        + width * max(0, len(text) - empty.length)
        + _QUOTE * max(0, text.count(b'"') - empty.quotes)
        + _BRACKET * max(0, _brackets(text) - empty.brackets)
    )


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


@dataclass(frozen=True, slots=True)
class _Empty:
    """Memory of an object without values, and the length, quotes and brackets of its JSON
    text."""

    size: int
    length: int
    quotes: int
    brackets: int


@lru_cache(maxsize=256)
def _empty(type_: type[Object]) -> _Empty:
    obj = type_()
    text = encode(obj)
    return _Empty(_structs(obj), len(text), text.count(b'"'), _brackets(text))


def _structs(value: object) -> int:
    """Return the memory of a struct and of the structs in its fields."""
    if not isinstance(value, msgspec.Struct):
        return 0
    return getsizeof(value) + sum(map(_structs, msgspec.structs.astuple(value)))


def memory_limit() -> int | None:
    """Return the memory limit of this process's container in bytes; None without a limit."""
    for path in _LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal() and int(text) < _NO_LIMIT:
            return int(text)
    return None
