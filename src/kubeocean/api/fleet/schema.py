"""Structs that carry their own OpenAPI schema.

Each field of a kind is declared once: its Python type defines how a stored object decodes, and
the `field` in its annotation which values an API server accepts, fills in and refuses.

    heartbeat_period_seconds: Annotated[
        int, field("Seconds between heartbeats.", defaulted=True, minimum=1, maximum=600)
    ] = 60

Decoding is lenient: every field has a default, enumerations decode as texts, and unknown fields are
skipped. The default of the struct is the value that controllers assume where a document has none.
Only with `defaulted` does the API server store it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from kubeocean.api.schema import conditions
from kubeocean.runtime.objects import Condition, Json

__all__ = [
    "V1",
    "V1ALPHA1",
    "V1BETA1",
    "AnyValue",
    "Bytes",
    "Conditions",
    "EmbeddedObject",
    "IntOrString",
    "LabelSelectorDocument",
    "Part",
    "Quantities",
    "Time",
    "document",
    "field",
    "object_schema",
]

V1: Final = "v1"
V1BETA1: Final = "v1beta1"
V1ALPHA1: Final = "v1alpha1"


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base class of the structs of API objects; `RULES` are CEL rules of the struct's schema."""

    RULES: ClassVar[tuple[Json, ...]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """OpenAPI schema of one field, in addition to the field's Python type."""

    description: str
    rules: tuple[Json, ...] = ()
    item_rules: tuple[Json, ...] = ()
    required: bool = False
    defaulted: bool = False
    unchecked: bool = False
    only: tuple[str, ...] = ()
    limits: Mapping[str, object] = dataclass_field(default_factory=dict)
    enums: Mapping[str, tuple[str, ...]] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """OpenAPI schema of a type that Python's own types do not determine."""

    schema: Mapping[str, object]


def field(
    description: str,
    *rules: Json,
    item_rules: tuple[Json, ...] = (),
    required: bool = False,
    defaulted: bool = False,
    unchecked: bool = False,
    only: tuple[str, ...] = (),
    enum: Iterable[str] = (),
    enum_in: Mapping[str, Iterable[str]] | None = None,
    **limits: object,
) -> _Field:
    """Return the OpenAPI schema of a field, for the annotation of its type.

    `rules` hold for the field, `item_rules` for each entry of a list. API servers fill a
    `defaulted` field with the struct's default. Below an `unchecked` field no rules hold: its value
    is a copy of one that was checked when a user wrote it. `only` names the versions that have the
    field; `enum_in` gives a version other values than `enum`. `limits` are further keywords of
    OpenAPI.
    """
    if enum:
        limits["enum"] = [str(value) for value in enum]
    return _Field(
        description,
        rules,
        item_rules,
        required,
        defaulted,
        unchecked,
        only,
        limits,
        {version: tuple(map(str, values)) for version, values in (enum_in or {}).items()},
    )


# Types whose schema is more than a Python type

_INT_OR_STRING: Final[Json] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_QUANTITY: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_EMBEDDED: Final[Json] = {
    "type": "object",
    "x-kubernetes-embedded-resource": True,
    "x-kubernetes-preserve-unknown-fields": True,
}
_TEXTS: Final[Json] = {
    "type": "array",
    "items": {"type": "string"},
    "x-kubernetes-list-type": "atomic",
}
_LABEL_SELECTOR: Final[Json] = {
    "type": "object",
    "properties": {
        "matchLabels": {
            "description": "Labels that an object must have, all of them.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        "matchExpressions": {
            "description": "Requirements on labels that must hold, all of them.",
            "type": "array",
            "items": {
                "description": "Requirement on one label.",
                "type": "object",
                "required": ["key", "operator"],
                "properties": {
                    "key": {"description": "Key of the label.", "type": "string"},
                    "operator": {
                        "description": "In, NotIn, Exists or DoesNotExist.",
                        "type": "string",
                    },
                    "values": {
                        "description": "Values to compare with; none for Exists and DoesNotExist.",
                        **_TEXTS,
                    },
                },
            },
            "x-kubernetes-list-type": "atomic",
        },
    },
    "x-kubernetes-map-type": "atomic",
}

Time: TypeAlias = Annotated[str, _Shape({"type": "string", "format": "date-time"})]
Bytes: TypeAlias = Annotated[str, _Shape({"type": "string", "format": "byte"})]
IntOrString: TypeAlias = Annotated[int | str, _Shape(_INT_OR_STRING)]
AnyValue: TypeAlias = Annotated[Any, _Shape({"x-kubernetes-preserve-unknown-fields": True})]
EmbeddedObject: TypeAlias = Annotated[Json, _Shape(_EMBEDDED)]
# Read by `runtime.selectors.LabelSelector.from_document`
LabelSelectorDocument: TypeAlias = Annotated[Json, _Shape(_LABEL_SELECTOR)]
Quantities: TypeAlias = dict[
    str, Annotated[int | str, _Shape({**_INT_OR_STRING, "pattern": _QUANTITY})]
]
Conditions: TypeAlias = tuple[Condition, ...]


# From structs to schemas


def object_schema(struct: type[msgspec.Struct], version: str) -> Json:
    """Return the OpenAPI schema of a struct in one version of the API."""
    hints = _hints(struct)
    properties: Json = {}
    required: list[str] = []
    for info in msgspec.structs.fields(struct):
        declared = _declared(hints[info.name])
        if declared is None or (declared.only and version not in declared.only):
            continue
        properties[info.encode_name] = _field_schema(
            hints[info.name], declared, info.default, version
        )
        if declared.required:
            required.append(info.encode_name)
    schema: Json = {"description": _summary(struct), "type": "object"}
    if required:
        schema["required"] = required
    return schema | {"properties": properties} | _rules(getattr(struct, "RULES", ()))


def _field_schema(hint: Any, declared: _Field, default: object, version: str) -> Json:
    schema = {**_schema(hint, version), "description": declared.description, **declared.limits}
    if version in declared.enums:
        schema["enum"] = list(declared.enums[version])
    if declared.defaulted:
        schema["default"] = _encode(default)
    if declared.item_rules:
        schema["items"] = _with_rules(schema["items"], declared.item_rules)
    schema = _with_rules(schema, declared.rules)
    if declared.unchecked:
        schema = _without_rules(schema)
    # The description comes first, for readers of the YAML
    return {"description": schema.pop("description"), **schema}


def _schema(hint: Any, version: str) -> Json:
    """Return the OpenAPI schema of a type hint in one version of the API."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        shape = next((each for each in args[1:] if isinstance(each, _Shape)), None)
        return dict(shape.schema) if shape else _schema(args[0], version)
    if origin in (Union, types.UnionType):
        (alternative,) = (each for each in args if each is not types.NoneType)
        return _schema(alternative, version)
    if origin is tuple:
        if args[0] is Condition:
            return conditions("")
        return {"type": "array", "items": _schema(args[0], version)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], version)}
    if hint is Condition:
        entry: Json = conditions("")["items"]
        return entry
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return object_schema(hint, version)
    return dict(_PLAIN[hint])


_PLAIN: Final[Mapping[type, Json]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
}


def _declared(hint: Any) -> _Field | None:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((each for each in metadata if isinstance(each, _Field)), None)


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _summary(struct: type[msgspec.Struct]) -> str:
    return " ".join((struct.__doc__ or "").partition("\n\n")[0].split())


def _rules(rules: Iterable[Json]) -> Json:
    return {"x-kubernetes-validations": list(rules)} if rules else {}


def _with_rules(schema: Json, rules: tuple[Json, ...]) -> Json:
    return schema | _rules((*schema.get("x-kubernetes-validations", ()), *rules))


def _without_rules(schema: Any) -> Any:
    """Return a copy of a schema without CEL rules at any depth."""
    if isinstance(schema, list):
        return [_without_rules(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "x-kubernetes-validations"}
    return {name: _without_rules(value) for name, value in kept.items()}


# From structs to documents


def document(part: msgspec.Struct) -> Json:
    """Return a struct as it is written to an API server.

    Required fields are always present, also when empty: `targetClusterObservedGeneration` is 0 for
    kinds without a generation, and an update stage may have no clusters. Other fields are left out
    if they are empty and their absence decodes to the same value.
    """
    content: Json = {}
    for name, encoded_as, required, default in _encoding(type(part)):
        value = getattr(part, name)
        if required or not (value == default and _is_empty(value)):
            content[encoded_as] = _encode(value)
    return content


def _encode(value: Any) -> Any:
    match value:
        case Condition():
            return msgspec.to_builtins(value)
        case msgspec.Struct():
            return document(value)
        case tuple():
            return [_encode(each) for each in value]
        case dict():
            return {key: _encode(each) for key, each in value.items()}
        case str():
            return str(value)  # an enumeration is written as its value
    return value


def _is_empty(value: object) -> bool:
    return not document(value) if isinstance(value, msgspec.Struct) else not value


@cache
def _encoding(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, bool, object], ...]:
    hints = _hints(struct)
    encoding = []
    for info in msgspec.structs.fields(struct):
        declared = _declared(hints[info.name])
        if declared is None:
            continue
        default = info.default
        if default is msgspec.NODEFAULT and info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        encoding.append((info.name, info.encode_name, declared.required, default))
    return tuple(encoding)
