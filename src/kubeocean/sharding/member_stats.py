"""Member statistics: the replicas of a ring by state, at one moment.

able      healthy, not leaving or drained: may get slots
keeping   may keep their slots: able, silent and not ready members
dead      will certainly never act again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kubeocean.sharding.members import MemberRecord, MemberSighting, MemberState, judge
from kubeocean.sharding.table import Table, name_of
from kubeocean.sharding.timing import Timing

__all__ = ["MemberStats", "read_member_stats"]


@dataclass(frozen=True, slots=True)
class MemberStats:
    """Members of a ring by state; `able` has the capacity of each member that may get slots."""

    records: Mapping[str, MemberRecord]
    able: Mapping[str, float]
    keeping: frozenset[str]
    dead: frozenset[str]
    owners: frozenset[str]  # present and next owners in the table
    seen: float  # the lowest epoch that members which may act have published
    newest: int  # the highest epoch that any member has published

    def acks(self, member: str) -> Mapping[int, int]:
        """Return the slots whose drain a member has acknowledged, each with its epoch."""
        record = self.records.get(member)
        return record.acks if record is not None else {}

    def template(self, member: str) -> str:
        """Return the version of a member's program; "" if the version is unknown."""
        record = self.records.get(member)
        return record.template if record is not None else ""

    def follows(self, member: str, owner: str) -> bool:
        """Return whether `member` is the next incarnation of `owner`, or names `owner` as its
        predecessor."""
        predecessor = self.records[member].predecessor
        return name_of(member) == name_of(owner) or (
            predecessor in (owner, name_of(owner)) and predecessor != ""
        )

    def replaces(self, member: str, owner: str) -> bool:
        """Return whether `member` replaces `owner` in a rolling update: their program versions
        differ."""
        new, old = self.template(member), self.template(owner)
        return bool(new and old) and new != old


def read_member_stats(
    sightings: Mapping[str, MemberSighting],
    table: Table,
    now: float,
    timing: Timing,
    *,
    expired: Callable[[MemberSighting, float], bool],
) -> MemberStats:
    """Return the members by state; owners in the table without a sighting keep their slots."""
    records: dict[str, MemberRecord] = {}
    able: dict[str, float] = {}
    owners = table.owners
    keeping: set[str] = {owner for owner in owners if owner not in sightings}
    dead: set[str] = set()
    seen = float("inf")
    for member in sorted(sightings):
        sighting = sightings[member]
        record = sighting.record
        if record is not None:
            records[member] = record
        if expired(sighting, now):
            dead.add(member)
            continue
        seen = min(seen, record.seen if record is not None else -1)
        if table.drained and table.names_member(table.drained, member):
            continue
        state = judge(sighting, now, timing)
        if state is MemberState.LEAVING:
            continue
        keeping.add(member)
        if state is MemberState.HEALTHY and record is not None:
            able[member] = record.capacity
    newest = max([record.seen for record in records.values()], default=0)
    return MemberStats(records, able, frozenset(keeping), frozenset(dead), owners, seen, newest)
