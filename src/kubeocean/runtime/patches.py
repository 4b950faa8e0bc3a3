"""Patches: the four ways to say what should change.

Each knows its content type and its body. Only `ApplyPatch` may be repeated when its outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

__all__ = ["ApplyPatch", "JsonPatch", "MergePatch", "Patch", "StrategicPatch"]


@dataclass(frozen=True, slots=True)
class MergePatch:
    """RFC 7386: what is named is set, null removes, lists are replaced whole."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """Kubernetes' own merge: lists of built-in kinds are merged by their keys."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902: a list of operations; a `test` operation is a precondition."""

    body: Sequence[Mapping[str, Any]]
    content_type: ClassVar[str] = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class ApplyPatch:
    """Server-side apply: the fields that we own, all of them. `force` takes them from others."""

    body: Mapping[str, Any]
    force: bool = False
    content_type: ClassVar[str] = "application/apply-patch+yaml"  # JSON is YAML


Patch: TypeAlias = MergePatch | StrategicPatch | JsonPatch | ApplyPatch
