"""The status of a Work and an AppliedWork; which objects are left over; when to requeue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeocean.api.fleet.conditions import Availability, ManifestReason
from kubeocean.api.fleet.limits import WORK_BYTES
from kubeocean.fleet.applier.diff import WHOLE_OBJECT, FieldDifference
from kubeocean.fleet.applier.leftovers import Delete, DropOwner, LeaveAlone, left_overs, removal_of
from kubeocean.fleet.applier.manifests import Identifier, Owner
from kubeocean.fleet.applier.plan import Result
from kubeocean.fleet.applier.records import Backoff, Passes
from kubeocean.fleet.applier.report import (
    Processed,
    observed_status,
    work_status,
)
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Json, encode

WORK: Json = {"metadata": {"name": "work", "generation": 4}}
LIVE: Json = {"metadata": {"uid": "u", "generation": 2}}
AVAILABLE = Availability.AVAILABLE
NOT_TRACKABLE = Availability.NOT_TRACKABLE
NOT_YET = Availability.NOT_YET


def identifier(ordinal: int = 0, name: str = "a", **more: Any) -> Identifier:
    fields = {"group": "", "version": "v1", "kind": "ConfigMap", "resource": "configmaps", **more}
    return Identifier(ordinal, namespace="web", name=name, **fields)


def processed(
    reason: ManifestReason = ManifestReason.APPLIED,
    availability: Availability | None = None,
    **more: Any,
) -> Processed:
    live = more.pop("live", LIVE)
    place = more.pop("identifier", identifier())
    return Processed(place, Result(reason, more.pop("error", ""), live, **more), availability)


def conditions(status: Json) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in status["conditions"]]


def judged(*each: Processed, reports_diff: bool = False) -> list[tuple[str, str, str]]:
    status = work_status(WORK, each, reports_diff=reports_diff, now="t")
    assert all(c["observedGeneration"] == 4 for c in status["conditions"])
    return conditions(status)


APPLIED = ("Applied", "True", "AllManifestsApplied")


@pytest.mark.parametrize(
    ("manifests", "expected"),
    [
        ([], [APPLIED, ("Available", "True", "AllManifestsAvailable")]),
        (
            [processed(availability=AVAILABLE)],
            [APPLIED, ("Available", "True", "AllManifestsAvailable")],
        ),
        (
            [processed(availability=AVAILABLE), processed(availability=NOT_TRACKABLE)],
            [APPLIED, ("Available", "True", "WorkNotTrackable")],
        ),
        (
            [processed(availability=NOT_YET), processed(availability=NOT_TRACKABLE)],
            [APPLIED, ("Available", "False", "SomeManifestsAreNotAvailable")],
        ),
        (
            [processed(availability=Availability.FAILED)],
            [APPLIED, ("Available", "False", "SomeManifestsAreNotAvailable")],
        ),
        (
            [processed(availability=AVAILABLE), processed(ManifestReason.APPLY_FAILED)],
            [("Applied", "False", "SomeManifestsAreNotApplied")],
        ),
        (
            [processed(ManifestReason.APPLIED_WITH_FAILED_DRIFT_DETECTION, AVAILABLE)],
            [APPLIED, ("Available", "True", "AllManifestsAvailable")],
        ),
    ],
)
def test_conditions_of_a_work(
    manifests: list[Processed], expected: list[tuple[str, str, str]]
) -> None:
    assert judged(*manifests) == expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([], ("DiffReported", "True", "AllManifestsDiffReported")),
        (
            [
                ManifestReason.NO_DIFF_FOUND,
                ManifestReason.FOUND_DIFF,
                ManifestReason.FOUND_DIFF_DEGRADED,
            ],
            ("DiffReported", "True", "AllManifestsDiffReported"),
        ),
        (
            [ManifestReason.FOUND_DIFF, ManifestReason.FAILED_TO_REPORT_DIFF],
            ("DiffReported", "False", "SomeManifestsHaveNotReportedDiff"),
        ),
        (
            [ManifestReason.DUPLICATED],
            ("DiffReported", "False", "SomeManifestsHaveNotReportedDiff"),
        ),
    ],
)
def test_conditions_of_a_work_that_is_compared(
    reasons: list[ManifestReason], expected: tuple[str, str, str]
) -> None:
    assert judged(*map(processed, reasons), reports_diff=True) == [expected]


def entry(each: Processed, *, old: Json | None = None, reports_diff: bool = False) -> Json:
    work = {**WORK, "status": {"manifestConditions": [old]}} if old else WORK
    status = work_status(work, [each], reports_diff=reports_diff, now="t")
    [shown_entry] = status["manifestConditions"]
    assert shown_entry["identifier"] == each.identifier.to_json()
    result: Json = shown_entry
    return result


OF_COMPARISONS = {each for each in ManifestReason if each.is_diff_reported} | {
    ManifestReason.FAILED_TO_REPORT_DIFF
}


@pytest.mark.parametrize("reason", [each for each in ManifestReason if each not in OF_COMPARISONS])
def test_the_applied_condition_of_a_manifest(reason: ManifestReason) -> None:
    manifest = entry(processed(reason, error="why"))
    status = "True" if reason.is_applied else "False"
    assert conditions(manifest) == [("Applied", status, reason.value)]
    [condition] = manifest["conditions"]
    assert condition["observedGeneration"] == 2
    if not reason.is_applied and reason is not ManifestReason.PREPARING:
        assert condition["message"] == "Failed to apply the manifest (error: why)"


def test_a_manifest_without_object_has_generation_0() -> None:
    rejected = processed(ManifestReason.DECODING_ERRED, live=None)
    assert entry(rejected)["conditions"][0]["observedGeneration"] == 0


@pytest.mark.parametrize("availability", Availability)
def test_the_available_condition_of_a_manifest(availability: Availability) -> None:
    manifest = conditions(entry(processed(availability=availability)))
    status = "True" if availability.counts_as_available else "False"
    assert manifest == [("Applied", "True", "Applied"), ("Available", status, availability.value)]


@pytest.mark.parametrize(
    ("reason", "status", "shown"),
    [
        (ManifestReason.NO_DIFF_FOUND, "True", "NoDiffFound"),
        (ManifestReason.FOUND_DIFF, "True", "FoundDiff"),
        (ManifestReason.FOUND_DIFF_DEGRADED, "True", "FoundDiffInDegradedMode"),
        (ManifestReason.FAILED_TO_REPORT_DIFF, "False", "FailedToReportDiff"),
        (ManifestReason.DECODING_ERRED, "False", "FailedToReportDiff"),
    ],
)
def test_the_diff_reported_condition_of_a_manifest(
    reason: ManifestReason, status: str, shown: str
) -> None:
    manifest = entry(processed(reason), reports_diff=True)
    assert conditions(manifest) == [("DiffReported", status, shown)]


def test_details_keep_the_time_of_the_first_observation() -> None:
    drift = processed(ManifestReason.FOUND_DRIFTS, drifts=(FieldDifference("/a", "1", "2"),))
    first = work_status(WORK, [drift], reports_diff=False, now="t1")
    moved = Processed(identifier(5), drift.result)
    second = work_status({**WORK, "status": first}, [moved], reports_diff=False, now="t2")
    [details] = [each["driftDetails"] for each in second["manifestConditions"]]
    assert details == {
        "observationTime": "t2",
        "firstDriftedObservedTime": "t1",
        "observedInMemberClusterGeneration": 2,
        "observedDrifts": [{"path": "/a", "valueInMember": "1", "valueInHub": "2"}],
    }
    settled = work_status({**WORK, "status": second}, [processed()], reports_diff=False, now="t3")
    assert "driftDetails" not in settled["manifestConditions"][0]


def test_a_missing_object_is_a_diff_without_generation() -> None:
    missing = processed(ManifestReason.FOUND_DIFF, live=None, diffs=(WHOLE_OBJECT,))
    assert entry(missing, reports_diff=True)["diffDetails"] == {
        "observationTime": "t",
        "firstDiffedObservedTime": "t",
        "observedDiffs": [{"path": "/", "valueInHub": "(the whole object)"}],
    }


def test_times_of_conditions_survive_and_nothing_else_does() -> None:
    before = work_status(WORK, [processed(availability=NOT_YET)], reports_diff=False, now="t1")
    damaged = {**before, "extra": 1}
    damaged["conditions"] = [*damaged["conditions"], {"type": "Strange", "status": "True"}]
    after = work_status(
        {**WORK, "status": damaged},
        [processed(availability=AVAILABLE)],
        reports_diff=False,
        now="t2",
    )
    assert after.keys() == {"conditions", "manifestConditions"}
    times = {c["type"]: c["lastTransitionTime"] for c in after["conditions"]}
    assert times == {"Applied": "t1", "Available": "t2"}
    [manifest] = after["manifestConditions"]
    assert [c["lastTransitionTime"] for c in manifest["conditions"]] == ["t1", "t2"]


def test_two_manifests_of_one_object_keep_their_own_times() -> None:
    both = [
        processed(identifier=identifier(0), availability=AVAILABLE),
        processed(ManifestReason.DUPLICATED, identifier=identifier(1), live=None),
    ]
    first = work_status(WORK, both, reports_diff=False, now="t1")
    second = work_status({**WORK, "status": first}, both, reports_diff=False, now="t2")
    assert second == first


def test_a_status_that_would_be_too_large_is_trimmed() -> None:
    long = "x" * (WORK_BYTES // 2)
    each = Processed(
        identifier(),
        Result(ManifestReason.APPLIED, "", LIVE, drifts=(FieldDifference("/a", long, long),)),
        AVAILABLE,
        observed_status={"status": {"x": 1}},
    )
    status = work_status(WORK, [each], reports_diff=False, now="t")
    assert conditions(status)[-1] == ("StatusTrimmed", "True", "Oversized")
    [manifest] = status["manifestConditions"]
    assert manifest["driftDetails"].keys() == {
        "observationTime",
        "firstDriftedObservedTime",
        "observedInMemberClusterGeneration",
    }
    assert "backReportedStatus" not in manifest
    small = work_status({**WORK, "status": status}, [processed()], reports_diff=False, now="t")
    assert "StatusTrimmed" not in {c["type"] for c in small["conditions"]}


def test_a_status_with_too_many_manifests_keeps_those_that_need_attention() -> None:
    many = [
        processed(identifier=identifier(number, f"object-{number}"), availability=AVAILABLE)
        for number in range(5_000)
    ]
    failed = identifier(5_000, "failed")
    many.append(processed(ManifestReason.APPLY_FAILED, identifier=failed, error="quota"))
    status = work_status(WORK, many, reports_diff=False, now="t")
    assert len(encode({**WORK, "status": status})) <= WORK_BYTES
    assert ("StatusTrimmed", "True", "Oversized") in conditions(status)
    assert "5000 of 5001" in status["conditions"][0]["message"]
    entries = status["manifestConditions"]
    ordinals = [entry["identifier"]["ordinal"] for entry in entries]
    assert ordinals == sorted(ordinals)
    assert ordinals[-1] == 5_000
    again = work_status({**WORK, "status": status}, many, reports_diff=False, now="later")
    assert again == status


def test_a_status_is_reported_back_with_the_time_of_its_last_change() -> None:
    live = {"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {}, "status": {"x": 1}}
    status = observed_status(live)
    assert status == {"apiVersion": "v1", "kind": "Service", "status": {"x": 1}}
    each = Processed(identifier(), Result(ManifestReason.APPLIED, live=live), AVAILABLE, status)
    first = work_status(WORK, [each], reports_diff=False, now="t1")
    [entry] = first["manifestConditions"]
    assert entry["backReportedStatus"] == {"observedStatus": status, "observationTime": "t1"}
    second = work_status({**WORK, "status": first}, [each], reports_diff=False, now="t2")
    assert second == first
    changed = replace(each, observed_status={**status, "status": {"x": 2}})
    third = work_status({**WORK, "status": first}, [changed], reports_diff=False, now="t3")
    assert third["manifestConditions"][0]["backReportedStatus"]["observationTime"] == "t3"


# --- left-overs


OWNER = Owner("work", "ours")


def recorded(place: Identifier, status: str, reason: str) -> Json:
    condition = {"type": "Applied", "status": status, "reason": reason}
    return {"identifier": place.to_json(), "conditions": [condition]}


def test_what_was_placed_and_is_not_named_is_left_over() -> None:
    work = {
        "status": {
            "manifestConditions": [
                recorded(identifier(0, "kept"), "True", "Applied"),
                recorded(identifier(1, "applied"), "True", "Applied"),
                recorded(identifier(2, "preparing"), "False", "PreparingToProcess"),
                recorded(identifier(3, "refused"), "False", "NotTakenOver"),
                recorded(Identifier(4), "False", "DecodingErred"),
            ]
        }
    }
    listed = [identifier(0, "kept").to_json(), identifier(7, "listed").to_json()]
    applied_work = {"status": {"appliedResources": [{**each, "uid": "u"} for each in listed]}}
    names_left = left_overs(work, applied_work, [identifier(9, "kept")])
    assert [each.name for each in names_left] == ["listed", "applied", "preparing"]
    assert left_overs({}, {}, []) == ()


def test_a_kind_that_is_unknown_for_a_moment_loses_nothing() -> None:
    work = {"status": {"manifestConditions": [recorded(identifier(), "True", "Applied")]}}
    assert left_overs(work, {}, [identifier(resource="")]) == ()
    assert left_overs(work, {}, [identifier(version="v2")]) == ()


def owned(*references: Json, **metadata: Any) -> Json:
    return {
        "metadata": {
            "uid": "u",
            "resourceVersion": "7",
            "ownerReferences": list(references),
            **metadata,
        }
    }


FOREIGN = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}


def test_how_a_left_over_is_removed() -> None:
    ours = OWNER.reference()
    assert removal_of(None, OWNER) == LeaveAlone()
    assert removal_of(owned(), OWNER) == LeaveAlone()
    assert removal_of(owned(FOREIGN), OWNER) == LeaveAlone()
    assert removal_of(owned(Owner("work", "other").reference()), OWNER) == LeaveAlone()
    assert removal_of(owned(ours), OWNER) == Delete("u")
    assert removal_of(owned(ours, deletionTimestamp="t"), OWNER) == LeaveAlone()
    patch = MergePatch({"metadata": {"ownerReferences": [FOREIGN], "resourceVersion": "7"}})
    assert removal_of(owned(FOREIGN, ours), OWNER) == DropOwner(patch)


def test_how_a_left_over_is_handed_over() -> None:
    heir = Owner("heir", "h")
    for before, after in (
        ([OWNER.reference()], [heir.reference()]),
        ([heir.reference(), OWNER.reference()], [heir.reference()]),
        ([FOREIGN, OWNER.reference()], [FOREIGN, heir.reference()]),
    ):
        patch = MergePatch({"metadata": {"ownerReferences": after, "resourceVersion": "7"}})
        assert removal_of(owned(*before), OWNER, heir) == DropOwner(patch)
    assert removal_of(owned(FOREIGN), OWNER, heir) == LeaveAlone()
    assert removal_of(None, OWNER, heir) == LeaveAlone()


# --- back-off


def delays(backoff: Backoff, count: int, *, settled: bool = False) -> list[float]:
    passes: Passes | None = None
    waits = []
    for _ in range(count):
        passes = backoff.after_pass(passes, generation=1, result="r", settled=settled)
        waits.append(round(passes.delay_s, 3))
    return waits


def test_delays_grow_slowly_and_then_fast() -> None:
    waits = delays(Backoff(), 40)
    assert waits[:4] == [5, 2, 2.4, 2.88]
    turning = waits.index(15)
    assert waits[turning : turning + 3] == [15, 22.5, 33.75]
    assert waits[-1] == 900
    assert waits[1:] == sorted(waits[1:])


def test_a_settled_work_skips_the_slow_growth() -> None:
    assert delays(Backoff(), 4, settled=True) == [5, 7.5, 11.25, 16.875]
    assert delays(Backoff(skips_to_fast=False), 3, settled=True) == [5, 2, 2.4]


def test_the_limits_of_the_deployed_configuration_are_kept() -> None:
    deployed = Backoff(slow_limit_s=5, fast_limit_s=5)
    assert max(delays(deployed, 50)) == max(delays(deployed, 50, settled=True)) == 5


def test_a_change_starts_from_the_beginning() -> None:
    backoff = Backoff()
    late = Passes(1, "r", count=30, delay_s=900)
    assert backoff.after_pass(late, generation=1, result="r", settled=True).delay_s == 900
    assert backoff.after_pass(late, generation=2, result="r", settled=True).delay_s == 5
    changed = backoff.after_pass(late, generation=1, result="other", settled=True)
    assert changed == Passes(1, "other", count=1, delay_s=5)


def test_the_result_of_a_health_check_is_the_message_of_the_condition() -> None:
    checked = replace(processed(availability=NOT_YET), health="self.a is false")
    status = work_status(WORK, [checked], reports_diff=False, now="t")
    (entry,) = status["manifestConditions"]
    available = entry["conditions"][1]
    assert (available["reason"], available["message"]) == (str(NOT_YET), "self.a is false")
