"""Explanations of Works, from snapshots of the hub."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.clusters import AgentStatus, MemberCluster, MemberStatus
from kubeocean.api.fleet.names import ANNOTATION_AVAILABLE_WHEN
from kubeocean.api.fleet.placements import PatchDetail
from kubeocean.api.fleet.works import DiffDetails, DriftDetails, Work, WorkloadTemplate, WorkSpec
from kubeocean.inspect.explain.report import Explanation, ExplanationRule
from kubeocean.inspect.explain.work import WorkDetails, explain_work
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.clock import instant_of, text_of
from kubeocean.runtime.objects import Condition, Key
from support.fleet_objects import member
from unit.fleet.placements.builders import NOW, REPORT_DIFF, steps
from unit.inspect.fleet.test_tree import WORK_STEPS, a_work, manifest, report

TIME: datetime = instant_of(NOW)
BAD = Condition("Applied", "False", "SomeManifestsAreNotApplied", "1 of 2", observed_generation=1)
REFUSED = Condition("Applied", "False", "ManifestApplyFailed", "no rights")


def heard(*, age_s: float = 5) -> MemberCluster:
    heartbeat = text_of(TIME - timedelta(seconds=age_s))
    return member(
        "a", status=MemberStatus(agent_status=(AgentStatus("MemberAgent", (), heartbeat),))
    )


def explained(work: Work | NotRead | None, **parts: Any) -> Explanation:
    parts.setdefault("member", heard())
    return explain_work(WorkDetails(Key("fleet-member-a", "app-work"), TIME, work, **parts))


@pytest.mark.parametrize(
    ("work", "rule"),
    [
        (None, ExplanationRule.NOT_FOUND),
        (NotRead("works", "no answer"), ExplanationRule.NOT_READ),
        (a_work("a"), ExplanationRule.WORK_DONE),
        (a_work("a", conditions=()), ExplanationRule.WORK_NOT_REPORTED),
        (
            a_work("a", conditions=steps(*WORK_STEPS, generation=7)),
            ExplanationRule.WORK_NOT_REPORTED,
        ),
        (a_work("a", conditions=(BAD,)), ExplanationRule.NOT_APPLIED),
        (a_work("a", conditions=steps(*WORK_STEPS, last="False")), ExplanationRule.NOT_AVAILABLE),
    ],
)
def test_the_first_condition_that_is_not_true_decides(work: Any, rule: ExplanationRule) -> None:
    assert explained(work).rule is rule


def test_each_object_that_failed_is_a_reason() -> None:
    work = a_work("a", report(0, *steps(*WORK_STEPS)), report(1, REFUSED), conditions=(BAD,))
    found = explained(work)
    assert found.verdict == "1 of 2"
    assert found.reasons == ("ConfigMap ns/c1: Applied False (ManifestApplyFailed): no rights",)
    sections = {each.title: each.lines for each in found.sections}
    assert sections["belongs to"] == ("placement app", "binding app-a-00000000")
    assert sections["objects"][0] == "ConfigMap ns/c0: complete"


def test_health_checks_are_shown_with_the_reason_and_the_remedy() -> None:
    expression = "self.status.phase == 'Ready'"
    work = a_work("a", conditions=steps(*WORK_STEPS, last="False"))
    annotated = manifest("c0") | {
        "metadata": {
            "name": "c0",
            "namespace": "ns",
            "annotations": {ANNOTATION_AVAILABLE_WHEN: expression},
        }
    }
    spec = WorkSpec(WorkloadTemplate((annotated, manifest("c1"))))
    applied = steps(WORK_STEPS[0])
    for reason, remedy in (
        ("ManifestNotAvailableYet", "look at these objects in the member cluster"),
        ("Failed", "correct the health checks that could not be evaluated"),
    ):
        not_yet = Condition("Available", "False", reason, f"{expression} is false")
        reports = report(0, *applied, not_yet), report(1, *steps(*WORK_STEPS))
        status = msgspec.structs.replace(work.status, manifest_conditions=reports)
        found = explained(msgspec.structs.replace(work, spec=spec, status=status))
        assert found.rule is ExplanationRule.NOT_AVAILABLE
        assert found.reasons == (
            f"ConfigMap ns/c0: Available False ({reason}): {expression} is false",
        )
        assert found.remedies == (remedy,)
        sections = {each.title: each.lines for each in found.sections}
        assert sections["health checks"] == (f"ConfigMap ns/c0: available when {expression}",)
    (section,) = (each for each in explained(a_work("a")).sections if "checks" in each.title)
    assert section.lines == ()


def test_a_work_of_a_silent_member_waits_for_it() -> None:
    found = explained(a_work("a", conditions=()), member=heard(age_s=3600))
    assert found.rule is ExplanationRule.MEMBER_SILENT
    assert "the last one was 60 min ago" in found.reasons[0]
    gone = explained(a_work("a", conditions=()), member=None)
    assert gone.reasons == ("there is no MemberCluster a",)


def test_nothing_follows_from_a_member_that_was_not_read() -> None:
    refused = NotRead("MemberCluster a", "forbidden", forbidden=True)
    found = explained(a_work("a", conditions=()), member=refused)
    assert found.rule is ExplanationRule.WORK_NOT_REPORTED
    assert found.unread == ("MemberCluster a: forbidden",)


def test_a_deletion_names_what_holds_it() -> None:
    work = a_work("a")
    metadata = msgspec.structs.replace(
        work.metadata, deletion_timestamp=NOW, finalizers=("example.com/mine",)
    )
    found = explained(msgspec.structs.replace(work, metadata=metadata))
    assert found.rule is ExplanationRule.WORK_DELETED
    assert "example.com/mine" in found.reasons[0]


def test_fields_that_differ_are_listed() -> None:
    drifted = DriftDetails(observed_drifts=(PatchDetail("/data/x", "1", "2"),))
    different = DiffDetails(observed_diffs=(PatchDetail("/data/y", "", "3"),))
    work = a_work(
        "a",
        report(0, *steps(*WORK_STEPS), drift_details=drifted),
        report(1, *steps(*WORK_STEPS), diff_details=different),
    )
    (fields,) = (each.lines for each in explained(work).sections if "differ" in each.title)
    assert fields[0].endswith("/data/x: 1 in the member, 2 here")
    assert fields[1].endswith("/data/y: absent in the member, 3 here")


def test_a_work_that_only_reports_differences() -> None:
    work = a_work("a", conditions=steps("DiffReported"))
    spec = msgspec.structs.replace(work.spec, apply_strategy=REPORT_DIFF)
    assert explained(msgspec.structs.replace(work, spec=spec)).rule is ExplanationRule.WORK_DONE
    status = msgspec.structs.replace(work.status, conditions=steps("DiffReported", last="False"))
    unfinished = msgspec.structs.replace(work, spec=spec, status=status)
    assert explained(unfinished).rule is ExplanationRule.DIFF_NOT_REPORTED
