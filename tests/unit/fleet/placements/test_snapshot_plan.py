"""Which snapshots a placement gets, keeps and loses."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet import names
from kubeocean.api.fleet.limits import SNAPSHOT_BYTES
from kubeocean.api.fleet.placements import Placement, PlacementStatus
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.fleet.snapshots.documents import SelectedContent
from kubeocean.fleet.snapshots.plan import (
    CompleteGroup,
    CreateGroup,
    Delays,
    ResourcePlan,
    ReuseGroup,
    WaitForChanges,
    groups,
    latest_group,
    latest_policy,
    plan_policy,
    plan_resources,
    usable_group,
)
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Untyped
from unit.fleet.placements.builders import (
    NOW,
    a_binding,
    a_group,
    a_placement,
    a_policy_snapshot,
    content,
)

TIME: datetime = instant_of(NOW)
NO_DELAYS = Delays()


def plan(
    placement: Placement,
    snapshots: list[Untyped],
    selected: SelectedContent,
    *,
    delays: Delays = NO_DELAYS,
    after_s: float = 0,
) -> ResourcePlan:
    return plan_resources(
        placement,
        snapshots,
        selected.hash,
        len(selected.parts),
        delays=delays,
        now=TIME + timedelta(seconds=after_s),
    )


# Policy snapshots


def test_the_first_policy_snapshot_has_index_0() -> None:
    assert plan_policy(a_placement(), []).create == 0


def test_a_number_of_clusters_is_an_annotation() -> None:
    before = a_placement(policy=PlacementPolicy("PickN", number_of_clusters=1))
    after = a_placement(generation=2, policy=PlacementPolicy("PickN", number_of_clusters=3))
    decided = plan_policy(after, [a_policy_snapshot(before)])
    assert decided.create is None
    assert decided.patch == {
        "annotations": {
            names.ANNOTATION_PLACEMENT_GENERATION: "2",
            names.ANNOTATION_NUMBER_OF_CLUSTERS: "3",
        }
    }


def test_an_unchanged_policy_is_left_alone() -> None:
    placement = a_placement()
    decided = plan_policy(placement, [a_policy_snapshot(placement)])
    assert (decided.create, decided.patch, decided.prune, decided.demote) == (None, None, (), ())


def test_a_snapshot_with_another_hash_and_the_same_policy_is_adopted() -> None:
    placement = a_placement()
    other = a_policy_snapshot(placement)
    other = msgspec.structs.replace(
        other, spec=msgspec.structs.replace(other.spec, policy_hash="b3RoZXI=")
    )
    assert plan_policy(placement, [other]).reuse is other


def test_an_index_in_a_binding_is_not_used_again() -> None:
    placement = a_placement(policy=PlacementPolicy("PickFixed", cluster_names=("a",)))
    decided = plan_policy(placement, [], [a_binding("a", policy="app-4")])
    assert decided.create == 5


def test_snapshots_of_an_earlier_placement_of_the_name_are_not_reused() -> None:
    placement = a_placement()
    foreign = a_policy_snapshot(placement, 3)
    meta = msgspec.structs.replace(foreign.metadata, owner_references=None)
    foreign = msgspec.structs.replace(foreign, metadata=meta)
    decided = plan_policy(placement, [foreign])
    assert (decided.create, decided.prune, decided.demote) == (4, (), ())


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 4))
def test_policy_history_keeps_to_its_limit(changes: list[str], limit: int) -> None:
    snapshots: list[PolicySnapshot] = []
    created: list[int] = []
    for generation, cluster in enumerate(changes, 1):
        policy = PlacementPolicy("PickFixed", cluster_names=(cluster,))
        placement = a_placement(generation=generation, policy=policy, limit=limit)
        decided = plan_policy(placement, snapshots)
        snapshots = [each for each in snapshots if each not in decided.prune]
        assert len(snapshots) + (decided.create is not None) <= limit
        snapshots = [
            _relabelled(each, "false") if each in decided.demote else each for each in snapshots
        ]
        if decided.create is not None:
            created.append(decided.create)
            snapshots.append(a_policy_snapshot(placement, decided.create))
        latest = latest_policy(snapshots)
        assert latest is not None
        assert latest.spec.policy.cluster_names == (cluster,)
        marked = [each for each in snapshots if each.labels[names.LABEL_LATEST_SNAPSHOT] == "true"]
        assert marked == [latest]
    assert created == list(range(len(created)))


def _relabelled(snapshot: PolicySnapshot, latest: str) -> PolicySnapshot:
    labels = {**snapshot.labels, names.LABEL_LATEST_SNAPSHOT: latest}
    meta = msgspec.structs.replace(snapshot.metadata, labels=labels)
    return msgspec.structs.replace(snapshot, metadata=meta)


# Resource snapshots


def test_the_first_group_has_index_0_and_is_never_delayed() -> None:
    delays = Delays(timedelta(seconds=15), timedelta(seconds=30))
    assert plan(a_placement(), [], content("1"), delays=delays) == CreateGroup(0)


def test_an_empty_selection_has_a_master() -> None:
    selected = content()
    assert len(selected.parts) == 1
    assert plan(a_placement(), [], selected) == CreateGroup(0)


def test_equal_content_is_reused() -> None:
    placement = a_placement()
    snapshots = a_group(placement, 3, content("1"))
    decided = plan(placement, snapshots, content("1"))
    assert isinstance(decided, ReuseGroup)
    assert (decided.demote, decided.patch) == ((), None)


def test_other_content_gets_the_next_index() -> None:
    placement = a_placement()
    snapshots = a_group(placement, 3, content("1"))
    decided = plan(placement, snapshots, content("2"))
    assert decided == CreateGroup(4, demote=(snapshots[0],))


def test_an_index_that_the_status_or_a_binding_names_is_not_used_again() -> None:
    for index in (0, 6):
        observed = a_placement(status=PlacementStatus(observed_resource_index=str(index)))
        assert plan(observed, [], content("1")) == CreateGroup(index + 1)
    decided = plan_resources(
        a_placement(),
        [],
        "hash",
        1,
        [a_binding("a", snapshot="app-8-snapshot")],
        delays=NO_DELAYS,
        now=TIME,
    )
    assert decided == CreateGroup(9)


def _large(number: int) -> SelectedContent:
    return content(*("x" * (SNAPSHOT_BYTES - 1000) for _ in range(number)))


def test_a_group_that_lacks_sub_snapshots_is_completed() -> None:
    placement, selected = a_placement(), _large(3)
    master, _, second = a_group(placement, 0, selected)
    assert usable_group([master, second]) is None
    decided = plan(placement, [master, second], selected)
    assert isinstance(decided, CompleteGroup)
    assert decided.missing == (0,)
    assert usable_group(a_group(placement, 0, selected)) is not None


def test_an_incomplete_group_of_other_content_is_deleted() -> None:
    placement = a_placement()
    complete = a_group(placement, 0, content("1"), latest=False)
    master, *_ = a_group(placement, 1, _large(2))
    decided = plan(placement, [*complete, master], content("2"))
    assert decided == CreateGroup(2, prune=(master,))


def test_a_group_whose_label_was_lost_is_marked_again() -> None:
    placement = a_placement()
    snapshots = a_group(placement, 2, content("1"), latest=False)
    decided = plan(placement, snapshots, content("1"))
    assert isinstance(decided, ReuseGroup)
    assert decided.patch == {"labels": {names.LABEL_LATEST_SNAPSHOT: "true"}}


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 4))
def test_history_of_groups_keeps_to_its_limit(changes: list[str], limit: int) -> None:
    placement = a_placement(limit=limit)
    snapshots: list[Untyped] = []
    index = -1
    for text in changes:
        selected = content(text)
        decided = plan(placement, snapshots, selected)
        if isinstance(decided, CreateGroup):
            assert decided.index == index + 1
            index = decided.index
            snapshots = [each for each in snapshots if each not in decided.prune]
            assert len(groups(snapshots)) < limit
            snapshots = [_demoted(each) if each in decided.demote else each for each in snapshots]
            snapshots += a_group(placement, index, selected)
        latest = latest_group(snapshots)
        assert latest is not None
        assert (latest.index, latest.content_hash) == (index, selected.hash)
        marked = [
            each for each in snapshots if each.labels.get(names.LABEL_LATEST_SNAPSHOT) == "true"
        ]
        assert marked == [latest.master]


def _demoted(snapshot: Untyped) -> Untyped:
    labels = {**snapshot.labels, names.LABEL_LATEST_SNAPSHOT: "false"}
    meta = msgspec.structs.replace(snapshot.metadata, labels=labels)
    return msgspec.structs.replace(snapshot, metadata=meta)


# Delays


def test_a_change_waits_for_the_longer_of_both_delays() -> None:
    placement = a_placement()
    (master,) = a_group(placement, 0, content("1"))
    delays = Delays(timedelta(seconds=15), timedelta(seconds=30))
    first = plan(placement, [master], content("2"), delays=delays, after_s=20)
    assert isinstance(first, WaitForChanges)
    assert first.seconds == 15, "35 s after the creation"
    detected = "2026-01-01T00:00:20Z"
    assert first.patch == {"annotations": {names.ANNOTATION_NEXT_SNAPSHOT_DETECTED: detected}}

    annotations = {**master.annotations, names.ANNOTATION_NEXT_SNAPSHOT_DETECTED: detected}
    noted = msgspec.structs.replace(
        master, metadata=msgspec.structs.replace(master.metadata, annotations=annotations)
    )
    second = plan(placement, [noted], content("3"), delays=delays, after_s=25)
    assert isinstance(second, WaitForChanges)
    assert (second.seconds, second.patch) == (10, None)
    assert isinstance(
        plan(placement, [noted], content("3"), delays=delays, after_s=35), CreateGroup
    )
    back = plan(placement, [noted], content("1"), delays=delays, after_s=25)
    assert isinstance(back, ReuseGroup)
    assert back.patch == {"annotations": {names.ANNOTATION_NEXT_SNAPSHOT_DETECTED: None}}
