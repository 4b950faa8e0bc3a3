from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.kinds import LEASES, NODES, PODS
from kubeocean.runtime.objects import (
    Condition,
    Json,
    Key,
    Meta,
    Object,
    OwnerReference,
    Resource,
    Untyped,
    controller_of,
    decode_list,
    encode,
    find_condition,
    merge_patch,
    printable_json,
    prune_json,
    set_condition,
    shallow,
)
from support.strategic_merge import merge_json

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
SEGMENTS = st.text(min_size=1).filter(lambda text: "/" not in text)


# --- keys


@given(SEGMENTS | st.just(""), SEGMENTS)
def test_a_key_reads_back_what_it_prints(namespace: str, name: str) -> None:
    key = Key(namespace, name)
    assert Key.parse(str(key)) == key


def test_a_key_prints_as_people_write_it() -> None:
    assert (str(Key("a", "b")), str(Key("", "b"))) == ("a/b", "b")


# --- objects


def test_an_empty_object_has_an_answer_to_everything() -> None:
    empty = msgspec.json.decode(b"{}", type=Object)
    assert (empty.key, empty.name, empty.namespace) == (Key("", ""), "", "")
    assert (empty.uid, empty.resource_version, empty.deleting) == ("", "", False)
    assert (dict(empty.labels), dict(empty.annotations)) == ({}, {})
    assert controller_of(empty) is None


def test_a_condition_is_written_with_its_message_also_if_that_is_empty() -> None:
    condition = Condition("Ready", "True", "Checked", last_transition_time=NOW)
    written = msgspec.to_builtins(condition)
    assert written == {
        "type": "Ready",
        "status": "True",
        "reason": "Checked",
        "message": "",
        "lastTransitionTime": NOW,
    }
    assert msgspec.json.decode(encode(condition)) == written
    assert msgspec.convert({"type": "Ready", "status": "True"}, Condition).message == ""


def test_an_object_knows_what_its_metadata_says() -> None:
    owners = (OwnerReference(name="looks on"), OwnerReference(name="manages", controller=True))
    made = Object(
        metadata=Meta(
            name="n",
            namespace="ns",
            uid="u",
            resource_version="7",
            deletion_timestamp=NOW,
            labels={"a": "b"},
            annotations={"c": "d"},
            owner_references=owners,
        )
    )
    assert (made.key, made.name, made.namespace) == (("ns", "n"), "n", "ns")
    assert (made.uid, made.resource_version, made.deleting) == ("u", "7", True)
    assert (made.labels, made.annotations) == ({"a": "b"}, {"c": "d"})
    assert controller_of(made) == owners[1]


def test_the_whole_object_is_there_only_where_its_bytes_were_kept() -> None:
    with pytest.raises(LookupError, match="the object ns/x was read without keep_raw"):
        Object(metadata=Meta(namespace="ns", name="x")).content()
    kept = Untyped(raw=b'{"kind":"Thing","spec":{"size":1}}')
    assert kept.content() == {"kind": "Thing", "spec": {"size": 1}}


# --- paths


def test_paths_are_those_of_the_api() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns") == "/api/v1/namespaces/ns/pods"
    assert PODS.path("ns", "x", "status") == "/api/v1/namespaces/ns/pods/x/status"
    assert NODES.path("ignored", "x") == "/api/v1/nodes/x"
    assert LEASES.path("ns", "x") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x"


def test_a_resource_prints_as_kubectl_names_it() -> None:
    assert (str(PODS), PODS.api_version) == ("pods", "v1")
    assert (str(LEASES), LEASES.api_version) == (
        "leases.coordination.k8s.io",
        "coordination.k8s.io/v1",
    )


@pytest.mark.parametrize("name", [".", ".."])
def test_a_dot_segment_is_no_name(name: str) -> None:
    for where in ((name, "x"), ("ns", name)):
        with pytest.raises(ConfigError, match="not a valid name"):
            PODS.path(*where)


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_name_leaves_its_segment_of_the_path(namespace: str, name: str) -> None:
    things = Resource("example.org", "v1", "things", "Thing", True, Untyped)
    assume(not {namespace, name} & {".", ".."})
    path = things.path(namespace, name, "status")
    *_, shown_namespace, plural, shown_name, status = path.split("/")
    assert (len(path.split("/")), plural, status) == (9, "things", "status")
    for shown in (shown_namespace, shown_name):
        assert shown.isascii()
        assert not set(shown) & set("?#/\\ \r\n")
        assert shown not in (".", "..")


# --- conditions

TYPES = st.sampled_from(["Ready", "Healthy", "Leased"])
CONDITIONS = st.builds(
    Condition,
    type=TYPES,
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=st.sampled_from(["", "A", "B"]),
    last_transition_time=st.sampled_from([None, NOW]),
)
LISTS = st.lists(CONDITIONS, unique_by=lambda condition: condition.type).map(tuple)


def test_a_condition_is_found_by_its_type() -> None:
    ready = Condition("Ready", "True")
    assert find_condition((Condition("Other", "True"), ready), "Ready") is ready
    assert find_condition((ready,), "Missing") is None
    assert find_condition(None, "Ready") is None


@given(LISTS, CONDITIONS)
def test_setting_a_condition_changes_that_one_alone(
    before: tuple[Condition, ...], new: Condition
) -> None:
    after = set_condition(before, new, now=LATER)
    others = [c for c in before if c.type != new.type]
    assert [c for c in after if c.type != new.type] == others
    old, got = find_condition(before, new.type), find_condition(after, new.type)
    assert got is not None
    assert (got.status, got.reason, got.message) == (new.status, new.reason, new.message)
    places = [c.type for c in before]
    assert [c.type for c in after] == (places if old else [*places, new.type])


@given(LISTS, CONDITIONS)
def test_the_time_of_a_condition_moves_with_its_status_alone(
    before: tuple[Condition, ...], new: Condition
) -> None:
    old = find_condition(before, new.type)
    got = find_condition(set_condition(before, new, now=LATER), new.type)
    assert got is not None
    kept = old is not None and old.status == new.status and old.last_transition_time
    assert got.last_transition_time == (kept or LATER)


@given(LISTS, CONDITIONS)
def test_saying_the_same_again_changes_nothing(
    before: tuple[Condition, ...], new: Condition
) -> None:
    once = set_condition(before, new, now=NOW)
    assert set_condition(once, new, now=LATER) == once


def test_the_first_condition_of_all() -> None:
    assert set_condition(None, Condition("Ready", "True"), now=NOW) == (
        Condition("Ready", "True", last_transition_time=NOW),
    )


# --- pruning


def test_what_is_left_is_what_a_user_could_have_written() -> None:
    metadata = {
        "name": "x",
        "labels": {"a": "b"},
        "ownerReferences": [{"uid": "kept"}],
        "uid": "u",
        "resourceVersion": "1",
        "generation": 2,
        "creationTimestamp": NOW,
        "deletionTimestamp": NOW,
        "deletionGracePeriodSeconds": 30,
        "selfLink": "/",
        "managedFields": [{}],
    }
    whole = {"kind": "Thing", "metadata": metadata, "spec": {"a": 1}, "status": {"b": 2}}
    pruned = prune_json(whole)
    assert pruned == {
        "kind": "Thing",
        "metadata": {"name": "x", "labels": {"a": "b"}, "ownerReferences": [{"uid": "kept"}]},
        "spec": {"a": 1},
    }
    assert prune_json(pruned) == pruned
    assert whole["status"] == {"b": 2}


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
def test_an_object_without_metadata_is_pruned_too(metadata: dict[str, object]) -> None:
    assert prune_json({"kind": "Thing"} | metadata) == {"kind": "Thing", "metadata": {}}


# --- merge patches


def documents(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=2) | documents(inner), max_leaves=8
    )
    return documents(values)


STORED = nested(st.booleans() | st.text(max_size=2))
WITH_NULLS = nested(st.none() | st.booleans() | st.text(max_size=2))


@given(STORED, STORED)
def test_a_merge_patch_turns_one_document_into_the_other(current: Json, desired: Json) -> None:
    patch = merge_patch(current, desired)
    assert merge_json(current, patch) == desired
    assert (patch == {}) == (current == desired)


@given(STORED, WITH_NULLS)
def test_a_null_is_an_absent_field_to_a_merge_patch(current: Json, desired: Json) -> None:
    assert merge_json(current, merge_patch(current, desired)) == merge_json({}, desired)
    assert merge_patch({"a": 1, "b": None}, {"a": 1, "c": None}) == {}


def test_a_merge_patch_has_only_the_fields_that_differ() -> None:
    current = {"a": 1, "b": {"c": 2, "d": [1]}, "e": {"f": 1}, "g": 1}
    desired = {"a": 1, "b": {"c": 3}, "e": {"f": 1}, "h": {"i": 1}}
    patch = merge_patch(current, desired)
    assert patch == {"b": {"c": 3, "d": None}, "g": None, "h": {"i": 1}}
    assert merge_patch({"a": [1, 2]}, {"a": [2]}) == {"a": [2]}


# --- values of foreign clusters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('\x1b[2J "quoted"', ' [2J "quoted"'),
        ("a\x7fb", "a b"),
        ("a\x9bb", "a b"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Größe", "Größe"),
        ("x" * 40_000, "x" * (1 << 15)),
    ],
)
def test_texts_of_foreign_clusters_have_no_control_characters(text: str, shown: str) -> None:
    assert printable_json(text) == shown
    assert printable_json({"a": [{"message": text, "n": 1}]}) == {"a": [{"message": shown, "n": 1}]}


def test_keys_of_foreign_clusters_have_no_control_characters() -> None:
    assert printable_json({"a\x1b": {"b\x7f": None}}) == {"a ": {"b ": None}}


def test_a_value_without_control_characters_is_not_copied() -> None:
    value = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert printable_json(value) is value


# --- nesting


def nested(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b"1" + b"]}" * (levels // 2)


@pytest.mark.parametrize("levels", [400, 1_500, 10_000])
@pytest.mark.parametrize("keep_raw", [True, False])
def test_an_object_that_is_nested_too_deeply_keeps_no_other_from_being_read(
    levels: int, keep_raw: bool
) -> None:
    deep = b'{"metadata":{"name":"deep","uid":"1"},"spec":' + nested(levels) + b"}"
    other = b'{"metadata":{"name":"other","uid":"2"},"spec":{"text":"{[\\"}"}}'
    body = b'{"metadata":{"resourceVersion":"7"},"items":[' + deep + b"," + other + b"]}"
    meta, items = decode_list(Untyped, body, keep_raw=keep_raw)
    assert meta.resource_version == "7"
    assert [each.name for each in items] == ["deep", "other"]
    if keep_raw:
        assert items[1].content()["spec"] == {"text": '{["}'}
        assert bool(items[0].raw) == (levels < 900)  # never a part of the object


@pytest.mark.parametrize("levels", [2, 2_000])
def test_a_text_of_a_user_is_not_taken_for_a_value_that_was_replaced(levels: int) -> None:
    deep = b'{"metadata":{"name":"deep"},"spec":' + nested(levels) + b"}"
    replaced = json.loads(shallow(nested(2_000)))
    while not isinstance(replaced, str):
        replaced = replaced["a"] if isinstance(replaced, dict) else replaced[0]
    annotations = {"text": replaced}
    user = encode({"metadata": {"name": "user", "annotations": annotations}})
    _, items = decode_list(Untyped, b'{"items":[' + deep + b"," + user + b"]}", keep_raw=True)
    assert items[1].content()["metadata"]["annotations"] == annotations


def test_only_values_that_are_nested_too_deeply_are_replaced() -> None:
    text = b'{"a":"[{\\"","b":[1,{"c":"}"}],"d":'
    assert shallow(text + b"1}") == text + b"1}"
    assert shallow(text + nested(298) + b"}") == text + nested(298) + b"}"
    replaced = json.loads(shallow(text + nested(2_000) + b',"e":2}'))
    assert (replaced["a"], replaced["b"], replaced["e"]) == ('[{"', [1, {"c": "}"}], 2)
    assert "nested too deeply" in repr(replaced["d"])


@pytest.mark.parametrize("end", [b'"]', b"", b"\\"])
def test_a_deep_document_of_one_long_text_is_read_quickly_and_in_little_memory(end: bytes) -> None:
    deep = b"[" * 1_000
    body = deep + b'"' + b'\\"' * (1 << 14) + end
    tracemalloc.start()
    try:
        began = time.process_time()
        shallow(body)
        assert time.process_time() - began < 2.0
        assert tracemalloc.get_traced_memory()[1] < 8 * len(body)
    finally:
        tracemalloc.stop()
