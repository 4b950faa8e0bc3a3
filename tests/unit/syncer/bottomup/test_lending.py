"""Whether a node is lent, and if not, why not any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from kubeocean.api.binding import BindingSpec, ClusterBinding
from kubeocean.api.policy import PolicySpec, TimeWindow
from kubeocean.leasing.merge import Candidate
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.terms import Terms
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Meta
from kubeocean.syncer.bottomup.lending import (
    Decision,
    Hold,
    Ignore,
    Lend,
    TakeBack,
    decide,
    is_lendable,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ONLY_OTHERS = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["other"]}]}
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
    terms = Terms.of(spec, local=UTC) if valid else None
    return Candidate(name, "2026-01-01T00:00:00Z", terms, "broken", None, deleting)


def decision(
    pnode: Node | None,
    *candidates: Candidate,
    applied: str | None = None,
    of: ClusterBinding | None = None,
) -> Decision:
    return decide(pnode, applied=applied, binding=of or binding(), candidates=candidates, now=NOON)


def test_a_policy_lends_within_its_windows() -> None:
    day, night = TimeWindow("08:00", "18:00"), TimeWindow("20:00", "06:00")
    lent = decision(node(), policy(windows=(day,)))
    assert isinstance(lent, Lend)
    assert (lent.policy.name, lent.cause) == ("p", None)
    outside = decision(node(), policy(windows=(night,)))
    assert isinstance(outside, Lend)
    assert outside.cause is Cause.WINDOW_CLOSED


def test_without_a_policy_nothing_is_lent() -> None:
    assert decision(node()) == Ignore()
    assert decision(node(), policy(selector=ONLY_OTHERS)) == Ignore()
    assert decision(node(), policy(), of=binding(selector=ONLY_OTHERS)) == Ignore()


def test_a_virtual_node_is_never_lent_once_more() -> None:
    for labels in (
        {"type": "virtual-kubelet"},
        {"node.kubernetes.io/instance-type": "vnode"},
        {"beta.kubernetes.io/instance-type": "eklet"},
        {"node.kubernetes.io/instance-type": "external"},
    ):
        assert not is_lendable(labels)
        assert decision(node(**labels), policy()) == Ignore()
    assert is_lendable({"node.kubernetes.io/instance-type": "m5.large"})


def test_what_became_of_the_policy_is_the_cause() -> None:
    def cause(*candidates: Candidate) -> Cause:
        taken = decision(node(), *candidates, applied="p")
        assert isinstance(taken, TakeBack)
        return taken.cause

    assert cause() is Cause.POLICY_REMOVED
    assert cause(policy(deleting=True)) is Cause.POLICY_REMOVED
    assert cause(policy(selector=ONLY_OTHERS)) is Cause.POLICY_NARROWED


def test_a_removed_policy_takes_back_by_its_own_rules() -> None:
    taken = decision(node(), policy(deleting=True, force=True), applied="p")
    assert isinstance(taken, TakeBack)
    assert taken.rules.force
    gentle = decision(node(), applied="p")
    assert isinstance(gentle, TakeBack)
    assert not gentle.rules.force


def test_rules_that_began_later_than_the_cause_say_since_when() -> None:
    night = (TimeWindow("20:00", "06:00"),)
    lent = decision(node(), replace(policy(windows=night, force=True), rules_since=NOON))
    assert isinstance(lent, Lend)
    assert lent.since == NOON
    removed = replace(policy(deleting=True, force=True), rules_since=NOON)
    taken = decision(node(), removed, applied="p")
    assert isinstance(taken, TakeBack)
    assert taken.since == NOON
    unknown = decision(node(), applied="p")
    assert isinstance(unknown, TakeBack)
    assert unknown.since is None


def test_an_invalid_policy_changes_nothing() -> None:
    assert isinstance(decision(node(), policy(valid=False), applied="p"), Hold)
    assert decision(node(), policy(valid=False)) == Ignore()


def test_a_node_that_is_gone_and_a_binding_that_goes() -> None:
    gone = decision(None, policy(), applied="p")
    assert isinstance(gone, TakeBack)
    assert gone.cause is Cause.NODE_GONE
    assert decision(None, policy()) == Ignore()
    going = decision(node(), policy(), applied="p", of=binding(deleting="2026-11-16T11:00:00Z"))
    assert isinstance(going, TakeBack)
    assert going.cause is Cause.BINDING_DELETED
    assert going.since == datetime(2026, 11, 16, 11, tzinfo=UTC)


def test_a_binding_that_is_not_seen_changes_nothing() -> None:
    nothing = {"candidates": (policy(),), "now": NOON, "binding": None}
    assert isinstance(decide(node(), applied="p", **nothing), Hold)
    assert decide(node(), applied=None, **nothing) == Ignore()
