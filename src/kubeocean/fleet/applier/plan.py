"""Plan: the next write or result for one manifest. Pure.

`decide` is called with `ManifestFacts` and returns the next step. The caller carries the step out
and calls `decide` again with the new facts, until the step is a `Finish`:

    Compare   dry-run the server-side apply; call again with its result
    Adopt     patch the owner references; call again with the object that the member returned
    OwnFields patch the field managers; call again with the object that the member returned
    Create, Patch, Apply, Keep
              write the object (Keep: nothing to write); report `applied` with the returned object,
              or `failed` with the error
    Finish    report this result

The order of the rules, first match wins:

    no object in the member         ReportDiff: the whole object differs; a Job that has finished
                                    and was removed by its TTL: applied; else Create
    ReportDiff                      compare, report, write nothing
    a copy made by leasing          FailedToTakeOver, with any owners
    not owned, whenToTakeOver Never NotTakenOver
    owned by another AppliedWork    FailedToTakeOver (ManifestApplyFailed if owned by us as well)
    other owners, no co-ownership   FailedToTakeOver (ManifestApplyFailed if owned by us as well)
    not owned, IfNoDiff             compare; differences: FailedToTakeOver with diffs
    IfNotDrifted, same manifest     compare; differences: FoundDrifts
    otherwise                       apply, client-side or server-side

An owner reference to an AppliedWork whose Work is not in the member's namespace on the hub is stale
(the member left the fleet and joined again): a stale reference counts as no owner and is removed.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from kubeocean.api.fleet.conditions import ManifestReason
from kubeocean.api.fleet.names import (
    ANNOTATION_LAST_APPLIED,
    ANNOTATION_SPEC_HASH,
    FIELD_MANAGER,
)
from kubeocean.api.fleet.strategies import (
    ApplyStrategy,
    ApplyStrategyType,
    ComparisonOption,
    WhenToApply,
    WhenToTakeOver,
)
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.diff import WHOLE_OBJECT, FieldDifference, differences
from kubeocean.fleet.applier.manifests import (
    Manifest,
    Owner,
    Rejected,
    is_applied_work,
    last_applied,
    prepared,
    sanitised,
    spec_hash,
)
from kubeocean.fleet.applier.merge_keys import shape_of
from kubeocean.fleet.applier.server_side import (
    fields_as_applied,
    is_in_effect,
    is_written_by_applier,
)
from kubeocean.fleet.applier.three_way import json_merge, strategic
from kubeocean.runtime.client import ApplyPatch, MergePatch, StrategicPatch
from kubeocean.runtime.objects import Json

__all__ = [
    "Adopt",
    "Apply",
    "Compare",
    "Create",
    "DryRun",
    "Finish",
    "Keep",
    "ManifestFacts",
    "NextStep",
    "OwnFields",
    "PatchObject",
    "Result",
    "applied",
    "check_strategy",
    "decide",
    "failed",
    "is_leasing_copy",
    "not_read",
    "rejected",
]


# --- results


@dataclass(frozen=True, slots=True)
class Result:
    """The result for a manifest. `live` is the object in the member; None if it does not exist."""

    reason: ManifestReason
    error: str = ""
    live: Json | None = None
    drifts: tuple[FieldDifference, ...] = ()
    diffs: tuple[FieldDifference, ...] = ()


# --- steps


@dataclass(frozen=True, slots=True)
class DryRun:
    """The outcome of dry-running a forced server-side apply."""

    body: Json | None = None  # the object that would result
    invalid: bool = False  # the server finds the manifest invalid for this object
    error: str = ""  # any other error


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The input of `decide`: a manifest, its object in the member, and the apply strategy."""

    manifest: Manifest
    live: Json | None
    owner: Owner
    strategy: ApplyStrategy
    hub_works: Container[str]  # names of the Works in the member's namespace on the hub
    dry_run: DryRun | None = None
    copied_by_leasing: bool = False  # the live object is a copy that a ClusterBinding made
    has_finished: bool = False  # the manifest is a Job that has finished and was removed by its TTL


@dataclass(frozen=True, slots=True)
class Compare:
    """Step of a plan: dry-run this server-side apply, and decide again with its outcome."""

    patch: ApplyPatch


@dataclass(frozen=True, slots=True)
class Adopt:
    """Step of a plan: patch the owner references of the object, and decide again."""

    patch: MergePatch


@dataclass(frozen=True, slots=True)
class OwnFields:
    """Step of a plan: record the applier's fields as server-side applied, and decide again.

    Otherwise a server-side apply would not remove those that the manifest no longer has.
    """

    patch: MergePatch


@dataclass(frozen=True, slots=True)
class Create:
    """Step of a plan: create this object."""

    body: Json


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Step of a plan: send this patch, the result of a three-way merge."""

    patch: StrategicPatch | MergePatch


@dataclass(frozen=True, slots=True)
class Apply:
    """Step of a plan: apply this object server-side."""

    patch: ApplyPatch


@dataclass(frozen=True, slots=True)
class Keep:
    """Step of a plan: write nothing, because the object matches its manifest."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Last step of a plan: write nothing and report this result."""

    result: Result


NextStep: TypeAlias = Compare | Adopt | OwnFields | Create | PatchObject | Apply | Keep | Finish


def check_strategy(strategy: ApplyStrategy) -> None:
    """Refuse an apply strategy with values of a newer API that this applier does not support.

    :raises ConfigError: a value is not one that the API has.
    """
    choices: tuple[tuple[str, str, type[StrEnum]], ...] = (
        ("type", strategy.type, ApplyStrategyType),
        ("comparisonOption", strategy.comparison_option, ComparisonOption),
        ("whenToApply", strategy.when_to_apply, WhenToApply),
        ("whenToTakeOver", strategy.when_to_take_over, WhenToTakeOver),
    )
    for field, value, options in choices:
        if value not in tuple(options):
            message = f"must be one of {', '.join(options)}"
            raise ConfigError(message, field=f"applyStrategy.{field}", value=value)


def decide(facts: ManifestFacts) -> NextStep:
    """Return the next step to apply or compare a manifest, by the rules of the module."""
    live, strategy = facts.live, facts.strategy
    if live is None:
        return _decide_missing(facts)
    if strategy.type == ApplyStrategyType.REPORT_DIFF:
        return _report_diff(facts, live)
    if facts.copied_by_leasing:
        return _refuse(
            ManifestReason.FAILED_TO_TAKE_OVER,
            live,
            "the object is a copy that a ClusterBinding keeps",
        )
    others = _co_owners(facts, live)
    owned = any(facts.owner.is_named_by(reference) for reference in _references(live))
    if not owned and strategy.when_to_take_over == WhenToTakeOver.NEVER:
        error = "the object exists, is not owned by the fleet, and whenToTakeOver is Never"
        return _refuse(ManifestReason.NOT_TAKEN_OVER, live, error)
    if error := _ownership_problem(others, strategy):
        reason = ManifestReason.APPLY_FAILED if owned else ManifestReason.FAILED_TO_TAKE_OVER
        return _refuse(reason, live, error)
    checks = []
    if not owned and strategy.when_to_take_over == WhenToTakeOver.IF_NO_DIFF:
        checks.append(_check_take_over)
    if strategy.when_to_apply == WhenToApply.IF_NOT_DRIFTED and _is_same_manifest(facts, live):
        checks.append(_check_drift)
    if checks:
        outcome = _compared(facts, live)
        if isinstance(outcome, Compare):
            return outcome
        for check in checks:
            if (result := check(outcome, live)) is not None:
                return Finish(result)
    return _write(facts, live, others)


def _decide_missing(facts: ManifestFacts) -> NextStep:
    if facts.strategy.type == ApplyStrategyType.REPORT_DIFF:
        return Finish(Result(ManifestReason.FOUND_DIFF, diffs=(WHOLE_OBJECT,)))
    if facts.has_finished:
        return Finish(Result(ManifestReason.APPLIED))
    remember = facts.strategy.type == ApplyStrategyType.CLIENT_SIDE_APPLY
    return Create(prepared(facts.manifest.body, facts.owner, remember=remember).body)


def _refuse(reason: ManifestReason, live: Json, error: str) -> Finish:
    return Finish(Result(reason, error, live))


# --- ownership


def _references(live: Json) -> list[Json]:
    return list((live.get("metadata") or {}).get("ownerReferences") or ())


def _co_owners(facts: ManifestFacts, live: Json) -> list[Json]:
    """Return the object's owner references that are neither the AppliedWork's nor stale."""
    return [
        reference
        for reference in _references(live)
        if not facts.owner.is_named_by(reference) and not _is_stale(reference, facts)
    ]


def _is_stale(reference: Json, facts: ManifestFacts) -> bool:
    """Whether an owner reference is to an AppliedWork whose Work is gone, or an older namesake."""
    name = reference.get("name")
    return is_applied_work(reference) and (name == facts.owner.name or name not in facts.hub_works)


def _ownership_problem(others: list[Json], strategy: ApplyStrategy) -> str:
    if any(is_applied_work(reference) for reference in others):
        return "the object is placed by another Work as well"
    if others and not strategy.allow_co_ownership:
        owners = ", ".join(f"{each.get('kind')} {each.get('name')}" for each in others)
        return f"the object is owned by {owners} and allowCoOwnership is false"
    return ""


def is_leasing_copy(live: Json, domain: Domain) -> bool:
    """Whether a syncer created the object as a copy of a virtual one; such copies stay as is."""
    labels = (live.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(domain.managed_by) == domain.product)


# --- comparison


@dataclass(frozen=True, slots=True)
class _Compared:
    differences: tuple[FieldDifference, ...] = ()
    degraded: bool = False
    error: str = ""


def _compared(facts: ManifestFacts, live: Json) -> Compare | _Compared:
    """Compare the manifest with the object, or return the dry run that the comparison needs."""
    if facts.strategy.comparison_option == ComparisonOption.FULL:
        return _Compared(differences(facts.manifest.body, live))
    if facts.dry_run is None:
        return Compare(ApplyPatch(sanitised(facts.manifest.body), force=True))
    if facts.dry_run.invalid:
        return _Compared(differences(facts.manifest.body, live), degraded=True)
    if facts.dry_run.body is None:
        return _Compared(error=facts.dry_run.error)
    return _Compared(differences(facts.dry_run.body, live))


def _report_diff(facts: ManifestFacts, live: Json) -> NextStep:
    outcome = _compared(facts, live)
    if isinstance(outcome, Compare):
        return outcome
    if outcome.error:
        return _refuse(ManifestReason.FAILED_TO_REPORT_DIFF, live, outcome.error)
    if not outcome.differences:
        return Finish(Result(ManifestReason.NO_DIFF_FOUND, live=live))
    reason = ManifestReason.FOUND_DIFF_DEGRADED if outcome.degraded else ManifestReason.FOUND_DIFF
    return Finish(Result(reason, live=live, diffs=outcome.differences))


def _check_take_over(outcome: _Compared, live: Json) -> Result | None:
    if outcome.error:
        return Result(ManifestReason.FAILED_TO_TAKE_OVER, outcome.error, live)
    if outcome.differences:
        error = f"the object differs from the manifest{_degraded(outcome)}"
        return Result(ManifestReason.FAILED_TO_TAKE_OVER, error, live, diffs=outcome.differences)
    return None


def _check_drift(outcome: _Compared, live: Json) -> Result | None:
    if outcome.error:
        return Result(ManifestReason.FAILED_TO_RUN_DRIFT_DETECTION, outcome.error, live)
    if outcome.differences:
        reason = (
            ManifestReason.FOUND_DRIFTS_DEGRADED
            if outcome.degraded
            else ManifestReason.FOUND_DRIFTS
        )
        error = f"the object has drifted from the manifest{_degraded(outcome)}"
        return Result(reason, error, live, drifts=outcome.differences)
    return None


def _degraded(outcome: _Compared) -> str:
    return " (all fields compared, as the manifest is not valid here)" if outcome.degraded else ""


def _is_same_manifest(facts: ManifestFacts, live: Json) -> bool:
    """Whether the manifest is the one applied last, by the hash in the object's annotation."""
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    return annotations.get(ANNOTATION_SPEC_HASH) == spec_hash(facts.manifest.body)


# --- writing


def _write(facts: ManifestFacts, live: Json, others: list[Json]) -> NextStep:
    strategy, body = facts.strategy, facts.manifest.body
    client_side, fits = strategy.type == ApplyStrategyType.CLIENT_SIDE_APPLY, False
    if client_side:
        desired, fits = prepared(body, facts.owner, remember=True, co_owners=others)
        if fits and not _needs_server_side(live):
            return _three_way(facts, live, desired)
    if any(not facts.owner.is_named_by(r) and r not in others for r in _references(live)):
        # Server-side apply removes only fields of its own manager, and so no stale reference.
        references = [*others, facts.owner.reference()]
        return Adopt(_metadata_patch(live, ownerReferences=references))
    desired = prepared(body, facts.owner, remember=client_side).body
    if is_in_effect(desired, live):
        return Keep()
    if (managed_fields := fields_as_applied(live)) is not None:
        return OwnFields(_metadata_patch(live, managedFields=managed_fields))
    if strategy.when_to_apply == WhenToApply.IF_NOT_DRIFTED:
        desired["metadata"]["resourceVersion"] = live["metadata"].get("resourceVersion")
    # Client-side apply overwrites fields of other managers; without room for its annotation, not.
    configured = fits if client_side else strategy.forces_conflicts
    return Apply(ApplyPatch(desired, force=configured or _is_managed_by_us_alone(live)))


def _metadata_patch(live: Json, **fields: list[Json]) -> MergePatch:
    version = live["metadata"].get("resourceVersion")
    return MergePatch({"metadata": {**fields, "resourceVersion": version}})


def _needs_server_side(live: Json) -> bool:
    """Whether only a server-side apply can remove fields that the manifest no longer has.

    A three-way merge needs the last manifest, which an object has only after a client-side apply.
    """
    annotations = live["metadata"].get("annotations") or {}
    return not annotations.get(ANNOTATION_LAST_APPLIED) and is_written_by_applier(live)


def _three_way(facts: ManifestFacts, live: Json, desired: Json) -> PatchObject | Keep:
    """Return the three-way merge patch, with the resourceVersion that it was computed from.

    Owner references that `desired` does not have are removed from the object.
    """
    last = last_applied(live)
    remembered = last.get("metadata")
    remembered = remembered if isinstance(remembered, dict) else {}
    last = {**last, "metadata": {**remembered, "ownerReferences": _references(live)}}
    shape = shape_of(facts.manifest.api_version, facts.manifest.identifier.kind)
    if shape is not None:
        patch = strategic(last, desired, live, shape)
    else:
        patch = json_merge(last, _with_foreign_finalizers(last, desired, live), live)
    if not patch:
        return Keep()
    version = live["metadata"].get("resourceVersion")
    patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": version}
    return PatchObject(StrategicPatch(patch) if shape is not None else MergePatch(patch))


def _with_foreign_finalizers(last: Json, desired: Json, live: Json) -> Json:
    """Return `desired` with the finalizers that other programs added to the live object.

    A JSON merge patch would replace the list.
    """
    wanted = desired["metadata"].get("finalizers")
    if not wanted:
        return desired
    remembered = last["metadata"].get("finalizers")
    known = [*wanted, *(remembered if isinstance(remembered, list) else ())]
    foreign = [each for each in live["metadata"].get("finalizers") or () if each not in known]
    return {**desired, "metadata": {**desired["metadata"], "finalizers": [*wanted, *foreign]}}


_FIRST_APPLY: Final = "before-first-apply"  # what a server lists for an object without managers


def _is_managed_by_us_alone(live: Json) -> bool:
    """Whether the applier is the only field manager, so that a forced apply overwrites no other's
    fields.
    """
    entries = (live.get("metadata") or {}).get("managedFields") or ()
    return all(entry.get("manager") in (FIELD_MANAGER, _FIRST_APPLY) for entry in entries)


# --- results of steps that were carried out


def applied(facts: ManifestFacts, returned: Json) -> Result:
    """Return the result of a successful write; `returned` is the object as written.

    With full comparison the object is compared once more: other programs may have added fields
    that the apply left alone. Such drifts are reported and are no error.
    """
    drifts: tuple[FieldDifference, ...] = ()
    if facts.strategy.comparison_option == ComparisonOption.FULL:
        drifts = differences(facts.manifest.body, returned)
    return Result(ManifestReason.APPLIED, live=returned, drifts=drifts)


def failed(facts: ManifestFacts, step: NextStep, error: str) -> Result:
    """Return the result of a write that the member's API server refused or did not answer."""
    adopting = isinstance(step, Adopt)
    return Result(
        ManifestReason.FAILED_TO_TAKE_OVER if adopting else ManifestReason.APPLY_FAILED,
        error,
        facts.live,
    )


def not_read(error: str) -> Result:
    """Return the result for a manifest whose object could not be read from the member."""
    return Result(ManifestReason.FAILED_TO_FIND_OBJECT, error)


def rejected(manifest: Rejected) -> Result:
    """Return the result for a manifest that cannot be processed."""
    return Result(manifest.reason, manifest.error)
