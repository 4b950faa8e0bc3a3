"""Compares our definitions with KubeFleet's, field by field.

A document without a value of `STRICTER` or `MORE_LENIENT` is accepted by both or by none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubeocean.api.fleet.definitions import definition
from kubeocean.api.fleet.kinds import Kind
from kubeocean.runtime.objects import Json
from support.kubefleet_schema import PUBLISHED, published_schema

# Texts that KubeFleet declares as any text, and of which it writes and reads these only
STRICTER = {
    "state": {"Scheduled", "Bound", "Unscheduled"},
    "operator": {"Gt", "Ge", "Eq", "Ne", "Lt", "Le"},
    "sortOrder": {"Ascending", "Descending"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
}
# Objects of which KubeFleet requires apiVersion and kind, which we write
MORE_LENIENT = {"status.manifestConditions[].backReportedStatus.observedStatus"}
COMPARED = (
    "type",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "maxItems",
    "minimum",
    "maximum",
    "x-kubernetes-embedded-resource",
)
SIZES = {"int32", "int64"}  # of integers; API servers accept both


def our_schema(kind: Kind[Any]) -> Json:
    versions = definition(kind)["spec"]["versions"]
    (stored,) = (each for each in versions if each["name"] == kind.resource.version)
    schema: Json = stored["schema"]["openAPIV3Schema"]
    kept = {name: schema["properties"][name] for name in ("spec", "status")}
    return schema | {"properties": kept}


def fields(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield all fields with their paths; `[]` is an entry of a list, `{}` of a map."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from fields(part, f"{path}.{name}" if path else name)
    for keyword, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if keyword in schema:
            yield from fields(schema[keyword], f"{path}{mark}")


def described(schema: Json) -> Json:
    content = {name: schema[name] for name in COMPARED if name in schema}
    if content.get("format") in SIZES:
        del content["format"]
    return content | {"required": sorted(schema.get("required", ()))}


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.resource.kind)
def test_a_kind_has_the_fields_that_kubefleet_publishes(kind: Kind[Any]) -> None:
    ours, theirs = dict(fields(our_schema(kind))), dict(fields(published_schema(kind)))
    assert ours.keys() == theirs.keys()
    for path, schema in theirs.items():
        if path not in MORE_LENIENT:
            assert described(ours[path]) == described(schema), path
        values, published = set(ours[path].get("enum", ())), set(schema.get("enum", ()))
        if values != published:
            assert not published, path
            assert values == STRICTER[path.rpartition(".")[2]], path
