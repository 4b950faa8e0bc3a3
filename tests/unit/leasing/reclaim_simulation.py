"""A simulated virtual node with pods on it, a clock that only tests move, and plans carried out.

A test can have budgets refuse, evictions fail, and pods never end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.progress import NodeReport, report_of
from kubeocean.leasing.reclaim import (
    EvictionAttempt,
    EvictionResult,
    PodAction,
    PodOnNode,
    ReclaimInput,
    ReclaimPhase,
    ReclaimPlan,
    plan_reclaim,
)
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Key

__all__ = ["START", "WINDOW", "Attempted", "SimulatedNode", "after", "node_pod", "pods_to"]

START = datetime(2026, 3, 6, 20, 0, tzinfo=UTC)
WINDOW = "kubeocean.io/out-of-time-windows"


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pods_to(plan: ReclaimPlan, action: PodAction) -> tuple[PodOnNode, ...]:
    """Return the pods that a plan has this action for, in order."""
    return tuple(step.pod for step in plan.steps if step.action is action)


def node_pod(name: str, **fields: object) -> PodOnNode:
    given: dict[str, object] = {"created": after(-3600), **fields}
    return PodOnNode(key=Key("team", name), uid=f"uid-{name}", **given)


@dataclass(frozen=True)
class Attempted:
    """An eviction or a deletion that was attempted."""

    at: datetime
    action: PodAction
    name: str
    answer: EvictionResult


@dataclass
class SimulatedNode:
    """All inputs of a plan, and their changes when the plan is carried out."""

    rules: ReclaimRules
    cause: ReclaimCause | None = ReclaimCause.WINDOW_CLOSED
    now: datetime = START
    pods: dict[str, PodOnNode] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    protected: set[str] = field(default_factory=set)  # a budget refuses to evict these
    failing: dict[str, int] = field(default_factory=dict)  # so many answers are errors
    stuck: set[str] = field(default_factory=set)  # they stay terminating for ever
    ends_s: float = 5  # how long others take to end
    worker_answers: bool = True
    removed: bool = False
    history: list[Attempted] = field(default_factory=list)
    plans: list[ReclaimPlan] = field(default_factory=list)
    attempts: dict[str, EvictionAttempt | None] = field(default_factory=dict)  # of the last plan

    def add(self, *pods: PodOnNode) -> SimulatedNode:
        self.pods |= {each.key.name: each for each in pods}
        return self

    @property
    def situation(self) -> ReclaimInput:
        accepted = [each.at for each in self.history if each.answer is EvictionResult.ACCEPTED]
        evicted = [
            each.at
            for each in self.history
            if each.answer is EvictionResult.ACCEPTED and each.action is PodAction.EVICT
        ]
        return ReclaimInput(
            now=self.now,
            cause=self.cause,
            rules=self.rules,
            taints=self.taints,
            pods=tuple(self.pods.values()),
            evictions=tuple(evicted),
            last_eviction=max(accepted, default=None),
            worker_answers=self.worker_answers,
        )

    def follow(self) -> ReclaimPlan:
        """Make a plan, carry it out, and keep the attempts by the UIDs of the pods."""
        made = plan_reclaim(self.situation)
        self.plans.append(made)
        self.taints = made.taints
        self.attempts = {}
        for step in made.due:
            self._try(step.pod, step.action)
            pod = self.pods.get(step.pod.key.name)
            self.attempts[step.pod.uid] = pod.attempt if pod is not None else None
        self.removed = self.removed or made.remove_node
        return made

    def report(self, name: str = "v") -> NodeReport:
        """Carry out a plan, and return the report of it."""
        made = self.follow()
        assert self.cause is not None
        return report_of(name, self.cause, self.rules, made.after(self.attempts))

    def _try(self, target: PodOnNode, move: PodAction) -> None:
        name = target.key.name
        answer = EvictionResult.ACCEPTED
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            answer = EvictionResult.FAILED
        elif move is PodAction.EVICT and name in self.protected:
            answer = EvictionResult.REFUSED
        self.history.append(Attempted(self.now, move, name, answer))

        again = target.attempt is not None and target.attempt.action is move
        count = target.attempt.count + 1 if again and target.attempt else 1
        target = replace(target, attempt=EvictionAttempt(move, self.now, answer, count))
        if answer is EvictionResult.ACCEPTED and move is PodAction.ABANDON:
            del self.pods[name]
        elif answer is EvictionResult.ACCEPTED:
            by = self.now + timedelta(seconds=self.ends_s)
            if target.leaving_by is not None:
                by = min(by, target.leaving_by)  # a grace period is only ever shortened
            self.pods[name] = replace(target, leaving_by=by)
        else:
            self.pods[name] = target

    def pass_until(self, instant: datetime) -> None:
        """Advance the clock; pods whose end is due by then end, unless they are stuck."""
        self.now = max(self.now, instant)
        for name, each in list(self.pods.items()):
            over = each.leaving_by is not None and each.leaving_by <= self.now
            if over and name not in self.stuck:
                del self.pods[name]

    def run(self, *, until: datetime, most: int = 2000) -> list[ReclaimPlan]:
        """Carry out plans until that instant; a new plan is made at `again_at` and when a pod
        ended."""
        start = len(self.plans)
        for _ in range(most):
            made = self.follow()
            ends = [e.leaving_by for e in self.pods.values() if e.leaving_by is not None]
            wakes = [t for t in (*ends, made.again_at) if t is not None and t > self.now]
            wake = min(wakes, default=None)
            if self.removed or wake is None or wake > until:
                self.pass_until(until)
                return self.plans[start:]
            self.pass_until(wake)
        raise AssertionError(f"no end after {most} plans")

    def actions(self, *wanted: PodAction) -> list[tuple[float, str]]:
        """Return the seconds after the start and the pod of each attempt of these actions."""
        return [
            ((each.at - START).total_seconds(), each.name)
            for each in self.history
            if each.action in wanted
        ]

    @property
    def phase(self) -> ReclaimPhase:
        return self.plans[-1].phase

    @property
    def window_taint(self) -> Taint | None:
        return next((each for each in self.taints if each.key == WINDOW), None)
