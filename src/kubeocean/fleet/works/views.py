"""Works as the hub's controllers cache them: without manifests, and without reports of success.

The manifests of a Work are large; of them only a digest is cached, by which a hub that starts
recognizes Works that were edited while no hub ran. Status entries of
manifests that are applied and available repeat the conditions of the Work. Of the statuses of
placed objects that a member reports back, only hashes are cached, and only if they are to be
written onto the hub's own objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.conditions import WorkCondition
from kubeocean.api.fleet.hashes import content_hash
from kubeocean.api.fleet.schema import Part
from kubeocean.api.fleet.strategies import ApplyStrategy, ReportBackStrategy
from kubeocean.api.fleet.works import WORKS, ManifestCondition, WorkResourceIdentifier, WorkStatus
from kubeocean.fleet.steps import shared
from kubeocean.runtime.objects import Key, Object, Resource, find_condition

__all__ = [
    "CACHED_WORKS",
    "CachedWork",
    "CachedWorkSpec",
    "ReportedStatus",
    "binding_of_work",
    "objects_digest",
    "placement_of_work",
    "prune_work",
    "reported_status",
]


class _Workload(Part, frozen=True):
    manifests: tuple[msgspec.Raw, ...] = ()


class CachedWorkSpec(Part, frozen=True):
    """The spec of a Work with encoded manifests, which `prune_work` removes."""

    workload: _Workload = _Workload()
    apply_strategy: ApplyStrategy = ApplyStrategy()
    report_back_strategy: ReportBackStrategy = ReportBackStrategy()


class ReportedStatus(NamedTuple):
    """Hash of the status of a placed object that a member reports back."""

    identifier: WorkResourceIdentifier
    digest: str


class CachedWork(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Work as the hub caches it, without its manifests.

    `reported` and `digest`, that of the manifests, are filled by `prune_work`; no Work of a server
    has the fields.
    """

    spec: CachedWorkSpec = CachedWorkSpec()
    status: WorkStatus = WorkStatus()
    reported: tuple[ReportedStatus, ...] = ()
    digest: str = ""


CACHED_WORKS: Final = Resource(
    WORKS.group, WORKS.version, WORKS.plural, WORKS.kind, WORKS.namespaced, CachedWork
)
_DIGEST_BYTES: Final = 8
_GOOD: Final = frozenset(
    {WorkCondition.APPLIED, WorkCondition.AVAILABLE, WorkCondition.DIFF_REPORTED}
)


def prune_work(work: CachedWork) -> CachedWork:
    """Return a Work without manifests, and without status entries that report only success.

    Statuses that are to be written onto the hub's objects are replaced by their hashes, and the
    manifests by their digest.
    """
    entries = work.status.manifest_conditions
    status = msgspec.structs.replace(
        work.status,
        conditions=shared(work.status.conditions),
        manifest_conditions=tuple(map(_without_status, filter(_is_notable, entries))),
    )
    reported: tuple[ReportedStatus, ...] = ()
    if work.spec.report_back_strategy.is_for_originals:
        reported = tuple(
            ReportedStatus(each.identifier, content_hash(observed))
            for each in entries
            if (observed := reported_status(each)) is not None
        )
    return msgspec.structs.replace(
        work,
        spec=msgspec.structs.replace(work.spec, workload=_Workload()),
        status=status,
        reported=reported,
        digest=objects_digest(work.spec.workload.manifests),
    )


def objects_digest(objects: Iterable[msgspec.Raw]) -> str:
    """Return a short hash of encoded objects, to compare manifests with a resource snapshot."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for raw in objects:
        digest.update(bytes(raw))
        digest.update(b"\n")
    return digest.hexdigest()


def reported_status(entry: ManifestCondition) -> Any:
    """Return the status of an applied object that a status entry reports; None if it has none."""
    applied = find_condition(entry.conditions, WorkCondition.APPLIED)
    if applied is None or applied.status != "True" or entry.back_reported_status is None:
        return None
    observed, identifier = entry.back_reported_status.observed_status, entry.identifier
    if not isinstance(observed, dict):
        return None
    group, version = identifier.group, identifier.version
    kind = f"{group}/{version}" if group else version, identifier.kind
    return (
        observed.get("status")
        if (observed.get("apiVersion"), observed.get("kind")) == kind
        else None
    )


def _without_status(entry: ManifestCondition) -> ManifestCondition:
    if entry.back_reported_status is None:
        return entry
    return msgspec.structs.replace(entry, back_reported_status=None)


def _is_notable(report: ManifestCondition) -> bool:
    if report.drift_details is not None or report.diff_details is not None:
        return True
    return any(each.status != "True" for each in report.conditions if each.type in _GOOD)


def placement_of_work(work: Object) -> Key | None:
    """Return the placement in the labels of a Work; None if they name none."""
    name = work.labels.get(names.LABEL_PARENT_PLACEMENT)
    return Key(work.labels.get(names.LABEL_PARENT_NAMESPACE, ""), name) if name else None


def binding_of_work(work: Object) -> Key | None:
    """Return the binding in the labels of a Work; None if they name none."""
    name = work.labels.get(names.LABEL_PARENT_BINDING)
    return Key(work.labels.get(names.LABEL_PARENT_NAMESPACE, ""), name) if name else None
