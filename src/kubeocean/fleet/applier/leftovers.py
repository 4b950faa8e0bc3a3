"""Left-overs: objects that a Work placed earlier and names no longer.

They are found by the lists that are written before objects are applied: the status of the
AppliedWork and, as KubeFleet's agents write it, the status of the Work. A left-over is deleted only
if the AppliedWork is its only owner. With several owners only the reference to the AppliedWork is
removed; an object without that reference stays as it is.

An object moves from one Work of a binding to another if the resource snapshots of a placement are
divided differently, for example after an object was added. Such an object is handed over to the
AppliedWork of the other Work, its heir. Deleting it would delete what it contains, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kubeocean.api.fleet.conditions import ManifestReason, WorkCondition
from kubeocean.fleet.applier.manifests import Identifier, Owner
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Json

__all__ = ["Delete", "DropOwner", "LeaveAlone", "Removal", "left_overs", "removal_of"]


@dataclass(frozen=True, slots=True)
class Delete:
    """Removal of a left-over: delete the object with this UID."""

    uid: str


@dataclass(frozen=True, slots=True)
class DropOwner:
    """Removal of a left-over: drop or replace the AppliedWork's owner reference by this patch."""

    patch: MergePatch


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """No removal: the left-over is gone, being deleted, or not owned by the AppliedWork."""


Removal: TypeAlias = Delete | DropOwner | LeaveAlone


def left_overs(
    work: Json, applied_work: Json, manifests: Iterable[Identifier]
) -> tuple[Identifier, ...]:
    """Return the placed objects that no manifest names, each once, in the order of writing.

    A manifest names its object in all versions of the API, and also if the member does not serve
    the kind at the moment.
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
    """Yield the stored identifier of an object; none if the manifest could not be decoded."""
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


def removal_of(live: Json | None, owner: Owner, heir: Owner | None = None) -> Removal:
    """Return how a left-over is removed: deleted, released by its AppliedWork, or left alone.

    :param heir: the AppliedWork of the Work that contains the object now.
    """
    if live is None:
        return LeaveAlone()
    metadata = live["metadata"]
    references = list(metadata.get("ownerReferences") or ())
    others = [reference for reference in references if not owner.is_named_by(reference)]
    if len(others) == len(references):
        return LeaveAlone()
    if heir is not None:
        others = [each for each in others if not heir.is_named_by(each)] + [heir.reference()]
    if not others:
        return LeaveAlone() if metadata.get("deletionTimestamp") else Delete(metadata["uid"])
    version = metadata.get("resourceVersion")
    return DropOwner(
        MergePatch({"metadata": {"ownerReferences": others, "resourceVersion": version}})
    )
