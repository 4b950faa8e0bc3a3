"""Reports of reclaim plans: phase, pods that are left, and why."""

from __future__ import annotations

from datetime import timedelta

from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.progress import NodeReport, report_of
from kubeocean.leasing.reclaim import EvictionAttempt, EvictionResult, PodAction, ReclaimPhase
from kubeocean.leasing.taints import Toleration
from kubeocean.runtime.clock import ceil_second, instant_of, text_of
from unit.leasing.reclaim_simulation import START, SimulatedNode, after, node_pod

FORCE = ReclaimRules(force=True, grace_s=60, deadline_s=300)


def reasons(of: NodeReport) -> dict[str, tuple[str, str | None]]:
    return {pod.name: (pod.reason, pod.until) for pod in of.pods}


def test_instants_are_whole_seconds_and_never_early() -> None:
    assert ceil_second(START) == START
    assert ceil_second(START + timedelta(milliseconds=1)) == after(1)
    assert instant_of(text_of(START)) == START
    assert (instant_of(None), instant_of(""), text_of(None)) == (None, None, None)


def test_a_report_has_for_each_pod_why_it_is_left_and_until_when() -> None:
    exists = (Toleration(operator="Exists"),)
    for_now = (Toleration(operator="Exists", toleration_seconds=30),)
    node = SimulatedNode(rules=FORCE).add(
        node_pod("due"),
        node_pod("staying", tolerations=exists),
        node_pod("later", tolerations=for_now),
        node_pod("over", finished=True),
    )
    report = node.report()
    assert reasons(report) == {
        "due": ("Grace", text_of(after(60))),
        "later": ("Grace", text_of(after(90))),
        "staying": ("Tolerates", None),
    }
    assert (report.phase, report.pending, report.blocked) == (ReclaimPhase.NOTICE, 2, 0)
    assert (report.since, report.evict_from, report.deadline) == (START, after(60), after(360))
    assert report.pods[-1].name == "staying"

    node.protected = {"due"}
    node.now = after(61)
    report = node.report()
    assert reasons(report)["due"] == ("Budget", text_of(after(360)))
    assert reasons(report)["later"] == ("ToleratesForNow", text_of(after(90)))
    assert report.blocked == 1
    node.now = after(91)
    assert reasons(node.report())["later"] == ("Terminating", None)


def test_a_retry_that_a_budget_refuses_again_changes_no_report() -> None:
    node = SimulatedNode(rules=FORCE, protected={"p"}).add(node_pod("p"))
    node.follow()
    node.now = after(60)
    first = node.report()
    for seconds in range(61, 300, 7):
        node.now = after(seconds)
        assert node.report() == first


def test_a_pod_whose_eviction_was_accepted_is_reported_as_terminating() -> None:
    accepted = EvictionAttempt(PodAction.EVICT, after(60), EvictionResult.ACCEPTED)
    failed = EvictionAttempt(PodAction.EVICT, after(60), EvictionResult.FAILED)
    node = SimulatedNode(rules=FORCE, now=START)
    node.follow()
    node.add(node_pod("accepted", attempt=accepted), node_pod("failed", attempt=failed))
    node.now = after(60)
    report = report_of("v", ReclaimCause.WINDOW_CLOSED, FORCE, node.follow())
    assert reasons(report) == {"accepted": ("Terminating", None), "failed": ("Retry", None)}


def test_a_report_has_no_times_if_the_policy_does_not_force() -> None:
    report = SimulatedNode(rules=ReclaimRules(grace_s=60)).add(node_pod("p")).report()
    assert (report.phase, report.evict_from, report.deadline) == (ReclaimPhase.HELD, None, None)
    assert reasons(report) == {"p": ("NotForced", None)}


def test_a_report_of_an_empty_node_is_not_under_way() -> None:
    assert not SimulatedNode(rules=FORCE).report().under_way


def test_a_pod_that_lost_its_eviction_slot_waits_for_the_pace() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"))
    node.follow()
    node.now = after(60)
    plan = node.follow()
    report = report_of("v", ReclaimCause.WINDOW_CLOSED, FORCE, plan.after({}))
    assert reasons(report) == {"p": ("Pace", None)}
    assert (report.phase, report.pending) == (ReclaimPhase.EVICTING, 1)


def test_a_pod_that_is_gone_when_its_eviction_is_answered_is_not_reported() -> None:
    node = SimulatedNode(rules=FORCE).add(node_pod("p"), node_pod("q"))
    node.follow()
    node.now = after(60)
    plan = node.follow()
    refused = EvictionAttempt(PodAction.EVICT, after(60), EvictionResult.REFUSED)
    one_left = plan.after({"uid-p": None, "uid-q": refused})
    report = report_of("v", ReclaimCause.WINDOW_CLOSED, FORCE, one_left)
    assert reasons(report) == {"q": ("Budget", text_of(after(360)))}
    assert (report.phase, report.blocked) == (ReclaimPhase.EVICTING, 1)
    none_left = plan.after({"uid-p": None, "uid-q": None})
    report = report_of("v", ReclaimCause.WINDOW_CLOSED, FORCE, none_left)
    assert (report.phase, report.pending, report.pods) == (ReclaimPhase.RECLAIMED, 0, ())
