"""Manifests: which are rejected, which fields are written, and which are hashed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given

from kubeocean.api.fleet.hashes import canonical
from kubeocean.api.fleet.limits import LAST_APPLIED_BYTES
from kubeocean.api.fleet.names import ANNOTATION_LAST_APPLIED, ANNOTATION_SPEC_HASH
from kubeocean.fleet.applier.manifests import (
    KUBECTL_LAST_APPLIED,
    Identifier,
    KindMapping,
    Manifest,
    Owner,
    Rejected,
    last_applied,
    normalised,
    prepared,
    read_manifests,
    sanitised,
    spec_hash,
)
from kubeocean.runtime.objects import Json
from support.fleet_manifests import manifests

OWNER = Owner("work", "uid-of-applied-work")


def config_map(name: str = "settings", **more: Any) -> Json:
    metadata = {"name": name, "namespace": "web", **more.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **more}


def mapping_of(api_version: str, kind: str) -> KindMapping | None:
    known = {("v1", "ConfigMap"): ("configmaps", True), ("v1", "Namespace"): ("namespaces", False)}
    mapping = known.get((api_version, kind))
    return mapping and KindMapping(*mapping)


def read(*bodies: Any) -> list[tuple[str, Identifier]]:
    return [
        (each.reason if isinstance(each, Rejected) else "", each.identifier)
        for each in read_manifests(bodies, mapping_of)
    ]


def test_a_manifest_is_identified_by_its_place_and_its_object() -> None:
    body = config_map()
    [manifest] = read_manifests([body], mapping_of)
    identifier = Identifier(0, "", "v1", "ConfigMap", "configmaps", "web", "settings")
    assert manifest == Manifest(identifier, body)
    stored = identifier.to_json()
    assert stored == {
        "ordinal": 0,
        "version": "v1",
        "kind": "ConfigMap",
        "resource": "configmaps",
        "namespace": "web",
        "name": "settings",
    }
    assert Identifier.from_json(stored) == identifier


@pytest.mark.parametrize(
    ("body", "reason", "identifier"),
    [
        ("text", "DecodingErred", Identifier(0)),
        ({"kind": "ConfigMap"}, "DecodingErred", Identifier(0, kind="ConfigMap")),
        (
            {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}},
            "DecodingErred",
            Identifier(0, "example.com", "v1", "Thing", "", "", "a"),
        ),
        (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {}},
            "DecodingErred",
            Identifier(0, "", "v1", "Namespace", "namespaces"),
        ),
        (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "a-"}},
            "FoundGenerateName",
            Identifier(0, "", "v1", "Namespace", "namespaces"),
        ),
        ({"apiVersion": 1, "kind": [], "metadata": 3}, "DecodingErred", Identifier(0)),
    ],
)
def test_a_manifest_that_names_no_object(body: Any, reason: str, identifier: Identifier) -> None:
    assert read(body) == [(reason, identifier)]


def test_the_later_of_two_manifests_for_one_object_is_the_duplicate() -> None:
    results = read(config_map("a"), config_map("b"), config_map("a", data={"other": "content"}))
    assert [reason for reason, _ in results] == ["", "", "Duplicated"]
    assert results[2][1].ordinal == 2


def test_what_a_server_sets_is_not_written() -> None:
    set_by_servers = {
        "uid": "u",
        "resourceVersion": "1",
        "generation": 3,
        "creationTimestamp": None,
        "deletionTimestamp": "t",
        "deletionGracePeriodSeconds": 1,
        "managedFields": [{}],
        "ownerReferences": [{}],
        "selfLink": "/x",
    }
    apply_annotations = {
        ANNOTATION_SPEC_HASH: "h",
        ANNOTATION_LAST_APPLIED: "{}",
        KUBECTL_LAST_APPLIED: "{}",
    }
    kept = {"labels": {"a": "b"}, "finalizers": ["example.com/keep"]}
    metadata = {**set_by_servers, **kept, "annotations": apply_annotations}
    body = config_map(metadata=metadata, data={"k": "v"}, status={"x": 1})
    assert sanitised(body) == config_map(metadata=kept, data={"k": "v"})
    assert body["status"] == {"x": 1}, "the manifest itself is left alone"


def test_a_written_object_holds_its_hash_its_owner_and_its_manifest() -> None:
    body = config_map(data={"k": "<&>"}, metadata={"finalizers": ["example.com/keep"]})
    desired, fits = prepared(body, OWNER, remember=True)
    assert fits
    metadata = desired["metadata"]
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "placement.kubernetes-fleet.io/v1beta1",
            "kind": "AppliedWork",
            "name": "work",
            "uid": "uid-of-applied-work",
            "blockOwnerDeletion": True,
        }
    ]
    assert metadata["annotations"].keys() == {ANNOTATION_SPEC_HASH, ANNOTATION_LAST_APPLIED}
    assert metadata["finalizers"] == ["example.com/keep"]
    assert "labels" not in metadata
    remembered = last_applied(desired)
    metadata["annotations"].pop(ANNOTATION_LAST_APPLIED)
    assert remembered == desired
    unremembered = prepared(body, OWNER, remember=False)
    assert unremembered == (desired, False)


def test_annotations_stay_below_what_a_server_accepts() -> None:
    def size(desired: Json) -> int:
        annotations = desired["metadata"]["annotations"]
        return sum(len(name) + len(text) for name, text in annotations.items())

    def made(length: int) -> tuple[Json, bool]:
        return prepared(config_map(data={"k": "x" * length}), OWNER, remember=True)

    room = LAST_APPLIED_BYTES - size(made(0)[0])
    desired, fits = made(room)
    assert fits
    assert size(desired) == LAST_APPLIED_BYTES
    desired, fits = made(room + 1)
    assert not fits
    assert desired["metadata"]["annotations"][ANNOTATION_LAST_APPLIED] == ""
    assert last_applied(desired) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "[" * 100_000])
def test_an_unreadable_memory_is_empty(text: str) -> None:
    assert last_applied({"metadata": {"annotations": {ANNOTATION_LAST_APPLIED: text}}}) == {}


def test_an_object_without_annotations_has_no_memory() -> None:
    assert last_applied({"metadata": {"name": "a"}}) == {}
    assert last_applied({}) == {}


def test_what_is_compared() -> None:
    body = config_map(
        metadata={
            "generation": 2,
            "finalizers": ["x"],
            "labels": {"a": "b", "app.kubernetes.io/name": "c", "k8s.io/d": "e"},
            "annotations": {"kubernetes-fleet.io/spec-hash": "h", "example.com/kept": "y"},
            "creationTimestamp": None,
        },
        status={"x": 1},
        spec={"template": {"metadata": {"creationTimestamp": None}}},
    )
    assert normalised(body) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"labels": {"a": "b"}, "annotations": {"example.com/kept": "y"}},
        "spec": {"template": {"metadata": {}}},
    }


def test_a_hash_is_that_of_the_text_that_go_writes() -> None:
    text = (
        '{"apiVersion":"v1","data":{"k":"a\\u003cb\\u003e\\u0026\\u2028"},"kind":"ConfigMap",'
        '"metadata":{"annotations":{},"finalizers":[],"labels":{"a":"b"},"managedFields":[],'
        '"ownerReferences":[]}}'
    )
    body = config_map(metadata={"labels": {"a": "b"}, "uid": "u"}, data={"k": "a<b>&\u2028"})
    assert spec_hash(body) == hashlib.sha256(text.encode()).hexdigest()


@given(manifests())
def test_a_hash_tells_manifests_apart_and_survives_writing(case: tuple[Json, Json, Json]) -> None:
    one, other, _ = case
    same = canonical(normalised(one)) == canonical(normalised(other))
    assert (spec_hash(one) == spec_hash(other)) == same
    desired = prepared(one, OWNER, remember=True).body
    assert (
        spec_hash(desired)
        == spec_hash(one)
        == desired["metadata"]["annotations"][ANNOTATION_SPEC_HASH]
    )
