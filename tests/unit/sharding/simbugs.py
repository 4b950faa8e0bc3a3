"""Plausible bugs, one class for each: the simulator must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from kubeocean.sharding.member_stats import MemberStats
from kubeocean.sharding.members import MemberRecord, MemberSighting, observe
from kubeocean.sharding.planner import Planner
from kubeocean.sharding.slot_lease import Duties, SlotLeases
from kubeocean.sharding.table import SlotEntry, Table
from unit.sharding.simworld import TIMING, World

__all__ = ["BUGS"]


class SkipsAcknowledgement(Planner):
    """Grants a slot before its owner has acknowledged the hand-over."""

    def free(self, slot: int, entry: SlotEntry, roster: MemberStats) -> bool:
        return bool(entry.to) or super().free(slot, entry, roster)


class IgnoresEpoch(SlotLeases):
    """Uses the last table that it received, also if its epoch is older."""

    def see(self, table: Table) -> bool:
        self.table = None
        return super().see(table)


class WallClock(Planner):
    """Compares its own wall clock with the time that a replica wrote."""

    wall = 0.0

    def expired(self, sighting: MemberSighting, now: float) -> bool:
        record = sighting.record
        if record is None or record.released:
            return super().expired(sighting, now)
        return self.wall - float(record.pulse.partition("@")[2]) > TIMING.patience_s


class EarlyGrant(Planner):
    """Declares a replica dead although the deadline of that replica has not passed."""

    def expired(self, sighting: MemberSighting, now: float) -> bool:
        early = replace(sighting, confirmed=sighting.confirmed + TIMING.patience_s / 2)
        return super().expired(early, now)


class ForgivesGaps(SlotLeases):
    """Keeps its slots when a renewal succeeds too late."""

    def valid(self, now: float) -> bool:
        return self._registered and now < self.deadline and not self.lapsed

    def renewed(self, *, started: float, answered: float) -> bool:
        self._registered = True
        self.deadline = max(self.deadline, started + TIMING.renew_s)
        return True


class ForgetsItsFirstTry(SlotLeases):
    """Assumes that no other replica knows it before its first answer arrives."""

    def renewed(self, *, started: float, answered: float) -> bool:
        if not self._registered:
            self.lapsed, self.deadline = False, started + TIMING.renew_s
        return super().renewed(started=started, answered=answered)

    def valid(self, now: float) -> bool:
        return self._registered and super().valid(now)


class AcknowledgesEarly(SlotLeases):
    """Lets go of a slot in which something still runs."""

    def duties(self, now: float, busy: Collection[int] = ()) -> Duties:
        return super().duties(now, ())


class TrustsLateNews(Planner):
    """Starts the lease at the time of the answer instead of the time of the request."""

    def observe(self, records, *, started, now, table):
        listed: list[MemberRecord] = list(records)
        self._sightings = observe(
            self._sightings, listed, expected=table.owners, started=now, now=now
        )


TWO = "both act on"  # two owners at once: the worst, and the surest sign

BUGS: dict[str, tuple[Callable[[int], World], str]] = {
    "skip the acknowledgement": (lambda seed: World(seed, planner=SkipsAcknowledgement), TWO),
    "ignore the epoch": (lambda seed: World(seed, holder=IgnoresEpoch), TWO),
    "wall clock for expiry": (lambda seed: World(seed, planner=WallClock), TWO),
    "lost compare-and-swap": (lambda seed: World(seed, blind=True), "the epoch went"),
    "early grant": (lambda seed: World(seed, planner=EarlyGrant), TWO),
    "a gap is forgiven": (lambda seed: World(seed, holder=ForgivesGaps), TWO),
    "forget the first try": (lambda seed: World(seed, holder=ForgetsItsFirstTry), TWO),
    "acknowledge what still runs": (lambda seed: World(seed, holder=AcknowledgesEarly), TWO),
    "a late answer to an early question": (lambda seed: World(seed, planner=TrustsLateNews), TWO),
}
