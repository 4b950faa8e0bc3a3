"""Left-overs: objects that a Work placed earlier and names no longer.

They are found by what was written down before anything was applied: the status of the AppliedWork
and, as KubeFleet's agents write it, the status of the Work. Found does not mean removed: an object
goes only if the AppliedWork is its one owner; of several owners only our reference goes; an object
without our reference stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kubeocean.api.fleet.conditions import ManifestReason, WorkCondition
from kubeocean.fleet.applier.manifests import Identifier, Owner
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Json

__all__ = ["Delete", "LeaveAlone", "Release", "Removal", "left_overs", "removal_of"]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with this UID."""

    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Drop our owner reference with this patch."""

    patch: MergePatch


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """Do nothing: the object is gone, going, or not ours."""


Removal: TypeAlias = Delete | Release | LeaveAlone


def left_overs(
    work: Json, applied_work: Json, manifests: Iterable[Identifier]
) -> tuple[Identifier, ...]:
    """Return what was placed and is no longer named, each once, in the order it was written.

    A manifest names its object also if the member does not know its kind at the moment, and in
    whichever version of the API.
    """
    named = {manifest.object for manifest in manifests}
    placed: dict[tuple[str, str, str, str], Identifier] = {}
    for identifier in _placed(work, applied_work):
        placed.setdefault(identifier.object, identifier)
    return tuple(identifier for identity, identifier in placed.items() if identity not in named)


def _placed(work: Json, applied_work: Json) -> Iterator[Identifier]:
    for entry in (applied_work.get("status") or {}).get("appliedResources") or ():
        yield from _identified(entry)
    for entry in (work.get("status") or {}).get("manifestConditions") or ():
        if _may_have_been_applied(entry):
            yield from _identified(entry.get("identifier") or {})


def _identified(stored: Json) -> Iterator[Identifier]:
    """Identifiers that lead to an object; a manifest that was never decoded has none."""
    identifier = Identifier.from_json(stored)
    if identifier.version and identifier.resource and identifier.name:
        yield identifier


def _may_have_been_applied(entry: Json) -> bool:
    """Whether the manifest was applied, or was about to be when an agent stopped."""
    conditions: list[Json] = entry.get("conditions") or []
    applied: Json = next(
        (each for each in conditions if each.get("type") == WorkCondition.APPLIED), {}
    )
    return applied.get("status") == "True" or applied.get("reason") == ManifestReason.PREPARING


def removal_of(live: Json | None, owner: Owner) -> Removal:
    """Decide how a left-over is removed."""
    if live is None:
        return LeaveAlone()
    metadata = live["metadata"]
    references = list(metadata.get("ownerReferences") or ())
    others = [reference for reference in references if not owner.is_named_by(reference)]
    if len(others) == len(references):
        return LeaveAlone()
    if not others:
        return LeaveAlone() if metadata.get("deletionTimestamp") else Delete(metadata["uid"])
    version = metadata.get("resourceVersion")
    return Release(
        MergePatch({"metadata": {"ownerReferences": others, "resourceVersion": version}})
    )
