"""What virtual objects bear while they are copied, also into several workers."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.forge.copies import Original
from kubeocean.syncer.forge.originals import is_marked, is_pointed, mark, settle, unmark

COPY = Key("mount", "config-hash")
OURS = {"cluster_id": "c1", "domain": DEFAULT}
MANAGED, SYNCED = "kubeocean.io/managed-by", "kubeocean.io/synced-by-c1"
NAME, NAMESPACE = "kubeocean.io/physical-name", "kubeocean.io/physical-namespace"
GO = "kubeocean.io/finalizer-c1"


def original(
    labels: Json | None = None, annotations: Json | None = None, finalizers: tuple[str, ...] = ()
) -> Original:
    metadata = {
        "name": "config",
        "labels": labels or {},
        "annotations": annotations or {},
        "finalizers": list(finalizers),
    }
    return msgspec.convert({"metadata": metadata}, Original)


def written(now: Original, change: Json) -> Original:
    """What a server makes of the merge patch."""
    meta: Json = {
        "labels": dict(now.labels),
        "annotations": dict(now.annotations),
        "finalizers": list(now.metadata.finalizers or ()),
    }
    for field in ("labels", "annotations"):
        merged = meta[field] | change.get(field, {})
        meta[field] = {key: value for key, value in merged.items() if value is not None}
    meta["finalizers"] = change.get("finalizers", meta["finalizers"])
    return original(meta["labels"], meta["annotations"], tuple(meta["finalizers"]))


def test_the_first_worker_writes_everything() -> None:
    change = mark(original({"app": "a"}), COPY, **OURS)
    assert change == {
        "labels": {SYNCED: "true", MANAGED: "kubeocean"},
        "annotations": {NAME: "config-hash", NAMESPACE: "mount"},
    }
    assert mark(written(original(), change), COPY, **OURS) == {}
    assert is_marked(written(original(), change), **OURS)


def test_another_worker_leaves_the_names_alone() -> None:
    first = written(original(), mark(original(), COPY, **OURS))
    change = mark(first, Key("elsewhere", "other"), cluster_id="c2", domain=DEFAULT)
    assert change == {"labels": {"kubeocean.io/synced-by-c2": "true"}}
    both = written(first, change)
    assert unmark(both, **OURS) == {"labels": {SYNCED: None}}


def test_the_last_worker_takes_off_everything() -> None:
    change = mark(original({"app": "a"}, {"n": "1"}), COPY, **OURS, used_by_pv=True)
    marked = written(original({"app": "a"}, {"n": "1"}), change)
    bare = written(marked, unmark(marked, **OURS))
    assert (bare.labels, bare.annotations) == ({"app": "a"}, {"n": "1"})
    assert unmark(bare, **OURS) == {}


def test_what_the_earlier_implementation_needed_is_proof_first_and_then_goes() -> None:
    left = original(
        {MANAGED: "kubeocean", SYNCED: "true"},
        {"kubeocean.io/deleting-c1": "b1", NAME: "x"},
        ("example.com/keep", GO),
    )
    assert is_pointed(left, **OURS)
    assert mark(left, COPY, **OURS) == {}
    settled = written(left, settle(left, **OURS))
    assert settled.metadata.finalizers == ("example.com/keep",)
    assert not is_pointed(settled, **OURS)
    assert settle(settled, **OURS) == {}
    bare = written(left, unmark(left, **OURS))
    assert (bare.labels, bare.annotations) == ({}, {})
    assert bare.metadata.finalizers == ("example.com/keep",)


@pytest.mark.parametrize(
    "other",
    [
        original({SYNCED: "true", MANAGED: "kubeocean", "kubeocean.io/synced-by-c2": "true"}),
        original({SYNCED: "true", MANAGED: "kubeocean"}, {}, ("kubeocean.io/finalizer-c2",)),
    ],
)
def test_a_worker_of_either_implementation_counts(other: Original) -> None:
    assert unmark(other, **OURS) == {"labels": {SYNCED: None}}
