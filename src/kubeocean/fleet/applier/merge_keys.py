"""Merge keys: how a strategic merge patch merges the lists of Kubernetes' own kinds.

Whether a list is replaced or merged, and by which field its items are identified, is declared in
Kubernetes' Go types and published in each server's OpenAPI documents (`x-kubernetes-patch-*`).
`merge_keys.json` holds these declarations for every kind that accepts strategic merge patches;
`scripts/merge-keys` generates the file from a server's documents with `extract`, and a test
compares it with the server that the tests run on. A kind that is not listed (custom resources,
kinds of newer servers) has no `TypeShape` and is patched with a JSON merge patch, which every
server accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec

from kubeocean.runtime.objects import Json

__all__ = ["Field", "TypeShape", "extract", "shape_of"]

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_REFERENCE: Final = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Field:
    """The merge strategy of a field, and the shape of its value or of its items."""

    shape: TypeShape
    merge_key: str = ""  # the field that identifies an item of a merged list of objects
    merges: bool = False  # a list that is merged; others are replaced whole
    replaces: bool = False  # an object that is replaced whole; others are merged
    retains_keys: bool = False  # an object of which keys that are not in the manifest are removed


@dataclass(frozen=True, slots=True)
class TypeShape:
    """The fields of a type that do not have the default merge strategy, by name."""

    types: Mapping[str, Json]
    fields: Mapping[str, Json]

    def field(self, name: str) -> Field:
        """Return the merge strategy of a field; by default objects merge and lists are replaced."""
        entry = self.fields.get(name)
        if entry is None:
            return _PLAIN
        strategies = entry.get("strategy", ())
        return Field(
            shape=TypeShape(self.types, self.types.get(entry.get("type", ""), {})),
            merge_key=entry.get("key", ""),
            merges="merge" in strategies,
            replaces="replace" in strategies,
            retains_keys="retainKeys" in strategies,
        )


_NO_SHAPE: Final = TypeShape({}, {})
_PLAIN: Final = Field(_NO_SHAPE)


def shape_of(api_version: str, kind: str) -> TypeShape | None:
    """Return the shape of a built-in kind; None for a kind without strategic merge patches."""
    table = _table()
    name = table["kinds"].get(f"{api_version}/{kind}")
    return None if name is None else TypeShape(table["types"], table["types"][name])


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("merge_keys.json").read_bytes()
    table: Mapping[str, Any] = msgspec.json.decode(text)
    return table


# --- made from OpenAPI documents


def extract(documents: Iterable[Json]) -> Json:
    """Build the content of `merge_keys.json` from all OpenAPI v3 documents of a server."""
    kinds: dict[str, str] = {}
    schemas: dict[str, Json] = {}
    for document in documents:
        own: Mapping[str, Json] = document.get("components", {}).get("schemas", {})
        schemas.update(own)
        patched = set(_patched_kinds(document))
        for name, schema in own.items():
            for gvk in schema.get("x-kubernetes-group-version-kind", ()):
                if (kind := _kind_name(gvk)) in patched:
                    kinds[kind] = name
    types = {name: _fields(schema) for name, schema in schemas.items()}
    needed = _reachable(kinds.values(), types)
    telling = _telling(types)
    return {
        "kinds": dict(sorted(kinds.items())),
        "types": {
            name: {
                field: kept
                for field, entry in sorted(types[name].items())
                if (kept := _pruned(entry, telling))
            }
            for name in sorted(needed)
            if name in telling or name in kinds.values()
        },
    }


def _patched_kinds(document: Json) -> Iterator[str]:
    """Yield the kinds whose objects accept a strategic merge patch."""
    for path, item in document.get("paths", {}).items():
        patch = item.get("patch", {})
        content = patch.get("requestBody", {}).get("content", {})
        if path.endswith("/{name}") and _STRATEGIC in content:
            yield _kind_name(patch["x-kubernetes-group-version-kind"])


def _kind_name(gvk: Mapping[str, str]) -> str:
    return "/".join(part for part in (gvk["group"], gvk["version"], gvk["kind"]) if part)


def _fields(schema: Json) -> dict[str, Json]:
    """Return the type and the merge strategy of each property."""
    fields: dict[str, Json] = {}
    for name, property_ in schema.get("properties", {}).items():
        entry: Json = {}
        if reference := _referred(property_) or _referred(property_.get("items", {})):
            entry["type"] = reference
        if key := property_.get("x-kubernetes-patch-merge-key"):
            entry["key"] = key
        if strategy := property_.get("x-kubernetes-patch-strategy"):
            entry["strategy"] = strategy.split(",")
        if entry:
            fields[name] = entry
    return fields


def _referred(schema: Json) -> str:
    for candidate in (schema, *schema.get("allOf", ())):
        if reference := candidate.get("$ref"):
            return str(reference).removeprefix(_REFERENCE)
    return ""


def _reachable(roots: Iterable[str], types: Mapping[str, Mapping[str, Json]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen and name in types:
            seen.add(name)
            waiting.extend(entry["type"] for entry in types[name].values() if "type" in entry)
    return seen


def _telling(types: Mapping[str, Mapping[str, Json]]) -> set[str]:
    """Return the types that have a field, directly or nested, with a declared merge strategy."""
    telling: set[str] = set()
    while True:
        more = {
            name
            for name, fields in types.items()
            if name not in telling and any(_pruned(entry, telling) for entry in fields.values())
        }
        if not more:
            return telling
        telling |= more


def _pruned(entry: Json, telling: set[str]) -> Json:
    kept = {key: value for key, value in entry.items() if key != "type" or value in telling}
    return kept if kept.keys() != {"key"} else {}
