"""A virtual node with pods on it, a clock that only tests move, and somebody who follows plans.

Servers are as stubborn as a test wants: budgets refuse, evictions fail, pods do not end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from kubeocean.leasing.plans import Phase, Plan
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer, Attempt, Guest, Move, Situation
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Key

__all__ = ["START", "WINDOW", "Happened", "World", "after", "guest"]

START = datetime(2026, 3, 6, 20, 0, tzinfo=UTC)
WINDOW = "kubeocean.io/out-of-time-windows"


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def guest(name: str, **fields: object) -> Guest:
    given: dict[str, object] = {"created": after(-3600), **fields}
    return Guest(key=Key("team", name), uid=f"uid-{name}", **given)


@dataclass(frozen=True)
class Happened:
    """A move that was made."""

    at: datetime
    move: Move
    name: str
    answer: Answer


@dataclass
class World:
    """What a plan is made from, and what becomes of it."""

    rules: Rules
    cause: Cause | None = Cause.WINDOW_CLOSED
    now: datetime = START
    guests: dict[str, Guest] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    guarded: set[str] = field(default_factory=set)  # a budget refuses to evict these
    failing: dict[str, int] = field(default_factory=dict)  # so many answers are errors
    undying: set[str] = field(default_factory=set)  # they terminate for ever
    ends_s: float = 5  # how long others take to end
    worker_answers: bool = True
    removed: bool = False
    history: list[Happened] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def add(self, *guests: Guest) -> World:
        self.guests |= {each.key.name: each for each in guests}
        return self

    @property
    def situation(self) -> Situation:
        accepted = [each.at for each in self.history if each.answer is Answer.ACCEPTED]
        evicted = [
            each.at
            for each in self.history
            if each.answer is Answer.ACCEPTED and each.move is Move.EVICT
        ]
        return Situation(
            now=self.now,
            cause=self.cause,
            rules=self.rules,
            taints=self.taints,
            guests=tuple(self.guests.values()),
            evictions=tuple(evicted),
            last_eviction=max(accepted, default=None),
            worker_answers=self.worker_answers,
        )

    def follow(self) -> Plan:
        """Make a plan and carry it out."""
        made = plan(self.situation)
        self.plans.append(made)
        self.taints = made.taints
        for step in made.steps:
            if step.move in (Move.EVICT, Move.DELETE, Move.ABANDON):
                self._try(step.guest, step.move)
        self.removed = self.removed or made.remove_node
        return made

    def _try(self, target: Guest, move: Move) -> None:
        name = target.key.name
        answer = Answer.ACCEPTED
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            answer = Answer.FAILED
        elif move is Move.EVICT and name in self.guarded:
            answer = Answer.REFUSED
        self.history.append(Happened(self.now, move, name, answer))

        again = target.attempt is not None and target.attempt.move is move
        count = target.attempt.count + 1 if again and target.attempt else 1
        target = replace(target, attempt=Attempt(move, self.now, answer, count))
        if answer is Answer.ACCEPTED and move is Move.ABANDON:
            del self.guests[name]
        elif answer is Answer.ACCEPTED:
            by = self.now + timedelta(seconds=self.ends_s)
            self.guests[name] = replace(target, leaving_by=by)
        else:
            self.guests[name] = target

    def pass_until(self, instant: datetime) -> None:
        """Move the clock; what had to end by then has, unless it is undying."""
        self.now = max(self.now, instant)
        for name, each in list(self.guests.items()):
            over = each.leaving_by is not None and each.leaving_by <= self.now
            if over and name not in self.undying:
                del self.guests[name]

    def run(self, *, until: datetime, most: int = 2000) -> list[Plan]:
        """Follow plans until that instant, waking when a plan asks for it or when a pod ended."""
        start = len(self.plans)
        for _ in range(most):
            made = self.follow()
            ends = [e.leaving_by for e in self.guests.values() if e.leaving_by is not None]
            wakes = [t for t in (*ends, made.again_at) if t is not None and t > self.now]
            wake = min(wakes, default=None)
            if self.removed or wake is None or wake > until:
                self.pass_until(until)
                return self.plans[start:]
            self.pass_until(wake)
        raise AssertionError(f"no end after {most} plans")

    def moves(self, *wanted: Move) -> list[tuple[float, str]]:
        """What was done with whom, and how many seconds after the start."""
        return [
            ((each.at - START).total_seconds(), each.name)
            for each in self.history
            if each.move in wanted
        ]

    @property
    def phase(self) -> Phase:
        return self.plans[-1].phase

    @property
    def window_taint(self) -> Taint | None:
        return next((each for each in self.taints if each.key == WINDOW), None)
