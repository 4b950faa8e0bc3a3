"""Differences between hub and member, and how a status shows them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.limits import MOST_PATCH_DETAILS
from kubeocean.fleet.applier.diff import (
    REDACTED,
    WHOLE_OBJECT,
    FieldDifference,
    details_to_json,
    differences,
    observed,
)
from kubeocean.fleet.applier.manifests import normalised
from kubeocean.fleet.applier.three_way import equal
from kubeocean.runtime.objects import Json
from support.fleet_manifests import manifests


def obj(**more: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, **more}


ROWS: list[tuple[str, Json, Json, list[FieldDifference]]] = [
    ("nothing", obj(data={"k": "v"}), obj(data={"k": "v"}), []),
    ("a value", obj(data={"k": "1"}), obj(data={"k": "2"}), [FieldDifference("/data/k", "2", "1")]),
    ("only in the member", obj(), obj(data={"k": "v"}), [FieldDifference("/data", '{"k":"v"}')]),
    (
        "only on the hub",
        obj(data={"k": "v"}),
        obj(data={}),
        [FieldDifference("/data/k", None, "v")],
    ),
    ("an empty text", obj(a=""), obj(), [FieldDifference("/a", None, "")]),
    ("numbers", obj(a=1), obj(a=2.5), [FieldDifference("/a", "2.5", "1")]),
    ("truth", obj(a=True), obj(a=1), [FieldDifference("/a", "1", "true")]),
    ("types", obj(a={"b": 1}), obj(a=[1]), [FieldDifference("/a", "[1]", '{"b":1}')]),
    ("a longer list", obj(a=[1]), obj(a=[1, 2]), [FieldDifference("/a/1", "2")]),
    (
        "a shorter list",
        obj(a=[1, {"x": 1}]),
        obj(a=[1]),
        [FieldDifference("/a/1", None, '{"x":1}')],
    ),
    ("an item", obj(a=[{"x": 1}]), obj(a=[{"x": 2}]), [FieldDifference("/a/0/x", "2", "1")]),
    ("a key to escape", obj(), obj(**{"a/b~c": 1}), [FieldDifference("/a~1b~0c", "1")]),
    (
        "a label on an object without labels",
        obj(),
        obj(metadata={"name": "a", "labels": {"foo": "bar"}}),
        [FieldDifference("/metadata/labels/foo", "bar")],
    ),
    (
        "what systems write",
        obj(),
        obj(
            status={"x": 1},
            metadata={
                "name": "a",
                "uid": "u",
                "generation": 7,
                "finalizers": ["x"],
                "ownerReferences": [{}],
                "managedFields": [{}],
                "labels": {"app.kubernetes.io/name": "x"},
                "annotations": {"kubernetes-fleet.io/spec-hash": "x", "x.k8s.io/y": "z"},
            },
        ),
        [],
    ),
]


@pytest.mark.parametrize(
    ("hub", "member", "expected"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_differences(hub: Json, member: Json, expected: list[FieldDifference]) -> None:
    assert list(differences(hub, member)) == expected


def secret(**more: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, **more}


def test_values_of_secrets_are_not_shown() -> None:
    details = differences(
        secret(data={"a": "MQ==", "b": "MQ=="}, type="x"),
        secret(data={"a": "Mg==", "c": "MQ=="}, stringData={"d": "x"}, type="y"),
    )
    assert details == (
        FieldDifference("/data/a", REDACTED, REDACTED),
        FieldDifference("/data/b", None, REDACTED),
        FieldDifference("/data/c", REDACTED),
        FieldDifference("/stringData", REDACTED),
        FieldDifference("/type", "y", "x"),
    )
    assert differences(secret(data={"a": "MQ=="}), secret()) == (
        FieldDifference("/data", None, REDACTED),
    )
    other = {"apiVersion": "example.com/v1", "kind": "Secret", "metadata": {}, "data": {"a": "b"}}
    assert differences(other, {**other, "data": {"a": "c"}}) == (
        FieldDifference("/data/a", "c", "b"),
    )


def test_a_hundred_differences_are_shown() -> None:
    many = {str(number): "x" for number in range(MOST_PATCH_DETAILS + 1)}
    details = differences(obj(data={}), obj(data=many))
    assert len(details) == MOST_PATCH_DETAILS
    assert len(details_to_json(details * 2)) == MOST_PATCH_DETAILS


def test_details_name_the_sides_that_have_something() -> None:
    assert details_to_json([FieldDifference("/a", "1", "2"), FieldDifference("/b", in_hub="")]) == [
        {"path": "/a", "valueInMember": "1", "valueInHub": "2"},
        {"path": "/b", "valueInHub": ""},
    ]
    assert WHOLE_OBJECT.to_json() == {"path": "/", "valueInHub": "(the whole object)"}


def test_the_first_observation_is_kept_while_there_are_differences() -> None:
    details = (FieldDifference("/a", "1"),)
    first = observed("Drift", details, old=None, generation=3, now="t1")
    assert first == {
        "observationTime": "t1",
        "firstDriftedObservedTime": "t1",
        "observedInMemberClusterGeneration": 3,
        "observedDrifts": [{"path": "/a", "valueInMember": "1"}],
    }
    second = observed("Drift", (FieldDifference("/b", "2"),), old=first, generation=4, now="t2")
    assert second is not None
    assert (second["observationTime"], second["firstDriftedObservedTime"]) == ("t2", "t1")
    assert observed("Drift", (), old=second, generation=4, now="t3") is None
    again = observed("Drift", details, old=None, generation=4, now="t4")
    assert again is not None
    assert again["firstDriftedObservedTime"] == "t4"


def test_a_missing_object_has_no_generation() -> None:
    details = observed("Diff", (WHOLE_OBJECT,), old=None, generation=None, now="t")
    assert details == {
        "observationTime": "t",
        "firstDiffedObservedTime": "t",
        "observedDiffs": [{"path": "/", "valueInHub": "(the whole object)"}],
    }


@given(manifests())
def test_objects_without_differences_are_equal(case: tuple[Json, Json, Json]) -> None:
    one, other, _ = case
    assert (differences(one, other) == ()) == equal(normalised(one), normalised(other))
    assert differences(one, one) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_every_difference_can_be_looked_up(hub: Any, member: Any) -> None:
    one, other = obj(spec=hub), obj(spec=member)
    details = differences(one, other)
    assert bool(details) != equal(normalised(one), normalised(other))
    for difference in details:
        in_hub, in_member = (look_up(normalised(each), difference.path) for each in (one, other))
        assert (in_hub is MISSING) == (difference.in_hub is None)
        assert (in_member is MISSING) == (difference.in_member is None)


MISSING = object()


def look_up(value: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value
