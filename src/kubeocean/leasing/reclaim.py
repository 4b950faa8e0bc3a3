"""Reclaim: how a lent node comes back, one plan at a time.

A plan says what is to be done at one instant, from what can be seen at that instant; whoever
carries it out plans again after each change and at `again_at`. The way is always the same:

1. *Notice.* The node is tainted NoSchedule; `timeAdded` is when the grace began. Nobody is evicted.
2. *Eviction*, after the grace and only by force: through the API that respects disruption budgets,
   the least important pods first, and of equals the youngest, which has the least work to lose. A
   pod that a budget holds back does not hold up the next. If the node is lent again in the middle,
   what was most worth keeping is still there.
3. *Force*, after the deadline: what is left is deleted, all at once. Pace is a courtesy, the
   deadline a promise.
4. *Reclaimed*, when nobody is left who has to go. A node that has to go is removed now.

A window's taint becomes NoExecute when nobody is left whom that would hurt, or at the deadline: to
a NoExecute taint Kubernetes reacts by deleting at once, without asking the budgets.

A pod that tolerates the window's taint, by any rule of Kubernetes and for as long as it does,
stays. When the whole node goes tolerations do not help; only a DaemonSet's pod that nobody would
evict, or that would come back at once, is left to go with its node. While a worker does not answer
nothing is evicted or deleted, unless the binding itself is being deleted.

When the node is lent again the plan is to stop, and to lift the taints once it has cooled down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from kubeocean.leasing.notice import Notice, notice_of, reclaim_taints, without_time
from kubeocean.leasing.pace import Pace
from kubeocean.leasing.plans import Phase, Plan, Step, Why
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.situation import Answer, Guest, Move, Situation
from kubeocean.leasing.tolerations import NO_EXECUTE, NO_SCHEDULE, tolerated_s
from kubeocean.runtime.kinds import Taint

__all__ = ["plan"]

_LOOK_AGAIN: Final = timedelta(seconds=1)  # after an action, in case nothing is heard of it
_AS_GOOD_AS_FOREVER_S: Final = 100 * 366 * 24 * 3600  # and still a date that can be computed with


def plan(situation: Situation) -> Plan:
    """What to do with the node and its pods now."""
    if situation.cause is None:
        return _lend(situation)
    reclaim = _Reclaim(situation, situation.cause, notice_of(situation, situation.cause))
    return reclaim.plan()


def _lend(situation: Situation) -> Plan:
    present, last = reclaim_taints(situation), situation.last_eviction
    if present and last is not None:
        cool_from = last + timedelta(seconds=situation.rules.cool_down_s)
        if situation.now < cool_from:
            # A time would count as the beginning of a grace if the window closed again meanwhile.
            kept = tuple(map(without_time, present))
            going = any(each.key == situation.domain.taint_vnode_deleting for each in kept)
            return Plan(Phase.COOLING, kept, going, again_at=cool_from)
    return Plan(Phase.LENT)


def _importance(guest: Guest) -> tuple[int, float, str, str]:
    """Who goes first: the lowest priority, then the youngest; the rest is for a fixed order."""
    return guest.priority, -guest.created.timestamp(), str(guest.key), guest.uid


@dataclass(frozen=True, slots=True)
class _Reclaim:
    situation: Situation
    cause: Cause
    notice: Notice

    def plan(self) -> Plan:
        guests = sorted(self.situation.guests, key=_importance)
        steps = self._paced([self._step(guest) for guest in guests])
        waiting = any(not step.settled for step in steps)
        taint = msgspec.structs.replace(self.notice.taint, effect=self._effect(steps))
        # Nobody may slip in between the last look and the removal: the notice comes first.
        given = self.notice.present is not None or not self.cause.removes_node
        return Plan(
            phase=self._phase(done=given and not waiting),
            taints=(*self._kept_taints(), taint),
            unschedulable=self.cause.removes_node,
            steps=steps,
            again_at=self._again_at(steps, given=given, waiting=waiting),
            remove_node=self.cause.removes_node and given and not waiting,
            notice=self.notice,
        )

    # The pods

    def _step(self, guest: Guest) -> Step:
        now, force = self.situation.now, self.situation.rules.force
        if guest.finished:
            return Step(guest, Move.STAY, Why.FINISHED)
        if self._goes_with_node(guest):
            return Step(guest, Move.STAY, Why.DAEMON)
        tolerated = self._tolerated_s(guest)
        if tolerated >= _AS_GOOD_AS_FOREVER_S:
            return Step(guest, Move.STAY, Why.TOLERATES)
        if guest.leaving_by is not None:
            return self._leaving(guest, guest.leaving_by)
        if not force:
            return Step(guest, Move.STAY, Why.NOT_FORCED)
        if not self._may_act:
            return Step(guest, Move.WAIT, Why.UNREACHABLE)
        due = self.notice.evict_from + timedelta(seconds=tolerated)
        if now < due:
            why = Why.GRACE if now < self.notice.evict_from else Why.TOLERATES_FOR_NOW
            return Step(guest, Move.WAIT, why, due)
        if now < self.notice.deadline:
            return self._try(guest, Move.EVICT, Why.DUE)
        return self._try(guest, Move.DELETE, Why.DEADLINE)

    def _leaving(self, guest: Guest, by: datetime) -> Step:
        """A pod that is terminating is given time; where its node has to go, not for ever."""
        abandon_s = self.situation.rules.abandon_s
        if abandon_s is None or not self._may_act:
            return Step(guest, Move.LEAVE, Why.TERMINATING)
        patience = timedelta(seconds=abandon_s)
        give_up = self.notice.deadline + patience
        if self.situation.worker_answers:
            give_up = max(give_up, by + patience)
        if self.situation.now < give_up:
            return Step(guest, Move.LEAVE, Why.TERMINATING, give_up)
        return self._try(guest, Move.ABANDON, Why.UNCONFIRMED, instead=Move.LEAVE)

    def _try(self, guest: Guest, move: Move, why: Why, *, instead: Move = Move.WAIT) -> Step:
        """The move, or a rest if it was tried just now."""
        now, attempt = self.situation.now, guest.attempt
        if attempt is not None and attempt.move is move and now < attempt.retry_at:
            refused = attempt.answer is Answer.REFUSED
            return Step(guest, instead, Why.BUDGET if refused else Why.RETRY, attempt.retry_at)
        return Step(guest, move, why, now + _LOOK_AGAIN)

    def _paced(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps with no more evictions than the pace allows; the first ones go first."""
        now, limit = self.situation.now, self.situation.rules.evictions_per_minute
        if limit is None:
            return tuple(steps)
        pace = Pace.of(limit, self.situation.evictions, now=now)
        evictions = [step for step in steps if step.move is Move.EVICT]
        put_off = {step.guest.uid for step in evictions[pace.free :]}
        slot = pace.next_slot(now=now)
        return tuple(
            replace(step, move=Move.WAIT, why=Why.PACE, at=slot)
            if step.guest.uid in put_off
            else step
            for step in steps
        )

    def _goes_with_node(self, guest: Guest) -> bool:
        if not (guest.daemon and self.cause.removes_node):
            return False
        return not self.situation.rules.force or self._tolerates_notice(guest)

    def _tolerates_notice(self, guest: Guest) -> bool:
        return tolerated_s(guest.tolerations, self.notice.taint) > 0

    def _tolerated_s(self, guest: Guest) -> float:
        if self.cause.removes_node:
            return 0.0
        taint = msgspec.structs.replace(self.notice.taint, effect=NO_EXECUTE)
        return tolerated_s(guest.tolerations, taint)

    # The node

    @property
    def _may_act(self) -> bool:
        return self.situation.worker_answers or self.cause is Cause.BINDING_DELETED

    def _kept_taints(self) -> tuple[Taint, ...]:
        """A node that goes keeps the taint of a closed window, which changes nothing any more."""
        if not self.cause.removes_node:
            return ()
        return tuple(each for each in reclaim_taints(self.situation) if each.key != self._key)

    @property
    def _key(self) -> str:
        return self.notice.taint.key

    def _effect(self, steps: Iterable[Step]) -> str:
        now, present = self.situation.now, self.notice.present
        forced = self.situation.rules.force and now >= self.notice.evict_from
        if self.cause.removes_node or not forced:
            return NO_SCHEDULE
        if present is not None and present.effect == NO_EXECUTE:
            return NO_EXECUTE
        hurts = any(step.move in (Move.WAIT, Move.EVICT, Move.DELETE) for step in steps)
        harmless = not hurts or now >= self.notice.deadline
        return NO_EXECUTE if self._may_act and harmless else NO_SCHEDULE

    def _phase(self, *, done: bool) -> Phase:
        now = self.situation.now
        if done:
            return Phase.RECLAIMED
        if not self.situation.rules.force or not self._may_act:
            return Phase.HELD
        if now < self.notice.evict_from:
            return Phase.NOTICE
        return Phase.EVICTING if now < self.notice.deadline else Phase.FORCING

    def _again_at(self, steps: Iterable[Step], *, given: bool, waiting: bool) -> datetime | None:
        times = [step.at for step in steps if step.at is not None]
        if self.situation.rules.force and self._may_act:
            times.append(self.notice.evict_from)  # when a window's taint changes, with or without
            times += [self.notice.deadline] * waiting
        times += [self.situation.now + _LOOK_AGAIN] * (not given)
        return min((each for each in times if each > self.situation.now), default=None)
