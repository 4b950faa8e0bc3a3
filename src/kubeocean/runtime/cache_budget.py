"""Cache budget: how many bytes all caches of one cluster may hold together.

A cluster with another owner may return objects of any number and size. Each informer of a client
that has a budget charges it with the size of each object that it holds. An object that does not fit
is left out, and the cache counts as not synced until a list fits: a truncated cache decides
nothing.

The size of an object is an estimate: its raw bytes, its labels and annotations, and a base.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kubeocean.runtime.objects import Object

__all__ = ["CacheBudget", "memory_limit", "size_of"]

BASE: Final = 1_024  # bytes of a decoded object without raw bytes, labels and annotations
# Events of more bytes are charged with all of them: any decoded field may be that large.
SMALL_EVENT: Final = 1 << 16
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


def size_of(obj: Object, event_size: int) -> int:
    """Return the estimated size of a cached object, which came in an event of `event_size`
    bytes."""
    size = BASE + len(obj.raw)
    for texts in (obj.metadata.labels, obj.metadata.annotations):
        if texts:
            size += sum(map(len, texts)) + sum(map(len, texts.values()))
    return size if event_size <= SMALL_EVENT else max(size, event_size)


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
