"""A simulation of rings: replicas, their clocks, a network and an API server, in simulated time.

The code under test is the real one: `Planner` and `SlotLeases` decide. The rest is simulated.
Clocks start anywhere and run up to `DRIFT` too fast or too slow; wall clocks are wrong by up to a
minute. A replica freezes, dies, restarts as another incarnation. Requests and their answers are
late or lost, and a write that seemed to fail may have been made. Watches are late, lose tables, and
bring older ones. Several replicas act as the planner at once.

After every event that may give a replica the right to a slot, the world checks that no other
replica has the same right at the same true time. If one has, a `Violation` is raised.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from kubeocean.sharding.balance import Policy
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.planner import Planner, PlanningResult
from kubeocean.sharding.slot_lease import SlotLeases
from kubeocean.sharding.table import SlotState, Table, empty_table
from kubeocean.sharding.timing import Timing

__all__ = ["DRIFT", "POLICY", "TIMING", "Replica", "Violation", "World"]

TIMING = Timing(
    lease_s=6, renew_s=4, retry_s=1.5, margin_s=0.5, drain_s=2, cancel_s=1, handover_s=5, forget_s=9
)
POLICY = Policy(interval_s=2, settle_s=2)
DRIFT = 0.1  # of every clock's rate; TIMING bears 0.23
WALL_ERROR_S = 60.0
ASSIGN_S = 1.0
ELECT_S = 2.0
CALM_S = 60.0  # within which everything must have come to rest


class Violation(AssertionError):
    """Something that must never happen did."""


class Replica:
    """A process: its clock, its luck, and the real decisions."""

    def __init__(self, world: World, name: str, template: str = "") -> None:
        random = world.random
        self.world = world
        self.name = name
        self.template = template
        self.rate = 1 + random.uniform(-DRIFT, DRIFT)
        self.offset = random.uniform(0, 1e6)
        self.wall_error = random.uniform(-WALL_ERROR_S, WALL_ERROR_S)
        self.incarnation = 0
        self.alive = True
        self.leaving = False
        self.frozen_until = 0.0
        self.mute_until = 0.0  # its requests do not arrive
        self.deaf_until = 0.0  # the answers to them do not
        self.planner: Planner | None = None
        self.begin(predecessor="")

    def begin(self, predecessor: str) -> None:
        """Start as a new incarnation."""
        self.incarnation += 1
        self.id = f"{self.name}_{self.incarnation}"
        self.predecessor = predecessor
        self.holder = self.world.new_holder(self.id, self.clock())
        self.busy: dict[int, float] = {}  # slot: when its work ends
        self.acks: dict[int, int] = {}
        self.seen = 0
        self.registered = False
        self.view = (self.world.version, self.world.table)

    def clock(self, at: float | None = None) -> float:
        return self.offset + self.rate * (self.world.now if at is None else at)

    def acts_on(self) -> set[int]:
        """Return the slots on which something of ours could be written at this instant."""
        if not self.alive or not self.holder.valid(self.clock()):
            return set()
        return self.granted | self.busy.keys()

    @property
    def granted(self) -> set[int]:
        """The slots for which the replica holds a fencing token."""
        return {slot for slot in range(self.world.table.slots) if self.holder.token(slot)}


class World:
    """Simulated ring: replicas, API server, faults and time."""

    new_holder: Callable[[str, float], SlotLeases]
    new_planner: Callable[[], Planner]

    def __init__(
        self,
        seed: int | Random,
        *,
        replicas: int = 3,
        slots: int = 6,
        holder: Callable[..., SlotLeases] = SlotLeases,
        planner: Callable[..., Planner] = Planner,
        blind: bool = False,
    ) -> None:
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.chance = self.random.random
        self.new_holder = lambda member, now: holder(member, now=now, timing=TIMING)
        self.new_planner = lambda: planner(timing=TIMING, policy=POLICY)
        self.blind = blind  # an API server that does not compare versions
        self.now = 0.0
        self.calm = False
        self.version = 0
        self.table: Table = empty_table("ring", slots)
        self.log: list[tuple[int, Table]] = [(0, self.table)]
        self.leases: dict[str, MemberRecord] = {}
        self.pulse = 0
        self.moves = 0
        self.lost = False
        self.by_hand = False
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = 0
        self.replicas: list[Replica] = []
        for _ in range(replicas):
            self.join()
        self.elect()
        self.at(ELECT_S, self.keep_a_leader)

    # --- time

    def at(self, delay: float, action: Callable[..., None], *about: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + delay, self.order, action, about))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        events = self.events
        while events and events[0][0] <= until:
            self.now, _, action, about = heapq.heappop(events)
            action(*about)
        self.now = until

    def frozen(self, replica: Replica, action: Callable[..., None], *about: Any) -> bool:
        """Whether the replica is frozen; then the call is made when the replica wakes."""
        if replica.frozen_until > self.now:
            self.at(replica.frozen_until - self.now, action, *about)
            return True
        return False

    def delay(self) -> float:
        """Return the delay of a request or of an answer: mostly none, at times seconds."""
        if self.calm or self.chance() < 0.8:
            return 0.0
        return self.chance() ** 3 * 8.0

    # --- events of replicas

    @property
    def living(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.alive]

    def join(self, template: str = "") -> Replica:
        replica = Replica(self, f"r{len(self.replicas)}", template)
        self.replicas.append(replica)
        self.at(self.chance() * 0.5, self.beat, replica, replica.incarnation)
        return replica

    def crash(self, replica: Replica) -> None:
        replica.alive = False
        replica.planner = None

    def restart(self, replica: Replica) -> None:
        replica.alive, replica.leaving, replica.frozen_until = True, False, 0.0
        replica.begin(predecessor="")
        self.at(0, self.beat, replica, replica.incarnation)

    def freeze(self, replica: Replica, seconds: float) -> None:
        replica.frozen_until = max(replica.frozen_until, self.now + seconds)

    def cut_off(self, replica: Replica, seconds: float, answers_only: bool) -> None:
        until = self.now + seconds
        replica.deaf_until = until
        if not answers_only:
            replica.mute_until = until

    def leave(self, replica: Replica) -> None:
        replica.leaving = True

    def elect(self) -> None:
        """Let a replica begin to assign shards; the former leader assigns for a while longer."""
        for old in self.living:
            if old.planner is not None:
                self.at(self.chance() * 8, self.depose, old, old.planner)
        fit = [each for each in self.living if each.planner is None]
        if fit:
            leader = fit[int(self.chance() * len(fit))]
            leader.planner = self.new_planner()
            self.at(0.2, self.assign, leader, leader.planner)

    def depose(self, replica: Replica, planner: Planner) -> None:
        if replica.planner is planner:
            replica.planner = None

    def keep_a_leader(self) -> None:
        if not any(each.planner and each.frozen_until <= self.now for each in self.living):
            self.elect()
        self.at(ELECT_S, self.keep_a_leader)

    # --- a replica at work

    def beat(self, replica: Replica, incarnation: int) -> None:
        """End work on lost slots, and renew the Lease."""
        if not replica.alive or replica.incarnation != incarnation:
            return
        if self.frozen(replica, self.beat, replica, incarnation):
            return
        self.work(replica)
        if not replica.alive:
            return
        holder, clock = replica.holder, replica.clock()
        holder.valid(clock)
        if holder.lapsed:
            self.rejoin(replica)
        if self.calm or self.chance() < 0.5:
            self.see(replica, self.version, self.table)
        self.renew(replica)
        if replica.alive:
            pause = TIMING.retry_s * (1 + 0.2 * self.chance()) / replica.rate
            self.at(pause, self.beat, replica, replica.incarnation)

    def rejoin(self, replica: Replica) -> None:
        """End all work of a replica whose Lease has expired, and join as a new incarnation."""
        if any(end == float("inf") for end in replica.busy.values()):
            self.crash(replica)  # work that cannot be ended ends with the process
            self.at(1.0, self.restart, replica)
        else:
            replica.begin(predecessor=replica.id)

    def work(self, replica: Replica) -> None:
        busy, now = replica.busy, self.now
        for slot in [slot for slot, end in busy.items() if end <= now]:
            del busy[slot]
        self.attend(replica)
        clock = replica.clock()
        for slot in range(self.table.slots):
            if slot not in busy and self.chance() < 0.3 and replica.holder.may_start(slot, clock):
                stuck = not self.calm and self.chance() < 0.02
                busy[slot] = float("inf") if stuck else now + self.chance() * 4

    def attend(self, replica: Replica) -> None:
        """Carry out the decisions of a replica's slot leases, and soon report changes to others."""
        duties = replica.holder.duties(replica.clock(), replica.busy)
        for slot in duties.cancel:
            if replica.busy[slot] != float("inf") or self.chance() < 0.5:
                del replica.busy[slot]
        if duties.give_up:
            self.crash(replica)
            self.at(1.0, self.restart, replica)
            return
        if duties.acks != replica.acks or duties.seen != replica.seen:
            replica.acks, replica.seen = dict(duties.acks), duties.seen
            if self.calm or self.chance() < 0.5:
                self.renew(replica)

    # --- its Lease

    def renew(self, replica: Replica) -> None:
        if replica.holder.lapsed:
            return
        gone = replica.leaving and not replica.busy and self.owns_nothing(replica)
        if gone:
            replica.holder.lapse()
        self.pulse += 1
        record = MemberRecord(
            id=replica.id,
            pulse=f"{self.pulse}@{self.now + replica.wall_error}",
            lease_s=TIMING.lease_s,
            state=MemberState.LEAVING if replica.leaving else MemberState.HEALTHY,
            released=gone,
            template=replica.template,
            predecessor=replica.predecessor,
            acks=replica.acks,
            seen=replica.seen,
        )
        first, replica.registered = not replica.registered, True
        about = (replica, replica.holder, record, replica.clock(), first)
        if gone:
            replica.alive, replica.planner = False, None
        mute = replica.mute_until > self.now
        if self.calm or (not mute and self.chance() >= 0.07):  # else it is lost on its way
            self.after(self.delay(), self.land_lease, *about)

    def owns_nothing(self, replica: Replica) -> bool:
        return all(entry.owner != replica.id for entry in replica.view[1].entries)

    def after(self, delay: float, action: Callable[..., None], *about: Any) -> None:
        if delay:
            self.at(delay, action, *about)
        else:
            action(*about)

    def land_lease(
        self,
        replica: Replica,
        holder: SlotLeases,
        record: MemberRecord,
        started: float,
        first: bool,
    ) -> None:
        """Write a Lease in the API server; only the first write creates it."""
        found = record.id in self.leases
        if found or first:  # also an earlier write that arrives late
            self.leases[record.id] = record
        deaf = replica.deaf_until > self.now
        if self.calm or (not deaf and self.chance() >= 0.07):
            self.after(self.delay(), self.renewed, replica, holder, started, found or first)

    def renewed(self, replica: Replica, holder: SlotLeases, started: float, written: bool) -> None:
        if not replica.alive or replica.holder is not holder:
            return
        if self.frozen(replica, self.renewed, replica, holder, started, written):
            return
        if not written:
            holder.lapse()
        elif holder.renewed(started=started, answered=replica.clock()):
            self.look_at_owners(replica)

    # --- the table

    def see(self, replica: Replica, version: int, table: Table) -> None:
        if not replica.alive or self.frozen(replica, self.see, replica, version, table):
            return
        if version > replica.view[0]:
            replica.view = (version, table)
        if replica.holder.see(table):
            self.look_at_owners(replica)
            if self.calm or self.chance() < 0.7:
                self.attend(replica)

    def assign(self, leader: Replica, planner: Planner) -> None:
        """List the members afresh; decide when the answer is there."""
        if not leader.alive or leader.planner is not planner:
            return
        if self.frozen(leader, self.assign, leader, planner):
            return
        records = list(self.leases.values())
        self.after(self.delay(), self.decide, leader, planner, records, leader.clock())
        self.at(ASSIGN_S / leader.rate, self.assign, leader, planner)

    def decide(
        self, leader: Replica, planner: Planner, records: list[MemberRecord], started: float
    ) -> None:
        if not leader.alive or self.frozen(leader, self.decide, leader, planner, records, started):
            return
        version, table = leader.view
        clock = leader.clock()
        planner.wall = self.now + leader.wall_error
        planner.observe(records, started=started, now=clock, table=table)
        decision = planner.decide(table, clock)
        if decision.look_at < clock:
            raise Violation(f"a look is asked for in the past: {decision.look_at - clock}")
        self.look_at_moves(planner, table, decision, clock)
        lost = not self.calm and self.chance() < 0.07
        if decision.table is not None and not lost:
            self.after(self.delay(), self.land_table, version, decision.table)
        for record in decision.evict:
            self.after(self.delay(), self.land_eviction, record)

    def land_eviction(self, record: MemberRecord) -> None:
        found = self.leases.get(record.id)
        if found is not None and found.pulse == record.pulse:
            del self.leases[record.id]

    def lose_table(self) -> None:
        """Delete the table, after all members have recorded in their Leases that it existed.

        Deletion in the first second of a ring, or together with the Leases, is not protected.
        """
        records = [self.leases.get(each.id) for each in self.living if each.registered]
        if records and all(record is not None and record.seen for record in records):
            self.lost = True
            self.write_table(empty_table("ring", self.table.slots))

    def lose_lease(self, replica: Replica) -> None:
        """Delete the Lease of a replica."""
        if not self.lost:
            self.leases.pop(replica.id, None)

    def land_table(self, version: int, table: Table) -> None:
        """Store the table if its version is still current; all replicas are notified later."""
        if version == self.version or self.blind:
            self.look_at_epochs(self.table, table)
            self.write_table(table)

    def write_table(self, table: Table) -> None:
        self.version += 1
        self.table = table
        self.log.append((self.version, table))
        for replica in self.living:
            luck = 0.0 if self.calm else self.chance()
            if luck < 0.7:
                self.see(replica, self.version, table)
            elif luck < 0.9:
                self.at(self.chance() * 5, self.see, replica, self.version, table)
            if luck > 0.85:  # an API server that is behind
                old = self.log[-1 - int(self.chance() * min(len(self.log), 4))]
                self.at(self.chance() * 3, self.see, replica, *old)

    # --- invariants

    def look_at_owners(self, replica: Replica) -> None:
        mine = replica.acts_on()
        if not mine:
            return
        for other in self.replicas:
            if other is not replica and other.alive and not mine.isdisjoint(other.acts_on()):
                both = sorted(mine & other.acts_on())
                raise Violation(f"{self.now:.3f}: {replica.id} and {other.id} both act on {both}")

    def look_at_epochs(self, before: Table, after: Table) -> None:
        if after.epoch <= before.epoch:
            raise Violation(f"the epoch went from {before.epoch} to {after.epoch}")
        for slot, (old, new) in enumerate(zip(before.entries, after.entries, strict=True)):
            if new is not old and new != old and new.epoch <= old.epoch:
                raise Violation(f"slot {slot} went from {old} to {new}")
            if old.owner and not new.owner and not self.by_hand and any(after.next_owners):
                raise Violation(f"slot {slot} was {old} and has no owner")

    def look_at_moves(
        self, planner: Planner, table: Table, decision: PlanningResult, clock: float
    ) -> None:
        """Check that no more slots moved than necessary, plus one for each replica."""
        if decision.table is None:
            return
        states = planner.states(clock)
        able = {each for each, state in states.items() if state is MemberState.HEALTHY}
        able -= {each for each in able if table.names_member(table.drained, each)}
        after = decision.table.next_owners
        before = [
            # A drain that continues or is cancelled is no move.
            heir if heir in (each.owner, each.to) else each.to if each.to in able else each.owner
            for heir, each in zip(after, table.entries, strict=True)
        ]
        moved = sum(a != b for a, b in zip(before, after, strict=True))
        self.moves += moved
        if not moved or table.pins:
            return
        counts = Counter(owner for owner in before if owner in able)
        aside = sum(1 for owner in after if owner not in able)
        floor = (table.slots - aside) // max(len(able), 1)
        forced = sum(1 for a, b in zip(before, after, strict=True) if a not in able and a != b)
        above = sum(max(count - floor, 0) for count in counts.values())
        if moved > forced + above + len(able):
            raise Violation(f"{moved} moves; {forced} forced, {above} above: {before} -> {after}")

    # --- the end

    def settle(self) -> None:
        """End all faults, and check that the ring becomes quiet and balanced."""
        self.calm = True
        started = self.now
        while self.now < started + CALM_S:
            self.run(1.5)
            if self.at_rest():
                self.run(POLICY.settle_s + POLICY.interval_s + ASSIGN_S)
                if self.at_rest():
                    return
        raise Violation(f"no rest after {CALM_S} s: {self.unrest()}")

    def at_rest(self) -> bool:
        return not self.unrest()

    def unrest(self) -> str:
        """Return why the ring is not yet quiet and balanced; empty if it is."""
        ids = {each.id for each in self.replicas if each.alive and not each.leaving}
        if any(each.frozen_until > self.now for each in self.living):
            return "a replica is frozen"
        if not ids:
            return ""
        for slot, entry in enumerate(self.table.entries):
            if entry.state is not SlotState.OWNED or entry.owner not in ids:
                return f"slot {slot} is {entry}, and there are {sorted(ids)}"
        able = {each for each in ids if not self.table.names_member(self.table.drained, each)}
        counts = Counter(self.table.next_owners)
        sizes = [counts.get(member, 0) for member in able]
        if self.table.pins or self.table.frozen or not able:
            return ""
        mean = self.table.slots / len(able)
        if max(sizes) - min(sizes) > 1 and max(sizes) / mean > 1 + POLICY.threshold:
            return f"out of balance: {counts}"
        for replica in self.living:
            if not replica.leaving and replica.granted != self.table.owned_by(replica.id):
                return f"{replica.id} does not act on its slots"
        return ""
