"""CustomResourceDefinitions of the kinds of a fleet.

`scripts/crds` writes them to `crds/`. Versions differ only in fields that a version does not have,
so that no conversion is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from kubeocean.api.fleet.kinds import KINDS, Column, Kind
from kubeocean.api.fleet.schema import object_schema
from kubeocean.runtime.objects import Json

__all__ = ["definition", "definitions", "hub_definitions", "member_definitions", "render", "write"]

_DIRECTORY: Final = Path(__file__).parent / "crds"
_NOTE: Final = "# Made from kubeocean.api.fleet by scripts/crds; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """YAML dumper that repeats values instead of writing anchors, which are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions of all kinds of a fleet."""
    return tuple(definition(kind) for kind in KINDS)


def hub_definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions that a hub needs."""
    return tuple(definition(kind) for kind in KINDS if not kind.in_member)


def member_definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions that a member cluster needs."""
    return tuple(definition(kind) for kind in KINDS if kind.in_member)


def definition(kind: Kind[Any]) -> Json:
    """Return the CustomResourceDefinition of a kind."""
    resource = kind.resource
    names: Json = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    if kind.short_name:
        names["shortNames"] = [kind.short_name]
    if kind.categories:
        names["categories"] = list(kind.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": str(resource),
            "labels": {"app.kubernetes.io/part-of": "kubeocean"},
        },
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [_version(kind, version) for version in kind.versions],
        },
    }


def _version(kind: Kind[Any], version: str) -> Json:
    schema = object_schema(kind.resource.type, version)
    properties = {
        "apiVersion": {"description": "Version of this representation.", "type": "string"},
        "kind": {"description": "Kind of this object.", "type": "string"},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    if kind.spec_rules:
        spec = properties["spec"]
        rules = [*spec.get("x-kubernetes-validations", ()), *kind.spec_rules]
        properties["spec"] = spec | {"x-kubernetes-validations": rules}
    content: Json = {
        "name": version,
        "served": True,
        "storage": version == kind.resource.version,
        "schema": {
            "openAPIV3Schema": schema | {"description": kind.description, "properties": properties}
        },
    }
    if kind.columns:
        content["additionalPrinterColumns"] = [_column(column) for column in kind.columns]
    if kind.has_status:
        content["subresources"] = {"status": {}}
    return content


def _column(column: Column) -> Json:
    content: Json = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return content | ({"priority": 1} if column.wide else {})


def render() -> dict[str, str]:
    """Return the CustomResourceDefinitions as YAML, by file name."""
    return {
        f"{each['spec']['names']['plural']}.yaml": _NOTE
        + yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100)
        for each in definitions()
    }


def write(directory: Path = _DIRECTORY) -> None:
    """Write the CustomResourceDefinitions as YAML files to `directory`."""
    for name, content in render().items():
        (directory / name).write_text(content, encoding="utf-8")
