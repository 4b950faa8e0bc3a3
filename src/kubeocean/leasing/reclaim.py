"""Reclaim plans: the next actions for a virtual node and the pods on it, with reasons.

A plan is made for one instant, from facts that can be read again after a restart: the taints of the
virtual node, the pods on it, the time. The caller makes another plan after each change and at
`again_at`. The times of evictions are recorded in the status of the policy and, for the cool-down,
on the virtual node. Refused evictions may be forgotten in a restart; the next attempt then comes
sooner, and never a deletion before its time. A reclaim has four steps:

1. *Notice.* The node is tainted NoSchedule. The taint's `timeAdded` is the start of the grace
   period, and the only record of it. No pod is evicted.
2. *Eviction*, after the grace period and only with `forceReclaim`: through the Eviction API, which
   respects disruption budgets; the lowest priority first, and of equals the youngest, which has the
   least work to lose. A pod that a budget protects does not hold up the next one. If the node is
   lent again in the middle, the pods most worth keeping are still running.
3. *Force*, after the deadline: the pods that are left are deleted, all at once, with a grace period
   of one second. A pod that an eviction left terminating beyond the deadline is deleted so, too:
   its own grace period may be a year. The pace of evictions does not delay the deadline.
4. *Reclaimed*, when no pod is left that runs. Unless the cause is a closed window, the virtual node
   is deleted now.

The taint of a closed window becomes NoExecute when no pod is left that NoExecute would evict, or at
the deadline: Kubernetes answers a NoExecute taint by deleting pods at once, whatever the budgets
say.

A pod that tolerates the taint of a closed window, by any rule of Kubernetes, stays for as long as
its toleration lasts, unless the policy does not respect tolerations. While such a pod runs, the
node is held, not reclaimed. When the virtual node is deleted, tolerations do not count; only a
DaemonSet's pod that is not evicted, or that would be created again at once, stays until its node is
deleted. While the worker does not answer, no pod is evicted or deleted, unless the binding is being
deleted.

When the node is lent again, the plan is to stop, and to remove the taints once the node has cooled
down.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from kubeocean.api.group import DEFAULT, TRUE, Domain
from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.taints import NO_EXECUTE, NO_SCHEDULE, Toleration, tolerated_s
from kubeocean.runtime.clock import ceil_second, instant_of, text_of
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Key, Meta

__all__ = [
    "FORCED_GRACE_S",
    "EvictionAttempt",
    "EvictionResult",
    "EvictionSlots",
    "Notice",
    "Pace",
    "PodAction",
    "PodOnNode",
    "PodStep",
    "ReclaimInput",
    "ReclaimPhase",
    "ReclaimPlan",
    "StepReason",
    "eviction_order",
    "notice_of",
    "plan_reclaim",
    "pod_on_node",
    "reclaim_taints",
    "without_time",
]


class PodAction(StrEnum):
    """Action on a pod of a node that is being reclaimed."""

    STAY = "Stay"  # nothing, now or later
    WAIT = "Wait"  # nothing yet
    EVICT = "Evict"  # through the Eviction API, which respects disruption budgets
    DELETE = "Delete"  # regardless of budgets, with `grace_s`
    LEAVE = "Leave"  # nothing: the pod is terminating
    ABANDON = "Abandon"  # delete without a grace period: the worker does not confirm the pod's end


FORCED_GRACE_S: Final = 1  # grace period of deletions at the deadline
_SHORTEST_GRACE: Final = timedelta(seconds=FORCED_GRACE_S)
_ACTIVE: Final = (PodAction.EVICT, PodAction.DELETE, PodAction.ABANDON)


class EvictionResult(StrEnum):
    """Answer of an API server to an eviction or a deletion."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"  # 429: a disruption budget
    FAILED = "Failed"  # any other error


_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 10.0  # a budget may allow the next eviction at any time, without an event
_UNSEEN_S: Final = 30.0  # for an accepted eviction, until the cache shows the pod terminating


@dataclass(frozen=True, slots=True)
class EvictionAttempt:
    """The last attempt to evict or delete a pod; `count` is the number of such attempts in a
    row."""

    action: PodAction
    at: datetime
    answer: EvictionResult
    count: int = 1
    retry_after_s: float = 0  # as the API server asked

    @property
    def retry_at(self) -> datetime:
        """The earliest time to repeat the same action on the same pod."""
        if self.answer is EvictionResult.ACCEPTED:
            return self.at + timedelta(seconds=_UNSEEN_S)
        doubled = _FIRST_RETRY_S * 2 ** min(self.count - 1, 10)
        wait_s = max(self.retry_after_s, min(doubled, _LAST_RETRY_S))
        return self.at + timedelta(seconds=wait_s)


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A pod on the virtual node, as a reclaim plan needs it; Kubeocean's placeholder pods are
    excluded."""

    key: Key
    uid: str
    created: datetime
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    finished: bool = False  # succeeded or failed
    daemon: bool = False  # controlled by a DaemonSet
    grace_s: int | None = None  # the pod's own grace period; None: unknown
    leaving_by: datetime | None = None  # the pod's deletionTimestamp
    attempt: EvictionAttempt | None = None


class _PodSpec(Protocol):
    @property
    def priority(self) -> int | None: ...
    @property
    def tolerations(self) -> tuple[Toleration, ...] | None: ...
    @property
    def termination_grace_period_seconds(self) -> int | None: ...


class _Pod(Protocol):
    @property
    def key(self) -> Key: ...
    @property
    def uid(self) -> str: ...
    @property
    def metadata(self) -> Meta: ...
    @property
    def spec(self) -> _PodSpec: ...
    @property
    def finished(self) -> bool: ...


def pod_on_node(pod: _Pod, attempt: EvictionAttempt | None = None) -> PodOnNode:
    """Return the fields of a virtual pod that a reclaim plan needs; `attempt` is the last attempt
    to evict the pod."""
    owners = pod.metadata.owner_references or ()
    owner = next((each for each in owners if each.controller), None)
    return PodOnNode(
        key=pod.key,
        uid=pod.uid,
        created=instant_of(pod.metadata.creation_timestamp) or datetime.min.replace(tzinfo=UTC),
        priority=pod.spec.priority or 0,
        tolerations=pod.spec.tolerations or (),
        finished=pod.finished,
        daemon=owner is not None and owner.kind == "DaemonSet",
        grace_s=pod.spec.termination_grace_period_seconds,
        leaving_by=instant_of(pod.metadata.deletion_timestamp),
        attempt=attempt,
    )


def eviction_order(pod: PodOnNode) -> tuple[int, float, str, str]:
    """Sort key of evictions: lowest priority first, then the youngest; name and UID break ties."""
    return pod.priority, -pod.created.timestamp(), str(pod.key), pod.uid


@dataclass(frozen=True, slots=True)
class ReclaimInput:
    """Input of a reclaim plan: a virtual node and its pods at one instant.

    `rules_since` is when the reclaim rules began to hold, if that can be later than the taint: the
    deletionTimestamp of the binding or the policy, or when `forceReclaim` was switched on. Grace
    period and deadline count from the later of the two. `evictions` are the evictions that count
    against the pace, of all nodes of the policy; `last_eviction` is this node's.
    """

    now: datetime
    cause: ReclaimCause | None  # None: the node is lent
    rules: ReclaimRules
    taints: tuple[Taint, ...] = ()
    pods: tuple[PodOnNode, ...] = ()
    rules_since: datetime | None = None
    evictions: tuple[datetime, ...] = ()
    last_eviction: datetime | None = None
    worker_answers: bool = True
    domain: Domain = DEFAULT


@dataclass(frozen=True, slots=True)
class Notice:
    """The taint that announces a reclaim, and when evictions and deletions follow."""

    cause: ReclaimCause
    taint: Taint  # as first set: NoSchedule
    present: Taint | None  # the taint that the node has now
    evict_from: datetime
    deadline: datetime


def notice_of(situation: ReclaimInput, cause: ReclaimCause) -> Notice:
    """Return the taint and the times for a reclaim with this cause; a taint that the node has is
    kept.

    API servers keep whole seconds: `timeAdded` is rounded up, so that no pod gets less than its
    grace period. A taint without a time, or with a time in the future, was not set by Kubeocean:
    the grace period begins now.
    """
    domain = situation.domain
    key = domain.taint_vnode_deleting if cause.removes_node else domain.taint_out_of_time_windows
    present = next((each for each in situation.taints if each.key == key), None)
    latest = ceil_second(situation.now)

    added = instant_of(present.time_added) if present is not None else None
    if present is None or added is None or added > latest:
        taint = Taint(key, TRUE, NO_SCHEDULE, text_of(latest))
        since = latest
    else:
        taint = Taint(key, TRUE, NO_SCHEDULE, present.time_added)
        since = added
    if situation.rules_since is not None:
        since = max(since, min(situation.rules_since, latest))

    evict_from = since + timedelta(seconds=situation.rules.grace_s)
    deadline = evict_from + timedelta(seconds=situation.rules.deadline_s)
    return Notice(cause, taint, present, evict_from, deadline)


def reclaim_taints(situation: ReclaimInput) -> tuple[Taint, ...]:
    """Return those taints of the node that a reclaim has set."""
    domain = situation.domain
    keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
    return tuple(each for each in situation.taints if each.key in keys)


def without_time(taint: Taint) -> Taint:
    """Return the taint with NoSchedule and without a time: it keeps new pods away and starts no
    grace period."""
    return msgspec.structs.replace(taint, effect=NO_SCHEDULE, time_added=None)


class ReclaimPhase(StrEnum):
    """Phase of the reclaim of a node."""

    LENT = "Lent"
    COOLING = "Cooling"  # lent again, but takes no new pods yet
    NOTICE = "Notice"
    HELD = "Held"  # waits until pods end by themselves, or until the worker answers
    EVICTING = "Evicting"
    FORCING = "Forcing"
    RECLAIMED = "Reclaimed"


class StepReason(StrEnum):
    """Reason for the action that a plan has for a pod."""

    FINISHED = "Finished"  # the pod has ended
    TOLERATES = "Tolerates"
    DAEMON = "Daemon"  # the pod stays until its node is deleted
    NOT_FORCED = "NotForced"
    GRACE = "Grace"
    TOLERATES_FOR_NOW = "ToleratesForNow"
    UNREACHABLE = "Unreachable"  # the worker does not answer
    PACE = "Pace"
    BUDGET = "Budget"  # a disruption budget refused the eviction
    RETRY = "Retry"  # the last attempt failed, or shows no effect yet
    DUE = "Due"
    DEADLINE = "Deadline"
    TERMINATING = "Terminating"
    UNCONFIRMED = "Unconfirmed"  # the worker does not confirm that the pod ended


@dataclass(frozen=True, slots=True)
class PodStep:
    """The planned action for a pod; `at` is when to plan again for this pod if nothing changes."""

    pod: PodOnNode
    action: PodAction
    reason: StepReason
    at: datetime | None = None
    grace_s: int | None = None  # for an eviction or deletion; None: the pod's own

    @property
    def settled(self) -> bool:
        """Whether the reclaim need not wait for this pod."""
        return self.action is PodAction.STAY and self.reason is not StepReason.NOT_FORCED


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """Planned actions for a virtual node and its pods at one instant.

    `taints` are all reclaim taints that the node should have, and `unschedulable` is the wanted
    value of its spec; both are written first. `steps` has one entry for each pod, in the order to
    act in.
    """

    phase: ReclaimPhase
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    steps: tuple[PodStep, ...] = ()
    again_at: datetime | None = None  # None: only after a change
    remove_node: bool = False
    notice: Notice | None = None

    @property
    def due(self) -> tuple[PodStep, ...]:
        """The steps that evict or delete a pod now, in order."""
        return tuple(step for step in self.steps if step.action in _ACTIVE)

    def after(self, attempts: Mapping[str, EvictionAttempt | None]) -> ReclaimPlan:
        """Return the plan after its due steps were attempted, for a report.

        `attempts` are by the pod's UID; None means that the pod does not exist any more. A due step
        without an attempt lost its eviction slot to another node of the policy.
        """
        due = {step.pod.uid for step in self.due}
        steps: list[PodStep] = []
        for step in self.steps:
            uid = step.pod.uid
            if uid not in due:
                steps.append(step)
            elif uid not in attempts:
                steps.append(replace(step, action=PodAction.WAIT, reason=StepReason.PACE))
            elif (attempt := attempts[uid]) is not None:
                steps.append(_after_attempt(replace(step.pod, attempt=attempt), attempt))
        done = bool(due) and all(step.settled for step in steps)
        phase = _settled_phase(steps) if done else self.phase
        return replace(self, phase=phase, steps=tuple(steps))


def _settled_phase(steps: Iterable[PodStep]) -> ReclaimPhase:
    """Return the phase of a node whose reclaim waits for no pod: Held while tolerating pods run,
    else Reclaimed."""
    tolerated = any(step.reason is StepReason.TOLERATES for step in steps)
    return ReclaimPhase.HELD if tolerated else ReclaimPhase.RECLAIMED


def _after_attempt(pod: PodOnNode, attempt: EvictionAttempt) -> PodStep:
    """Return the step for a pod that was just evicted or deleted, until the attempt may be
    repeated."""
    refused = attempt.answer is EvictionResult.REFUSED
    return PodStep(
        pod,
        PodAction.LEAVE if attempt.action is PodAction.ABANDON else PodAction.WAIT,
        StepReason.BUDGET if refused else StepReason.RETRY,
        attempt.retry_at,
    )


_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """Number of evictions that a plan may contain now, given those of the last minute.

    Plans of several nodes are made from the same past and carried out at the same time, so
    `EvictionSlots` counts once more, immediately before each request, for all nodes of a policy.
    """

    limit: int  # at least one
    recent: tuple[datetime, ...]  # times of the evictions in the last minute, ascending

    @classmethod
    def of(cls, limit: int, evictions: Iterable[datetime], *, now: datetime) -> Pace:
        """Return the pace at `now`, given the times of past evictions."""
        return cls(limit, tuple(sorted(each for each in evictions if each > now - _MINUTE)))

    @property
    def free(self) -> int:
        """Number of evictions that may be made now."""
        return max(0, self.limit - len(self.recent))

    def next_slot(self, *, now: datetime) -> datetime:
        """Return when the next eviction may be made after all that may be made now."""
        counted = sorted((*self.recent, *[now] * self.free))
        return counted[len(counted) - self.limit] + _MINUTE


class EvictionSlots:
    """Evictions of the last minute by policy; each eviction holds a slot of the policy's limit."""

    def __init__(self) -> None:
        self._taken: dict[str, deque[datetime]] = {}  # ascending

    def recover(self, policy: str, times: Iterable[datetime]) -> None:
        """Set the evictions of a policy from its status; does nothing for a policy that has entries
        already."""
        if policy not in self._taken:
            self._taken[policy] = deque(sorted(times))

    def recent(self, policy: str, *, now: datetime) -> tuple[datetime, ...]:
        """Return the times of the policy's evictions in the last minute."""
        return tuple(self._counted(policy, now))

    def take(self, policy: str, limit: int | None, *, now: datetime) -> bool:
        """Take an eviction slot of the policy; return False if all `limit` slots are taken. None:
        no limit."""
        taken = self._counted(policy, now)
        if limit is not None and len(taken) >= limit:
            return False
        taken.append(now)
        return True

    def give_back(self, policy: str, at: datetime) -> None:
        """Free the eviction slot that was taken at this instant, because no pod was evicted."""
        taken = self._taken.get(policy)
        if taken is not None and at in taken:
            taken.remove(at)

    def _counted(self, policy: str, now: datetime) -> deque[datetime]:
        taken = self._taken.setdefault(policy, deque())
        while taken and taken[0] <= now - _MINUTE:
            taken.popleft()
        return taken


_RECHECK: Final = timedelta(seconds=1)  # after an action, in case no event follows
_FOREVER_S: Final = 100 * 366 * 24 * 3600  # longer tolerations give dates that overflow


def plan_reclaim(situation: ReclaimInput) -> ReclaimPlan:
    """Return the planned actions for a virtual node and its pods."""
    if situation.cause is None:
        return _plan_lent(situation)
    notice = notice_of(situation, situation.cause)
    return _Planner(situation, situation.cause, notice).plan()


def _plan_lent(situation: ReclaimInput) -> ReclaimPlan:
    present, last = reclaim_taints(situation), situation.last_eviction
    if present and last is not None:
        cool_from = last + timedelta(seconds=situation.rules.cool_down_s)
        if situation.now < cool_from:
            # A time would count as the start of a grace period if the window closed again.
            kept = tuple(map(without_time, present))
            deleting = any(each.key == situation.domain.taint_vnode_deleting for each in kept)
            return ReclaimPlan(ReclaimPhase.COOLING, kept, deleting, again_at=cool_from)
    return ReclaimPlan(ReclaimPhase.LENT)


@dataclass(frozen=True, slots=True)
class _Planner:
    situation: ReclaimInput
    cause: ReclaimCause
    notice: Notice

    def plan(self) -> ReclaimPlan:
        pods = sorted(self.situation.pods, key=eviction_order)
        steps = self._paced([self._step(pod) for pod in pods])
        waiting = any(not step.settled for step in steps)
        taint = msgspec.structs.replace(self.notice.taint, effect=self._effect(steps))
        # The taint is set first: no pod may arrive between this plan and the deletion of the node.
        given = self.notice.present is not None or not self.cause.removes_node
        return ReclaimPlan(
            phase=self._phase(steps, done=given and not waiting),
            taints=(*self._kept_taints(), taint),
            unschedulable=self.cause.removes_node,
            steps=steps,
            again_at=self._again_at(steps, given=given, waiting=waiting),
            remove_node=self.cause.removes_node and given and not waiting,
            notice=self.notice,
        )

    # The pods

    def _step(self, pod: PodOnNode) -> PodStep:
        now, force = self.situation.now, self.situation.rules.force
        if pod.finished:
            return PodStep(pod, PodAction.STAY, StepReason.FINISHED)
        if self._goes_with_node(pod):
            return PodStep(pod, PodAction.STAY, StepReason.DAEMON)
        tolerated = self._tolerated_s(pod)
        if tolerated >= _FOREVER_S:
            return PodStep(pod, PodAction.STAY, StepReason.TOLERATES)
        if pod.leaving_by is not None:
            return self._terminating(pod, pod.leaving_by, tolerated)
        if not force:
            return PodStep(pod, PodAction.STAY, StepReason.NOT_FORCED)
        if not self._may_act:
            return PodStep(pod, PodAction.WAIT, StepReason.UNREACHABLE)
        due = self.notice.evict_from + timedelta(seconds=tolerated)
        if now < due:
            reason = (
                StepReason.GRACE if now < self.notice.evict_from else StepReason.TOLERATES_FOR_NOW
            )
            return PodStep(pod, PodAction.WAIT, reason, due)
        if now < self.notice.deadline:
            return self._unless_tried(pod, PodAction.EVICT, StepReason.DUE)
        return self._unless_tried(pod, PodAction.DELETE, StepReason.DEADLINE)

    def _grace_s(self, pod: PodOnNode, action: PodAction) -> int | None:
        """Return the grace period of an eviction or deletion, which ends no later than the
        deadline; None for the pod's own."""
        if action is PodAction.ABANDON:
            return 0
        left_s = (self.notice.deadline - self.situation.now).total_seconds()
        most = max(math.ceil(left_s), FORCED_GRACE_S)
        if pod.grace_s is None:
            return most if action is PodAction.DELETE else None
        return None if pod.grace_s <= most else most

    def _terminating(self, pod: PodOnNode, by: datetime, tolerated: float) -> PodStep:
        """Return the step for a terminating pod: wait, delete it at the deadline, or abandon it.

        As long as the pod tolerates the taint, the pod's own grace period applies.
        """
        now = self.situation.now
        tolerates_until = self.notice.evict_from + timedelta(seconds=tolerated)
        deadline = max(self.notice.deadline, tolerates_until)
        if self.situation.rules.force and self._may_act and by > now + _SHORTEST_GRACE:
            if now >= deadline:
                return self._unless_tried(pod, PodAction.DELETE, StepReason.DEADLINE)
            if by > deadline:
                return PodStep(pod, PodAction.LEAVE, StepReason.TERMINATING, deadline)
        abandon_s = self.situation.rules.abandon_s
        if abandon_s is None or not self._may_act:
            return PodStep(pod, PodAction.LEAVE, StepReason.TERMINATING)
        patience = timedelta(seconds=abandon_s)
        abandon_at = self.notice.deadline + patience
        if self.situation.worker_answers:
            abandon_at = max(abandon_at, by + patience)
        if self.situation.now < abandon_at:
            return PodStep(pod, PodAction.LEAVE, StepReason.TERMINATING, abandon_at)
        return self._unless_tried(pod, PodAction.ABANDON, StepReason.UNCONFIRMED)

    def _unless_tried(self, pod: PodOnNode, action: PodAction, reason: StepReason) -> PodStep:
        """Return a step with this action, or a step that waits if the action was attempted just
        now."""
        now, attempt = self.situation.now, pod.attempt
        if attempt is not None and attempt.action is action and now < attempt.retry_at:
            return _after_attempt(pod, attempt)
        return PodStep(pod, action, reason, now + _RECHECK, self._grace_s(pod, action))

    def _paced(self, steps: Sequence[PodStep]) -> tuple[PodStep, ...]:
        """Return the steps with no more evictions than the pace allows, in eviction order."""
        now, limit = self.situation.now, self.situation.rules.evictions_per_minute
        if limit is None:
            return tuple(steps)
        pace = Pace.of(limit, self.situation.evictions, now=now)
        evictions = [step for step in steps if step.action is PodAction.EVICT]
        put_off = {step.pod.uid for step in evictions[pace.free :]}
        slot = pace.next_slot(now=now)
        return tuple(
            replace(step, action=PodAction.WAIT, reason=StepReason.PACE, at=slot)
            if step.pod.uid in put_off
            else step
            for step in steps
        )

    def _goes_with_node(self, pod: PodOnNode) -> bool:
        if not (pod.daemon and self.cause.removes_node):
            return False
        return not self.situation.rules.force or self._tolerates_notice(pod)

    def _tolerates_notice(self, pod: PodOnNode) -> bool:
        return tolerated_s(pod.tolerations, self.notice.taint) > 0

    def _tolerated_s(self, pod: PodOnNode) -> float:
        if self.cause.removes_node or not self.situation.rules.respect_tolerations:
            return 0.0
        taint = msgspec.structs.replace(self.notice.taint, effect=NO_EXECUTE)
        return tolerated_s(pod.tolerations, taint)

    # The node

    @property
    def _may_act(self) -> bool:
        return self.situation.worker_answers or self.cause is ReclaimCause.BINDING_DELETED

    def _kept_taints(self) -> tuple[Taint, ...]:
        """Return the other reclaim taints that a node which is to be deleted keeps, such as that of
        a closed window."""
        if not self.cause.removes_node:
            return ()
        key = self.notice.taint.key
        return tuple(each for each in reclaim_taints(self.situation) if each.key != key)

    def _effect(self, steps: Iterable[PodStep]) -> str:
        now, present = self.situation.now, self.notice.present
        forced = self.situation.rules.force and now >= self.notice.evict_from
        if self.cause.removes_node or not forced:
            return NO_SCHEDULE
        if present is not None and present.effect == NO_EXECUTE:
            return NO_EXECUTE
        evicts = any(
            step.action in (PodAction.WAIT, PodAction.EVICT, PodAction.DELETE) for step in steps
        )
        harmless = not evicts or now >= self.notice.deadline
        return NO_EXECUTE if self._may_act and harmless else NO_SCHEDULE

    def _phase(self, steps: Iterable[PodStep], *, done: bool) -> ReclaimPhase:
        now = self.situation.now
        if done:
            return _settled_phase(steps)
        if not self.situation.rules.force or not self._may_act:
            return ReclaimPhase.HELD
        if now < self.notice.evict_from:
            return ReclaimPhase.NOTICE
        return ReclaimPhase.EVICTING if now < self.notice.deadline else ReclaimPhase.FORCING

    def _again_at(self, steps: Iterable[PodStep], *, given: bool, waiting: bool) -> datetime | None:
        times = [step.at for step in steps if step.at is not None]
        if self.situation.rules.force and self._may_act:
            times.append(self.notice.evict_from)  # the taint changes then, with or without pods
            times += [self.notice.deadline] * waiting
        times += [self.situation.now + _RECHECK] * (not given)
        return min((each for each in times if each > self.situation.now), default=None)
