"""Which Works a binding needs, and the status that follows from theirs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, ResourceBindingStatus
from kubeocean.api.fleet.limits import SNAPSHOT_BYTES
from kubeocean.api.fleet.placements import MOST_DETAILS, PatchDetail
from kubeocean.api.fleet.strategies import ApplyStrategy, ReportBackStrategy
from kubeocean.api.fleet.works import (
    DiffDetails,
    DriftDetails,
    ManifestCondition,
    WorkResourceIdentifier,
    WorkStatus,
)
from kubeocean.fleet.rollout.readiness import readiness
from kubeocean.fleet.snapshots.plan import groups
from kubeocean.fleet.works.documents import adjust_patch, replace_patch, work_document
from kubeocean.fleet.works.plan import (
    DesiredWork,
    WorksPlan,
    belong_to_release,
    desired_works,
    plan_works,
)
from kubeocean.fleet.works.report import report
from kubeocean.fleet.works.views import CachedWork, prune_work
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Key
from unit.fleet.placements.builders import (
    NOW,
    REPORT_DIFF,
    a_binding,
    a_group,
    a_placement,
    a_work,
    condition,
    content,
    stored,
)

NO_REPORT = ReportBackStrategy()


def desired(
    binding: Binding, parts: int = 1, report_back: ReportBackStrategy = NO_REPORT
) -> tuple[DesiredWork, ...]:
    text = "x" * (SNAPSHOT_BYTES - 1000)
    selected = content(*([text] * parts)) if parts > 1 else content("1")
    (group,) = groups(a_group(a_placement(namespace=binding.namespace), 0, selected))
    placement = Key(binding.namespace, "app")
    return desired_works(placement, binding, group, report_back)


def as_stored(binding: Binding, work: DesiredWork) -> CachedWork:
    body = work_document(binding, work, (), preset_finalizer=False)
    found: CachedWork = stored(body, CachedWork)
    return found


def decide(binding: Binding, wanted: tuple[DesiredWork, ...], *works: CachedWork) -> WorksPlan:
    by_name = {work.name: work for work in works}
    own = [work for work in works if work.labels.get(names.LABEL_PARENT_BINDING) == binding.name]
    return plan_works(binding.key, wanted, own, by_name.get)


def test_each_snapshot_gets_a_work() -> None:
    binding = a_binding("a")
    wanted = desired(binding, 3)
    assert [work.name for work in wanted] == ["app-work", "app-0", "app-1"]
    assert decide(binding, wanted).create == wanted


def test_works_of_a_namespaced_placement_have_its_namespace_in_their_name() -> None:
    binding = a_binding("a", namespace="team")
    (work,) = desired(binding)
    assert work.name == "team.app-work"
    body = work_document(binding, work, (), preset_finalizer=True)
    assert body["metadata"]["labels"][names.LABEL_PARENT_NAMESPACE] == "team"
    assert body["metadata"]["finalizers"] == [names.FINALIZER_WORK]
    assert "ownerReferences" not in body["metadata"]


def test_an_up_to_date_work_is_left_alone() -> None:
    binding = a_binding("a")
    wanted = desired(binding, 2)
    assert not decide(binding, wanted, *(as_stored(binding, work) for work in wanted))


def test_a_work_that_another_program_edited_gets_its_manifests_again() -> None:
    binding = a_binding("a")
    wanted = desired(binding, 2)
    first, second = (as_stored(binding, work) for work in wanted)
    by_name = {work.name: work for work in (first, second)}
    decided = plan_works(
        binding.key, wanted, [first, second], by_name.get, lambda work: work is second
    )
    assert decided == WorksPlan(replace=((second, wanted[1]),))


def test_another_release_replaces_the_manifests() -> None:
    before, after = a_binding("a"), a_binding("a", snapshot="app-1-snapshot")
    (old,), (new,) = desired(before), desired(after)
    work = as_stored(before, old)
    decided = decide(after, (new,), work)
    assert decided.replace == ((work, new),)
    assert replace_patch(work, new, ())["spec"]["workload"] == {"manifests": []}
    assert belong_to_release([work], before)
    assert not belong_to_release([work], after)
    assert not belong_to_release([], after)


@pytest.mark.parametrize(
    ("strategy", "report_back"),
    [
        (ApplyStrategy(type="ServerSideApply"), NO_REPORT),
        (ApplyStrategy(), ReportBackStrategy(type="Mirror", destination="WorkAPI")),
    ],
)
def test_another_strategy_keeps_the_manifests(
    strategy: ApplyStrategy, report_back: ReportBackStrategy
) -> None:
    before, after = a_binding("a"), a_binding("a", strategy=strategy)
    (old,), (new,) = desired(before), desired(after, report_back=report_back)
    work = as_stored(before, old)
    decided = decide(after, (new,), work)
    assert (decided.replace, decided.adjust) == ((), ((work, new.settings),))
    assert "workload" not in adjust_patch(work, new.settings)["spec"]


def test_works_without_a_snapshot_are_deleted() -> None:
    binding = a_binding("a")
    wanted = desired(binding, 2)
    works = [as_stored(binding, work) for work in wanted]
    assert decide(binding, wanted[:1], *works).delete == (works[1],)


def test_a_work_of_another_binding_blocks() -> None:
    binding = a_binding("a")
    wanted = desired(binding)
    other = as_stored(a_binding("b"), wanted[0])
    other = msgspec.structs.replace(
        other,
        metadata=msgspec.structs.replace(
            other.metadata, labels={**other.labels, names.LABEL_PARENT_BINDING: "app-other"}
        ),
    )
    decided = decide(binding, wanted, other)
    assert (decided.create, decided.blocked) == ((), (other,))


@pytest.mark.parametrize("namespace", ["", "web"])
def test_a_work_that_lost_the_label_of_its_binding_gets_it_again(namespace: str) -> None:
    binding = a_binding("a", namespace=namespace)
    wanted = desired(binding)
    work = as_stored(binding, wanted[0])

    def labelled(**labels: str) -> CachedWork:
        metadata = msgspec.structs.replace(work.metadata, labels=labels)
        return msgspec.structs.replace(work, metadata=metadata)

    rest = {name: text for name, text in work.labels.items() if name != names.LABEL_PARENT_BINDING}
    found = labelled(**rest)
    assert decide(binding, wanted, found) == WorksPlan(adjust=((found, wanted[0].settings),))
    foreign = labelled(**{**rest, names.LABEL_PARENT_PLACEMENT: "other"})
    assert decide(binding, wanted, foreign) == WorksPlan(blocked=(foreign,))


# Status of a binding


def work(name: str = "app-work", *conditions: Any, manifests: Any = ()) -> CachedWork:
    status = WorkStatus(conditions=conditions, manifest_conditions=tuple(manifests))
    found: CachedWork = a_work(name, status=status)
    return found


def summary(status: ResourceBindingStatus) -> list[tuple[str, str, str]]:
    return [(each.type, each.status, each.reason) for each in status.conditions]


def judge(binding: Binding, *works: CachedWork, **options: Any) -> ResourceBindingStatus:
    return report(binding, works, **{"is_latest": True, "now": NOW, **options})


APPLIED, AVAILABLE = condition("Applied"), condition("Available")
BEFORE = [
    ("RolloutStarted", "True", "RolloutStarted"),
    ("Overridden", "True", "NoOverrideSpecified"),
    ("WorkSynchronized", "True", "AllWorkSynced"),
]


def test_a_binding_is_available_when_all_works_are() -> None:
    status = judge(a_binding("a"), work("1", APPLIED, AVAILABLE), work("2", APPLIED, AVAILABLE))
    assert summary(status) == [
        *BEFORE,
        ("Applied", "True", "AllWorkHaveBeenApplied"),
        ("Available", "True", "AllWorkAreAvailable"),
    ]


@pytest.mark.parametrize("reason", ["WorkNotTrackable", "SomeManifestsAreNotAvailabilityTrackable"])
def test_an_untrackable_work_is_told_apart(reason: str) -> None:
    untrackable = condition("Available", reason=reason)
    status = judge(a_binding("a"), work("1", APPLIED, AVAILABLE), work("2", APPLIED, untrackable))
    assert summary(status)[-1] == ("Available", "True", "NotAllWorkAreAvailabilityTrackable")


def test_a_work_that_is_not_processed_is_in_progress() -> None:
    stale = condition("Applied", generation=0)
    for waiting in (work("1"), work("1", stale)):
        status = judge(a_binding("a"), waiting, work("2", APPLIED, AVAILABLE))
        assert summary(status) == [*BEFORE, ("Applied", "False", "ApplyInProgress")]


def test_a_work_that_is_not_applied_ends_the_chain() -> None:
    failed = condition("Applied", "False", "SomeManifestsAreNotApplied")
    status = judge(a_binding("a"), work("1", failed), work("2", APPLIED, AVAILABLE))
    assert summary(status) == [*BEFORE, ("Applied", "False", "NotAllWorkHaveBeenApplied")]


def test_a_binding_with_overrides_is_not_called_overridden() -> None:
    plain = a_binding("a")
    spec = msgspec.structs.replace(plain.spec, cluster_resource_override_snapshots=("x-0",))
    status = judge(msgspec.structs.replace(plain, spec=spec), work("1", APPLIED, AVAILABLE))
    assert summary(status) == [BEFORE[0], ("Overridden", "False", "OverriddenFailed")]


def test_a_work_that_could_not_be_written() -> None:
    status = judge(a_binding("a"), work("1", APPLIED), sync_error="it is invalid")
    assert summary(status) == [*BEFORE[:2], ("WorkSynchronized", "False", "SyncWorkFailed")]
    assert status.conditions[-1].message == (
        "Failed to synchronize the work to the latest: it is invalid"
    )


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((condition("DiffReported"),), ("True", "AllWorkHaveDiffReported")),
        ((condition("DiffReported", "False"),), ("False", "NotAllWorkHaveDiffReported")),
        ((), ("False", "DiffReportInProgress")),
    ],
)
def test_differences_are_reported(conditions: Any, expected: tuple[str, str]) -> None:
    status = judge(a_binding("a", strategy=REPORT_DIFF), work("1", *conditions))
    assert summary(status) == [*BEFORE, ("DiffReported", *expected)]


def test_rollout_started_is_renewed_only_on_the_latest_release() -> None:
    held = condition("RolloutStarted", "False", "RolloutNotStartedYet")
    applied = work("1", APPLIED, AVAILABLE)
    assert judge(a_binding("a", conditions=(held,)), applied).conditions[0] == held
    stale = a_binding("a", generation=2, conditions=(held,))
    assert judge(stale, applied).conditions[0].status == "True"
    older = judge(stale, applied, is_latest=False)
    assert older.conditions[0] == held
    assert older.conditions[-1].type == "Available", "rollouts depend on it"


def test_transition_times_are_kept() -> None:
    binding = a_binding("a")
    first = judge(binding, work("1", APPLIED, AVAILABLE))
    later = a_binding("a", generation=2, conditions=first.conditions)
    second = judge(later, work("1", APPLIED, AVAILABLE), now="2026-01-01T00:01:00Z")
    assert {each.last_transition_time for each in second.conditions} == {NOW}
    assert {each.observed_generation for each in second.conditions} == {2}


@pytest.mark.parametrize("before", ["WorkNotTrackable", "AllManifestsAvailable"])
def test_the_unavailable_period_begins_anew_with_each_release(before: str) -> None:
    first = judge(a_binding("a"), work("1", APPLIED, condition("Available", reason=before)))
    untrackable = work("1", APPLIED, condition("Available", reason="WorkNotTrackable"))
    later = "2026-01-01T00:01:00Z"
    same = judge(a_binding("a", conditions=first.conditions), untrackable, now=later)
    assert same.conditions[-1].last_transition_time == NOW
    released = a_binding("a", generation=2, conditions=first.conditions)
    released = msgspec.structs.replace(released, status=judge(released, untrackable, now=later))
    start = instant_of(later)
    assert readiness(released, 60, start) == (False, 60)
    assert readiness(released, 60, start + timedelta(seconds=60)).ready


def manifest(name: str, *conditions: Any, **details: Any) -> ManifestCondition:
    identifier = WorkResourceIdentifier(version="v1", kind="ConfigMap", name=name, namespace="n")
    return ManifestCondition(identifier, conditions, **details)


DETAIL = (PatchDetail("/data/x", "1", "2"),)


def test_single_objects_are_listed() -> None:
    not_applied = condition("Applied", "False", "ManifestApplyFailed", generation=3)
    not_available = condition("Available", "False", "ManifestNotAvailableYet", generation=4)
    manifests = [
        manifest("one", not_applied, not_available),
        manifest("two", APPLIED, not_available),
        manifest("three", APPLIED, drift_details=DriftDetails(NOW, 0, NOW, DETAIL)),
        manifest("four", not_applied, diff_details=DiffDetails(NOW, None, NOW, DETAIL)),
    ]
    failed = condition("Applied", "False")
    status = judge(a_binding("a"), work("1", failed, manifests=manifests))
    assert [(each.name, each.condition) for each in status.failed_placements] == [
        ("one", not_applied),
        ("two", not_available),
        ("four", not_applied),
    ]
    assert [each.name for each in status.drifted_placements] == ["three"]
    assert [each.name for each in status.diffed_placements] == ["four"]
    waiting = judge(a_binding("a"), work("1", failed, manifests=manifests), work("2"))
    assert waiting.failed_placements == ()


def test_reports_of_good_manifests_are_not_cached() -> None:
    bad = condition("Available", "False")
    manifests = [
        manifest("good", APPLIED, AVAILABLE),
        manifest("equal", condition("DiffReported")),
        manifest("bad", APPLIED, bad),
        manifest("drifted", APPLIED, AVAILABLE, drift_details=DriftDetails(NOW, 0, NOW, DETAIL)),
        manifest(
            "diffed", condition("DiffReported"), diff_details=DiffDetails(NOW, 1, NOW, DETAIL)
        ),
    ]
    cached = prune_work(work("1", APPLIED, bad, manifests=manifests))
    kept = [each.identifier.name for each in cached.status.manifest_conditions]
    assert kept == ["bad", "drifted", "diffed"]
    assert len(cached.status.conditions) == 2


def test_a_digest_takes_the_place_of_manifests() -> None:
    def cached(*manifests: Any) -> CachedWork:
        body = {"metadata": {"name": "w"}, "spec": {"workload": {"manifests": manifests}}}
        return prune_work(msgspec.json.decode(msgspec.json.encode(body), type=CachedWork))

    one, two = {"kind": "A"}, {"kind": "B"}
    assert cached(one, two).spec.workload.manifests == ()
    assert cached(one, two).digest == cached(one, two).digest
    assert len({cached(*each).digest for each in ((), (one,), (one, two), (two, one))}) == 4


def test_objects_in_an_envelope_name_it() -> None:
    failed = condition("Applied", "False")
    enveloped = work("1", failed, manifests=[manifest("one", failed)])
    labels = {
        **enveloped.labels,
        names.LABEL_ENVELOPE_TYPE: "ResourceEnvelope",
        names.LABEL_ENVELOPE_NAME: "e",
        names.LABEL_ENVELOPE_NAMESPACE: "n",
    }
    meta = msgspec.structs.replace(enveloped.metadata, labels=labels)
    status = judge(a_binding("a"), msgspec.structs.replace(enveloped, metadata=meta))
    envelope = status.failed_placements[0].envelope
    assert envelope is not None
    assert (envelope.type, envelope.name, envelope.namespace) == ("ResourceEnvelope", "e", "n")


@given(st.integers(0, 2 * MOST_DETAILS))
def test_lists_are_bounded(number: int) -> None:
    failed = condition("Applied", "False")
    manifests = [manifest(str(each), failed) for each in range(number)]
    status = judge(a_binding("a"), work("1", failed, manifests=manifests))
    assert len(status.failed_placements) == min(number, MOST_DETAILS)
