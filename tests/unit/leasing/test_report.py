"""The report of reclaims in a policy's status: numbers, condition, start of a new reclaim."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kubeocean.api.policies import SHOWN, Eviction, ReclaimStatus
from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.progress import NodeReport, PolicyProgress
from kubeocean.leasing.reclaim import plan_reclaim
from kubeocean.leasing.report import cause_text, counted, eviction_message, next_report
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition
from unit.leasing.reclaim_simulation import START, SimulatedNode, after, node_pod

FORCE = ReclaimRules(force=True, grace_s=60, deadline_s=300)


def progress(*reports: NodeReport, **more: object) -> PolicyProgress:
    return PolicyProgress(reports=reports, **more)


def updated(
    given: PolicyProgress,
    before: ReclaimStatus | None = None,
    reclaiming: Condition | None = None,
    at: float = 0,
) -> tuple[ReclaimStatus, Condition]:
    report = next_report(before, reclaiming, given, generation=3, now=after(at))
    assert report is not None
    return report


def eviction(name: str) -> Eviction:
    return Eviction("team", name, "v", text_of(START), "Due", "it had to")


def test_the_status_of_a_policy_that_does_not_force_has_no_times() -> None:
    report = SimulatedNode(rules=ReclaimRules(grace_s=60)).add(node_pod("p")).report()
    status, condition = updated(progress(report))
    assert (condition.status, condition.reason) == ("True", "NotForced")
    assert (status.eviction_time, status.deadline_time) == (None, None)


def test_a_status_has_nothing_of_reclaims_before_the_first_one() -> None:
    assert next_report(None, None, PolicyProgress(lends=True), now=START) is None
    empty = SimulatedNode(rules=FORCE).report()
    assert not empty.under_way
    assert next_report(None, None, progress(empty), now=START) is None


def test_a_reclaim_is_reported_from_its_start_to_its_end() -> None:
    node = SimulatedNode(rules=FORCE, protected={"kept"}).add(node_pod("kept"), node_pod("free"))
    status, condition = updated(progress(node.report()))
    assert (status.cause, status.start_time) == ("WindowClosed", text_of(START))
    assert (status.eviction_time, status.deadline_time) == (text_of(after(60)), text_of(after(360)))
    assert (status.pending, status.pending_nodes, status.completion_time) == (2, 1, None)
    assert status.nodes is not None
    assert (status.nodes[0].name, status.nodes[0].phase) == ("v", "Notice")
    assert (condition.reason, condition.observed_generation) == ("GracePeriod", 3)
    assert condition.message == f"2 pods on 1 node may run until {text_of(after(60))}"

    node.now = after(60)
    evicting = node.report()
    given = progress(evicting, evictions=(eviction("free"),))
    status, condition = updated(given, status, condition, 60)
    assert (status.evicted, status.blocked, condition.reason) == (1, 1, "BlockedByBudget")
    assert condition.message == f"Disruption budgets hold back 1 pod until {text_of(after(360))}"
    again = updated(progress(evicting), status, condition, 75)
    assert again == (status, condition)

    node.now = after(360)
    given = progress(node.report(), evictions=(eviction("kept"),))
    status, condition = updated(given, status, condition, 360)
    assert (status.evicted, condition.reason) == (2, "DeadlinePassed")
    assert [each.name for each in status.last_evictions or ()] == ["kept", "free"]

    node.pass_until(after(400))
    status, condition = updated(progress(node.report()), status, condition, 400)
    assert (status.completion_time, status.pending, status.nodes) == (text_of(after(400)), 0, None)
    assert (condition.status, condition.reason) == ("False", "Reclaimed")
    assert condition.message == "The nodes are free again; evicted: 2 pods"
    assert updated(progress(node.report()), status, condition, 500) == (status, condition)


def test_a_reclaim_that_is_over_before_any_status_showed_it_is_reported() -> None:
    began = SimulatedNode(rules=FORCE).add(node_pod("p")).report()
    over = SimulatedNode(rules=FORCE).report()
    given = progress(over, began=began, evictions=(eviction("p"),))
    status, condition = updated(given, at=2)
    assert (status.start_time, status.completion_time) == (text_of(START), text_of(after(2)))
    assert (status.evicted, condition.reason) == (1, "Reclaimed")
    lost, _ = updated(PolicyProgress(evictions=(eviction("p"),)))
    assert (lost.start_time, lost.cause) == (text_of(START), "")


def test_lending_again_stops_a_reclaim_and_the_next_one_begins_anew() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    status, condition = updated(progress(node.report(), evictions=(eviction("q"),)))
    again = PolicyProgress(lent_again=True, lends=True)
    stopped, condition = updated(again, status, condition, 30)
    assert (condition.reason, condition.status) == ("LendingAgain", "False")
    assert updated(PolicyProgress(lends=True), stopped, condition, 40) == (stopped, condition)

    node.now, node.taints = after(100), ()
    status, condition = updated(progress(node.report()), stopped, condition, 100)
    assert (status.start_time, status.evicted) == (text_of(after(100)), 0)
    assert status.completion_time is None


def stopped_reclaim() -> tuple[ReclaimStatus, Condition]:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    status, condition = updated(progress(node.report(), evictions=(eviction("q"),)))
    return updated(PolicyProgress(lent_again=True, lends=True), status, condition, 30)


def test_a_window_that_closes_on_empty_nodes_begins_a_new_reclaim() -> None:
    stopped, condition = stopped_reclaim()
    empty = SimulatedNode(rules=FORCE, now=after(100)).report()
    status, condition = updated(progress(empty), stopped, condition, 100)
    assert (status.start_time, status.completion_time) == (text_of(after(100)),) * 2
    assert (status.evicted, condition.reason) == (0, "Reclaimed")
    assert updated(progress(empty), status, condition, 110) == (status, condition)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("lends", [False, True])
def test_only_a_closed_window_of_a_policy_that_does_not_lend_begins_a_reclaim_of_empty_nodes(
    closed: bool, lends: bool
) -> None:
    stopped, condition = stopped_reclaim()
    cause = ReclaimCause.WINDOW_CLOSED if closed else ReclaimCause.POLICY_NARROWED
    node = SimulatedNode(rules=FORCE, cause=cause, now=after(90))
    node.follow()  # a node that is deleted is reclaimed once it has its taint
    empty = node.report()
    assert not empty.under_way
    status, condition = updated(progress(empty, lends=lends), stopped, condition, 90)
    assert (status.start_time != stopped.start_time) is (closed and not lends)
    assert (status.evicted == stopped.evicted) is not (closed and not lends)
    assert condition.reason == ("LendingAgain" if lends else "Reclaimed")


def test_a_node_that_a_policy_selects_again_counts_as_lent_again() -> None:
    node = SimulatedNode(rules=FORCE, cause=ReclaimCause.POLICY_NARROWED).add(node_pod("p"))
    status, condition = updated(progress(node.report(), lends=True))
    assert (status.cause, condition.reason) == ("PolicyNarrowed", "GracePeriod")
    stopped = updated(PolicyProgress(lent_again=True, lends=True), status, condition, 30)
    assert stopped[1].reason == "LendingAgain"
    assert updated(PolicyProgress(lends=True), *stopped, 40) == stopped
    done = updated(PolicyProgress(lends=True), status, condition, 30)
    assert done[1].reason == "Reclaimed"


def test_a_new_reclaim_that_was_over_at_once_was_not_stopped() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    status, condition = updated(progress(node.report()))
    stopped, condition = updated(PolicyProgress(lends=True), status, condition, 30)
    narrowed = SimulatedNode(rules=FORCE, cause=ReclaimCause.POLICY_NARROWED, now=after(50))
    began = narrowed.add(node_pod("p")).report()
    given = PolicyProgress(began=began, evictions=(eviction("p"),), lends=True)
    assert updated(given, stopped, condition, 60)[1].reason == "Reclaimed"


def test_a_status_is_bounded_and_its_numbers_count_all() -> None:
    pods = [node_pod(f"p{n:03}") for n in range(50)]
    reports = [SimulatedNode(rules=FORCE).add(*pods).report(f"v{n:03}") for n in range(200)]
    assert all(len(each.pods) == SHOWN for each in reports)
    evictions = tuple(eviction(f"p{n}") for n in range(300))
    status, _ = updated(progress(*reports, evictions=evictions))
    assert (status.pending_nodes, status.pending, status.evicted) == (200, 10_000, 300)
    for named in (status.nodes, status.pods, status.last_evictions):
        assert named is not None
        assert len(named) == SHOWN
    assert status.last_evictions is not None
    assert status.last_evictions[0].name == "p299"
    assert len(msgspec.json.encode(status)) < 10_000


def test_a_counted_noun_is_plural_unless_the_number_is_one() -> None:
    assert [counted(n, "pod") for n in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_the_condition_is_evicting_if_no_budget_refuses() -> None:
    node = SimulatedNode(rules=FORCE, stuck={"p"}).add(node_pod("p"))
    node.follow()
    node.now = after(60)
    assert updated(progress(node.report()))[1].reason == "Evicting"


# --- messages of events about evicted pods


def message(node: SimulatedNode) -> str:
    plan = plan_reclaim(node.situation)
    assert plan.notice is not None
    (step,) = plan.due
    return eviction_message(step, plan.notice, node="vnode-a", policy="night", binding="berlin")


def test_the_message_about_an_evicted_pod_has_node_policy_cause_and_times() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    node.follow()
    node.now = after(61)
    assert message(node) == (
        "Node vnode-a is reclaimed since 2026-03-06T20:00:00Z, because the time windows of policy"
        " night are closed. The pod was evicted: evictions began at 2026-03-06T20:01:00Z, and pods"
        " that are left at 2026-03-06T20:06:00Z are deleted"
    )


def test_the_message_about_a_deleted_pod_has_the_deadline() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    node.follow()
    node.now = after(360)
    assert message(node).endswith(
        ". The pod was deleted: the deadline for evictions was 2026-03-06T20:06:00Z"
    )


def test_the_message_about_an_abandoned_pod_names_the_worker() -> None:
    rules = replace(FORCE, abandon_s=30)
    node = SimulatedNode(rules=rules, cause=ReclaimCause.BINDING_DELETED)
    node.add(node_pod("p", leaving_by=after(0))).follow()
    node.now = after(1000)
    assert message(node) == (
        "Node vnode-a is reclaimed since 2026-03-06T20:00:00Z, because ClusterBinding berlin is"
        " being deleted. The pod was deleted without a grace period: the worker did not confirm"
        " that it ended"
    )


@pytest.mark.parametrize("cause", ReclaimCause)
def test_each_cause_of_a_reclaim_has_a_text(cause: ReclaimCause) -> None:
    text = cause_text(cause, policy="night", binding="berlin")
    assert "{" not in text
    assert cause_text(cause, policy="", binding="berlin") == text.replace(
        "policy night", "the policy"
    )
