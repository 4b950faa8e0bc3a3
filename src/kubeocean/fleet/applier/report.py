"""Report: the status of a Work and of its AppliedWork.

The status is built anew on every pass from the results of the manifests; of the old status only
times are kept: when a condition last changed, and when a drift or diff was first observed. Nothing
else of it survives, so a damaged status is whole again after one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.fleet.conditions import (
    APPLY_FAILED,
    Availability,
    ManifestReason,
    WorkCondition,
    WorkReason,
)
from kubeocean.api.fleet.limits import WORK_BYTES
from kubeocean.fleet.applier.diff import observed
from kubeocean.fleet.applier.manifests import Identifier
from kubeocean.fleet.applier.plan import Result
from kubeocean.runtime.objects import Json, encode

__all__ = [
    "Processed",
    "applied_work_status",
    "back_reported",
    "work_status",
]


@dataclass(frozen=True, slots=True)
class Processed:
    """A manifest after a pass; `availability` is None if the manifest was not applied."""

    identifier: Identifier
    result: Result
    availability: Availability | None = None
    back_reported_status: Json | None = None

    @property
    def generation(self) -> int | None:
        """The generation of the object in the member; 0 for kinds without, None for no object."""
        if self.result.live is None:
            return None
        return int((self.result.live.get("metadata") or {}).get("generation") or 0)


def work_status(
    work: Json, processed: Sequence[Processed], *, reports_diff: bool, now: str
) -> Json:
    """Return the whole status of a Work.

    If the Work would grow too large, details of drifts and diffs and back-reported statuses are
    dropped, and the condition StatusTrimmed is added.
    """
    old: Json = work.get("status") or {}
    generation = int((work.get("metadata") or {}).get("generation") or 0)
    known = {
        Identifier.from_json(entry.get("identifier") or {}).unplaced: entry
        for entry in old.get("manifestConditions") or ()
    }
    entries = [
        _manifest_entry(each, known.get(each.identifier.unplaced, {}), reports_diff, now)
        for each in processed
    ]
    conditions = _work_conditions(processed, reports_diff)
    status = _status(conditions, entries, old, generation, now)
    excess = len(encode({**work, "status": status})) - WORK_BYTES
    if excess <= 0:
        return status
    message = f"details were dropped: {excess} bytes over the limit of {WORK_BYTES}"
    conditions.append((WorkCondition.STATUS_TRIMMED, "True", WorkReason.OVERSIZED, message))
    return _status(conditions, [_trimmed(entry) for entry in entries], old, generation, now)


Judgement = tuple[str, str, str, str]  # type, status, reason, message


def _status(
    conditions: Iterable[Judgement], entries: list[Json], old: Json, generation: int, now: str
) -> Json:
    settled = _settled(conditions, old.get("conditions") or (), generation, now)
    status: Json = {"conditions": settled}
    if entries:
        status["manifestConditions"] = entries
    return status


def _work_conditions(processed: Sequence[Processed], reports_diff: bool) -> list[Judgement]:
    total = len(processed)
    if reports_diff:
        reported = sum(each.result.reason.is_diff_reported for each in processed)
        if reported == total:
            return [
                (WorkCondition.DIFF_REPORTED, "True", WorkReason.ALL_DIFF_REPORTED, "all compared")
            ]
        message = f"{reported} of {total} manifests could be compared"
        return [(WorkCondition.DIFF_REPORTED, "False", WorkReason.NOT_ALL_DIFF_REPORTED, message)]
    applied = sum(each.result.reason.is_applied for each in processed)
    if applied < total:
        message = f"{applied} of {total} manifests are applied"
        return [(WorkCondition.APPLIED, "False", WorkReason.NOT_ALL_APPLIED, message)]
    return [
        (WorkCondition.APPLIED, "True", WorkReason.ALL_APPLIED, "all manifests are applied"),
        _work_availability(processed),
    ]


def _work_availability(processed: Sequence[Processed]) -> Judgement:
    total = len(processed)
    available = sum(
        each.availability is not None and each.availability.counts_as_available
        for each in processed
    )
    if available < total:
        message = f"{available} of {total} manifests are available"
        return WorkCondition.AVAILABLE, "False", WorkReason.NOT_ALL_AVAILABLE, message
    if any(each.availability is Availability.NOT_TRACKABLE for each in processed):
        return (
            WorkCondition.AVAILABLE,
            "True",
            WorkReason.NOT_TRACKABLE,
            "some manifests are not trackable",
        )
    return WorkCondition.AVAILABLE, "True", WorkReason.ALL_AVAILABLE, "all manifests are available"


# --- one manifest


def _manifest_entry(each: Processed, old: Json, reports_diff: bool, now: str) -> Json:
    judgements = [_diff_reported(each.result)] if reports_diff else _applied(each)
    entry: Json = {
        "identifier": each.identifier.to_json(),
        "conditions": _settled(judgements, old.get("conditions") or (), each.generation or 0, now),
    }
    drift = observed(
        "Drift",
        each.result.drifts,
        old=old.get("driftDetails"),
        generation=each.generation or 0,
        now=now,
    )
    diff = observed(
        "Diff", each.result.diffs, old=old.get("diffDetails"), generation=each.generation, now=now
    )
    if drift is not None:
        entry["driftDetails"] = drift
    if diff is not None:
        entry["diffDetails"] = diff
    if each.back_reported_status is not None:
        entry["backReportedStatus"] = each.back_reported_status
    return entry


def _applied(each: Processed) -> list[Judgement]:
    result = each.result
    if not result.reason.is_applied:
        message = APPLY_FAILED.format(error=result.error)
        if result.reason is ManifestReason.PREPARING:
            message = "the manifest is about to be processed"
        return [(WorkCondition.APPLIED, "False", result.reason, message)]
    judgements: list[Judgement] = [
        (WorkCondition.APPLIED, "True", result.reason, "the manifest is applied")
    ]
    match each.availability:
        case None:
            pass
        case Availability.AVAILABLE:
            judgements.append(
                (WorkCondition.AVAILABLE, "True", each.availability, "the object is available")
            )
        case Availability.NOT_TRACKABLE:
            judgements.append(
                (WorkCondition.AVAILABLE, "True", each.availability, "the kind is not trackable")
            )
        case Availability.NOT_YET:
            message = "the object is not available yet"
            judgements.append((WorkCondition.AVAILABLE, "False", each.availability, message))
        case Availability.FAILED:
            message = "the status of the object could not be read"
            judgements.append((WorkCondition.AVAILABLE, "False", each.availability, message))
    return judgements


def _diff_reported(result: Result) -> Judgement:
    """Return the condition DiffReported; False for any reason that prevents a comparison."""
    if not result.reason.is_diff_reported:
        message = f"Failed to compare the manifest ({result.reason}, error: {result.error})"
        return WorkCondition.DIFF_REPORTED, "False", ManifestReason.FAILED_TO_REPORT_DIFF, message
    message = (
        "no differences" if result.reason is ManifestReason.NO_DIFF_FOUND else "differences found"
    )
    return WorkCondition.DIFF_REPORTED, "True", result.reason, message


def _settled(
    judgements: Iterable[Judgement], old: Iterable[Any], generation: int, now: str
) -> list[Json]:
    """Return conditions with the transition times of the old ones whose status is the same."""
    before: dict[str, Mapping[str, Any]] = {
        condition.get("type", ""): condition for condition in old if isinstance(condition, dict)
    }
    conditions = []
    for type_, status, reason, message in judgements:
        last = before.get(type_, {})
        since = last.get("lastTransitionTime") if last.get("status") == status else None
        conditions.append(
            {
                "type": str(type_),
                "status": status,
                "reason": str(reason),
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    return conditions


_LISTS: Final = {"driftDetails": "observedDrifts", "diffDetails": "observedDiffs"}


def _trimmed(entry: Json) -> Json:
    """Drop what may be long. That and since when an object deviates stays."""
    trimmed = {name: value for name, value in entry.items() if name != "backReportedStatus"}
    for details, items in _LISTS.items():
        if details in trimmed:
            trimmed[details] = {k: v for k, v in trimmed[details].items() if k != items}
    return trimmed


def back_reported(live: Json, now: str) -> Json:
    """Return the `backReportedStatus` of a manifest, from the object in the member."""
    status = {name: live[name] for name in ("apiVersion", "kind", "status") if name in live}
    return {"observedStatus": status, "observationTime": now}


# --- AppliedWork


def applied_work_status(processed: Iterable[Processed]) -> Json:
    """Return the status of the AppliedWork: what is applied, with the UIDs of the objects."""
    return {
        "appliedResources": [
            {**each.identifier.to_json(), "uid": each.result.live["metadata"]["uid"]}
            for each in processed
            if each.result.reason.is_applied and each.result.live is not None
        ]
    }
