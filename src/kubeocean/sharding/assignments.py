"""Assignments: a table in few words, and what changed between two of them."""

from __future__ import annotations

from kubeocean.sharding.slotsets import encode_slots
from kubeocean.sharding.table import Table

__all__ = ["assignment", "moved_slots"]


def assignment(table: Table | None) -> dict[str, str]:
    """The slots of each replica, for a log line."""
    if table is None:
        return {}
    return {owner: encode_slots(table.owned_by(owner)) for owner in sorted(table.owners)}


def moved_slots(before: Table | None, after: Table) -> list[tuple[int, str, str]]:
    """The slots that changed hands: slot, old owner, new owner."""
    if before is None or before.slots != after.slots:
        return []
    pairs = zip(before.entries, after.entries, strict=True)
    return [
        (slot, old.owner, new.owner)
        for slot, (old, new) in enumerate(pairs)
        if old.owner != new.owner
    ]
