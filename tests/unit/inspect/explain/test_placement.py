"""Explanations of placements, from snapshots of the hub."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import AgentStatus, MemberCluster, MemberStatus
from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    DriftedPlacement,
    FailedPlacement,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
)
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.strategies import RollingUpdate
from kubeocean.inspect.explain.placement import PlacementDetails, explain_placement
from kubeocean.inspect.explain.report import Explanation, ExplanationRule, document, page
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Condition, Key, Meta
from unit.fleet.placements.builders import NOW, a_binding, a_placement, a_policy_snapshot, condition

PREFIX = "ClusterResourcePlacement"
TIME: datetime = instant_of(NOW)


def a_member(name: str, *, joined: bool = True) -> MemberCluster:
    conditions = (condition("Joined"), condition("Healthy")) if joined else ()
    agent = AgentStatus("MemberAgent", conditions, NOW)
    return MemberCluster(metadata=Meta(name=name), status=MemberStatus(agent_status=(agent,)))


def step(name: str, status: str = "True", reason: str = "r", message: str = "m") -> Condition:
    return Condition(f"{PREFIX}{name}", status, reason, message, NOW, 1)


def explained(
    placement: Placement | NotRead | None, *members: MemberCluster, **parts: Any
) -> Explanation:
    if isinstance(placement, Placement):
        parts.setdefault("snapshots", (a_policy_snapshot(placement),))
    details = PlacementDetails(Key("", "app"), TIME, placement, members=members, **parts)
    return explain_placement(details)


def with_status(*conditions: Condition, **status: Any) -> Placement:
    return a_placement(status=PlacementStatus(conditions=conditions, **status))


@pytest.mark.parametrize(
    ("placement", "rule"),
    [
        (None, ExplanationRule.NOT_FOUND),
        (NotRead("placements", "forbidden"), ExplanationRule.NOT_READ),
        (with_status(), ExplanationRule.SCHEDULE_PENDING),
        (with_status(step("Scheduled", "Unknown")), ExplanationRule.SCHEDULE_PENDING),
        (
            with_status(step("Scheduled", "False", "InvalidResourceSelectors")),
            ExplanationRule.SELECTORS_INVALID,
        ),
        (with_status(step("Scheduled")), ExplanationRule.NO_CLUSTER),
        (
            with_status(step("Scheduled"), step("RolloutStarted", "False")),
            ExplanationRule.ROLLOUT_HELD,
        ),
        (
            with_status(step("Scheduled"), step("Overridden", "False")),
            ExplanationRule.NOT_OVERRIDDEN,
        ),
        (
            with_status(step("Scheduled"), step("WorkSynchronized", "False")),
            ExplanationRule.NOT_SYNCHRONIZED,
        ),
        (with_status(step("Scheduled"), step("Applied", "Unknown")), ExplanationRule.NOT_APPLIED),
        (with_status(step("Scheduled"), step("Available", "False")), ExplanationRule.NOT_AVAILABLE),
        (with_status(step("Scheduled", "False")), ExplanationRule.TOO_FEW_CLUSTERS),
        (
            with_status(step("Scheduled"), placement_statuses=(ClusterPlacementStatus("a"),)),
            ExplanationRule.NO_OBJECT,
        ),
        (
            with_status(
                step("Scheduled"),
                placement_statuses=(ClusterPlacementStatus("a"),),
                selected_resources=(ResourceIdentifier(version="v1", kind="Secret", name="s"),),
            ),
            ExplanationRule.PLACED,
        ),
    ],
)
def test_the_first_condition_that_is_not_true_decides(
    placement: Placement | NotRead | None, rule: ExplanationRule
) -> None:
    assert explained(placement).rule is rule


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (PlacementPolicy("PickN", number_of_clusters=3), "it is on 1 of 3 wanted clusters"),
        (PlacementPolicy("PickFixed", cluster_names=("a", "b")), "it is on 1 of 2 wanted clusters"),
    ],
)
def test_too_few_clusters_are_counted_by_the_policy(policy: PlacementPolicy, verdict: str) -> None:
    status = with_status(
        step("Scheduled", "False"), placement_statuses=(ClusterPlacementStatus("a"),)
    )
    placement = msgspec.structs.replace(status, spec=a_placement(policy=policy).spec)
    assert explained(placement).verdict == verdict


def test_a_deletion_names_what_holds_it() -> None:
    placement = with_status(step("Scheduled"))
    meta = msgspec.structs.replace(
        placement.metadata, deletion_timestamp=NOW, finalizers=("example.com/mine",)
    )
    found = explained(msgspec.structs.replace(placement, metadata=meta))
    assert found.rule is ExplanationRule.PLACEMENT_DELETED
    assert "example.com/mine" in found.reasons[0]


def test_each_cluster_is_explained() -> None:
    policy = PlacementPolicy("PickFixed", cluster_names=("a", "gone"))
    placement = msgspec.structs.replace(
        with_status(step("Scheduled", "False")), spec=a_placement(policy=policy).spec
    )
    found = explained(placement, a_member("a"), a_member("b"), bindings=(a_binding("a"),))
    clusters = next(each for each in found.sections if each.title == "clusters").lines
    by_name = {line.split()[0]: line for line in clusters}
    assert by_name["a"].startswith("a Kept")
    assert by_name["gone"].startswith("gone NotFound")

    everywhere = explained(
        with_status(step("Scheduled")), a_member("a"), a_member("b", joined=False)
    )
    clusters = next(each for each in everywhere.sections if each.title == "clusters").lines
    assert clusters[0].startswith("a Picked")
    assert clusters[1].startswith("b Rejected: ClusterEligibility: ")


def test_objects_that_deviate_are_listed() -> None:
    failed = FailedPlacement(
        version="v1",
        kind="ConfigMap",
        name="c",
        namespace="n",
        condition=condition("Applied", "False"),
    )
    drifted = DriftedPlacement(version="v1", kind="Secret", name="s", namespace="n")
    entry = ClusterPlacementStatus(
        "a",
        failed_placements=(failed,),
        drifted_placements=(drifted,),
        conditions=(condition("Applied", "False", "NotAllWorkHaveBeenApplied"),),
    )
    found = explained(
        with_status(step("Scheduled"), step("Applied", "False"), placement_statuses=(entry,))
    )
    assert found.reasons == (
        "a: Applied False (NotAllWorkHaveBeenApplied)",
        "a: ConfigMap n/c: Applied False (r)",
    )
    assert found.remedies == (
        "correct these objects on the hub, or grant the member's agent the rights",
    )
    objects = next(each for each in found.sections if each.title == "objects").lines
    assert objects == (
        "a: ConfigMap n/c: Applied False (r)",
        "a: Secret n/s was changed in the cluster",
    )
    assert "decided by: NotApplied" in "\n".join(page(found))
    assert document(found)["rule"] == "NotApplied"


def test_the_first_object_that_failed_is_a_reason_with_a_remedy() -> None:
    def failed(name: str, failure: Condition) -> FailedPlacement:
        return FailedPlacement(
            version="v1", kind="ConfigMap", name=name, namespace="n", condition=failure
        )

    def found(failure: Condition, step_name: str) -> Explanation:
        objects = (failed("c", failure), failed("d", failure))
        entry = ClusterPlacementStatus(
            "a", failed_placements=objects, conditions=(condition(step_name, "False"),)
        )
        conditions = (step("Scheduled"), step(step_name, "False"))
        return explained(with_status(*conditions, placement_statuses=(entry,)))

    message = "field is immutable " * 100
    long = found(Condition("Applied", "False", "ManifestApplyFailed", message), "Applied")
    assert long.reasons[1].startswith(
        "a: ConfigMap n/c: Applied False (ManifestApplyFailed): field is immutable"
    )
    assert len(long.reasons) == 2
    assert len(long.reasons[1]) < 400

    check = found(Condition("Available", "False", "Failed", "no such field"), "Available")
    assert check.remedies == ("correct the health checks that could not be evaluated",)
    late = found(Condition("Available", "False", "ManifestNotAvailableYet"), "Available")
    assert late.remedies == ("look at these objects in the member cluster",)
    # A failure of an earlier release is not the reason of a rollout that is held.
    held = found(Condition("Applied", "False", "ManifestApplyFailed"), "RolloutStarted")
    assert held.reasons == ("a: RolloutStarted False (r)",)
    assert held.remedies == ()


HELD = step("RolloutStarted", "False", "RolloutNotStartedYet", "1 cluster is held")


def held_rollout(policy: PlacementPolicy, rolling: RollingUpdate | None = None) -> Placement:
    status = PlacementStatus(conditions=(step("Scheduled"), HELD))
    return a_placement(status=status, policy=policy, rolling=rolling)


def bound(cluster: str, *, available: bool = True, held: bool = False) -> Binding:
    conditions = (
        condition("RolloutStarted", "False" if held else "True"),
        condition("Available", "True" if available else "False"),
    )
    return a_binding(cluster, conditions=conditions)


def test_a_rollout_that_a_missing_cluster_holds_names_the_limit_and_the_cluster() -> None:
    placement = held_rollout(PlacementPolicy("PickFixed", cluster_names=("a", "gone")))
    found = explained(placement, a_member("a"), bindings=(bound("a", held=True),))
    assert found.rule is ExplanationRule.ROLLOUT_HELD
    assert found.reasons == (
        "maxUnavailable 25% allows 1 of 2 wanted clusters to be unavailable, and 1 is:"
        " gone (not a member of the fleet)",
    )
    assert found.remedies == (
        "remove gone from spec.policy.clusterNames, or join the cluster:"
        " kubeocean fleet join gone --kubeconfig FILE",
        "a greater spec.strategy.rollingUpdate.maxUnavailable",
    )


def test_a_rollout_that_clusters_hold_names_those_that_are_not_available() -> None:
    policy = PlacementPolicy("PickN", number_of_clusters=3)
    bindings = (bound("a", held=True), bound("b", available=False), bound("c", available=False))
    found = explained(held_rollout(policy, RollingUpdate(max_unavailable=1)), bindings=bindings)
    assert found.reasons == (
        "maxUnavailable 1 allows 1 of 3 wanted clusters to be unavailable, and 2 are: b, c",
    )
    assert found.remedies[0] == "objects that become available on b, c"


def test_a_new_cluster_that_the_surge_holds_back() -> None:
    policy = PlacementPolicy("PickN", number_of_clusters=1)
    new = a_binding("b", state="Scheduled", conditions=(condition("RolloutStarted", "False"),))
    placement = held_rollout(policy, RollingUpdate(max_surge=0))
    found = explained(placement, bindings=(bound("a"), new))
    assert found.reasons == ("maxSurge 0 allows 1 cluster at a time, and 1 has a release",)
    assert found.remedies == ("a greater spec.strategy.rollingUpdate.maxSurge",)


def test_a_policy_that_names_a_missing_cluster_has_a_remedy() -> None:
    policy = PlacementPolicy("PickFixed", cluster_names=("a", "gone", "lost"))
    placement = msgspec.structs.replace(
        with_status(step("Scheduled", "False")), spec=a_placement(policy=policy).spec
    )
    found = explained(placement, a_member("a"))
    assert found.rule is ExplanationRule.TOO_FEW_CLUSTERS
    assert found.remedies == (
        "remove gone, lost from spec.policy.clusterNames, or join the cluster:"
        " kubeocean fleet join NAME --kubeconfig FILE",
    )
