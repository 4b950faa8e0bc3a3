"""Report on a binding: computes its status from the status of its Works.

A condition of a Work counts if it is about the Work's present generation. Programs other than
Kubeocean's agent may write such conditions, with reasons of their own. Lists of single objects are
reported only if all Works of the binding have been processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, ResourceBindingStatus
from kubeocean.api.fleet.conditions import (
    APPLIED,
    AVAILABLE,
    DIFF_REPORTED,
    NO_OVERRIDES,
    OVERRIDDEN,
    ROLLOUT_STARTED,
    WORK_SYNC_FAILED,
    WORK_SYNCHRONIZED,
    PlacementReason,
    WorkCondition,
    WorkReason,
)
from kubeocean.api.fleet.placements import (
    MOST_DETAILS,
    DiffedPlacement,
    DriftedPlacement,
    EnvelopeIdentifier,
    FailedPlacement,
)
from kubeocean.api.fleet.strategies import ApplyStrategyType
from kubeocean.api.fleet.works import ManifestCondition, WorkResourceIdentifier
from kubeocean.fleet.status.fitting import fitted
from kubeocean.fleet.steps import Judgement, chain_of, fresh, settle, walk
from kubeocean.fleet.works.views import CachedWork
from kubeocean.runtime.objects import Condition, Json, find_condition

__all__ = ["awaits_works", "report"]

T = TypeVar("T")

_UNTRACKABLE: Final = frozenset({WorkReason.NOT_TRACKABLE, WorkReason.NOT_ALL_TRACKABLE})


def report(
    binding: Binding,
    works: Sequence[CachedWork],
    *,
    is_latest: bool,
    sync_error: str = "",
    now: str,
) -> ResourceBindingStatus:
    """Return the whole status of a binding.

    :param is_latest: whether the binding has the latest release of a rolling update.
    :param sync_error: why the Works could not be written.
    """
    generation = binding.metadata.generation

    judges: dict[str, Callable[[], Judgement]] = {
        OVERRIDDEN.name: lambda: _judge_overridden(binding),
        WORK_SYNCHRONIZED.name: lambda: _judge_synchronized(sync_error),
        APPLIED.name: lambda: _judge_applied(works),
        AVAILABLE.name: lambda: _judge_available(works),
        DIFF_REPORTED.name: lambda: _judge_diff_reported(works),
    }
    chain = [step for step in chain_of(binding.spec.apply_strategy) if step is not ROLLOUT_STARTED]
    conditions = (
        *_rollout_started(binding, is_latest=is_latest),
        *walk(chain, generation, lambda step: judges[step.name]()),
    )
    settled = settle(_comparable(binding, conditions), conditions, now)
    if sync_error or awaits_works(binding, works):
        return ResourceBindingStatus(conditions=settled)
    if _reports_diff(binding) and settled[-1].status != "True":
        return ResourceBindingStatus(conditions=settled)
    status = ResourceBindingStatus(
        failed_placements=_first(works, _failed),
        drifted_placements=_first(works, _drifted),
        diffed_placements=_first(works, _diffed),
        conditions=settled,
    )
    return fitted(status)


def _comparable(binding: Binding, new: Sequence[Condition]) -> list[Condition]:
    """Return the conditions of a binding whose lastTransitionTime is kept if the new one is equal.

    The time since which untrackable objects count as available begins anew with each generation of
    the binding: the unavailable period of a rolling update is counted from it, for each release.
    """
    available = find_condition(new, AVAILABLE.name)
    if available is None or available.reason != PlacementReason.NOT_ALL_TRACKABLE:
        return list(binding.status.conditions)
    return [
        each
        for each in binding.status.conditions
        if each.type != AVAILABLE.name or each.observed_generation == available.observed_generation
    ]


def _rollout_started(binding: Binding, *, is_latest: bool) -> tuple[Condition, ...]:
    """Return the binding's condition RolloutStarted; True if stale and on the latest release."""
    generation = binding.metadata.generation
    present = find_condition(binding.status.conditions, ROLLOUT_STARTED.name)
    if is_latest and (present is None or present.observed_generation != generation):
        return (
            Condition(
                ROLLOUT_STARTED.name,
                "True",
                ROLLOUT_STARTED.cluster.true,
                "The rollout has started",
                observed_generation=generation,
            ),
        )
    return (present,) if present is not None else ()


def _judge_overridden(binding: Binding) -> Judgement:
    if binding.spec.names_overrides:
        return Judgement("False", OVERRIDDEN.cluster.false, NO_OVERRIDES)
    return Judgement("True", PlacementReason.NO_OVERRIDE, "No override applies")


def _judge_synchronized(sync_error: str) -> Judgement:
    if sync_error:
        message = WORK_SYNC_FAILED.format(error=sync_error)
        return Judgement("False", WORK_SYNCHRONIZED.cluster.false, message)
    return Judgement("True", WORK_SYNCHRONIZED.cluster.true, "All Works are up to date")


def _judge_applied(works: Sequence[CachedWork]) -> Judgement:
    if waiting := _without(works, WorkCondition.APPLIED):
        message = f"Work {waiting[0]} is being applied"
        return Judgement("False", PlacementReason.APPLY_IN_PROGRESS, message)
    if failed := _not_true(works, WorkCondition.APPLIED):
        message = f"Work {failed[0]} is not applied"
        return Judgement("False", APPLIED.cluster.false, message)
    return Judgement("True", APPLIED.cluster.true, "All Works are applied")


def _judge_available(works: Sequence[CachedWork]) -> Judgement:
    if failed := _not_true(works, WorkCondition.AVAILABLE):
        message = f"Work {failed[0]} is not available"
        return Judgement("False", AVAILABLE.cluster.false, message)
    reasons = {
        condition.reason
        for work in works
        if (condition := find_condition(work.status.conditions, WorkCondition.AVAILABLE))
    }
    if reasons & _UNTRACKABLE:
        message = "Not all objects can be tracked"
        return Judgement("True", PlacementReason.NOT_ALL_TRACKABLE, message)
    return Judgement("True", AVAILABLE.cluster.true, "All Works are available")


def _judge_diff_reported(works: Sequence[CachedWork]) -> Judgement:
    if waiting := _without(works, WorkCondition.DIFF_REPORTED):
        message = f"Work {waiting[0]} is being compared"
        return Judgement("False", PlacementReason.DIFF_IN_PROGRESS, message)
    if failed := _not_true(works, WorkCondition.DIFF_REPORTED):
        message = f"Work {failed[0]} could not be compared"
        return Judgement("False", DIFF_REPORTED.cluster.false, message)
    return Judgement("True", DIFF_REPORTED.cluster.true, "All Works are compared")


def _without(works: Iterable[CachedWork], type_: str) -> list[str]:
    """Return the names of Works without the condition `type_` about their present generation."""
    return [
        work.name
        for work in works
        if fresh(work.status.conditions, type_, work.metadata.generation) is None
    ]


def _not_true(works: Iterable[CachedWork], type_: str) -> list[str]:
    return [
        work.name
        for work in works
        if (condition := fresh(work.status.conditions, type_, work.metadata.generation)) is None
        or condition.status != "True"
    ]


def _reports_diff(binding: Binding) -> bool:
    return binding.spec.apply_strategy.type == ApplyStrategyType.REPORT_DIFF


def awaits_works(binding: Binding, works: Iterable[CachedWork]) -> bool:
    """Whether a Work has no condition Applied or DiffReported for its present generation."""
    reports_diff = _reports_diff(binding)
    type_ = WorkCondition.DIFF_REPORTED if reports_diff else WorkCondition.APPLIED
    return bool(_without(works, type_))


# Single objects


def _first(
    works: Iterable[CachedWork],
    entry: Callable[[CachedWork, ManifestCondition], T | None],
) -> tuple[T, ...]:
    entries = (
        found
        for work in works
        for manifest in work.status.manifest_conditions
        if (found := entry(work, manifest)) is not None
    )
    return tuple(each for each, _ in zip(entries, range(MOST_DETAILS), strict=False))


def _identity(work: CachedWork, identifier: WorkResourceIdentifier) -> Json:
    envelope: EnvelopeIdentifier | None = None
    if type_ := work.labels.get(names.LABEL_ENVELOPE_TYPE):
        envelope = EnvelopeIdentifier(
            name=work.labels.get(names.LABEL_ENVELOPE_NAME, ""),
            namespace=work.labels.get(names.LABEL_ENVELOPE_NAMESPACE, ""),
            type=type_,
        )
    return {
        "group": identifier.group,
        "version": identifier.version,
        "kind": identifier.kind,
        "name": identifier.name,
        "namespace": identifier.namespace,
        "envelope": envelope,
    }


def _failed(work: CachedWork, manifest: ManifestCondition) -> FailedPlacement | None:
    for type_ in (WorkCondition.APPLIED, WorkCondition.AVAILABLE):
        condition = find_condition(manifest.conditions, type_)
        if condition is not None and condition.status == "False":
            return FailedPlacement(**_identity(work, manifest.identifier), condition=condition)
    return None


def _drifted(work: CachedWork, manifest: ManifestCondition) -> DriftedPlacement | None:
    details = manifest.drift_details
    if details is None:
        return None
    return DriftedPlacement(
        **_identity(work, manifest.identifier),
        observation_time=details.observation_time,
        target_cluster_observed_generation=details.observed_in_member_cluster_generation,
        first_drifted_observed_time=details.first_drifted_observed_time,
        observed_drifts=details.observed_drifts,
    )


def _diffed(work: CachedWork, manifest: ManifestCondition) -> DiffedPlacement | None:
    details = manifest.diff_details
    if details is None:
        return None
    return DiffedPlacement(
        **_identity(work, manifest.identifier),
        observation_time=details.observation_time,
        target_cluster_observed_generation=details.observed_in_member_cluster_generation,
        first_diffed_observed_time=details.first_diffed_observed_time,
        observed_diffs=details.observed_diffs,
    )
