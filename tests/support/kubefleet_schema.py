"""The schema of KubeFleet's objects, from the table of their fields in `kubefleet_fields.yaml`.

An API server with these definitions accepts and refuses the same objects as a hub of KubeFleet, as
far as fields, types, required fields, enumerations and bounds decide.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from kubeocean.api.fleet.kinds import KINDS, Kind
from kubeocean.runtime.objects import Json

__all__ = ["PUBLISHED", "published_definition", "published_schema"]

_TABLE: Json = yaml.safe_load(Path(__file__).with_name("kubefleet_fields.yaml").read_text("utf-8"))
_FIELD = re.compile(r"(?P<name>\w+)(?P<list>\[(?P<most>\d*)\])?(?P<required>!)?")
_DOMAIN = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_CONDITION: Json = {
    "type": "object",
    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    "properties": {
        "type": {
            "type": "string",
            "maxLength": 316,
            "pattern": rf"^{_DOMAIN}(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        },
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "minimum": 0},
    },
}
_TYPES: dict[str, Json] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "time": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "condition": _CONDITION,
    "manifest": {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    },
}

PUBLISHED: tuple[Kind[Any], ...] = tuple(
    kind for kind in KINDS if kind.resource.kind in _TABLE["kinds"]
)


def published_schema(kind: Kind[Any]) -> Json:
    """Return the OpenAPI schema of a kind's content: of `spec` and `status`."""
    return _object(_TABLE["kinds"][kind.resource.kind])


def published_definition(kind: Kind[Any]) -> Json:
    """Return the CustomResourceDefinition of a kind, with KubeFleet's schema."""
    resource = kind.resource
    schema = published_schema(kind)
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    return {
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _object(fields: Json) -> Json:
    properties: Json = {}
    required: list[str] = []
    for key, value in fields.items():
        parts = _FIELD.fullmatch(key)
        assert parts is not None, key
        schema = _schema(value)
        if parts["list"]:
            most = {"maxItems": int(parts["most"])} if parts["most"] else {}
            schema = {"type": "array", "items": schema, **most}
        properties[parts["name"]] = schema
        if parts["required"]:
            required.append(parts["name"])
    return {"type": "object", "properties": properties, **_present("required", required)}


def _schema(value: Any) -> Json:
    if isinstance(value, str):
        return _TYPES[value]
    if isinstance(value, list):
        return {"type": "string", "enum": value}
    if value.keys() <= {"min", "max"}:
        bounds = {"min": "minimum", "max": "maximum"}
        return {"type": "integer", **{bounds[name]: bound for name, bound in value.items()}}
    return _object(value)


def _present(name: str, values: list[str]) -> Json:
    return {name: values} if values else {}
