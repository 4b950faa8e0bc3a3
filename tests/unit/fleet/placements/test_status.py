"""The status of a placement: entries of clusters, and conditions over all of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.conditions import APPLY, STATUS_SYNCED
from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    DiffedPlacement,
    DriftedPlacement,
    FailedPlacement,
    NamespacedName,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
)
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.strategies import RolloutStrategy
from kubeocean.fleet.status.clusters import cluster_entries, has_finished
from kubeocean.fleet.status.mirror import mirror_document, source_status, with_synced
from kubeocean.fleet.status.placement import (
    external_index,
    invalid_status,
    is_scheduled,
    pending_status,
    placement_status,
    trimmed,
)
from kubeocean.runtime.objects import Condition
from unit.fleet.placements.builders import (
    APPLIED,
    NOW,
    REPORT_DIFF,
    a_binding,
    a_placement,
    a_policy_snapshot,
    condition,
    scheduled,
    steps,
)

LATEST = ("app-1-snapshot", "1")
SELECTED = (ResourceIdentifier(version="v1", kind="ConfigMap", name="c", namespace="n"),)
READY = steps(*APPLIED)


def summary(conditions: tuple[Condition, ...]) -> list[tuple[str, str, str]]:
    return [(each.type, each.status, each.reason) for each in conditions]


def entries(
    placement: Placement, snapshot: PolicySnapshot, *bindings: Binding
) -> tuple[ClusterPlacementStatus, ...]:
    return cluster_entries(
        placement,
        snapshot,
        bindings,
        latest=LATEST,
        index_of=lambda name: {"app-0-snapshot": "0", "app-1-snapshot": "1"}.get(name, ""),
        now=NOW,
    )


def entry(placement: Placement, *bindings: Binding) -> ClusterPlacementStatus:
    (found,) = entries(placement, scheduled(a_policy_snapshot(placement), "a"), *bindings)
    return found


def current(**options: Any) -> Binding:
    return a_binding("a", **{"snapshot": LATEST[0], "conditions": READY, **options})


# Entries


def test_an_entry_copies_the_conditions_of_its_binding() -> None:
    found = entry(a_placement(generation=4), current())
    assert found.observed_resource_index == "1"
    assert [(each.type, each.status, each.observed_generation) for each in found.conditions] == [
        (type_, "True", 4) for type_ in ("Scheduled", *APPLIED)
    ]


@pytest.mark.parametrize(
    "binding",
    [
        None,
        current(policy="app-9"),
        current(deleting=True),
        current(state="Unscheduled"),
    ],
    ids=["none", "older-policy", "deleting", "unscheduled"],
)
def test_a_cluster_without_a_current_binding_is_unknown(binding: Binding | None) -> None:
    found = entry(a_placement(), *([binding] if binding else []))
    assert found.observed_resource_index == ""
    assert summary(found.conditions) == [
        ("Scheduled", "True", "Scheduled"),
        ("RolloutStarted", "Unknown", "RolloutStartedUnknown"),
    ]


@pytest.mark.parametrize(
    ("binding", "finished"),
    [
        (a_binding("a", conditions=steps(*APPLIED)), True),
        (a_binding("a", conditions=steps(*APPLIED, last="False")), False),
        (a_binding("a", conditions=steps(*APPLIED[:-1])), False),
        (a_binding("a", generation=2, conditions=steps(*APPLIED)), False),
        (a_binding("a", deleting=True, conditions=steps(*APPLIED)), False),
        (a_binding("a", conditions=(condition("RolloutStarted", "False"), *READY[1:])), False),
        (a_binding("a"), False),
    ],
)
def test_a_binding_has_finished_with_its_last_step(binding: Binding, finished: bool) -> None:
    assert has_finished(binding, "Available") is finished
    assert not has_finished(binding, "DiffReported")


def test_a_binding_on_an_older_snapshot_shows_the_latest_index() -> None:
    held = condition("RolloutStarted", "False", "RolloutNotStartedYet")
    found = entry(a_placement(), a_binding("a", conditions=(held, *READY[1:])))
    assert found.observed_resource_index == "1"
    assert summary(found.conditions)[1:] == [("RolloutStarted", "False", "RolloutNotStartedYet")]
    found = entry(a_placement(), a_binding("a", conditions=READY))
    assert summary(found.conditions)[1:] == [("RolloutStarted", "Unknown", "RolloutStartedUnknown")]


@pytest.mark.parametrize(("position", "step"), list(enumerate(APPLY)))
def test_a_stale_condition_is_unknown_and_ends_the_chain(position: int, step: Any) -> None:
    conditions = tuple(
        condition(type_, generation=1 if number == position else 2)
        for number, type_ in enumerate(APPLIED)
    )
    found = entry(a_placement(), current(generation=2, conditions=conditions))
    assert summary(found.conditions)[-1] == (step.name, "Unknown", step.cluster.unknown)
    assert len(found.conditions) == 2 + position


FAILED = (FailedPlacement(version="v1", kind="K", name="f", condition=condition("Applied")),)
DRIFTED = (DriftedPlacement(version="v1", kind="K", name="d"),)
DIFFED = (DiffedPlacement(version="v1", kind="K", name="x"),)
LISTS: Any = {
    "failed_placements": FAILED,
    "drifted_placements": DRIFTED,
    "diffed_placements": DIFFED,
}


@pytest.mark.parametrize(
    ("conditions", "shown"),
    [
        (steps(*APPLIED), (False, True, False)),
        (steps(*APPLIED, last="False"), (True, True, True)),
        (steps(*APPLIED[:4], last="False"), (True, True, True)),
        (steps(*APPLIED[:3], last="False"), (False, False, False)),
    ],
)
def test_lists_are_shown_with_the_steps_they_belong_to(
    conditions: Any, shown: tuple[bool, bool, bool]
) -> None:
    found = entry(a_placement(), current(conditions=conditions, **LISTS))
    lists = (found.failed_placements, found.drifted_placements, found.diffed_placements)
    assert tuple(map(bool, lists)) == shown


def test_differences_are_shown_when_all_are_reported() -> None:
    strategy = RolloutStrategy(apply_strategy=REPORT_DIFF)
    conditions = steps(*APPLIED[:3], "DiffReported")
    found = entry(a_placement(strategy=strategy), current(conditions=conditions, **LISTS))
    assert (found.failed_placements, found.diffed_placements) == ((), DIFFED)
    assert found.conditions[-1].type == "DiffReported"


def test_overrides_are_shown_sorted_once_the_rollout_started() -> None:
    overrides = (NamespacedName("b", "n"), NamespacedName("a", "n"), NamespacedName("z", "m"))
    binding = current()
    binding = msgspec.structs.replace(
        binding,
        spec=msgspec.structs.replace(
            binding.spec,
            cluster_resource_override_snapshots=("y-0", "x-0"),
            resource_override_snapshots=overrides,
        ),
    )
    found = entry(a_placement(), binding)
    assert found.applicable_cluster_resource_overrides == ("x-0", "y-0")
    assert [each.name for each in found.applicable_resource_overrides] == ["z", "a", "b"]
    waiting = msgspec.structs.replace(
        binding, status=msgspec.structs.replace(binding.status, conditions=())
    )
    assert entry(a_placement(), waiting).applicable_cluster_resource_overrides == ()


@pytest.mark.parametrize(
    ("policy", "rejected", "number"),
    [
        (PlacementPolicy("PickN", number_of_clusters=4), 9, 3),
        (PlacementPolicy("PickN", number_of_clusters=4), 1, 1),
        (PlacementPolicy("PickFixed", cluster_names=("a", "b", "c")), 2, 2),
        (PlacementPolicy(), 5, 0),
    ],
)
def test_clusters_that_lack_have_entries(
    policy: PlacementPolicy, rejected: int, number: int
) -> None:
    placement = a_placement(policy=policy)
    refused = tuple(f"r{each}" for each in range(rejected))
    snapshot = scheduled(a_policy_snapshot(placement), "a", rejected=refused, status="False")
    lacking = entries(placement, snapshot, current())[1:]
    assert len(lacking) == number
    for each in lacking:
        assert (each.cluster_name, each.observed_resource_index) == ("", "")
        assert summary(each.conditions) == [("Scheduled", "False", "ScheduleFailed")]
        assert each.conditions[0].message.startswith("refused r")


# Over all clusters


def whole(
    placement: Placement, *bindings: Binding, index: str = "1", rejected: tuple[str, ...] = ()
) -> PlacementStatus:
    names = [each.spec.target_cluster for each in bindings]
    snapshot = scheduled(
        a_policy_snapshot(placement),
        *names,
        rejected=rejected,
        status="False" if rejected else "True",
    )
    found = entries(placement, snapshot, *bindings)
    return placement_status(placement, snapshot, found, index, SELECTED, NOW)


PREFIX = "ClusterResourcePlacement"


def test_a_complete_placement() -> None:
    both = [a_binding(name, snapshot=LATEST[0], conditions=READY) for name in "ab"]
    assert summary(whole(a_placement(), *both).conditions) == [
        (f"{PREFIX}Scheduled", "True", "SchedulingPolicyFulfilled"),
        (f"{PREFIX}RolloutStarted", "True", "RolloutStarted"),
        (f"{PREFIX}Overridden", "True", "NoOverrideSpecified"),
        (f"{PREFIX}WorkSynchronized", "True", "WorkSynchronized"),
        (f"{PREFIX}Applied", "True", "ApplySucceeded"),
        (f"{PREFIX}Available", "True", "ResourceAvailable"),
    ]


def test_a_blocked_rollout_shows_its_first_step_only() -> None:
    held = condition("RolloutStarted", "False", "RolloutNotStartedYet")
    stuck = a_binding("a", snapshot=LATEST[0], conditions=steps(*APPLIED, last="False"))
    others = [a_binding(name, conditions=(held, *READY[1:])) for name in "bc"]
    assert summary(whole(a_placement(), stuck, *others).conditions) == [
        (f"{PREFIX}Scheduled", "True", "SchedulingPolicyFulfilled"),
        (f"{PREFIX}RolloutStarted", "False", "RolloutNotStartedYet"),
    ]


def test_an_unfulfilled_placement_shows_the_other_steps() -> None:
    placement = a_placement(policy=PlacementPolicy("PickN", number_of_clusters=2))
    status = whole(placement, current(), rejected=("b",))
    assert summary(status.conditions)[0] == (
        f"{PREFIX}Scheduled",
        "False",
        "SchedulingPolicyUnfulfilled",
    )
    assert len(status.conditions) == 6
    assert len(status.placement_statuses) == 2


def test_without_clusters_only_scheduled_is_left() -> None:
    old = PlacementStatus(conditions=(condition(f"{PREFIX}Applied"),))
    status = whole(a_placement(status=old))
    assert summary(status.conditions) == [
        (f"{PREFIX}Scheduled", "True", "SchedulingPolicyFulfilled")
    ]
    assert (status.selected_resources, status.observed_resource_index) == (SELECTED, "1")


@given(st.lists(st.sampled_from(("True", "False", "Unknown", "")), min_size=5, max_size=5))
def test_conditions_are_a_prefix_of_the_chain(statuses: list[str]) -> None:
    conditions = tuple(
        condition(type_, status) for type_, status in zip(APPLIED, statuses, strict=True) if status
    )
    status = whole(a_placement(), current(conditions=conditions))
    shown = [each.status for each in status.conditions[1:]]
    assert all(each == "True" for each in shown[:-1])
    first = next((each for each in statuses if each != "True"), "True")
    assert shown[-1] == (first or "Unknown")
    assert len(shown) == 1 + next((i for i, each in enumerate(statuses) if each != "True"), 4)


# States in which parts are kept


def test_pending_keeps_later_conditions_and_drops_entries() -> None:
    applied = condition(f"{PREFIX}Applied", generation=1)
    old = PlacementStatus(
        placement_statuses=(ClusterPlacementStatus("a"),),
        conditions=(condition(f"{PREFIX}Scheduled"), applied),
    )
    status = pending_status(a_placement(generation=2, status=old), "1", SELECTED, NOW)
    assert status.placement_statuses == ()
    assert (status.selected_resources, status.observed_resource_index) == (SELECTED, "1")
    assert summary(status.conditions)[0] == (f"{PREFIX}Scheduled", "Unknown", "SchedulePending")
    assert status.conditions[1] == applied


def test_mistaken_selectors_touch_nothing_else() -> None:
    fresh = invalid_status(a_placement(namespace="n"), "no", NOW)
    assert document(fresh).keys() == {"conditions"}
    (only,) = fresh.conditions
    assert (only.type, only.status) == ("ResourcePlacementScheduled", "False")
    assert (only.reason, only.message) == (
        "InvalidResourceSelectors",
        "The resource selectors are invalid: no",
    )
    old = whole(a_placement(), current())
    later = invalid_status(a_placement(generation=2, status=old), "no", NOW)
    assert later.conditions[1:] == old.conditions[1:]
    assert later.placement_statuses == old.placement_statuses


@pytest.mark.parametrize(("observed", "generation", "expected"), [(1, 1, True), (1, 2, False)])
def test_a_decision_counts_for_its_generation(
    observed: int, generation: int, expected: bool
) -> None:
    placement = a_placement(generation=generation)
    snapshot = scheduled(a_policy_snapshot(placement), observed=observed)
    assert is_scheduled(placement, snapshot) is expected
    assert not is_scheduled(placement, a_policy_snapshot(placement))
    assert not is_scheduled(placement, None)


# External


def external(*bindings: Binding, status: PlacementStatus | None = None) -> PlacementStatus:
    placement = a_placement(strategy=RolloutStrategy(type="External"), status=status)
    names = [each.spec.target_cluster for each in bindings]
    snapshot = scheduled(a_policy_snapshot(placement), *names)
    found = entries(placement, snapshot, *bindings)
    index = external_index(placement, found)
    return placement_status(placement, snapshot, found, index, SELECTED if index else (), NOW)


def test_clusters_on_different_snapshots_await_a_run() -> None:
    status = external(
        a_binding("a", snapshot="app-0-snapshot", conditions=READY),
        a_binding("b", snapshot="app-1-snapshot", conditions=READY),
    )
    assert summary(status.conditions)[1:] == [
        (f"{PREFIX}RolloutStarted", "Unknown", "RolloutControlledByExternalController")
    ]
    assert (status.selected_resources, status.observed_resource_index) == ((), "")
    assert {each.observed_resource_index for each in status.placement_statuses} == {"0", "1"}


def test_clusters_without_a_snapshot_await_a_run() -> None:
    status = external(a_binding("a", state="Scheduled", snapshot=""))
    assert summary(status.conditions)[-1][2] == "RolloutControlledByExternalController"
    assert status.observed_resource_index == ""


def test_clusters_on_one_snapshot_are_aggregated() -> None:
    status = external(
        *(a_binding(name, snapshot="app-0-snapshot", conditions=READY) for name in "ab")
    )
    assert (status.selected_resources, status.observed_resource_index) == (SELECTED, "0")
    assert status.conditions[-1].type == f"{PREFIX}Available"


def test_a_cluster_that_no_run_has_touched_again_is_unknown() -> None:
    status = external(
        a_binding("a", snapshot="app-0-snapshot", conditions=READY),
        a_binding("b", snapshot="app-0-snapshot", conditions=READY, generation=2),
    )
    assert summary(status.conditions)[1:] == [
        (f"{PREFIX}RolloutStarted", "Unknown", "RolloutControlledByExternalController")
    ]
    assert (status.selected_resources, status.observed_resource_index) == (SELECTED, "0")


# Size and mirror


def test_equal_facts_give_an_equal_status() -> None:
    first = whole(a_placement(), current())
    again = whole(a_placement(status=first), current())
    assert again == first
    assert msgspec.json.decode(msgspec.json.encode(document(first)), type=PlacementStatus) == first


def test_a_large_status_loses_messages_of_true_conditions() -> None:
    long = Condition("Applied", "True", "r", "x" * 2000, NOW)
    bad = Condition("Available", "False", "r", "y" * 2000, NOW)
    status = PlacementStatus(
        placement_statuses=tuple(
            ClusterPlacementStatus(f"c{each}", conditions=(long, bad)) for each in range(300)
        )
    )
    (good, failed) = trimmed(status).placement_statuses[0].conditions
    assert (good.message, failed.message) == ("", "y" * 2000)
    small = PlacementStatus(placement_statuses=status.placement_statuses[:1])
    assert trimmed(small) is small


def test_the_mirror_has_all_but_the_condition_about_itself() -> None:
    placement = a_placement()
    status = whole(placement, current())
    synced = with_synced(placement, status, "team", "", NOW)
    assert synced.conditions[-1].type == STATUS_SYNCED
    assert synced.conditions[-1].message == (
        "Successfully created or updated ClusterResourcePlacementStatus in namespace 'team'"
    )
    assert source_status(synced) == status
    failed = with_synced(placement, synced, "team", "no such namespace", NOW).conditions
    assert [each.type for each in failed].count(STATUS_SYNCED) == 1
    assert (failed[-1].status, failed[-1].reason) == ("False", "StatusSyncFailed")
    body = mirror_document(placement, "team", source_status(synced), NOW)
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
    assert body["metadata"].keys() == {"name", "namespace", "ownerReferences"}
