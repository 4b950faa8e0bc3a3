"""Slot leases: the slots on which a replica may act at this instant.

A replica may act on a slot while three things hold: the newest table that the replica has seen
gives it the slot, it has not closed the slot since, and its own Lease is valid without a gap, on
its own clock. A gap is final: the planner may have concluded meanwhile that the replica is dead, so
this incarnation acts no more, whatever renewals succeed later. The process ends its work and
rejoins under another ID.

    the table has Owned(self)            take keys, write
    the table has Draining(self → B)     take no keys; running work may write until `drain_s` have
                                         passed; when none runs: closed for ever, then acknowledged
    otherwise                            nothing; running work is cancelled; if it does not end
                                         within the time of a drain, the replica gives up

This module does no IO and reads no clock. All calls are made by one thread, and all times are of
one monotonic clock, which also counts while the machine is suspended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeocean.sharding.table import Table
from kubeocean.sharding.timing import Timing

__all__ = ["Duties", "SlotLeases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """Actions on slots that are due now in one incarnation of a replica.

    - `active`: take keys of these slots.
    - `draining`: take no keys; running work may finish.
    - `cancel`: running work must be cancelled.
    - `overdue`: the time for losing these slots has passed.
    - `acks`: acknowledged losses, all of which are written on the Lease each time.
    - `seen`: the epoch to publish on the Lease.
    - `warm`: slots that this replica will get; fill the caches.
    - `lost`: slots that were taken by force since the last call.
    - `give_up`: cancelled work does not end. Stop renewing, and end the process.
    - `wake_at`: compute the duties again at this time at the latest.
    """

    active: frozenset[int]
    draining: frozenset[int]
    cancel: frozenset[int]
    overdue: frozenset[int]
    acks: Mapping[int, int]
    seen: int
    warm: frozenset[int]
    lost: frozenset[int]
    give_up: bool
    wake_at: float


@dataclass(slots=True)
class _Drain:
    epoch: int
    since: float | None = None  # when the duties were first computed with this drain


class SlotLeases:
    """Slots that one incarnation of a replica may work on, by the table and its Lease.

    `now` is a time before the first attempt to write the Lease. From that attempt on, the planner
    may see the replica, grant slots to it and take it for dead: a first answer that comes too late
    is a gap.
    """

    def __init__(self, member: str, *, now: float, timing: Timing | None = None) -> None:
        self.id = member
        self.table: Table | None = None
        self.lapsed = False
        self._timing = timing or Timing()
        self.deadline = now + self._timing.renew_s  # this replica may act until then
        self._registered = False
        self._tokens: dict[int, int] = {}  # open slots: the epoch of their grant
        self._drains: dict[int, _Drain] = {}  # open slots that are to be handed over
        self._ending: dict[int, float] = {}  # closed slots in which work still runs: since when
        self._acks: dict[int, int] = {}
        self._seen = 0
        self._asked_for = 0  # an epoch that the planner may wait for this replica to publish
        self._lost: set[int] = set()

    def renewed(self, *, started: float, answered: float) -> bool:
        """Record a Lease write that began and ended at these times; return False if it was too
        late.

        The Lease is valid from `started`, because the planner sees the write later. The write
        counts only if the previous validity had not ended when the answer came.
        """
        self._registered = True
        if not self.valid(answered):
            return False
        self.deadline = max(self.deadline, started + self._timing.renew_s)
        return True

    def valid(self, now: float) -> bool:
        """Return whether this replica's Lease is valid now; once False, the result stays False."""
        if now >= self.deadline:
            self.lapse()
        return self._registered and not self.lapsed

    def lapse(self) -> None:
        """Forbid all further work of this incarnation: its Lease is lost, or the incarnation
        ends."""
        self.lapsed = True
        self._lost |= self._tokens.keys()
        self._tokens.clear()
        self._drains.clear()

    def see(self, table: Table) -> bool:
        """Record a table of slot owners; return False if the table is not newer than the last
        one."""
        if self.table is not None and table.epoch <= self.table.epoch:
            if table.epoch < self.table.epoch:  # an old table; or the newest one is lost
                self._asked_for = self.table.epoch
            return False
        self.table = table
        if self.lapsed:
            return True
        acks: dict[int, int] = {}
        if not self._asked_for:
            self._asked_for = table.epoch
        for slot, entry in enumerate(table.entries):
            if entry.owner != self.id:
                if not entry.owner and entry.epoch:
                    self._asked_for = table.epoch  # the slot was taken by force
                if slot in self._tokens:
                    self._lost.add(slot)
                    del self._tokens[slot]
                    self._drains.pop(slot, None)
            elif not entry.to:
                self._tokens[slot] = entry.epoch
                self._drains.pop(slot, None)
            elif slot not in self._tokens:
                acks[slot] = entry.epoch  # this incarnation never acts on the slot
            elif slot not in self._drains:
                self._drains[slot] = _Drain(entry.epoch)
            else:
                self._drains[slot].epoch = entry.epoch  # a new target does not extend the drain
        self._acks = acks
        return True

    def may_start(self, slot: int, now: float) -> bool:
        """Return whether this replica may start to work on a key of this slot."""
        return self.valid(now) and slot in self._tokens and slot not in self._drains

    def may_write(self, slot: int, now: float) -> bool:
        """Return whether work in this slot may still write; checked before each write."""
        return self.valid(now) and slot in self._tokens

    def token(self, slot: int) -> int:
        """Return the epoch of this replica's grant of a slot, the fencing token; 0 without a
        grant."""
        return self._tokens.get(slot, 0)

    def duties(self, now: float, busy: Collection[int] = ()) -> Duties:
        """Return the actions on slots that are due at `now`. `busy` are the slots in which work
        still runs.

        A slot that the result acknowledges is closed already: an acknowledgement is never
        withdrawn.
        """
        times = [self.deadline] if self.valid(now) else []
        for slot, drain in list(self._drains.items()):
            if drain.since is None:
                drain.since = now
            if slot not in busy:
                self._close(slot, drain.epoch)
        closed = set(busy) - self._tokens.keys()
        self._ending = {slot: self._ending.get(slot, now) for slot in closed}
        overdue, give_up = set(), False
        for slot, since in self._leaving().items():
            cancel_at = since + self._timing.drain_s
            give_up_at = cancel_at + self._timing.cancel_s
            times += [cancel_at, give_up_at]
            if now >= cancel_at:
                overdue.add(slot)
                give_up |= now >= give_up_at
        if not closed:
            self._seen = self._asked_for
        lost, self._lost = frozenset(self._lost), set()
        return Duties(
            active=frozenset(self._tokens.keys() - self._drains.keys()),
            draining=frozenset(self._drains.keys()),
            cancel=frozenset(overdue | closed),
            overdue=frozenset(overdue),
            acks={slot: epoch for slot, epoch in self._acks.items() if slot not in busy},
            seen=self._seen,
            warm=self._coming(),
            lost=lost,
            give_up=give_up,
            wake_at=min([at for at in times if at > now], default=float("inf")),
        )

    def _leaving(self) -> dict[int, float]:
        """Return the slots in which running work has to end, and since when."""
        drains = {slot: each.since for slot, each in self._drains.items()}
        return self._ending | {slot: since for slot, since in drains.items() if since is not None}

    def _close(self, slot: int, epoch: int) -> None:
        del self._tokens[slot], self._drains[slot]
        self._acks[slot] = epoch

    def _coming(self) -> frozenset[int]:
        if self.table is None or self.lapsed:
            return frozenset()
        entries = self.table.entries
        return frozenset([slot for slot, entry in enumerate(entries) if entry.to == self.id])
