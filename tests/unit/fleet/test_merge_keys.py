"""The table of merge keys: its generation from OpenAPI documents, and its entries."""

from __future__ import annotations

from typing import Any

from kubeocean.fleet.applier.merge_keys import extract, shape_of
from kubeocean.runtime.objects import Json

STRATEGIC = "application/strategic-merge-patch+json"


def refers(name: str) -> Json:
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}], "default": {}}


def document(kind: str, *content_types: str, **schemas: Json) -> Json:
    gvk = {"group": "example.com", "version": "v1", "kind": kind}
    patch = {
        "x-kubernetes-group-version-kind": gvk,
        "requestBody": {"content": {each: {} for each in content_types}},
    }
    root = {
        "properties": {"spec": refers("Spec"), "status": refers("Plain"), "name": {}},
        "x-kubernetes-group-version-kind": [gvk],
    }
    return {
        "paths": {
            "/apis/example.com/v1/things/{name}": {"patch": patch, "get": {}},
            "/apis/example.com/v1/things/{name}/scale": {"patch": {**patch, "x": 1}},
        },
        "components": {"schemas": {kind: root, **schemas}},
    }


def items(**more: Any) -> Json:
    return {"type": "array", "items": refers("Item"), **more}


SCHEMAS: dict[str, Json] = {
    "Spec": {
        "properties": {
            "merged": items(
                **{
                    "x-kubernetes-patch-merge-key": "name",
                    "x-kubernetes-patch-strategy": "merge,retainKeys",
                }
            ),
            "replaced": items(),
            "keyless": items(**{"x-kubernetes-patch-merge-key": "name"}),
            "plain": refers("Plain"),
            "nested": {"$ref": "#/components/schemas/Spec"},
        }
    },
    "Item": {"properties": {"values": {"x-kubernetes-patch-strategy": "merge"}}},
    "Plain": {"properties": {"deeper": refers("Leaf")}},
    "Leaf": {"properties": {"text": {"type": "string"}}},
    "Unreached": {"properties": {"values": {"x-kubernetes-patch-strategy": "merge"}}},
}


def test_a_table_holds_what_is_reachable_and_says_something() -> None:
    table = extract([document("Thing", STRATEGIC, **SCHEMAS)])
    assert table == {
        "kinds": {"example.com/v1/Thing": "Thing"},
        "types": {
            "Item": {"values": {"strategy": ["merge"]}},
            "Spec": {
                "keyless": {"type": "Item", "key": "name"},
                "merged": {"type": "Item", "key": "name", "strategy": ["merge", "retainKeys"]},
                "nested": {"type": "Spec"},
                "replaced": {"type": "Item"},
            },
            "Thing": {"spec": {"type": "Spec"}},
        },
    }


def test_a_kind_without_strategic_merge_patches_is_not_listed() -> None:
    table = extract([document("Thing", "application/merge-patch+json", **SCHEMAS)])
    assert table == {"kinds": {}, "types": {}}


def test_how_fields_of_built_in_kinds_are_merged() -> None:
    deployment = shape_of("apps/v1", "Deployment")
    assert deployment is not None
    spec = deployment.field("spec").shape
    assert spec.field("strategy").retains_keys
    pod = spec.field("template").shape.field("spec").shape
    containers = pod.field("containers")
    assert (containers.merges, containers.merge_key) == (True, "name")
    assert containers.shape.field("ports").merge_key == "containerPort"
    assert containers.shape.field("volumeMounts").merge_key == "mountPath"
    assert pod.field("volumes").retains_keys
    assert not pod.field("tolerations").merges
    metadata = deployment.field("metadata").shape
    assert metadata.field("ownerReferences").merge_key == "uid"
    assert metadata.field("finalizers").merges
    unknown = metadata.field("unknown").shape.field("deeper")
    assert not (unknown.merges or unknown.replaces or unknown.retains_keys)
