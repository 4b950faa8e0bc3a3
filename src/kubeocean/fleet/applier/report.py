"""Report: the status of a Work.

The status is built anew on every pass from the results of the manifests; of the old status only
times are kept: when a condition last changed, when a drift or diff was first observed, and when a
reported-back status was. Everything else is rebuilt, so one pass repairs a damaged status.

If the Work would grow too large for its server, the status is trimmed: first details of drifts and
diffs and reported-back statuses are dropped, then entries of manifests that are applied and
available, then further entries. The conditions of the Work always count all manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kubeocean.api.fleet.conditions import (
    APPLY_FAILED,
    Availability,
    ManifestReason,
    WorkCondition,
    WorkReason,
)
from kubeocean.api.fleet.limits import LONGEST_MESSAGE, WORK_BYTES
from kubeocean.fleet.applier.diff import observed
from kubeocean.fleet.applier.manifests import Identifier
from kubeocean.fleet.applier.plan import Result
from kubeocean.runtime.objects import Json, encode

__all__ = ["Processed", "observed_status", "work_status"]


@dataclass(frozen=True, slots=True)
class Processed:
    """Result of a pass for one manifest; `availability` is None if it was not applied.

    `observed_status` is reported back to the hub, if the Work asks for it. `health` describes the
    result of the object's health check; empty without one.
    """

    identifier: Identifier
    result: Result
    availability: Availability | None = None
    observed_status: Json | None = None
    health: str = ""

    @property
    def generation(self) -> int | None:
        """The generation of the object in the member; 0 if its kind has none, None if no object."""
        if self.result.live is None:
            return None
        return int((self.result.live.get("metadata") or {}).get("generation") or 0)


def work_status(
    work: Json, processed: Sequence[Processed], *, reports_diff: bool, now: str
) -> Json:
    """Return the whole status of a Work, with the condition StatusTrimmed if it was trimmed."""
    old: Json = work.get("status") or {}
    generation = int((work.get("metadata") or {}).get("generation") or 0)
    known = _by_identity(old.get("manifestConditions") or ())
    entries = [
        _manifest_entry(each, _last_entry(each, known), reports_diff, now) for each in processed
    ]
    conditions = _work_conditions(processed, reports_diff)
    status = _status(conditions, entries, old, generation, now)
    if len(encode({**work, "status": status})) <= WORK_BYTES:
        return status
    message = f"details were dropped, so that the Work stays below {WORK_BYTES} bytes"
    conditions.append((WorkCondition.STATUS_TRIMMED, "True", WorkReason.OVERSIZED, message))
    entries = [_trimmed(entry) for entry in entries]
    bare = _status(conditions, [], old, generation, now)
    room = WORK_BYTES - len(encode({**work, "status": bare}))
    return _status(conditions, _fitting(entries, room), old, generation, now)


def _by_identity(entries: Iterable[Json]) -> dict[Identifier, Json]:
    """Return entries of the last status by identifier, with and without the position."""
    known: dict[Identifier, Json] = {}
    for entry in entries:
        identifier = Identifier.from_json(entry.get("identifier") or {})
        known[replace(identifier, resource="")] = entry
        known.setdefault(identifier.unplaced, entry)
    return known


def _last_entry(each: Processed, known: Mapping[Identifier, Json]) -> Json:
    """Return the manifest's entry in the last status, also if its position was another one."""
    in_place = replace(each.identifier, resource="")
    return known.get(in_place) or known.get(each.identifier.unplaced) or {}


_ConditionText = tuple[str, str, str, str]  # type, status, reason, message


def _status(
    conditions: Iterable[_ConditionText], entries: list[Json], old: Json, generation: int, now: str
) -> Json:
    settled = _settled(conditions, old.get("conditions") or (), generation, now)
    status: Json = {"conditions": settled}
    if entries:
        status["manifestConditions"] = entries
    return status


def _work_conditions(processed: Sequence[Processed], reports_diff: bool) -> list[_ConditionText]:
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


def _work_availability(processed: Sequence[Processed]) -> _ConditionText:
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

_AVAILABILITY_MESSAGES: Final = {
    Availability.AVAILABLE: "the object is available",
    Availability.NOT_TRACKABLE: "the kind is not trackable",
    Availability.NOT_YET: "the object is not available yet",
    Availability.FAILED: "the status of the object could not be read",
}


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
    if each.observed_status is not None:
        entry["backReportedStatus"] = _reported_back(
            each.observed_status, old.get("backReportedStatus") or {}, now
        )
    return entry


def _applied(each: Processed) -> list[_ConditionText]:
    result = each.result
    if not result.reason.is_applied:
        message = APPLY_FAILED.format(error=result.error)
        if result.reason is ManifestReason.PREPARING:
            message = "the manifest is about to be processed"
        return [(WorkCondition.APPLIED, "False", result.reason, message)]
    judgements: list[_ConditionText] = [
        (WorkCondition.APPLIED, "True", result.reason, "the manifest is applied")
    ]
    if each.availability is not None:
        status = "True" if each.availability.counts_as_available else "False"
        message = each.health or _AVAILABILITY_MESSAGES[each.availability]
        judgements.append((WorkCondition.AVAILABLE, status, each.availability, message))
    return judgements


def _diff_reported(result: Result) -> _ConditionText:
    """Return the condition DiffReported; False for any reason that prevents a comparison."""
    if not result.reason.is_diff_reported:
        message = f"Failed to compare the manifest ({result.reason}, error: {result.error})"
        return WorkCondition.DIFF_REPORTED, "False", ManifestReason.FAILED_TO_REPORT_DIFF, message
    message = (
        "no differences" if result.reason is ManifestReason.NO_DIFF_FOUND else "differences found"
    )
    return WorkCondition.DIFF_REPORTED, "True", result.reason, message


def _settled(
    judgements: Iterable[_ConditionText], old: Iterable[Any], generation: int, now: str
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
                # Owners of objects and users' expressions are parts of messages
                "message": message[:LONGEST_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    return conditions


_LISTS: Final = {"driftDetails": "observedDrifts", "diffDetails": "observedDiffs"}


def _trimmed(entry: Json) -> Json:
    """Return a manifest's status entry without `backReportedStatus` and lists of differences."""
    trimmed = {name: value for name, value in entry.items() if name != "backReportedStatus"}
    for details, items in _LISTS.items():
        if details in trimmed:
            trimmed[details] = {k: v for k, v in trimmed[details].items() if k != items}
    return trimmed


def _fitting(entries: list[Json], room: int) -> list[Json]:
    """Return as many entries as fit into `room` bytes, in their order.

    Entries that report only success are dropped first.
    """
    sizes = [len(encode(entry)) + 1 for entry in entries]
    by_need = sorted(range(len(entries)), key=lambda index: (_is_good(entries[index]), index))
    kept = set()
    for index in by_need:
        room -= sizes[index]
        if room < 0:
            break
        kept.add(index)
    return [entry for index, entry in enumerate(entries) if index in kept]


def _is_good(entry: Json) -> bool:
    """Whether a manifest's status entry reports only success."""
    deviates = any(details in entry for details in _LISTS)
    return not deviates and all(each["status"] == "True" for each in entry["conditions"])


def observed_status(live: Json) -> Json:
    """Return apiVersion, kind and status of an object in the member, to report back."""
    return {name: live[name] for name in ("apiVersion", "kind", "status") if name in live}


def _reported_back(status: Json, old: Json, now: str) -> Json:
    """Return the `backReportedStatus` of a manifest; its time is that of the last change."""
    since = old.get("observationTime") if old.get("observedStatus") == status else None
    return {"observedStatus": status, "observationTime": since or now}
