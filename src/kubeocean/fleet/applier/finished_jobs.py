"""Finished Jobs: a Job that its `ttlSecondsAfterFinished` has removed is not created again.

A note about each finished Job records the hash of its manifest and its outcome. Notes are taken
from watch events, as a Job may be removed the moment it has finished, and from passes, as events
may be missed. They are kept in an annotation of the AppliedWork. For a manifest that differs from
the noted one, a new Job is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.conditions import Availability
from kubeocean.api.fleet.names import ANNOTATION_FINISHED_JOBS, ANNOTATION_SPEC_HASH
from kubeocean.fleet.applier.availability import TrackerOf
from kubeocean.fleet.applier.manifests import Identifier, Manifest, spec_hash
from kubeocean.runtime.objects import Condition, Json, Key, Resource, Untyped

__all__ = [
    "JobView",
    "availability_of_finished",
    "has_finished",
    "is_job",
    "note_of",
    "notes_after",
    "notes_of",
    "with_job_view",
]

_JOB: Final = ("batch", "Job")
_OUTCOMES: Final = ("Complete", "Failed")


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    ttl_seconds_after_finished: int | None = None


class _Status(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[Condition, ...] | None = None


class JobView(Untyped, frozen=True, gc=False, rename="camel", kw_only=True):
    """The fields of a Job that show whether it has finished and will be removed by its TTL."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


def with_job_view(resource: Resource[Untyped]) -> Resource[Untyped]:
    """Return the resource of Jobs with objects decoded as `JobView`; other resources unchanged."""
    is_jobs = (resource.group, resource.kind) == _JOB
    return replace(resource, type=JobView) if is_jobs else resource


def is_job(identifier: Identifier) -> bool:
    return (identifier.group, identifier.kind) == _JOB


def note_of(job: Untyped | None) -> tuple[str, str] | None:
    """Return key and note of a placed Job that has finished and has a TTL; else None."""
    if not isinstance(job, JobView) or job.spec.ttl_seconds_after_finished is None:
        return None
    held = {each.type for each in job.status.conditions or () if each.status == "True"}
    outcome = next((each for each in _OUTCOMES if each in held), "")
    manifest = job.annotations.get(ANNOTATION_SPEC_HASH, "")
    return (str(job.key), f"{manifest} {outcome}") if manifest and outcome else None


def notes_of(applied_work: Json) -> dict[str, str]:
    """Return the notes on finished Jobs in an AppliedWork's annotation; skip damaged ones."""
    annotations = (applied_work.get("metadata") or {}).get("annotations") or {}
    try:
        notes: Any = msgspec.json.decode(annotations.get(ANNOTATION_FINISHED_JOBS) or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(notes, dict):
        return {}
    return {name: note for name, note in notes.items() if isinstance(note, str)}


def notes_after(
    notes: Mapping[str, str], jobs: Iterable[tuple[Manifest, Json | None]]
) -> dict[str, str]:
    """Return the notes on finished Jobs after a pass, only of the Jobs that the Work names.

    :param notes: notes before the pass.
    :param jobs: manifests of Jobs, each with its object; None if it is gone or was not read.
    """
    after: dict[str, str] = {}
    for manifest, live in jobs:
        name = _name(manifest.identifier)
        if live is None:
            after |= {name: notes[name]} if name in notes else {}
        elif (note := note_of(msgspec.convert(live, JobView))) is not None:
            after[name] = note[1]
    return after


def has_finished(notes: Mapping[str, str], manifest: Manifest) -> bool:
    """Whether the manifest is a Job that has finished with this very content."""
    note = notes.get(_name(manifest.identifier), "")
    return bool(note) and note.partition(" ")[0] == spec_hash(manifest.body)


def availability_of_finished(
    notes: Mapping[str, str], manifest: Manifest, tracker_of: TrackerOf
) -> Availability:
    """Return the availability of a Job that has finished and was removed since."""
    if tracker_of(*_JOB) is None:
        return Availability.NOT_TRACKABLE
    outcome = notes.get(_name(manifest.identifier), "").rpartition(" ")[2]
    return Availability.AVAILABLE if outcome == "Complete" else Availability.NOT_YET


def _name(identifier: Identifier) -> str:
    return str(Key(identifier.namespace, identifier.name))
