"""Marks of sources that are replicated, also into several worker clusters."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.replication.copy_forge import Source
from kubeocean.syncer.replication.sources import (
    has_legacy_copy,
    mark,
    remove_legacy_marks,
    report_phase,
    unmark,
)

COPY = Key("mount", "config-hash")
WORKER = {"cluster_id": "c1", "domain": DEFAULT}
MANAGED, SYNCED = "kubeocean.io/managed-by", "kubeocean.io/synced-by-c1"
NAME, NAMESPACE = "kubeocean.io/physical-name", "kubeocean.io/physical-namespace"
FINALIZER = "kubeocean.io/finalizer-c1"


def source(
    labels: Json | None = None, annotations: Json | None = None, finalizers: tuple[str, ...] = ()
) -> Source:
    metadata = {
        "name": "config",
        "labels": labels or {},
        "annotations": annotations or {},
        "finalizers": list(finalizers),
    }
    return msgspec.convert({"metadata": metadata}, Source)


def patched(now: Source, change: Json) -> Source:
    """Return the source as a server stores it after the merge patch."""
    meta: Json = {
        "labels": dict(now.labels),
        "annotations": dict(now.annotations),
        "finalizers": list(now.metadata.finalizers or ()),
    }
    for field in ("labels", "annotations"):
        merged = meta[field] | change.get(field, {})
        meta[field] = {key: value for key, value in merged.items() if value is not None}
    meta["finalizers"] = change.get("finalizers", meta["finalizers"])
    return source(meta["labels"], meta["annotations"], tuple(meta["finalizers"]))


def test_the_first_worker_writes_its_label_and_the_name_of_the_copy() -> None:
    change = mark(source({"app": "a"}), COPY, **WORKER)
    assert change == {
        "labels": {SYNCED: "true", MANAGED: "kubeocean"},
        "annotations": {NAME: "config-hash", NAMESPACE: "mount"},
    }
    assert mark(patched(source(), change), COPY, **WORKER) == {}
    assert patched(source(), change).labels[SYNCED] == "true"


def test_another_worker_adds_its_label_alone() -> None:
    first = patched(source(), mark(source(), COPY, **WORKER))
    change = mark(first, Key("elsewhere", "other"), cluster_id="c2", domain=DEFAULT)
    assert change == {"labels": {"kubeocean.io/synced-by-c2": "true"}}
    both = patched(first, change)
    assert unmark(both, **WORKER) == {"labels": {SYNCED: None}}


def test_the_last_worker_removes_all_marks() -> None:
    change = mark(source({"app": "a"}, {"n": "1"}), COPY, **WORKER, used_by_pv=True)
    marked = patched(source({"app": "a"}, {"n": "1"}), change)
    unmarked = patched(marked, unmark(marked, **WORKER))
    assert (unmarked.labels, unmarked.annotations) == ({"app": "a"}, {"n": "1"})
    assert unmark(unmarked, **WORKER) == {}


def test_the_phase_of_a_copy_is_shown_from_when_it_is_bound() -> None:
    marked = patched(source(), mark(source(), COPY, **WORKER))
    for first in ("", "Pending", "Available", "a text of a worker"):
        assert report_phase(marked, first, **WORKER) == {}
    for phase in ("Bound", "Released", "Available", "Lost"):
        change = report_phase(marked, phase, **WORKER)
        assert change == {"annotations": {"kubeocean.io/phase-c1": phase}}
        marked = patched(marked, change)
        assert report_phase(marked, phase, **WORKER) == {}
    assert patched(marked, unmark(marked, **WORKER)).annotations == {}


def test_marks_of_the_earlier_implementation_prove_a_copy_and_are_then_removed() -> None:
    legacy = source(
        {MANAGED: "kubeocean", SYNCED: "true"},
        {"kubeocean.io/deleting-c1": "b1", NAME: "x"},
        ("example.com/keep", FINALIZER),
    )
    assert has_legacy_copy(legacy, **WORKER)
    assert mark(legacy, COPY, **WORKER) == {}
    cleaned = patched(legacy, remove_legacy_marks(legacy, **WORKER))
    assert cleaned.metadata.finalizers == ("example.com/keep",)
    assert not has_legacy_copy(cleaned, **WORKER)
    assert remove_legacy_marks(cleaned, **WORKER) == {}
    unmarked = patched(legacy, unmark(legacy, **WORKER))
    assert (unmarked.labels, unmarked.annotations) == ({}, {})
    assert unmarked.metadata.finalizers == ("example.com/keep",)


@pytest.mark.parametrize(
    "other",
    [
        source({SYNCED: "true", MANAGED: "kubeocean", "kubeocean.io/synced-by-c2": "true"}),
        source({SYNCED: "true", MANAGED: "kubeocean"}, {}, ("kubeocean.io/finalizer-c2",)),
    ],
)
def test_shared_marks_stay_while_another_worker_of_either_implementation_has_a_copy(
    other: Source,
) -> None:
    assert unmark(other, **WORKER) == {"labels": {SYNCED: None}}
