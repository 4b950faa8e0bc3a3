"""Works as the hub's controllers cache them: without manifests, and without reports of success.

The manifests of a Work are large and no decision of the hub depends on them. Status entries of
manifests that are applied and available repeat the conditions of the Work.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.conditions import WorkCondition
from kubeocean.api.fleet.schema import Part
from kubeocean.api.fleet.strategies import ApplyStrategy, ReportBackStrategy
from kubeocean.api.fleet.works import WORKS, ManifestCondition, WorkStatus
from kubeocean.fleet.steps import shared
from kubeocean.runtime.objects import Key, Object, Resource

__all__ = [
    "CACHED_WORKS",
    "CachedWork",
    "CachedWorkSpec",
    "binding_of_work",
    "placement_of_work",
    "prune_work",
]


class CachedWorkSpec(Part, frozen=True):
    """The spec of a cached Work, without its manifests."""

    apply_strategy: ApplyStrategy = ApplyStrategy()
    report_back_strategy: ReportBackStrategy = ReportBackStrategy()


class CachedWork(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Work as the hub caches it, without its manifests."""

    spec: CachedWorkSpec = CachedWorkSpec()
    status: WorkStatus = WorkStatus()


CACHED_WORKS: Final = Resource(
    WORKS.group, WORKS.version, WORKS.plural, WORKS.kind, WORKS.namespaced, CachedWork
)
_GOOD: Final = frozenset(
    {WorkCondition.APPLIED, WorkCondition.AVAILABLE, WorkCondition.DIFF_REPORTED}
)


def prune_work(work: CachedWork) -> CachedWork:
    """Return a Work without the status entries of manifests that report only success."""
    status = msgspec.structs.replace(
        work.status,
        conditions=shared(work.status.conditions),
        manifest_conditions=tuple(filter(_is_notable, work.status.manifest_conditions)),
    )
    return msgspec.structs.replace(work, status=status)


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
