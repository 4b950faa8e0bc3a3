"""Progress of placements, bindings, Works and manifests: the first step that is not complete. Pure.

A condition about an older generation counts as not reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.conditions import (
    STATUS_REPORTED_BACK,
    STATUS_SYNCED,
    WorkCondition,
)
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import ClusterPlacementStatus, Placement
from kubeocean.api.fleet.strategies import ApplyStrategyType
from kubeocean.api.fleet.works import ManifestCondition, Work
from kubeocean.fleet.status.placement import expected_types
from kubeocean.fleet.steps import chain_of, first_unfinished, fresh
from kubeocean.runtime.objects import Condition, Key, find_condition

__all__ = [
    "NOT_REPORTED",
    "binding_problem",
    "condition_text",
    "failed_object",
    "manifest_problem",
    "placement_problem",
    "work_problem",
    "work_steps",
]

NOT_REPORTED: Final = "NotReported"  # reason of a condition that is not written yet
_APPLY: Final = (WorkCondition.APPLIED, WorkCondition.AVAILABLE)
_REPORT_DIFF: Final = (WorkCondition.DIFF_REPORTED,)


def placement_problem(placement: Placement) -> Condition | None:
    """Return the first condition of a placement that is not True; None if it is complete.

    The conditions about copies of statuses come after those of placing. They exist only if the spec
    asks for copies, so that their absence is no problem.
    """
    conditions, generation = placement.status.conditions, placement.metadata.generation
    types = expected_types(placement, placement.status)
    if (problem := _first(conditions, types, generation, "the hub")) is not None:
        return problem
    for type_ in (STATUS_SYNCED, f"{scope_of(placement.key).prefix}{STATUS_REPORTED_BACK}"):
        condition = fresh(conditions, type_, generation)
        if condition is not None and condition.status != "True":
            return condition
    return None


def binding_problem(binding: Binding) -> Condition | None:
    """Return the first condition of a binding that is not True; None if it is complete."""
    types = [step.name for step in chain_of(binding.spec.apply_strategy)]
    return _first(binding.status.conditions, types, binding.metadata.generation, "the hub")


def work_problem(work: Work) -> Condition | None:
    """Return the first condition of a Work that is not True; None if it is complete."""
    return _first(
        work.status.conditions, work_steps(work), work.metadata.generation, "the member's agent"
    )


def work_steps(work: Work) -> tuple[str, ...]:
    """Return the condition types that a Work should have, in order."""
    is_diff = work.spec.apply_strategy.type == ApplyStrategyType.REPORT_DIFF
    return _REPORT_DIFF if is_diff else _APPLY


def manifest_problem(report: ManifestCondition | None, steps: Iterable[str]) -> Condition | None:
    """Return the first condition of a manifest that is not True; None if it is complete."""
    conditions = report.conditions if report is not None else ()
    for type_ in steps:
        condition = find_condition(conditions, type_)
        if condition is None:
            return Condition(type_, "Unknown", NOT_REPORTED, "the member's agent has not reported")
        if condition.status != "True":
            return condition
    return None


def condition_text(condition: Condition) -> str:
    """Return a condition as text: `Applied False (ApplyFailed): message`."""
    text = f"{condition.type} {condition.status} ({condition.reason})"
    return f"{text}: {condition.message}" if condition.message else text


def failed_object(entry: ClusterPlacementStatus) -> str:
    """Return the first object that failed on a cluster with its condition; empty if none failed."""
    if not entry.failed_placements:
        return ""
    failed = entry.failed_placements[0]
    name = Key(failed.namespace, failed.name)
    return f"{failed.kind} {name}: {condition_text(failed.condition)}"


def _first(
    conditions: Iterable[Condition], types: Iterable[str], generation: int, writer: str
) -> Condition | None:
    unfinished = first_unfinished(conditions, types, generation)
    if unfinished is None:
        return None
    type_, condition = unfinished
    message = f"{writer} has not reported on generation {generation}"
    return condition or Condition(type_, "Unknown", NOT_REPORTED, message)
