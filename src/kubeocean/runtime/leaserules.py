"""Lease rules: who may take a lease, decided without IO and without a clock.

A candidate judges a lease only by how long it has seen the record unchanged, on its own monotonic
clock, and by the duration that the holder published. What the record says about time is not used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

__all__ = ["Entry", "Move", "Record", "Sighting", "decide", "observe"]


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. Its times are for people to read: clocks of others decide nothing."""

    holder: str = ""  # nobody
    duration_s: int = 0  # not said
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and the version that a write upon it has to name."""

    record: Record
    version: str


class Move(enum.Enum):
    """What to do about a lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last record that we saw, and when we saw it first, on our own clock."""

    record: Record | None  # None: there has never been one
    version: str  # "": it does not exist now
    at: float


def observe(before: Sighting | None, entry: Entry | None, now: float) -> Sighting:
    """What we know after reading `entry`, which was received at `now`."""
    if entry is None:
        return Sighting(None, "", now) if before is None else replace(before, version="")
    if before is not None and before.version and before.record == entry.record:
        return replace(before, version=entry.version)
    return Sighting(entry.record, entry.version, now)


def decide(
    seen: Sighting, *, identity: str, now: float, deadline: float | None, lease_s: float
) -> Move:
    """The rules. `deadline` is that of our own leadership, None while we do not lead.

    `lease_s` stands in for a holder that does not say how long it promises to renew.
    """
    record = seen.record
    if deadline is not None and now >= deadline:
        return Move.LOST
    if record is not None and record.holder == identity:
        # Also while we do not lead: the answer to our own write was lost.
        return Move.RENEW if seen.version else Move.CREATE
    if deadline is not None:
        return Move.LOST
    if record is None:
        return Move.CREATE
    # A lease that vanished protects its holder just as one that exists.
    if record.holder and now < seen.at + (record.duration_s or lease_s):
        return Move.WAIT
    return Move.TAKE if seen.version else Move.CREATE
