"""Planner: decides the next state of the table of slot owners.

The planner decides which replica should own each slot, and takes the steps that are safe now:

- a slot is *free* if its owner has acknowledged its drain, or is certainly dead, or if it has no
  owner. A free slot is granted at once;
- for a slot of a live owner the planner only requests a hand-over: Draining, with the next owner.

A slot that was taken by force is unowned, and free when all live members have seen that table. The
same holds for every slot after the table was lost: members publish the epoch that they have seen,
and a table with a lower epoch is replaced by one in which all slots are unowned.

Everything on which a grant is based stays true for ever: an acknowledgement is not withdrawn, and
an expired incarnation does not act again. So a decision may be written late, even by a replica that
no longer leads, as long as the write names the version of the table from which the decision was
made.

The planner does no IO and reads no clock. A planner that starts without history is safe: it waits
for every member's full Lease duration again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kubeocean.errors import InvariantError
from kubeocean.sharding.algorithms.base import Algorithm
from kubeocean.sharding.balance import Policy, plan, weights_of
from kubeocean.sharding.member_stats import MemberStats, read_member_stats
from kubeocean.sharding.members import (
    NEVER,
    MemberRecord,
    MemberSighting,
    MemberState,
    certain_at,
    expired,
    judge,
    observe,
)
from kubeocean.sharding.table import UNOWNED, SlotEntry, Table, name_of
from kubeocean.sharding.timing import Timing

__all__ = ["Planner", "PlanningResult", "SlotMove"]

_GAP: Final = 1 << 20  # more epochs than can have passed since members last published an epoch


@dataclass(frozen=True, slots=True)
class SlotMove:
    """Slot that changes its owner. `granted` is True if the new owner owns the slot already."""

    slot: int
    source: str
    target: str
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningResult:
    """Result of one planning step.

    - `table`: the table to write upon the version that was decided from; None: write nothing.
    - `evict`: members whose Leases are to be deleted, with UID and resourceVersion (`pulse`) as
      preconditions: members that died long ago, and owners that did not hand over a slot in time.
    - `look_at`: the time at which the members have to be listed again at the latest.
    - `moves`: the slots whose owner, or next owner, changes with `table`.
    """

    table: Table | None
    evict: tuple[MemberRecord, ...]
    look_at: float
    moves: tuple[SlotMove, ...]


class Planner:
    """Planner of one ring: remembers when each member's Lease changed, by its own clock."""

    def __init__(
        self,
        *,
        timing: Timing | None = None,
        policy: Policy | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        self.timing = timing or Timing()
        self.policy = policy or Policy()
        self._algorithm = algorithm if algorithm is not None and not algorithm.sticky else None
        self._sightings: dict[str, MemberSighting] = {}
        self._loads: dict[int, float] = {}
        self._drains: dict[tuple[int, int], float] = {}  # slot and epoch: when first seen
        self._present: frozenset[str] = frozenset()
        self._roster_changed = NEVER
        self._rebalanced = NEVER
        self._postponed = False  # whether balancing waits for the end of its interval
        self._newest = 0  # the highest epoch that is known to have been written
        self._behind_since: float | None = None

    def observe(
        self, records: Iterable[MemberRecord], *, started: float | None, now: float, table: Table
    ) -> None:
        """Record the Leases of members; with `started`, `records` are all members of a consistent
        read that began then."""
        # A member without slots, too, may have work to end, and may have lost its Lease.
        known = [each for each, seen in self._sightings.items() if not self.expired(seen, now)]
        expected = table.owners.union(known)
        seen = list(records)
        self._sightings = observe(
            self._sightings, seen, expected=expected, started=started, now=now
        )
        owners = [entry.owner for entry in table.entries]
        for record in seen:
            # Only the present owner's measurement replaces a load: the previous owner may still
            # publish its own, and a new owner has none yet.
            self._loads |= {
                slot: load
                for slot, load in record.loads.items()
                if slot < len(owners) and owners[slot] == record.id
            }

    def states(self, now: float) -> dict[str, MemberState]:
        """Return the state of each known member."""
        return {
            member: judge(sighting, now, self.timing)
            for member, sighting in self._sightings.items()
            if sighting.record is not None
        }

    def silence(self, member: str, now: float) -> float:
        """Return for how many seconds the Lease of a member has not changed."""
        sighting = self._sightings.get(member)
        return 0.0 if sighting is None else now - sighting.changed

    def loads(self) -> Mapping[int, float]:
        """Return the loads of slots as their owners last reported them."""
        return self._loads

    def decide(self, table: Table, now: float) -> PlanningResult:
        """Return the next change of the table of slot owners; `table` must be as last read or
        written."""
        roster = read_member_stats(self._sightings, table, now, self.timing, expired=self.expired)
        self._note(roster, table, now)
        if table.epoch < self._newest:
            return self._recover(table, now)
        self._behind_since = None
        wanted = self._wanted(table, roster, now)
        changes: dict[int, SlotEntry] = {}
        moves: list[SlotMove] = []
        for slot, entry in enumerate(table.entries):
            if entry.owner == wanted[slot] and not entry.to:
                continue
            after = self.step(entry, wanted[slot], free=self.free(slot, entry, roster))
            if after is None:
                continue
            changes[slot] = after
            if after.to or after.owner != entry.owner:
                moves.append(SlotMove(slot, entry.owner, after.heir, granted=not after.to))
        return PlanningResult(
            table=table.changed(changes) if changes else None,
            evict=self._evictions(table, roster, now),
            look_at=self._look_at(now),
            moves=tuple(moves),
        )

    def expired(self, sighting: MemberSighting, now: float) -> bool:
        """Return whether a member released its Lease or its Lease has expired, so that it certainly
        never acts again."""
        return expired(sighting, self.timing)

    def free(self, slot: int, entry: SlotEntry, roster: MemberStats) -> bool:
        """Return whether no replica can act on a slot under any grant made so far."""
        if not entry.owner:
            return entry.epoch <= roster.seen
        if entry.owner in roster.dead:
            return True
        return bool(entry.to) and roster.acks(entry.owner).get(slot) == entry.epoch

    def step(self, entry: SlotEntry, wanted: str, *, free: bool) -> SlotEntry | None:
        """Return the entry for the next safe step of a slot towards the owner `wanted`; None if no
        step is possible or needed."""
        if not wanted:
            return None
        if free or entry.owner == wanted:  # or the present owner keeps the slot after all
            return SlotEntry(wanted)
        if not entry.owner:
            return None  # a live member may not have seen yet that the slot was taken by force
        return None if entry.to == wanted else SlotEntry(entry.owner, to=wanted)

    # --- the wanted owner of each slot

    def _wanted(self, table: Table, roster: MemberStats, now: float) -> list[str]:
        keeping = roster.keeping
        base = [
            each.owner if each.owner in keeping and not each.to else self._heir(slot, each, roster)
            for slot, each in enumerate(table.entries)
        ]
        waiting = self._waiting(roster, now)
        if "" in base:
            self._adopt(base, table, roster)
        fixed = self._fix(base, table, roster)
        settled = set(base)
        members = {m: c for m, c in roster.able.items() if m in settled or m not in waiting}
        members = members or dict(roster.able)
        if self._algorithm is not None:
            return self._computed(base, members, fixed, frozen=table.frozen)
        weights = weights_of(self.loads(), table.slots)
        calm = not table.frozen
        return plan(
            base,
            members,
            weights=weights,
            fixed=fixed,
            newcomers=[member for member in members if calm and member not in settled],
            threshold=self._threshold(table, now) if calm else None,
            churn=self.policy.churn,
        )

    def _heir(self, slot: int, entry: SlotEntry, roster: MemberStats) -> str:
        """Return the owner that a slot should keep or get without balancing; empty if a new one
        is needed."""
        if entry.to in roster.keeping and (
            entry.to in roster.able or not self.free(slot, entry, roster)
        ):
            return entry.to
        return entry.owner if entry.owner in roster.keeping else ""

    def _waiting(self, roster: MemberStats, now: float) -> frozenset[str]:
        """Return the new members that will probably take over all slots of a leaving member."""
        if now - self._roster_changed >= self.policy.settle_s:
            return frozenset()
        owners = roster.owners
        templates = {roster.template(owner) for owner in owners} - {""}
        return frozenset(
            member
            for member in roster.able
            if member not in owners
            and (
                any(roster.follows(member, owner) for owner in owners)
                or (roster.template(member) and templates - {roster.template(member)})
            )
        )

    def _adopt(self, base: list[str], table: Table, roster: MemberStats) -> None:
        """Assign all slots of a leaving member to the new member that replaces it."""
        settled = set(base)
        idle = [member for member in roster.able if member not in settled]
        for owner in sorted(roster.owners - roster.keeping):
            orphans = [s for s, each in enumerate(table.entries) if each.owner == owner]
            orphans = [slot for slot in orphans if not base[slot]]
            successors = [member for member in idle if roster.follows(member, owner)]
            successors = successors or [member for member in idle if roster.replaces(member, owner)]
            if orphans and successors:
                idle.remove(successors[0])
                for slot in orphans:
                    base[slot] = successors[0]

    def _fix(self, base: list[str], table: Table, roster: MemberStats) -> set[int]:
        """Assign pinned slots to their replicas in `base`; return the slots that balancing must not
        move."""
        aside = roster.keeping - roster.able.keys()
        fixed = {slot for slot, member in enumerate(base) if member in aside} if aside else set()
        for slot, named in table.pins.items():
            here = [member for member in roster.able if named in (member, name_of(member))]
            if here and slot < len(base):
                base[slot] = base[slot] if base[slot] in here else here[0]
                fixed.add(slot)
        return fixed

    def _threshold(self, table: Table, now: float) -> float | None:
        """Return the imbalance at which to rebalance, if it is due and no slot is moving."""
        if table.draining():
            return None
        self._postponed = now - self._rebalanced < self.policy.interval_s
        if self._postponed:
            return None
        self._rebalanced = now
        return self.policy.threshold

    def _computed(
        self, base: list[str], members: Mapping[str, float], fixed: set[int], *, frozen: bool
    ) -> list[str]:
        """Return the owner of each slot as a non-sticky algorithm computes it from the members
        alone."""
        if not members:
            return [owner if slot in fixed else "" for slot, owner in enumerate(base)]
        algorithm = self._algorithm
        assert algorithm is not None
        # Names rather than IDs: a replica that restarts should get the same slots again.
        named = {name_of(member): member for member in sorted(members)}
        nodes = named if len(named) == len(members) else {member: member for member in members}
        answer = algorithm.rebalance(list(nodes), len(base))
        owners = {slot: nodes[node] for node, slots in answer.items() for slot in slots}
        if sorted(owners) != list(range(len(base))):
            message = "rebalance() of the algorithm must assign every slot from 0 to"
            message += f" {len(base) - 1}, and no others"
            raise InvariantError(message, algorithm=algorithm.name)
        stay = {
            slot
            for slot, owner in enumerate(base)
            if slot in fixed or (frozen and owner in members)
        }
        return [base[slot] if slot in stay else owners[slot] for slot in range(len(base))]

    def _recover(self, table: Table, now: float) -> PlanningResult:
        """Return the decision for a table with a lower epoch than members have seen: after
        `renew_s`, a new table with a higher epoch in which no slot has an owner."""
        if self._behind_since is None:
            self._behind_since = now
        lost_at = self._behind_since + self.timing.renew_s
        after = None
        if now >= lost_at:
            start = replace(table, epoch=self._newest + _GAP)
            after = start.changed(dict.fromkeys(range(table.slots), UNOWNED))
        look_at = lost_at if now < lost_at else now + self.timing.retry_s
        return PlanningResult(table=after, evict=(), look_at=look_at, moves=())

    # --- memory and deadlines

    def _note(self, roster: MemberStats, table: Table, now: float) -> None:
        self._newest = max(self._newest, roster.newest, table.epoch)
        if roster.keeping != self._present:
            self._present, self._roster_changed = roster.keeping, now
        self._drains = {
            (slot, entry.epoch): self._drains.get((slot, entry.epoch), now)
            for slot, entry in table.draining().items()
        }

    def _evictions(self, table: Table, roster: MemberStats, now: float) -> tuple[MemberRecord, ...]:
        late = {
            table.entries[slot].owner
            for (slot, _), since in self._drains.items()
            if now - since >= self.timing.handover_s
            and not self.free(slot, table.entries[slot], roster)
        }
        useless = {member for member in roster.dead - roster.owners if self._forgets(member, now)}
        if not late and not useless:
            return ()
        return tuple(
            sighting.record
            for member, sighting in self._sightings.items()
            if sighting.record is not None and (member in late or member in useless)
        )

    def _forgets(self, member: str, now: float) -> bool:
        """Return whether the Lease of a dead member may be deleted."""
        sighting = self._sightings[member]
        ended = sighting.record is not None and sighting.record.released
        return ended or now - sighting.changed >= self.timing.forget_s

    def _look_at(self, now: float) -> float:
        """Return the next time at which a decision may change: a member that does not renew its
        Lease becomes suspect, expired or forgotten, a drain is late, a new member has settled, or
        balancing is due.
        """
        timing = self.timing
        times = [since + timing.handover_s for since in self._drains.values()]
        times.append(self._roster_changed + self.policy.settle_s)
        if self._postponed:
            times.append(self._rebalanced + self.policy.interval_s)
        for sighting in self._sightings.values():
            times.append(sighting.changed + timing.renew_s)
            if sighting.record is not None and self.expired(sighting, now):
                times.append(sighting.changed + timing.forget_s)
            certain = certain_at(sighting, timing)
            if sighting.confirmed < certain:
                times.append(certain if certain > now else now)
        return min([each for each in times if each >= now], default=now + self.policy.interval_s)
