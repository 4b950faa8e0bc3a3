"""Policies that select the same nodes, and the condition of a binding about its policies."""

from __future__ import annotations

from datetime import UTC, datetime

from kubeocean.api.policies import PolicySpec, PolicyStatus, ResourceLeasingPolicy
from kubeocean.runtime.objects import Meta, find_condition
from kubeocean.syncer.nodes.policy_findings import Overlaps
from kubeocean.syncer.nodes.policy_status import (
    events_of,
    policies_condition,
    status_without_binding,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def test_overlaps_are_counted_by_the_policy_that_decides() -> None:
    overlaps, changed = Overlaps(), list[str]()
    overlaps.on_change(changed.append)
    overlaps.record("n1", "old", ("young", "younger"))
    overlaps.record("n2", "old", ("young",))
    overlaps.record("n3", "other", ("young",))
    overlaps.record("n4", "young")
    assert overlaps.of("young") == {"old": 2, "other": 1}
    assert overlaps.of("younger") == {"old": 1}
    assert overlaps.of("old") == {}
    assert changed == ["young", "younger", "young", "young"]
    assert [overlaps.is_recorded(name) for name in ("n4", "n5")] == [True, False]


def test_only_a_change_of_an_overlap_is_a_change() -> None:
    overlaps, changed = Overlaps(), list[str]()
    overlaps.record("n1", "old", ("young",))
    overlaps.on_change(changed.append)
    overlaps.record("n1", "old", ("young",))
    overlaps.record("n2", "old")
    overlaps.record("n2")
    assert changed == []
    overlaps.record("n1", "young")
    assert changed == ["young"]
    assert overlaps.of("young") == {}
    overlaps.record("n1", "old", ("young",))
    overlaps.forget("n1")
    overlaps.forget("unknown")
    assert changed == ["young", "young", "young"]
    assert not overlaps.is_recorded("n1")


def test_a_binding_counts_its_policies_and_names_the_invalid_ones() -> None:
    none = policies_condition([], [], 3)
    assert (none.status, none.reason, none.observed_generation) == ("False", "NoPolicy", 3)
    one = policies_condition(["a"], [], 3)
    assert (one.status, one.message) == ("True", "1 policy names this binding, and all are valid")
    some = policies_condition(["a", "b", "c"], ["b"], 3)
    assert (some.status, some.reason) == ("False", "PolicyInvalid")
    assert some.message == "3 policies name this binding, 2 valid; invalid: b"


def test_a_policy_without_a_binding_has_a_condition_and_one_event() -> None:
    policy = ResourceLeasingPolicy(
        metadata=Meta(name="p", generation=2), spec=PolicySpec(cluster="typo")
    )
    status = status_without_binding(policy, "known", now=NOON)
    active = find_condition(status.conditions, "Active")
    assert active is not None
    assert (active.status, active.reason) == ("False", "BindingNotFound")
    assert "no ClusterBinding typo exists" in active.message
    assert "ClusterBinding known" in active.message
    assert (status.phase, status.observed_generation) == ("Pending", 2)
    assert [str(event.reason) for event in events_of(PolicyStatus(), status)] == ["BindingNotFound"]
    assert events_of(status, status) == []
