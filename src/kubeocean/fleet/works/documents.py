"""Documents of Works: a complete Work to create, and patches of existing Works.

A Work is complete when it is created, so that its generation stays 1 until its release changes.
Placed objects are inserted in their encoded form.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.strategies import ReportBackStrategy, ReportBackType
from kubeocean.api.fleet.works import WORKS
from kubeocean.fleet.rollout.plan import strategy_spec
from kubeocean.fleet.snapshots.documents import owner_reference
from kubeocean.fleet.works.plan import DesiredWork, WorkSettings
from kubeocean.fleet.works.views import CachedWork
from kubeocean.runtime.objects import Json

__all__ = ["adjust_patch", "replace_patch", "work_document"]


def work_document(
    binding: Binding, work: DesiredWork, objects: Sequence[msgspec.Raw], *, preset_finalizer: bool
) -> Json:
    """Return a Work to create in the namespace of the binding's cluster.

    `preset_finalizer` adds the finalizer of a member agent that asks for it, and so saves the
    agent a write. A ResourceBinding cannot own an object of another namespace: its Works are found
    by labels.
    """
    settings = work.settings
    metadata: Json = {
        "name": work.name,
        "namespace": names.member_namespace(binding.spec.target_cluster),
        "labels": settings.labels,
        "annotations": settings.annotations,
    }
    if preset_finalizer:
        metadata["finalizers"] = [names.FINALIZER_WORK]
    if not binding.namespace:
        resource = scope_of(binding.key).bindings
        metadata["ownerReferences"] = [owner_reference(resource, binding, controller=False)]
    spec: Json = {
        "workload": {"manifests": list(objects)},
        "applyStrategy": document(settings.apply_strategy),
    }
    if settings.report_back.type != ReportBackType.DISABLED:
        spec["reportBackStrategy"] = document(settings.report_back)
    return {
        "apiVersion": WORKS.api_version,
        "kind": WORKS.kind,
        "metadata": metadata,
        "spec": spec,
    }


def replace_patch(existing: CachedWork, work: DesiredWork, objects: Sequence[msgspec.Raw]) -> Json:
    """Return the patch that gives a Work the manifests of another release."""
    patch = adjust_patch(existing, work.settings)
    patch["spec"]["workload"] = {"manifests": list(objects)}
    return patch


def adjust_patch(existing: CachedWork, settings: WorkSettings) -> Json:
    """Return the patch of a Work's metadata and strategies, without its manifests."""
    return {
        "metadata": {
            "resourceVersion": existing.resource_version,
            "labels": settings.labels,
            "annotations": settings.annotations,
        },
        "spec": {
            "applyStrategy": strategy_spec(settings.apply_strategy),
            "reportBackStrategy": _report_back(settings.report_back),
        },
    }


def _report_back(strategy: ReportBackStrategy) -> Json | None:
    if strategy.type == ReportBackType.DISABLED:
        return None
    return {"destination": None} | document(strategy)
