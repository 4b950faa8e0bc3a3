"""Which changes of watched objects concern a placement, and which contents are cached."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.caches import RecentContents
from kubeocean.fleet.selection.cleaning import UNPLACED_ANNOTATIONS
from kubeocean.fleet.selection.matching import (
    concerns_content,
    matches,
    metadata_document,
    with_digest,
)
from kubeocean.fleet.selection.select import Query
from kubeocean.runtime.objects import GroupVersionKind, Meta, OwnerReference, Untyped
from kubeocean.runtime.selectors import LabelSelector

KIND = GroupVersionKind("apps", "v1", "Deployment")
BASE = Meta(
    name="web",
    namespace="team",
    uid="1",
    resource_version="1",
    generation=1,
    labels={"app": "web"},
    annotations={"note": "a"},
)


def an_object(**changes: object) -> Untyped:
    return with_digest(Untyped(metadata=msgspec.structs.replace(BASE, **changes)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"resource_version": "2"}, False),
        ({"annotations": {"note": "a", UNPLACED_ANNOTATIONS[0]: "x"}}, False),
        ({"owner_references": (OwnerReference(uid="2"),)}, False),
        ({"generation": 2}, True),
        ({"labels": {"app": "api"}}, True),
        ({"annotations": {"note": "b"}}, True),
        ({"finalizers": ("x",)}, True),
        ({"deletion_timestamp": "2026-01-01T00:00:00Z"}, True),
    ],
)
def test_changes_of_status_do_not_count(change: dict[str, object], expected: bool) -> None:
    assert concerns_content(an_object(), an_object(**change)) is expected


def test_kinds_without_a_generation_count_with_each_change() -> None:
    assert concerns_content(an_object(generation=0), an_object(generation=0, resource_version="2"))
    assert concerns_content(None, an_object())
    assert concerns_content(an_object(), None)


def test_a_cached_object_has_no_annotations_of_its_own() -> None:
    cached = with_digest(
        Untyped(metadata=msgspec.structs.replace(BASE, annotations={"k": "v" * 99}))
    )
    assert list(cached.annotations) == ["digest"]
    assert an_object(annotations=None).annotations == {}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Query(KIND, "team", "web"), True),
        (Query(KIND, "team", "other"), False),
        (Query(KIND, "elsewhere", "web"), False),
        (Query(KIND, "team"), True),
        (
            Query(KIND, "", labels=LabelSelector.from_document({"matchLabels": {"app": "web"}})),
            True,
        ),
        (Query(KIND, "", labels=LabelSelector.from_document({"matchLabels": {"app": "x"}})), False),
    ],
)
def test_objects_match_queries(query: Query, expected: bool) -> None:
    assert matches(query, an_object()) is expected


def test_rules_of_selection_read_metadata() -> None:
    owned = an_object(
        owner_references=(OwnerReference(uid="2"),), deletion_timestamp="2026-01-01T00:00:00Z"
    )
    body = metadata_document("apps/v1", "ReplicaSet", owned)
    assert body["metadata"]["ownerReferences"]
    assert body["metadata"]["deletionTimestamp"]
    assert "ownerReferences" not in metadata_document("v1", "Pod", an_object())["metadata"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=40))
def test_contents_keep_to_their_size(puts: list[tuple[int, int]]) -> None:
    recent: RecentContents[int] = RecentContents(100)
    sizes: dict[int, int] = {}
    for name, size in puts:
        recent.put(str(name), "1", name, size)
        sizes.setdefault(name, size)
        held = [each for each in sizes if recent.get(str(each), "1") is not None]
        assert sum(sizes[each] for each in held) <= 100
        assert name in held
        sizes = {each: sizes[each] for each in held}
    recent.put("large", "1", 1, 101)
    assert recent.get("large", "1") is None
