"""Explains a Work: whether a member has applied its manifests, and the first reason if not. Pure.

The conditions that the member's agent reported decide. Where they are about an earlier generation,
the member's heartbeats show whether a report can be expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import Availability, WorkCondition
from kubeocean.api.fleet.names import ANNOTATION_PARENT_SNAPSHOT, member_of_namespace
from kubeocean.api.fleet.works import ManifestCondition, Work
from kubeocean.fleet.applier.availability import annotated_expression
from kubeocean.fleet.works.views import binding_of_work, placement_of_work
from kubeocean.inspect.explain.member import silence
from kubeocean.inspect.explain.report import (
    Answer,
    Explanation,
    ExplanationRule,
    Section,
    explain_absence,
)
from kubeocean.inspect.fleet.progress import NOT_REPORTED, condition_text, work_problem
from kubeocean.inspect.fleet.tree import object_nodes
from kubeocean.inspect.format import few
from kubeocean.inspect.snapshot import NotRead, failures
from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Key

__all__ = ["CHECKS_REMEDY", "REMEDIES", "WorkDetails", "explain_work"]

_RULES: Final = {
    str(WorkCondition.APPLIED): ExplanationRule.NOT_APPLIED,
    str(WorkCondition.AVAILABLE): ExplanationRule.NOT_AVAILABLE,
    str(WorkCondition.DIFF_REPORTED): ExplanationRule.DIFF_NOT_REPORTED,
}
REMEDIES: Final = {
    ExplanationRule.NOT_APPLIED: (
        "correct these objects on the hub, or grant the member's agent the rights"
    ),
    ExplanationRule.NOT_AVAILABLE: "look at these objects in the member cluster",
    ExplanationRule.DIFF_NOT_REPORTED: (
        "correct these objects on the hub, or grant the agent the rights"
    ),
}
CHECKS_REMEDY: Final = "correct the health checks that could not be evaluated"


@dataclass(frozen=True, slots=True)
class WorkDetails:
    """A Work and the MemberCluster that applies it; None if they do not exist."""

    key: Key
    now: datetime
    work: Work | NotRead | None
    member: MemberCluster | NotRead | None = None

    @property
    def unread(self) -> tuple[NotRead, ...]:
        return failures(self.work, self.member)


def explain_work(details: WorkDetails) -> Explanation:
    """Return the explanation of a Work."""
    about = f"work {details.key}"
    work = details.work
    if work is None or isinstance(work, NotRead):
        return explain_absence(about, "Work", work, details.unread)
    return Explanation.of(
        about,
        _answer(work, details),
        sections=(
            Section("belongs to", _parents(work)),
            Section("conditions", tuple(map(condition_text, work.status.conditions))),
            Section("objects", _objects(work)),
            Section("health checks", _health_checks(work)),
            Section("fields that differ", _fields(work)),
        ),
        unread=details.unread,
    )


def _answer(work: Work, details: WorkDetails) -> Answer:
    silent = _silence(details)
    if work.deleting:
        held = few(work.metadata.finalizers or ()) or "nothing"
        return Answer(
            ExplanationRule.WORK_DELETED,
            f"it is being deleted since {work.metadata.deletion_timestamp}",
            (f"it is held by the finalizers {held}", *silent),
            ("a running agent of the member, which deletes the objects first",),
        )
    problem = work_problem(work)
    if problem is None:
        number = counted(len(work.spec.workload.manifests), "object")
        verdict = f"the member has processed all of it: {number}"
        return Answer(ExplanationRule.WORK_DONE, verdict, silent)
    if problem.reason == NOT_REPORTED:
        if silent:
            remedy = "a running `kubeocean fleet member` in that cluster"
            return Answer(
                ExplanationRule.MEMBER_SILENT, "it waits for its member", silent, (remedy,)
            )
        verdict = f"the member has not reported on its generation {work.metadata.generation} yet"
        return Answer(ExplanationRule.WORK_NOT_REPORTED, verdict)
    rule = _RULES[problem.type]
    bad = tuple(
        f"{node.kind} {Key(node.namespace, node.name)}: {node.state}"
        for node in object_nodes(work)
        if node.status != "True"
    )
    verdict = problem.message or condition_text(problem)
    remedy = REMEDIES[rule]
    if rule is ExplanationRule.NOT_AVAILABLE and _has_failed_check(work):
        remedy = CHECKS_REMEDY
    return Answer(rule, verdict, (*bad, *silent), (remedy,))


def _silence(details: WorkDetails) -> tuple[str, ...]:
    """Return why no report of the member can be expected; empty if there is no known reason."""
    if isinstance(details.member, NotRead):
        return ()
    name = member_of_namespace(details.key.namespace) or details.key.namespace
    if details.member is None:
        return (f"there is no MemberCluster {name}",)
    text = silence(details.member, details.now)
    return (text,) if text else ()


def _parents(work: Work) -> tuple[str, ...]:
    placement, binding = placement_of_work(work), binding_of_work(work)
    snapshot = work.annotations.get(ANNOTATION_PARENT_SNAPSHOT)
    named = (("placement", placement), ("binding", binding), ("resource snapshot", snapshot))
    return tuple(f"{what} {name}" for what, name in named if name)


def _objects(work: Work) -> tuple[str, ...]:
    return tuple(
        f"{node.kind} {Key(node.namespace, node.name)}: {', '.join([node.state, *node.details])}"
        for node in object_nodes(work)
    )


def _health_checks(work: Work) -> tuple[str, ...]:
    """Return the expressions in annotations that decide whether objects are available."""
    nodes = zip(work.spec.workload.manifests, object_nodes(work), strict=True)
    return tuple(
        f"{node.kind} {Key(node.namespace, node.name)}: available when {expression}"
        for manifest, node in nodes
        if (expression := annotated_expression(manifest)) is not None
    )


def _has_failed_check(work: Work) -> bool:
    """Whether the availability of an object could not be computed."""
    return any(
        condition.type == WorkCondition.AVAILABLE and condition.reason == Availability.FAILED
        for report in work.status.manifest_conditions
        for condition in report.conditions
    )


def _fields(work: Work) -> tuple[str, ...]:
    return tuple(line for each in work.status.manifest_conditions for line in _differing(each))


def _differing(report: ManifestCondition) -> list[str]:
    name = Key(report.identifier.namespace, report.identifier.name)
    details = (
        *(report.drift_details.observed_drifts if report.drift_details else ()),
        *(report.diff_details.observed_diffs if report.diff_details else ()),
    )
    return [
        f"{report.identifier.kind} {name} {each.path}:"
        f" {each.value_in_member or 'absent'} in the member, {each.value_in_hub or 'absent'} here"
        for each in details
    ]
