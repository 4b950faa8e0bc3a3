"""Decisions about one node: lent or not, by which policy, and the cause of a reclaim."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kubeocean.api.bindings import BindingSpec, ClusterBinding
from kubeocean.api.policies import PolicySpec, TimeWindow
from kubeocean.leasing.decision import (
    BindingSelector,
    Decision,
    Ignore,
    LeaveUnchanged,
    Lend,
    Reclaim,
    ReclaimCause,
    WindowClosed,
    decide,
    is_lendable,
)
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.policy_choice import Candidate
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Meta

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ONLY_OTHERS = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["other"]}]}
    ]
}


INVALID = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["pool a"]}]}
    ]
}
ONLY_A = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}
    ]
}


def node(**labels: str) -> Node:
    return Node(metadata=Meta(name="n", uid="u", labels=labels))


def binding(*, deleting: str | None = None, selector: object = None) -> ClusterBinding:
    spec = BindingSpec(cluster_id="c", node_selector=selector)
    return ClusterBinding(metadata=Meta(name="b", deletion_timestamp=deleting), spec=spec)


def policy(
    name: str = "p",
    *,
    windows: tuple[TimeWindow, ...] = (),
    selector: object = None,
    deleting: bool = False,
    valid: bool = True,
    force: bool = False,
) -> Candidate:
    spec = PolicySpec(
        cluster="b",
        time_windows=windows,
        node_selector=selector,
        force_reclaim=force,
    )
    parsed = ParsedPolicy.of(spec, local=UTC) if valid else None
    return Candidate(name, "2026-01-01T00:00:00Z", parsed, "broken", None, deleting)


def decision(
    pnode: Node | None,
    *candidates: Candidate,
    applied: str | None = None,
    of: ClusterBinding | None = None,
    memory: BindingSelector | None = None,
) -> Decision:
    present = of or binding()
    return decide(
        pnode,
        applied=applied,
        binding=present,
        selector=(memory or BindingSelector()).of(present),
        candidates=candidates,
        now=NOON,
    )


def test_a_policy_lends_within_its_windows() -> None:
    day, night = TimeWindow("08:00", "18:00"), TimeWindow("20:00", "06:00")
    lent = decision(node(), policy(windows=(day,)))
    assert isinstance(lent, Lend)
    assert not isinstance(lent, WindowClosed)
    assert (lent.policy.name, lent.cause) == ("p", None)
    outside = decision(node(), policy(windows=(night,)))
    assert isinstance(outside, WindowClosed)
    assert outside.cause is ReclaimCause.WINDOW_CLOSED


def test_without_a_policy_nothing_is_lent() -> None:
    assert decision(node()) == Ignore()
    assert decision(node(), policy(selector=ONLY_OTHERS)) == Ignore()
    assert decision(node(), policy(), of=binding(selector=ONLY_OTHERS)) == Ignore()


def test_a_virtual_node_is_never_lent_again_to_another_cluster() -> None:
    for labels in (
        {"type": "virtual-kubelet"},
        {"node.kubernetes.io/instance-type": "vnode"},
        {"beta.kubernetes.io/instance-type": "eklet"},
        {"node.kubernetes.io/instance-type": "external"},
    ):
        assert not is_lendable(labels)
        assert decision(node(**labels), policy()) == Ignore()
    assert is_lendable({"node.kubernetes.io/instance-type": "m5.large"})


def test_a_deleted_or_narrowed_policy_is_the_cause_of_the_reclaim() -> None:
    def cause(*candidates: Candidate) -> ReclaimCause:
        reclaim = decision(node(), *candidates, applied="p")
        assert isinstance(reclaim, Reclaim)
        return reclaim.cause

    assert cause() is ReclaimCause.POLICY_REMOVED
    assert cause(policy(deleting=True)) is ReclaimCause.POLICY_REMOVED
    assert cause(policy(selector=ONLY_OTHERS)) is ReclaimCause.POLICY_NARROWED


def test_the_nodes_of_a_policy_that_names_another_binding_are_reclaimed_by_its_rules() -> None:
    moved = replace(policy(force=True), withdrawn=True)
    reclaim = decision(node(), moved, applied="p")
    assert isinstance(reclaim, Reclaim)
    assert reclaim.cause is ReclaimCause.POLICY_REMOVED
    assert reclaim.rules.force
    assert decision(node(), moved) == Ignore()
    lent = decision(node(), moved, policy("q"), applied="p")
    assert isinstance(lent, Lend)
    assert lent.policy.name == "q"


def test_a_node_that_is_being_deleted_drains_by_the_rules_of_its_policy() -> None:
    spec = PolicySpec(
        cluster="b", graceful_reclaim_period_seconds=60, force_reclaim_deadline_seconds=90
    )
    parsed = ParsedPolicy.of(spec, local=UTC)
    lender = Candidate("p", "2026-01-01T00:00:00Z", parsed)
    deleted = Node(metadata=Meta(name="n", uid="u", deletion_timestamp="2026-11-16T11:59:00Z"))
    reclaim = decision(deleted, lender, applied="p")
    assert isinstance(reclaim, Reclaim)
    assert reclaim.cause is ReclaimCause.NODE_DELETING
    assert reclaim.cause.removes_node
    assert (reclaim.rules.force, reclaim.rules.grace_s, reclaim.rules.deadline_s) == (True, 60, 90)
    assert reclaim.since == NOON - timedelta(minutes=1)
    assert decision(deleted, lender) == Ignore()
    anew = decide(
        node(),
        applied="p",
        binding=binding(),
        selector=BindingSelector().of(binding()),
        candidates=[lender],
        now=NOON,
        replaced=True,
    )
    assert isinstance(anew, Reclaim)
    assert (anew.cause, anew.rules.grace_s) == (ReclaimCause.NODE_REPLACED, 60)
    gone = decision(None, lender, applied="p")
    assert isinstance(gone, Reclaim)
    assert (gone.cause, gone.rules.grace_s) == (ReclaimCause.NODE_GONE, 0)


def test_the_nodes_of_a_removed_policy_are_reclaimed_by_its_own_rules() -> None:
    reclaim = decision(node(), policy(deleting=True, force=True), applied="p")
    assert isinstance(reclaim, Reclaim)
    assert reclaim.rules.force
    gentle = decision(node(), applied="p")
    assert isinstance(gentle, Reclaim)
    assert not gentle.rules.force


def test_a_decision_has_the_time_since_which_its_rules_hold() -> None:
    night = (TimeWindow("20:00", "06:00"),)
    lent = decision(node(), replace(policy(windows=night, force=True), rules_since=NOON))
    assert isinstance(lent, WindowClosed)
    assert lent.since == NOON
    removed = replace(policy(deleting=True, force=True), rules_since=NOON)
    reclaim = decision(node(), removed, applied="p")
    assert isinstance(reclaim, Reclaim)
    assert reclaim.since == NOON
    unknown = decision(node(), applied="p")
    assert isinstance(unknown, Reclaim)
    assert unknown.since is None


def test_an_invalid_policy_changes_nothing() -> None:
    assert isinstance(decision(node(), policy(valid=False), applied="p"), LeaveUnchanged)
    assert decision(node(), policy(valid=False)) == Ignore()


def test_a_node_that_is_gone_and_a_binding_that_is_deleted_are_reclaimed() -> None:
    gone = decision(None, policy(), applied="p")
    assert isinstance(gone, Reclaim)
    assert gone.cause is ReclaimCause.NODE_GONE
    assert decision(None, policy()) == Ignore()
    going = decision(node(), policy(), applied="p", of=binding(deleting="2026-11-16T11:00:00Z"))
    assert isinstance(going, Reclaim)
    assert going.cause is ReclaimCause.BINDING_DELETED
    assert going.since == datetime(2026, 11, 16, 11, tzinfo=UTC)


def test_a_binding_that_does_not_exist_changes_nothing() -> None:
    nothing = {"candidates": (policy(),), "now": NOON, "binding": None, "selector": None}
    assert isinstance(decide(node(), applied="p", **nothing), LeaveUnchanged)
    assert decide(node(), applied=None, **nothing) == Ignore()


def test_an_invalid_selector_keeps_lent_nodes_by_the_rules_of_their_policy() -> None:
    invalid = binding(selector=INVALID)
    assert isinstance(decision(node(), policy(), applied="p", of=invalid), Lend)
    shut = policy(windows=(TimeWindow(start="20:00", end="21:00"),), force=True)
    closed = decision(node(), shut, applied="p", of=invalid)
    assert isinstance(closed, WindowClosed)
    assert (closed.cause, closed.rules.force) == (ReclaimCause.WINDOW_CLOSED, True)
    narrowed = decision(node(), policy(selector=ONLY_OTHERS), applied="p", of=invalid)
    assert isinstance(narrowed, Reclaim)
    assert decision(node(), policy(), of=invalid) == Ignore()


def test_the_last_valid_selector_decides() -> None:
    memory = BindingSelector()
    assert isinstance(
        decision(node(pool="a"), policy(), of=binding(selector=ONLY_A), memory=memory), Lend
    )
    invalid = binding(selector=INVALID)
    assert isinstance(decision(node(pool="a"), policy(), of=invalid, memory=memory), Lend)
    assert decision(node(pool="b"), policy(), of=invalid, memory=memory) == Ignore()
    left = decision(node(pool="b"), policy(), applied="p", of=invalid, memory=memory)
    assert isinstance(left, Reclaim)


def test_another_binding_of_the_name_has_its_own_selector() -> None:
    memory = BindingSelector()
    first = ClusterBinding(metadata=Meta(name="b", uid="1"), spec=BindingSpec(cluster_id="c"))
    second = ClusterBinding(
        metadata=Meta(name="b", uid="2"), spec=BindingSpec(cluster_id="c", node_selector=INVALID)
    )
    assert memory.of(first) is not None
    assert memory.of(second) is None
    assert memory.of(None) is None
