"""Differences between a manifest of the hub and the object in the member.

A *drift* is a difference on an object that the applier owns, a *diff* one on an object that the
applier has not taken over. Both are reported as a list of at most `MOST_PATCH_DETAILS` JSON
pointers with the values in hub and member; values of Secrets are never shown.

*Full* comparison compares the manifest with the object. *Partial* comparison compares the object
with the result of a dry run, a forced server-side apply of the manifest, so that only fields that
the manifest names count, and the server's defaults and normalisation do not. If the
server finds the dry run invalid (an immutable field differs), all fields are compared, and the
result is *degraded*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from kubeocean.api.fleet.hashes import canonical
from kubeocean.api.fleet.limits import MOST_PATCH_DETAILS
from kubeocean.fleet.applier.manifests import normalised
from kubeocean.fleet.applier.three_way import equal
from kubeocean.runtime.objects import Json

__all__ = [
    "REDACTED",
    "WHOLE_OBJECT",
    "FieldDifference",
    "details_to_json",
    "differences",
    "observed",
]

REDACTED: Final = "(redacted for security reasons)"
_SECRET_FIELDS: Final = ("data", "stringData")


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field in which manifest and object differ; a value is None where the field is absent."""

    path: str
    in_member: str | None = None
    in_hub: str | None = None

    def to_json(self) -> Json:
        detail = {"path": self.path}
        if self.in_member is not None:
            detail["valueInMember"] = self.in_member
        if self.in_hub is not None:
            detail["valueInHub"] = self.in_hub
        return detail


WHOLE_OBJECT: Final = FieldDifference("/", in_hub="(the whole object)")


def differences(hub: Json, member: Json) -> tuple[FieldDifference, ...]:
    """Return the fields in which two objects differ, ignoring those that `normalised` removes."""
    secret = member.get("apiVersion") == "v1" and member.get("kind") == "Secret"
    every = _walk("", normalised(hub), normalised(member))
    return tuple(_redacted(each) if secret else each for each in islice(every, MOST_PATCH_DETAILS))


def _walk(path: str, hub: Any, member: Any) -> Iterator[FieldDifference]:
    if isinstance(hub, dict) and isinstance(member, dict):
        for name in sorted(hub.keys() | member.keys()):
            place = f"{path}/{_escaped(name)}"
            if name not in hub:
                yield FieldDifference(place, in_member=_printed(member[name]))
            elif name not in member:
                yield FieldDifference(place, in_hub=_printed(hub[name]))
            else:
                yield from _walk(place, hub[name], member[name])
    elif isinstance(hub, list) and isinstance(member, list):
        for index, (ours, theirs) in enumerate(zip(hub, member, strict=False)):
            yield from _walk(f"{path}/{index}", ours, theirs)
        for index in range(len(hub), len(member)):
            yield FieldDifference(f"{path}/{index}", in_member=_printed(member[index]))
        for index in range(len(member), len(hub)):
            yield FieldDifference(f"{path}/{index}", in_hub=_printed(hub[index]))
    elif not equal(hub, member):
        yield FieldDifference(path or "/", in_member=_printed(member), in_hub=_printed(hub))


def _escaped(name: str) -> str:
    """Return a key as a reference token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _printed(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value).decode()


def _redacted(difference: FieldDifference) -> FieldDifference:
    if difference.path.split("/", 2)[1] not in _SECRET_FIELDS:
        return difference
    return FieldDifference(
        difference.path,
        None if difference.in_member is None else REDACTED,
        None if difference.in_hub is None else REDACTED,
    )


# --- as a status shows them


def details_to_json(details: Iterable[FieldDifference]) -> list[Json]:
    """Return differences as the entries of `observedDrifts` or `observedDiffs`."""
    return [each.to_json() for each in islice(details, MOST_PATCH_DETAILS)]


def observed(
    kind: str,
    details: tuple[FieldDifference, ...],
    *,
    old: Json | None,
    generation: int | None,
    now: str,
) -> Json | None:
    """Return the `driftDetails` (kind `Drift`) or `diffDetails` (kind `Diff`) of a manifest.

    None if nothing differs. `old` are the details of the last pass, whose time of the first
    observation is kept.
    """
    if not details:
        return None
    first = f"first{'Drifted' if kind == 'Drift' else 'Diffed'}ObservedTime"
    entry: Json = {
        "observationTime": now,
        first: (old or {}).get(first) or now,
        f"observed{kind}s": details_to_json(details),
    }
    if generation is not None:
        entry["observedInMemberClusterGeneration"] = generation
    return entry
