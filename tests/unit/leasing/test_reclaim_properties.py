"""Properties of reclaim plans, for random pods, rules, causes and outages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.progress import report_of
from kubeocean.leasing.reclaim import (
    EvictionResult,
    PodAction,
    PodOnNode,
    ReclaimPhase,
    ReclaimPlan,
    StepReason,
    plan_reclaim,
)
from kubeocean.leasing.taints import FOREVER, NO_EXECUTE, NO_SCHEDULE, Toleration, tolerated_s
from kubeocean.runtime.kinds import Taint
from unit.leasing.reclaim_simulation import START, WINDOW, SimulatedNode, after, node_pod, pods_to

ACTS = (PodAction.EVICT, PodAction.DELETE, PodAction.ABANDON)
LASTING = Taint(WINDOW, "true", NO_EXECUTE)

tolerations = st.sampled_from(
    [
        (),
        (),
        (Toleration(operator="Exists"),),
        (Toleration(WINDOW, "Exists", effect=NO_EXECUTE, toleration_seconds=40),),
        (Toleration(WINDOW, "Equal", "true"),),
        (Toleration(WINDOW, "Exists", effect=NO_SCHEDULE),),
    ]
)


@st.composite
def node_pods(draw: st.DrawFn) -> list[PodOnNode]:
    return [
        node_pod(
            f"p{index}",
            created=after(-draw(st.integers(0, 10_000))),
            priority=draw(st.integers(-2, 2)),
            tolerations=draw(tolerations),
            finished=draw(st.sampled_from([False, False, False, True])),
            daemon=draw(st.sampled_from([False, False, True])),
            leaving_by=draw(st.none() | st.none() | st.integers(-50, 100).map(after)),
        )
        for index in range(draw(st.integers(0, 6)))
    ]


rules = st.builds(
    ReclaimRules,
    force=st.sampled_from([True, True, False]),
    respect_tolerations=st.sampled_from([True, True, False]),
    grace_s=st.sampled_from([0, 1, 30, 60]),
    deadline_s=st.sampled_from([0, 5, 60, 300]),
    evictions_per_minute=st.none() | st.integers(1, 3),
    cool_down_s=st.sampled_from([0, 0, 90]),
    abandon_s=st.none() | st.sampled_from([0, 50]),
)


@st.composite
def nodes(draw: st.DrawFn) -> SimulatedNode:
    names = st.sampled_from([f"p{index}" for index in range(6)])
    return SimulatedNode(
        draw(rules),
        cause=draw(st.sampled_from(ReclaimCause)),
        now=START + timedelta(milliseconds=draw(st.sampled_from([0, 0, 1, 999]))),
        protected=draw(st.sets(names)),
        failing=draw(st.dictionaries(names, st.integers(0, 4))),
        stuck=draw(st.sets(names, max_size=2)),
        ends_s=draw(st.sampled_from([0, 1, 30])),
    ).add(*draw(node_pods()))


@dataclass(frozen=True)
class Period:
    """A stretch of time with one cause, or none, in which the worker answers or does not."""

    seconds: float
    cause: ReclaimCause | None
    worker_answers: bool


periods = st.lists(
    st.builds(
        Period,
        seconds=st.sampled_from([0.5, 3, 61, 400]),
        cause=st.none() | st.sampled_from(ReclaimCause) | st.just(ReclaimCause.WINDOW_CLOSED),
        worker_answers=st.sampled_from([True, True, True, False]),
    ),
    max_size=5,
)


@dataclass
class Log:
    """A plan, the node before it was carried out, and since when the node has the taint."""

    made: ReclaimPlan
    node: SimulatedNode
    noticed: datetime | None


def follow_plans(node: SimulatedNode, periods: list[Period]) -> list[Log]:
    """Carry out plans through all periods, and log each of them."""
    logs: list[Log] = []
    noticed: dict[str, datetime] = {}  # by key of a taint that was present without a break
    for period in [Period(400, node.cause, True), *periods]:
        node.cause, node.worker_answers = period.cause, period.worker_answers
        until = node.now + timedelta(seconds=period.seconds)
        while node.now < until:
            before = replace(node, pods=dict(node.pods), history=list(node.history))
            made = node.follow()
            kept = {taint.key for taint in made.taints if taint.time_added is not None}
            noticed = {key: noticed.get(key, node.now) for key in kept}
            since = noticed[made.notice.taint.key] if made.notice else None
            logs.append(Log(made, before, since))
            wake = made.again_at or until
            node.pass_until(min(wake, until, node.now + timedelta(seconds=20)))
    return logs


@given(nodes(), periods)
def test_no_pod_is_evicted_before_the_grace_period_is_over(
    node: SimulatedNode, periods: list[Period]
) -> None:
    for log in follow_plans(node, periods):
        if any(pods_to(log.made, action) for action in ACTS):
            assert log.noticed is not None
            grace = timedelta(seconds=log.node.rules.grace_s)
            assert log.node.now - log.noticed >= grace


@given(nodes(), periods)
def test_no_pod_is_evicted_while_the_node_is_lent(
    node: SimulatedNode, periods: list[Period]
) -> None:
    for log in follow_plans(node, periods):
        if log.node.cause is None:
            assert log.made.steps == ()
            assert log.made.phase in (ReclaimPhase.LENT, ReclaimPhase.COOLING)
            assert not log.made.remove_node
            assert all(taint.effect == NO_SCHEDULE for taint in log.made.taints)


@given(nodes(), periods)
def test_no_pod_that_tolerates_a_closed_window_is_evicted(
    node: SimulatedNode, periods: list[Period]
) -> None:
    node.rules = replace(node.rules, respect_tolerations=True)
    for log in follow_plans(node, periods):
        if log.node.cause is ReclaimCause.WINDOW_CLOSED:
            for step in log.made.steps:
                tolerated = tolerated_s(step.pod.tolerations, LASTING)
                if step.action in ACTS:
                    assert tolerated != FOREVER
                    assert log.noticed is not None
                    stayed = (log.node.now - log.noticed).total_seconds()
                    assert stayed >= log.node.rules.grace_s + tolerated


@given(nodes(), periods)
def test_force_is_used_only_after_the_deadline_and_only_if_it_is_allowed(
    node: SimulatedNode, periods: list[Period]
) -> None:
    for log in follow_plans(node, periods):
        rules = log.node.rules
        acts = [step for step in log.made.steps if step.action in ACTS]
        assert rules.force or all(step.action is PodAction.ABANDON for step in acts)
        if any(step.action is not PodAction.EVICT for step in acts):
            assert log.noticed is not None
            held = (log.node.now - log.noticed).total_seconds()
            assert held >= rules.grace_s + rules.deadline_s


@given(nodes(), periods)
def test_a_no_execute_taint_evicts_no_pod_before_the_deadline(
    node: SimulatedNode, periods: list[Period]
) -> None:
    lasting = False  # once it deletes it does so until the node is lent again
    for log in follow_plans(node, periods):
        deletes = any(taint.effect == NO_EXECUTE for taint in log.made.taints)
        if deletes and not lasting:
            assert log.node.cause is ReclaimCause.WINDOW_CLOSED
            assert log.made.notice is not None
            late = log.node.now >= log.made.notice.deadline
            assert late or all(
                step.action in (PodAction.STAY, PodAction.LEAVE) for step in log.made.steps
            )
        lasting = deletes


@given(nodes(), periods)
def test_the_pace_is_kept_in_every_minute(node: SimulatedNode, periods: list[Period]) -> None:
    follow_plans(node, periods)
    limit = node.rules.evictions_per_minute
    times = [
        each.at
        for each in node.history
        if each.action is PodAction.EVICT and each.answer is EvictionResult.ACCEPTED
    ]
    if limit is not None:
        for first, last in zip(times, times[limit:], strict=False):
            assert last - first >= timedelta(minutes=1)


@given(nodes(), periods)
def test_a_pod_that_the_pace_puts_off_has_no_lower_priority_than_one_that_is_evicted(
    node: SimulatedNode, periods: list[Period]
) -> None:
    for log in follow_plans(node, periods):
        moves = [
            step.reason
            for step in log.made.steps
            if step.reason in (StepReason.DUE, StepReason.PACE)
        ]
        assert moves == sorted(moves, key=lambda why: why is StepReason.PACE)
        priorities = [step.pod.priority for step in log.made.steps]
        assert priorities == sorted(priorities)


@given(nodes(), periods, st.randoms(use_true_random=False))
def test_a_plan_depends_on_nothing_but_the_situation(
    node: SimulatedNode, periods: list[Period], random: object
) -> None:
    for log in follow_plans(node, periods):
        situation = replace(log.node.situation, taints=log.node.taints)
        shuffled = list(situation.pods)
        random.shuffle(shuffled)
        assert plan_reclaim(replace(situation, pods=tuple(shuffled))) == log.made
        assert log.made.again_at is None or log.made.again_at > log.node.now
        again = plan_reclaim(replace(situation, taints=log.made.taints))
        assert again.taints == log.made.taints, "written once, nothing is left to write"
        assert len(log.made.steps) in (0, len(situation.pods))


@given(nodes(), periods)
def test_a_report_of_a_plan_with_its_attempts_is_that_of_a_plan_made_after_them(
    node: SimulatedNode, periods: list[Period]
) -> None:
    # With a pace, a refusal frees a slot that only the next plan uses.
    node.rules = replace(node.rules, evictions_per_minute=None)
    for log in follow_plans(node, periods):
        if log.node.cause is not None and log.made.due:
            carried_out = replace(log.node, pods=dict(log.node.pods), taints=log.node.taints)
            made = carried_out.follow().after(carried_out.attempts)
            again = plan_reclaim(carried_out.situation)
            cause, rules = log.node.cause, log.node.rules
            if not again.due:
                assert report_of("v", cause, rules, made) == report_of("v", cause, rules, again)


@given(nodes())
def test_a_forced_reclaim_ends_in_bounded_time(node: SimulatedNode) -> None:
    """With force and pods that end, a node is reclaimed or removed in bounded time."""
    node.rules = replace(node.rules, force=True)
    node.stuck = set()
    tolerance_s, retries_s, slack_s = 40, 60, 2
    bound = node.rules.grace_s + node.rules.deadline_s + tolerance_s + retries_s + node.ends_s
    node.run(until=node.now + timedelta(seconds=bound + slack_s + 100), most=500)
    last = node.follow()
    tolerated = any(step.reason is StepReason.TOLERATES for step in last.steps)
    assert last.phase is (ReclaimPhase.HELD if tolerated else ReclaimPhase.RECLAIMED)
    assert not tolerated or node.rules.respect_tolerations
    assert all(step.settled for step in last.steps)
    assert last.remove_node == (node.cause is not ReclaimCause.WINDOW_CLOSED)


@given(nodes())
def test_a_binding_ends_even_if_pods_never_do(node: SimulatedNode) -> None:
    node.cause, node.worker_answers = ReclaimCause.BINDING_DELETED, False
    node.rules = replace(node.rules, force=True, abandon_s=50)
    bound = node.rules.grace_s + node.rules.deadline_s + 50 + 62
    node.run(until=node.now + timedelta(seconds=bound), most=500)
    assert node.removed


@given(
    cool_down_s=st.integers(10, 120),
    flip_s=st.sampled_from([1, 2, 5]),
    flips=st.integers(1, 150),
)
def test_a_window_that_flutters_evicts_no_more_often_than_the_node_cools_down(
    cool_down_s: int, flip_s: int, flips: int
) -> None:
    """Whenever it may, a scheduler puts a pod on the node; each one would be evicted at once."""
    node = SimulatedNode(ReclaimRules(force=True, deadline_s=0, cool_down_s=cool_down_s), ends_s=0)
    for flip in range(flips):
        node.cause = ReclaimCause.WINDOW_CLOSED if flip % 2 else None
        if not node.follow().taints:
            node.add(node_pod(f"p{flip}", created=node.now))
        node.pass_until(node.now + timedelta(seconds=flip_s))
    spent = flips * flip_s
    assert len(node.history) <= 1 + spent / cool_down_s
