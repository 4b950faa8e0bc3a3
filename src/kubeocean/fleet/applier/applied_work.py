"""AppliedWork: the member's record of what a Work placed.

An AppliedWork has the name of its Work, owns everything that was placed for it, and lists it. Each
object is listed before it is written for the first time (without a UID), so that after a crash
nothing that was written is unknown. An object stays listed while a manifest names it, or until it
was removed.

Its annotation `kubeocean.io/finished-jobs` lists Jobs that had finished, and that their
`ttlSecondsAfterFinished` will remove. Such a Job is not made again unless its manifest changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.conditions import Availability
from kubeocean.api.fleet.limits import WORK_BYTES
from kubeocean.api.fleet.names import ANNOTATION_FINISHED_JOBS
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.fleet.applier.availability import TrackerOf
from kubeocean.fleet.applier.manifests import Identifier, Manifest, spec_hash
from kubeocean.fleet.applier.report import Processed
from kubeocean.runtime.objects import Json, encode

__all__ = [
    "applied_resources",
    "availability_of_finished",
    "document",
    "finished_jobs",
    "is_finished_job",
    "is_job",
    "listed",
    "write_ahead",
]

_JOB: Final = ("batch", "Job")
_OUTCOMES: Final = ("Complete", "Failed")
_UID_BYTES: Final = len(',"uid":""') + 36


def document(work_namespace: str, work_name: str) -> Json:
    """Return the AppliedWork of a Work, as it is created."""
    return {
        "apiVersion": APPLIED_WORKS.api_version,
        "kind": APPLIED_WORKS.kind,
        "metadata": {"name": work_name},
        "spec": {"workName": work_name, "workNamespace": work_namespace},
    }


def listed(applied_work: Json) -> list[Json]:
    """Return the entries of an AppliedWork."""
    return list((applied_work.get("status") or {}).get("appliedResources") or ())


def write_ahead(
    entries: list[Json], manifests: Iterable[Identifier]
) -> tuple[list[Json], frozenset[Identifier]]:
    """Return the entries with those for manifests that are not listed yet.

    The AppliedWork must not grow too large for its server: manifests beyond that are returned, and
    must not be written.
    """
    known = {Identifier.from_json(entry).object for entry in entries}
    room = WORK_BYTES - sum(_size(entry) for entry in entries)
    ahead, unlisted = list(entries), []
    for identifier in manifests:
        if identifier.object in known:
            continue
        entry = identifier.to_json()
        room -= _size(entry)
        if room < 0:
            unlisted.append(identifier)
        else:
            ahead.append(entry)
    return ahead, frozenset(unlisted)


def _size(entry: Json) -> int:
    """Return the bytes of an entry in its list, once it has a UID."""
    return len(encode(entry)) + 1 + (0 if "uid" in entry else _UID_BYTES)


def applied_resources(
    entries: list[Json], processed: Iterable[Processed], unremoved: Iterable[Identifier]
) -> list[Json]:
    """Return the entries after a pass: of all manifests that were listed or applied, and of
    left-overs that could not be removed."""
    old = {Identifier.from_json(entry).object: entry for entry in entries}
    resources = []
    for each in processed:
        before = old.get(each.identifier.object)
        if not each.identifier.resource:
            # The member does not know the kind any more, or never did.
            resources += [] if before is None else [before]
            continue
        live = each.result.live if each.result.reason.is_applied else None
        uid = (before or {}).get("uid") if live is None else live["metadata"]["uid"]
        if before is None and live is None:
            continue
        resources.append({**each.identifier.to_json(), **({"uid": uid} if uid else {})})
    return resources + [old[each.object] for each in unremoved if each.object in old]


# --- finished Jobs


def is_job(identifier: Identifier) -> bool:
    return (identifier.group, identifier.kind) == _JOB


def finished_jobs(applied_work: Json, jobs: Iterable[tuple[Manifest, Json | None]]) -> Json:
    """Return the Jobs that have finished, as the annotation lists them.

    Each manifest comes with its object; None for one that is gone, or has not changed.
    """
    noted = _notes(applied_work)
    finished: Json = {}
    for manifest, live in jobs:
        name = _name(manifest.identifier)
        if live is None:
            finished |= {name: noted[name]} if name in noted else {}
        elif _expires(live) and (outcome := _outcome(live)):
            finished[name] = f"{spec_hash(manifest.body)} {outcome}"
    return finished


def is_finished_job(applied_work: Json, manifest: Manifest) -> bool:
    """Whether the manifest is a Job that has finished in this form."""
    if not is_job(manifest.identifier):
        return False
    noted = _notes(applied_work).get(_name(manifest.identifier), "")
    return bool(noted) and noted.partition(" ")[0] == spec_hash(manifest.body)


def availability_of_finished(
    applied_work: Json, manifest: Manifest, tracker_of: TrackerOf
) -> Availability:
    """Judge a Job that has finished and was removed since."""
    if tracker_of(*_JOB) is None:
        return Availability.NOT_TRACKABLE
    outcome = _notes(applied_work).get(_name(manifest.identifier), "").rpartition(" ")[2]
    return Availability.AVAILABLE if outcome == "Complete" else Availability.NOT_YET


def _name(identifier: Identifier) -> str:
    return f"{identifier.namespace}/{identifier.name}"


def _outcome(job: Json) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    held = {each.get("type") for each in conditions if each.get("status") == "True"}
    return next((outcome for outcome in _OUTCOMES if outcome in held), "")


def _expires(job: Json) -> bool:
    return (job.get("spec") or {}).get("ttlSecondsAfterFinished") is not None


def _notes(applied_work: Json) -> Mapping[str, str]:
    """Return the annotation; whoever may edit the AppliedWork may have damaged it."""
    annotations = (applied_work.get("metadata") or {}).get("annotations") or {}
    try:
        notes: Any = msgspec.json.decode(annotations.get(ANNOTATION_FINISHED_JOBS) or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(notes, dict):
        return {}
    return {name: note for name, note in notes.items() if isinstance(note, str)}
