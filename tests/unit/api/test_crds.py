"""Definitions: checked in as they are made, and in step with the views."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec import inspect

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.crds import binding_definition, definitions, policy_definition, render, write
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.runtime.objects import Json, Object


def schema_of(definition: Json) -> Json:
    (version,) = definition["spec"]["versions"]
    actual: Json = version["schema"]["openAPIV3Schema"]
    return actual


@pytest.mark.parametrize("name", ["clusterbindings.yaml", "resourceleasingpolicies.yaml"])
def test_what_is_checked_in_is_what_is_made(name: str) -> None:
    checked_in = resources.files("kubeocean.api").joinpath("crds", name).read_text("utf-8")
    assert checked_in == render()[name], "run scripts/crds"


def test_definitions_are_written_as_they_are(tmp_path: Path) -> None:
    write(tmp_path)
    written = [yaml.safe_load(path.read_text()) for path in sorted(tmp_path.iterdir())]
    assert written == list(definitions())


def test_files_repeat_what_they_say() -> None:
    for content in render().values():
        assert "&id" not in content


# Views and definitions


def shape(type_: inspect.Type) -> object:
    """Return the schema that a definition must have for a field of this type."""
    match type_:
        case inspect.UnionType(types=types):
            kinds = [each for each in types if not isinstance(each, inspect.NoneType)]
            return shape(kinds[0]) if len(kinds) == 1 else "int-or-string"
        case inspect.VarTupleType(item_type=item):
            return [shape(item)]
        case inspect.StructType(fields=fields):
            return {field.encode_name: shape(field.type) for field in fields}
        case inspect.StrType():
            return "string"
        case inspect.IntType():
            return "integer"
        case inspect.BoolType():
            return "boolean"
        case inspect.DictType():
            return "nodeSelector"
    raise AssertionError(f"no rule for {type_}")


def allowed(schema: Json) -> object:
    """Return the types that a schema allows."""
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if schema["type"] == "array":
        return [allowed(schema["items"])]
    if "nodeSelectorTerms" in schema.get("properties", {}):
        return "nodeSelector"
    if schema["type"] == "object":
        return {name: allowed(each) for name, each in schema["properties"].items()}
    return schema["type"]


@pytest.mark.parametrize(
    ("view", "definition"),
    [(ClusterBinding, binding_definition()), (ResourceLeasingPolicy, policy_definition())],
)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_a_view_has_the_fields_of_its_definition(
    view: type[Object], definition: Json, part: str
) -> None:
    types = {field.encode_name: field.type for field in msgspec.structs.fields(view)}
    declared = schema_of(definition)["properties"][part]
    assert shape(inspect.type_info(types[part])) == allowed(declared)


def described(schema: Json, path: str = "") -> list[str]:
    """Return the paths of a schema that have no description."""
    missing = [] if schema.get("description") or path.endswith(("[]", ".metadata")) else [path]
    for name, each in schema.get("properties", {}).items():
        missing += described(each, f"{path}.{name}")
    if "items" in schema:
        missing += described(schema["items"], f"{path}[]")
    return missing


@pytest.mark.parametrize("definition", definitions(), ids=lambda each: each["metadata"]["name"])
def test_every_field_is_described(definition: Json) -> None:
    assert described(schema_of(definition)) == []


def test_names_and_columns_are_those_of_the_contract() -> None:
    binding, policy = definitions()
    assert binding["metadata"]["name"] == "clusterbindings.cloud.tencent.com"
    assert policy["metadata"]["name"] == "resourceleasingpolicies.cloud.tencent.com"
    assert [each["spec"]["names"]["shortNames"] for each in (binding, policy)] == [["cb"], ["rlp"]]
    shown = [
        [
            column["name"]
            for column in each["spec"]["versions"][0]["additionalPrinterColumns"]
            if not column.get("priority")
        ]
        for each in (binding, policy)
    ]
    assert shown == [["ClusterID", "Phase", "Age"], ["Cluster", "Phase", "Active", "Age"]]
