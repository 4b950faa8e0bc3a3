"""Which bindings a rolling update releases, holds and removes."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.strategies import (
    ApplyStrategy,
    ApplyStrategyType,
    RollingUpdate,
    ServerSideApplyConfig,
    WhenToApply,
)
from kubeocean.fleet.rollout.plan import (
    Release,
    RolloutPlan,
    plan,
    release_patch,
    strategy_patch,
    target_number,
)
from kubeocean.fleet.rollout.readiness import can_become_ready, has_failed, readiness
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Condition
from support.strategic_merge import merge_json
from unit.fleet.placements.builders import APPLIED, NOW, a_binding, a_placement, condition, steps

TIME: datetime = instant_of(NOW)
NEW = Release("app-1-snapshot")
READY = steps(*APPLIED)
SLOW = steps(*APPLIED, last="False")


def decide(bindings: list[Binding], target: int | None = None, **limits: object) -> RolloutPlan:
    strategy = RollingUpdate(**{"max_unavailable": 1, "max_surge": 1, **limits})  # type: ignore[arg-type]
    number = len(bindings) if target is None else target
    return plan(bindings, number, NEW, strategy, TIME)


def clusters(bindings: tuple[Binding, ...]) -> list[str]:
    return [binding.spec.target_cluster for binding in bindings]


def test_new_clusters_are_released_up_to_the_surge() -> None:
    fresh = [a_binding(name, state="Scheduled", snapshot="") for name in "abc"]
    assert clusters(decide(fresh).release) == ["a", "b", "c"]
    decided = decide(fresh, 1, max_surge=1)
    assert (clusters(decided.release), clusters(decided.hold)) == (["a", "b"], ["c"])


def test_updates_leave_enough_clusters_available() -> None:
    bindings = [a_binding(name, conditions=READY) for name in "abc"]
    decided = decide(bindings)
    assert (clusters(decided.release), clusters(decided.hold)) == (["a"], ["b", "c"])


def test_a_cluster_that_is_not_available_blocks_the_others() -> None:
    """A workload that never becomes available is updated on one cluster only."""
    stuck = a_binding("a", snapshot=NEW.snapshot, conditions=SLOW)
    others = [a_binding(name, conditions=READY) for name in "bc"]
    decided = decide([stuck, *others])
    assert (decided.release, clusters(decided.hold)) == ((), ["b", "c"])


def test_failed_clusters_are_always_updated() -> None:
    bindings = [a_binding(name, conditions=SLOW) for name in "abc"]
    assert clusters(decide(bindings, max_unavailable=0).release) == ["a", "b", "c"]


def test_removals_come_before_updates() -> None:
    bindings = [
        a_binding("a", conditions=READY),
        a_binding("b", conditions=READY, state="Unscheduled"),
        a_binding("c", conditions=READY),
    ]
    decided = decide(bindings, 2, max_unavailable=0)
    assert (clusters(decided.remove), clusters(decided.release)) == (["b"], [])
    decided = decide(bindings, 2, max_unavailable=1)
    assert (clusters(decided.remove), clusters(decided.release)) == (["b"], ["a"])


@pytest.mark.parametrize("conditions", [SLOW, ()])
def test_clusters_that_are_not_available_are_removed_when_no_others_are_wanted(
    conditions: tuple[Condition, ...],
) -> None:
    broken = a_binding("b", conditions=conditions, state="Unscheduled")
    assert clusters(decide([broken], 0, max_unavailable="25%").remove) == ["b"]
    ready = a_binding("a", conditions=READY)
    assert clusters(decide([ready, broken], 1, max_unavailable=0).remove) == ["b"]
    assert clusters(decide([broken], 1, max_unavailable=0).remove) == [], "too few are ready"


@pytest.mark.parametrize("conditions", [READY, SLOW])
def test_a_release_with_overrides_of_another_hub_stays(conditions: tuple[Condition, ...]) -> None:
    """Without its overrides, a release would change the objects in the cluster."""
    spec = a_binding("a").spec
    overrides = {"cluster_resource_override_snapshots": ("x-0",)}
    for snapshot, kept in ((spec.resource_snapshot_name, ["a"]), (NEW.snapshot, [])):
        plain = a_binding("a", snapshot=snapshot, conditions=conditions)
        changed = msgspec.structs.replace(plain.spec, **overrides)
        decided = decide([msgspec.structs.replace(plain, spec=changed)])
        assert (decided.release, decided.hold) == ((), ())
        assert clusters(decided.overridden) == kept
    unwanted = msgspec.structs.replace(
        plain, spec=msgspec.structs.replace(changed, state="Unscheduled")
    )
    assert clusters(decide([unwanted], 0).remove) == ["a"]


def test_a_cluster_with_a_deleting_binding_waits() -> None:
    """The Works of both bindings have the same names."""
    old = a_binding("a", deleting=True)
    new = msgspec.structs.replace(a_binding("a", state="Scheduled", snapshot=""))
    decided = decide([old, new, a_binding("b", state="Scheduled", snapshot="")], 2)
    assert (clusters(decided.release), clusters(decided.hold)) == (["b"], ["a"])


def test_objects_that_cannot_be_tracked_count_after_a_while() -> None:
    available = condition("Available", reason="NotAllWorkAreAvailabilityTrackable")
    binding = a_binding("a", conditions=(*READY[:-1], available))
    early = plan([binding], 1, NEW, RollingUpdate(1, 0, 30), TIME + timedelta(seconds=10))
    assert (early.release, clusters(early.hold), early.again_s) == ((), ["a"], 20)
    late = plan([binding], 1, NEW, RollingUpdate(0, 1, 30), TIME + timedelta(seconds=30))
    assert readiness(binding, 30, TIME + timedelta(seconds=30)).ready
    assert clusters(late.hold) == ["a"], "none may be unavailable"
    late = plan([binding], 1, NEW, RollingUpdate(1, 0, 30), TIME + timedelta(seconds=30))
    assert clusters(late.release) == ["a"]


def test_an_unwanted_cluster_is_removed_as_soon_as_others_count_as_available() -> None:
    """No event tells that objects which cannot be tracked have become available."""
    available = condition("Available", reason="NotAllWorkAreAvailabilityTrackable")
    wanted = a_binding("a", snapshot=NEW.snapshot, conditions=(*READY[:-1], available))
    broken = a_binding("b", conditions=SLOW, state="Unscheduled")
    limits = RollingUpdate(0, 1, 30)
    early = plan([wanted, broken], 1, NEW, limits, TIME + timedelta(seconds=10))
    assert (early.remove, early.again_s) == ((), 20)
    late = plan([wanted, broken], 1, NEW, limits, TIME + timedelta(seconds=30))
    assert (clusters(late.remove), late.again_s) == (["b"], None)


def test_a_binding_that_was_held_and_is_current_is_confirmed() -> None:
    held = condition("RolloutStarted", "False", "RolloutNotStartedYet")
    current = a_binding("a", snapshot=NEW.snapshot, conditions=(held,))
    assert clusters(decide([current]).confirm) == ["a"]


@pytest.mark.parametrize(
    ("limit", "target", "number"),
    [("25%", 1, 1), ("25%", 4, 1), ("25%", 5, 2), ("0%", 5, 0), ("100%", 5, 5), (3, 5, 3)],
)
def test_percentages_are_rounded_up(limit: int | str, target: int, number: int) -> None:
    bindings = [a_binding(f"c{each}", conditions=READY) for each in range(target)]
    assert len(decide(bindings, max_unavailable=limit).release) == number


def test_conditions_about_an_older_generation_do_not_count() -> None:
    binding = a_binding("a", generation=2, conditions=READY)
    assert not readiness(binding, 0, TIME).ready
    assert not has_failed(a_binding("a", generation=2, conditions=SLOW))


def test_words_of_placements_are_no_failure() -> None:
    waiting = condition("Applied", "False", "ApplyPending")
    assert not has_failed(a_binding("a", conditions=(waiting,)))
    in_progress = condition("Applied", "False", "ApplyInProgress")
    assert has_failed(a_binding("a", conditions=(in_progress,)))


def test_a_report_of_differences_ends_a_release() -> None:
    reported = a_binding("a", conditions=(condition("DiffReported", "False"),))
    assert not can_become_ready(reported)
    assert readiness(a_binding("a", conditions=(condition("DiffReported"),)), 60, TIME).ready


@pytest.mark.parametrize(
    ("policy", "number"),
    [
        (PlacementPolicy(), 2),
        (PlacementPolicy("PickN", number_of_clusters=5), 5),
        (PlacementPolicy("PickFixed", cluster_names=("a", "b", "c")), 3),
    ],
)
def test_the_number_of_wanted_clusters(policy: PlacementPolicy, number: int) -> None:
    bindings = [
        a_binding("a"),
        a_binding("b", state="Scheduled"),
        a_binding("c", state="Unscheduled"),
    ]
    assert target_number(a_placement(policy=policy), bindings) == number


def test_patches_leave_nothing_of_an_earlier_release() -> None:
    strategy = ApplyStrategy(
        type="ServerSideApply", server_side_apply_config=ServerSideApplyConfig(force=True)
    )
    binding = a_binding("a", strategy=strategy)
    patch = release_patch(binding, NEW, ApplyStrategy())
    assert patch["spec"]["clusterResourceOverrideSnapshots"] is None
    assert patch["spec"]["applyStrategy"]["serverSideApplyConfig"] is None
    pushed = strategy_patch(binding, strategy)["spec"]["applyStrategy"]
    assert pushed["serverSideApplyConfig"] == {"force": True}
    assert pushed["allowCoOwnership"] is None


STRATEGIES = st.builds(
    ApplyStrategy,
    type=st.sampled_from(ApplyStrategyType),
    when_to_apply=st.sampled_from(WhenToApply),
    allow_co_ownership=st.booleans(),
    server_side_apply_config=st.none() | st.builds(ServerSideApplyConfig, force=st.booleans()),
)


@given(STRATEGIES, STRATEGIES)
def test_a_pushed_strategy_replaces_the_earlier_one(
    before: ApplyStrategy, after: ApplyStrategy
) -> None:
    binding = a_binding("a", strategy=before)
    patched = merge_json({"spec": document(binding.spec)}, strategy_patch(binding, after))
    assert msgspec.convert(patched, Binding).spec.apply_strategy == after


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Binding], int, int, int]:
    number = draw(st.integers(1, 7))
    bindings = []
    for each in range(number):
        state = draw(st.sampled_from(("Scheduled", "Bound", "Bound", "Bound", "Unscheduled")))
        snapshot = "" if state == "Scheduled" else draw(st.sampled_from(("app-0-snapshot", NEW[0])))
        conditions = () if state == "Scheduled" else draw(st.sampled_from((READY, SLOW, ())))
        bindings.append(
            a_binding(f"c{each}", state=state, snapshot=snapshot, conditions=conditions)
        )
    target = draw(st.integers(0, number))
    return bindings, target, draw(st.integers(0, 3)), draw(st.integers(0, 3))


@given(fleets())
def test_a_pass_keeps_to_the_limits(fleet: tuple[list[Binding], int, int, int]) -> None:
    bindings, target, unavailable, surge = fleet
    decided = decide(bindings, target, max_unavailable=unavailable, max_surge=surge)
    changed = {*clusters(decided.release), *clusters(decided.remove)}
    ready = [each for each in bindings if readiness(each, 60, TIME).ready]
    still_ready = [each for each in ready if each.spec.target_cluster not in changed]
    if len(still_ready) < len(ready):
        assert len(still_ready) >= target - unavailable
    becoming = [
        each for each in bindings if each.spec.state != "Scheduled" and can_become_ready(each)
    ]
    bound = [each for each in decided.release if each.spec.state == "Scheduled"]
    if bound:
        assert len(becoming) + len(bound) <= target + surge
    assert not changed & set(clusters(decided.hold))
    for each in decided.release:
        assert not NEW.is_of(each)


@given(fleets())
def test_a_rollout_ends(fleet: tuple[list[Binding], int, int, int]) -> None:
    """If all clusters become available, every binding ends with the latest release, or is gone."""
    bindings, _, unavailable, surge = fleet
    unavailable = max(unavailable, 1)
    for _ in range(40):
        bindings = [
            msgspec.structs.replace(
                each, status=msgspec.structs.replace(each.status, conditions=READY)
            )
            if each.spec.state != "Scheduled"
            else each
            for each in bindings
        ]
        target = sum(each.spec.state != "Unscheduled" for each in bindings)
        decided = decide(bindings, target, max_unavailable=unavailable, max_surge=surge)
        if not decided.release and not decided.remove:
            break
        released = set(clusters(decided.release))
        bindings = [
            a_binding(each.spec.target_cluster, snapshot=NEW.snapshot)
            if each.spec.target_cluster in released
            else each
            for each in bindings
            if each not in decided.remove
        ]
    assert {(each.spec.state, each.spec.resource_snapshot_name) for each in bindings} <= {
        ("Bound", NEW.snapshot)
    }
