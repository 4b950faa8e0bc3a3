"""Metadata that is shared with users: theirs is kept, ours follows.

What we wanted last time is remembered on the object itself, in the annotation `expected-metadata`
(base64 of JSON, as every earlier version wrote it). What is there now and was never ours belongs to
somebody else and stays; what was ours and is not wanted any more goes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

from kubeocean.runtime.codec import encode
from kubeocean.runtime.kinds import Taint

__all__ = ["Expected", "merge", "merge_patch", "merge_taints"]


class _Wire(msgspec.Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    taints: tuple[Taint, ...] | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What we wanted to see on an object."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    def encode(self) -> str:
        """The value of the annotation; equal expectations have equal values."""
        taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in self.taints)
        wire = {
            "labels": dict(sorted(self.labels.items())),
            "annotations": dict(sorted(self.annotations.items())),
            "taints": [msgspec.to_builtins(taint) for taint in taints],
        }
        return base64.b64encode(encode(wire)).decode()

    @classmethod
    def decode(cls, value: str) -> Expected:
        """What an annotation says; nothing, if it is missing or was tampered with."""
        return _decoded(value) if value else _NOTHING


_decode = msgspec.json.Decoder(_Wire).decode
_NOTHING: Final = Expected()


@lru_cache(maxsize=512)  # one object is looked at several times within moments
def _decoded(value: str) -> Expected:
    try:
        wire = _decode(base64.b64decode(value, validate=True))
    except (ValueError, msgspec.DecodeError):
        return _NOTHING
    return Expected(wire.labels or {}, wire.annotations or {}, wire.taints or ())


def merge(
    now: Mapping[str, str], before: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, str]:
    """What there is of others, and all that is wanted."""
    return {key: value for key, value in now.items() if key not in before} | dict(wanted)


def merge_patch(now: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str | None]:
    """The JSON merge patch from one to the other."""
    gone: dict[str, str | None] = {key: None for key in now if key not in then}
    return gone | {key: value for key, value in then.items() if now.get(key) != value}


def merge_taints(
    now: Sequence[Taint],
    before: Sequence[Taint],
    wanted: Sequence[Taint],
    *,
    owns: Callable[[str], bool],
) -> tuple[Taint, ...]:
    """Taints are known by key and effect; one that stays keeps the time at which it was added.

    Those with a key that we own are ours, whoever put them there.
    """
    ours = {_of(taint) for taint in (*before, *wanted)}
    present = {_of(taint): taint for taint in now}
    kept = [taint for taint in now if _of(taint) not in ours and not owns(taint.key)]
    return (*kept, *(_with_time(taint, present.get(_of(taint))) for taint in wanted))


def _of(taint: Taint) -> tuple[str, str]:
    return taint.key, taint.effect


def _with_time(wanted: Taint, present: Taint | None) -> Taint:
    if wanted.time_added is not None or present is None:
        return wanted
    return msgspec.structs.replace(wanted, time_added=present.time_added)
