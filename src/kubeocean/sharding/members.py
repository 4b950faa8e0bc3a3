"""Members: which replicas there are, and which of them live.

A replica keeps a Lease. It is judged only by how long its Lease has been seen unchanged, on the
observer's monotonic clock; what others wrote about time is not read. News of life may come from
anywhere, a watch for example. Death is concluded only from a consistent read that *began* after the
patience had passed and still showed the same: a watch that lags proves nothing.

An expired member stays expired, because it knows itself: a replica whose own deadline has passed
once does not act again under that id (see `holder`). So nobody who judges late judges wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kubeocean.sharding.timing import Timing

__all__ = [
    "NEVER",
    "MemberRecord",
    "MemberState",
    "Sighting",
    "certain_at",
    "expired",
    "judge",
    "observe",
]

NEVER: Final = float("-inf")


class MemberState(StrEnum):
    """What a replica is good for."""

    JOINING = "Joining"  # it lives, and is not ready for slots
    HEALTHY = "Healthy"  # it may be given slots
    UNHEALTHY = "Unhealthy"  # it has been silent for longer than it acts; nobody gives it slots
    LEAVING = "Leaving"  # it works, and its slots are given to others


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """What a replica says of itself.

    - `pulse`: changes with every write of its Lease, as a resourceVersion does.
    - `lease_s`: what it promises; the longer of this and the observer's own counts.
    - `state`: Joining, Healthy or Leaving, in its own words.
    - `released`: all its work has ended, and it will never act again.
    - `template`: the version of the program; a rolling update replaces one by another.
    - `predecessor`: the id, or the name, of whom it replaces.
    - `acks`: the epochs of the drained slots on which it will not act again.
    - `seen`: it acts by a table of at least this epoch, and what was taken from it has ended. It is
      said when somebody waits for it, not with every table.
    - `loads`: what its slots cost it.
    """

    id: str
    pulse: str
    lease_s: float = 0.0
    state: MemberState = MemberState.HEALTHY
    released: bool = False
    template: str = ""
    predecessor: str = ""
    capacity: float = 1.0
    acks: Mapping[int, int] = field(default_factory=dict)
    seen: int = 0
    loads: Mapping[int, float] = field(default_factory=dict)
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an observer knows of a member, on the observer's clock.

    `record` is None for one that is not there though the table names it. `changed` is when it was
    first seen as it is; `confirmed` is the start of the last consistent read that showed it so.
    """

    record: MemberRecord | None
    changed: float
    confirmed: float = NEVER


def observe(
    before: Mapping[str, Sighting],
    records: Iterable[MemberRecord],
    *,
    expected: Iterable[str] = (),
    asked: float | None,
    now: float,
) -> dict[str, Sighting]:
    """What is known after `records` were received at `now`.

    With `asked`, they are all there are, by a consistent read that began then; who is `expected`
    and not among them is noted as absent. Without, they are news of some.
    """
    after: dict[str, Sighting] = {} if asked is not None else dict(before)
    for record in records:
        old = before.get(record.id)
        same = old is not None and old.record is not None and old.record.pulse == record.pulse
        after[record.id] = Sighting(
            record,
            old.changed if same and old else now,
            max(asked if asked is not None else NEVER, old.confirmed if same and old else NEVER),
        )
    if asked is not None:
        for member in expected:
            if member not in after:
                old = before.get(member)
                gone = old is not None and old.record is None
                after[member] = Sighting(None, old.changed if gone and old else now, asked)
    return after


def certain_at(sighting: Sighting, timing: Timing) -> float:
    """From when on a consistent read that still shows the same proves that a member is dead."""
    record = sighting.record
    promised = record.lease_s - timing.lease_s if record is not None else 0.0
    return sighting.changed + timing.patience_s + (promised if promised > 0 else 0.0)


def expired(sighting: Sighting, timing: Timing) -> bool:
    """Whether it is certain that the member acts no more and never will."""
    record = sighting.record
    if record is not None and record.released:
        return True
    return sighting.confirmed >= certain_at(sighting, timing)


def judge(sighting: Sighting, now: float, timing: Timing) -> MemberState:
    """The state of a member, as one observer sees it."""
    record = sighting.record
    if record is None or record.released or now - sighting.changed >= timing.renew_s:
        return MemberState.UNHEALTHY
    return record.state
