"""Three-way merges: rows for each rule of a patch, and properties of all patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.applier.merge_keys import TypeShape, shape_of
from kubeocean.fleet.applier.three_way import equal, json_merge, strategic, without_nulls
from kubeocean.runtime.objects import Json, merge_patch
from support.fleet_manifests import manifests
from support.strategic_merge import merge, merge_json


def shape(api_version: str, kind: str) -> TypeShape:
    known = shape_of(api_version, kind)
    assert known is not None
    return known


DEPLOYMENT = shape("apps/v1", "Deployment")
SERVICE = shape("v1", "Service")
PDB = shape("policy/v1", "PodDisruptionBudget")


def pod(**spec: Any) -> Json:
    return {"spec": {"template": {"spec": spec}}}


def env(*names: str) -> list[Json]:
    return [{"name": name, "value": name.upper()} for name in names]


def app(**fields: Any) -> Json:
    return {"name": "app", **fields}


def volume(**source: Json) -> Json:
    return pod(volumes=[{"name": "data", **source}])


SIDECAR = {"name": "sidecar", "image": "proxy:1"}

ROWS: dict[str, tuple[Json, Json, Json, Json]] = {
    # name: last applied, desired, live, patch
    "nothing to do": ({"a": 1}, {"a": 1}, {"a": 1}, {}),
    "a foreign field stays": ({"a": 1}, {"a": 1}, {"a": 1, "b": 2}, {}),
    "a changed field is set": ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}),
    "a drifted field is set back": ({"a": 1}, {"a": 1}, {"a": 3}, {"a": 1}),
    "a removed field is removed": ({"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 9}, {"b": None}),
    "a removed field that is gone": ({"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {}),
    "true is not one": ({}, {"a": True}, {"a": 1}, {"a": True}),
    "a null removes": ({}, {"a": None}, {"a": 1}, {"a": None}),
    "a null of nothing": ({}, {"a": None}, {}, {}),
    "nulls inside a new value": ({}, {"a": {"b": None, "c": 1}}, {}, {"a": {"c": 1}}),
    "another type": ({}, {"a": {"b": 1}}, {"a": [1]}, {"a": {"b": 1}}),
    "a list without merge key is replaced": (
        pod(tolerations=[{"key": "a"}]),
        pod(tolerations=[{"key": "b"}]),
        pod(tolerations=[{"key": "a"}, {"key": "x"}]),
        pod(tolerations=[{"key": "b"}]),
    ),
    "an injected container stays": (
        pod(containers=[app(image="app:1")]),
        pod(containers=[app(image="app:2")]),
        pod(containers=[app(image="app:1", tty=True), SIDECAR]),
        pod(
            **{
                "containers": [app(image="app:2")],
                "$setElementOrder/containers": [{"name": "app"}],
            }
        ),
    ),
    "an injected container alone": (
        pod(containers=[app(image="app:1")]),
        pod(containers=[app(image="app:1")]),
        pod(containers=[SIDECAR, app(image="app:1")]),
        {},
    ),
    "a removed item is deleted": (
        pod(containers=[app(env=env("a", "b"))]),
        pod(containers=[app(env=env("b"))]),
        pod(containers=[app(env=env("a", "b", "x"))]),
        pod(
            **{
                "containers": [
                    app(
                        **{
                            "env": [{"$patch": "delete", "name": "a"}],
                            "$setElementOrder/env": [{"name": "b"}],
                        }
                    )
                ],
                "$setElementOrder/containers": [{"name": "app"}],
            }
        ),
    ),
    "all items are removed": (
        pod(imagePullSecrets=[{"name": "a"}]),
        pod(imagePullSecrets=[]),
        pod(imagePullSecrets=[{"name": "a"}, {"name": "x"}]),
        pod(imagePullSecrets=[{"$patch": "delete", "name": "a"}]),
    ),
    "the list itself is removed": (
        pod(imagePullSecrets=[{"name": "a"}]),
        pod(),
        pod(imagePullSecrets=[{"name": "a"}, {"name": "x"}]),
        pod(imagePullSecrets=None),
    ),
    "items in another order": (
        {},
        pod(imagePullSecrets=[{"name": "a"}, {"name": "b"}]),
        pod(imagePullSecrets=[{"name": "b"}, {"name": "x"}, {"name": "a"}]),
        pod(**{"$setElementOrder/imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
    ),
    "another source of a volume": (
        volume(emptyDir={}),
        volume(hostPath={"path": "/tmp"}),
        volume(emptyDir={}),
        pod(
            **{
                "volumes": [
                    {
                        "name": "data",
                        "hostPath": {"path": "/tmp"},
                        "emptyDir": None,
                        "$retainKeys": ["hostPath", "name"],
                    }
                ],
                "$setElementOrder/volumes": [{"name": "data"}],
            }
        ),
    ),
    "another strategy": (
        {},
        {"spec": {"strategy": {"type": "Recreate"}}},
        {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}},
        {"spec": {"strategy": {"type": "Recreate", "$retainKeys": ["type"]}}},
    ),
    "values merged as a set": (
        {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}},
        {"metadata": {"finalizers": ["example.com/b", "example.com/c"]}},
        {"metadata": {"finalizers": ["example.com/a", "example.com/b", "example.com/x"]}},
        {
            "metadata": {
                "finalizers": ["example.com/c"],
                "$deleteFromPrimitiveList/finalizers": ["example.com/a"],
                "$setElementOrder/finalizers": ["example.com/b", "example.com/c"],
            }
        },
    ),
}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_strategic_patch(row: str) -> None:
    last, desired, live, patch = ROWS[row]
    assert equal(strategic(last, desired, live, DEPLOYMENT), patch)


def test_an_object_with_the_strategy_replace_is_sent_whole() -> None:
    desired = {"spec": {"selector": {"matchLabels": {"app": "a"}}}}
    live = {"spec": {"selector": {"matchLabels": {"app": "b", "x": "y"}}}}
    assert strategic({}, desired, live, PDB) == desired
    assert strategic({}, desired, desired, PDB) == {}


def port(protocol: str, name: str, **more: Any) -> Json:
    return {"name": name, "port": 53, "protocol": protocol, **more}


def test_ports_that_share_a_number_are_replaced_as_a_list() -> None:
    """The merge key of a Service's ports is `port`, which does not tell TCP from UDP."""
    desired = {"spec": {"ports": [port("UDP", "dns"), port("TCP", "dns-tcp", targetPort=5353)]}}
    ports = [port("TCP", "dns-tcp", nodePort=30001), port("UDP", "dns", nodePort=30002)]
    patch = strategic({}, desired, {"spec": {"ports": ports}}, SERVICE)
    merged = [
        port("UDP", "dns", nodePort=30002),
        port("TCP", "dns-tcp", nodePort=30001, targetPort=5353),
    ]
    assert patch == {"spec": {"ports": [{"$patch": "replace"}, *merged]}}
    assert strategic({}, desired, {"spec": {"ports": merged}}, SERVICE) == {}


def test_a_port_that_shared_its_number_is_removed() -> None:
    both = {"spec": {"ports": [port("UDP", "dns"), port("TCP", "dns-tcp")]}}
    one = {"spec": {"ports": [port("TCP", "dns-tcp")]}}
    patch = strategic(both, one, both, SERVICE)
    assert patch == {"spec": {"ports": [{"$patch": "replace"}, port("TCP", "dns-tcp")]}}


def test_a_field_of_such_a_port_is_removed_and_a_foreign_port_stays() -> None:
    plain = [port("UDP", "dns"), port("TCP", "dns-tcp")]
    last = {"spec": {"ports": [port("UDP", "dns", appProtocol="a"), port("TCP", "dns-tcp")]}}
    live = [
        port("UDP", "dns", appProtocol="a", nodePort=1),
        port("TCP", "dns-tcp", appProtocol="foreign"),
        port("SCTP", "added"),
    ]
    patch = strategic(last, {"spec": {"ports": plain}}, {"spec": {"ports": live}}, SERVICE)
    merged = [port("UDP", "dns", nodePort=1), *live[1:]]
    assert patch == {"spec": {"ports": [{"$patch": "replace"}, *merged]}}


def test_items_without_their_merge_key_replace_the_list() -> None:
    desired = pod(hostAliases=[{"hostnames": ["a"]}])
    live = pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a"]}])
    patch = strategic(desired, desired, live, DEPLOYMENT)
    assert patch == pod(hostAliases=[{"$patch": "replace"}, {"hostnames": ["a"]}, *hosts(live)])


def hosts(obj: Json) -> list[Json]:
    aliases: list[Json] = obj["spec"]["template"]["spec"]["hostAliases"]
    return aliases


@pytest.mark.parametrize(
    "last", [{"metadata": []}, {"metadata": {"finalizers": [{}, [], None, 1]}}]
)
def test_the_last_manifest_may_hold_anything(last: Json) -> None:
    desired = {"metadata": {"finalizers": ["example.com/a"]}}
    assert strategic(last, desired, desired, DEPLOYMENT) == {}


def test_a_json_merge_patch_replaces_lists_and_ignores_nulls() -> None:
    last = {"spec": {"items": [{"name": "a"}], "old": 1, "kept": 1}}
    desired = {"spec": {"items": [{"name": "b"}], "kept": 1, "foreign": None}}
    live = {"spec": {"items": [{"name": "a"}, {"name": "x"}], "old": 1, "kept": 1, "foreign": 2}}
    assert json_merge(last, desired, live) == {"spec": {"items": [{"name": "b"}], "old": None}}


def test_a_kind_of_others_has_no_shape() -> None:
    assert shape_of("example.com/v1", "Deployment") is None


# --- properties


def contains(merged: Any, desired: Any, field: str = "") -> bool:
    """Whether the merged value has all that is desired; items of lists in their order."""
    if isinstance(desired, dict):
        return isinstance(merged, dict) and all(
            contains(merged.get(name), value, name) for name, value in desired.items()
        )
    if isinstance(desired, list) and isinstance(merged, list) and field not in REPLACED:
        remaining = iter(merged)
        return all(any(contains(each, item) for each in remaining) for item in desired)
    return equal(merged, desired)


REPLACED = {"args", "tolerations", "hostnames"}


def paths(value: Any, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of a document: keys of objects, and items of lists by their names."""
    if isinstance(value, dict):
        return {at}.union(*(paths(each, (*at, name)) for name, each in value.items()))
    if isinstance(value, list):
        return {at}.union(*(paths(each, (*at, identity(each))) for each in value))
    return {at}


KEYS = ("mountPath", "containerPort", "port", "topologyKey", "ip", "name", "key")


def identity(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return next(str(item[key]) for key in KEYS if key in item)


def result(last: Json, desired: Json, live: Json) -> Json:
    kind = shape(live["apiVersion"], live["kind"])
    return merge(live, strategic(last, desired, live, kind), kind)


@given(manifests())
def test_the_patched_object_has_all_that_is_desired(case: tuple[Json, Json, Json]) -> None:
    last, desired, live = case
    merged = result(last, desired, live)
    assert contains(merged, desired)
    json_merged = merge_json(live, json_merge(last, desired, live))
    assert contains(json_merged, desired)


@given(manifests())
def test_a_patched_object_gives_an_empty_patch(case: tuple[Json, Json, Json]) -> None:
    last, desired, live = case
    kind = shape(live["apiVersion"], live["kind"])
    merged = result(last, desired, live)
    assert strategic(desired, desired, merged, kind) == {}
    json_merged = merge_json(live, json_merge(last, desired, live))
    assert json_merge(desired, desired, json_merged) == {}


@given(manifests())
def test_a_json_merge_of_an_object_without_foreign_fields_is_the_plain_merge_patch(
    case: tuple[Json, Json, Json],
) -> None:
    last, desired, _ = map(without_nulls, case)
    assert json_merge(last, desired, last) == merge_patch(last, desired)


@given(manifests())
def test_what_only_the_last_manifest_had_is_gone(case: tuple[Json, Json, Json]) -> None:
    last, desired, live = case
    left = paths(last) - paths(desired)
    # An item of the desired manifest is merged as a whole; its other fields may be of others.
    gone = {path for path in left if path[:-1] in paths(desired)}
    assert not paths(result(last, desired, live)) & gone


@given(manifests())
def test_foreign_fields_stay(case: tuple[Json, Json, Json]) -> None:
    last, desired, live = case
    merged = paths(result(last, desired, live))
    for path in paths(live) - paths(last) - paths(desired):
        parents = {path[:end] for end in range(len(path))}
        replaced = parents & {path for path in paths(desired) if path and path[-1] in REPLACED}
        removed = parents & (paths(last) - paths(desired))
        if not replaced and not removed and not is_retained(path):
            assert path in merged, path


def is_retained(path: tuple[str, ...]) -> bool:
    """Whether the field is in an object that keeps only the keys of the manifest."""
    return "strategy" in path or "volumes" in path[:-1]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_equality_is_that_of_the_text(value: Any) -> None:
    assert equal(value, value)
    assert not equal({"a": value}, {"b": value})


NAMES = st.sampled_from(
    ("metadata", "finalizers", "labels", "spec", "template", "containers", "env", "name", "ports")
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(("amber", "example.com/amber")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(manifests(), st.dictionaries(NAMES, ANYTHING, max_size=4))
def test_whatever_the_annotation_holds_the_object_is_as_desired(
    case: tuple[Json, Json, Json], last: Json
) -> None:
    _, desired, live = case
    assert contains(result(last, desired, live), desired)
    assert contains(merge_json(live, json_merge(last, desired, live)), desired)


def test_nulls_are_removed_from_objects_only() -> None:
    assert without_nulls({"a": None, "b": [None, {"c": None}]}) == {"b": [None, {}]}
