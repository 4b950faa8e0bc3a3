"""Expected metadata: labels, annotations and taints that Kubeocean last wrote to an object.

The annotation `expected-metadata` is base64 of JSON, as every earlier version wrote it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Json, encode

__all__ = ["Expected"]


class _Wire(msgspec.Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    taints: tuple[Taint, ...] | None = None
    conditions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """Metadata that Kubeocean last wrote to an object."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    conditions: tuple[str, ...] = ()  # condition types besides those that every node has

    def encode(self) -> str:
        """Return the value of the annotation `expected-metadata`; equal metadata, equal values."""
        taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in self.taints)
        wire: Json = {
            "labels": dict(sorted(self.labels.items())),
            "annotations": dict(sorted(self.annotations.items())),
            "taints": [msgspec.to_builtins(taint) for taint in taints],
        }
        if self.conditions:
            wire["conditions"] = sorted(self.conditions)
        return base64.b64encode(encode(wire)).decode()

    @classmethod
    def decode(cls, value: str) -> Expected:
        """Decode the annotation `expected-metadata`; empty if it is missing or malformed."""
        return _decoded(value) if value else _NOTHING


_decode = msgspec.json.Decoder(_Wire).decode
_NOTHING: Final = Expected()


@lru_cache(maxsize=512)  # the metadata of one object is decoded several times in short order
def _decoded(value: str) -> Expected:
    try:
        wire = _decode(base64.b64decode(value, validate=True))
    except (ValueError, msgspec.DecodeError):
        return _NOTHING
    conditions = wire.conditions or ()
    return Expected(wire.labels or {}, wire.annotations or {}, wire.taints or (), conditions)
