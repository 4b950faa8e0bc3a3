"""Jobs that have finished and remove themselves are not made again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.conditions import Availability
from kubeocean.api.fleet.names import ANNOTATION_FINISHED_JOBS, ANNOTATION_SPEC_HASH
from kubeocean.fleet.applier.availability import extended_tracker, kubefleet_tracker
from kubeocean.fleet.applier.finished_jobs import (
    JobView,
    availability_of_finished,
    has_finished,
    note_of,
    notes_after,
    notes_of,
    with_job_view,
)
from kubeocean.fleet.applier.manifests import Identifier, Manifest, spec_hash
from kubeocean.runtime.kinds import SERVICES
from kubeocean.runtime.objects import Json, Resource, Untyped, encode


def job(image: str = "app:1") -> Manifest:
    place = Identifier(0, "batch", "v1", "Job", "jobs", "web", "once")
    container = {"name": "c", "image": image}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once", "namespace": "web"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return Manifest(place, body)


def live(manifest: Manifest, *conditions: str, ttl: int | None = 5) -> Json:
    annotations = {ANNOTATION_SPEC_HASH: spec_hash(manifest.body)}
    metadata = {**manifest.body["metadata"], "annotations": annotations}
    status = {"conditions": [{"type": each, "status": "True"} for each in conditions]}
    spec = {**manifest.body["spec"], **({} if ttl is None else {"ttlSecondsAfterFinished": ttl})}
    return {**manifest.body, "metadata": metadata, "spec": spec, "status": status}


def seen(obj: Json) -> Any:
    return msgspec.convert(obj, JobView)


def test_a_finished_job_is_noted_and_not_made_again() -> None:
    notes = notes_after({}, [(job(), live(job(), "Complete"))])
    assert note_of(seen(live(job(), "Complete"))) == notes.popitem(), "events tell the same"
    notes = notes_after({}, [(job(), live(job(), "Complete"))])
    assert has_finished(notes, job())
    assert not has_finished(notes, job("app:2")), "another manifest is another Job"
    assert notes_after(notes, [(job(), None)]) == notes, "gone by its TTL"
    assert notes_after(notes, []) == {}, "the Work does not name the Job any more"
    assert notes_after(notes, [(job(), live(job()))]) == {}, "a new Job runs"
    assert availability_of_finished(notes, job(), kubefleet_tracker) is Availability.NOT_TRACKABLE
    assert availability_of_finished(notes, job(), extended_tracker) is Availability.AVAILABLE


def test_a_failed_job_is_noted_as_failed() -> None:
    notes = notes_after({}, [(job(), live(job(), "Failed"))])
    assert has_finished(notes, job())
    assert availability_of_finished(notes, job(), extended_tracker) is Availability.NOT_YET


def test_a_job_that_stays_or_is_not_ours_is_not_noted() -> None:
    assert note_of(seen(live(job(), "Complete", ttl=None))) is None
    assert note_of(seen(live(job(), "SuccessCriteriaMet"))) is None
    foreign = live(job(), "Complete")
    del foreign["metadata"]["annotations"]
    assert note_of(seen(foreign)) is None
    assert note_of(None) is None
    assert note_of(Untyped()) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"web/once": 7}', "7", "", "[" * 5_000])
def test_a_damaged_note_counts_as_none(text: str) -> None:
    damaged = {"metadata": {"annotations": {ANNOTATION_FINISHED_JOBS: text}}}
    assert notes_of(damaged) == {}
    noted = {"metadata": {"annotations": {ANNOTATION_FINISHED_JOBS: encode({"a": "b"}).decode()}}}
    assert notes_of(noted) == {"a": "b"}


def test_only_jobs_are_watched_whole() -> None:
    jobs = Resource("batch", "v1", "jobs", "Job", True, Untyped)
    assert with_job_view(jobs).type is JobView
    assert with_job_view(SERVICES) is SERVICES
