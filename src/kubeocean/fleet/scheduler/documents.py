"""Documents of a cycle's results: new bindings, patches of bindings, status of the policy snapshot.

Names, labels, annotations and finalizers are KubeFleet's; `scope_of` gives the kinds, so that one
function serves ClusterResourcePlacements and ResourcePlacements. Patches are JSON merge patches.
Each contains the resourceVersion of the binding that the cycle read: the API server refuses the
patch of a binding that has changed since, with a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import BindingState
from kubeocean.api.fleet.conditions import SCHEDULED
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.snapshots import ClusterDecision, PolicySnapshotStatus
from kubeocean.fleet.scheduler.bindings import BindingPatch, NewBinding, Unscheduling
from kubeocean.fleet.scheduler.decisions import SnapshotStatus
from kubeocean.fleet.scheduler.model import BindingView
from kubeocean.runtime.objects import Json, find_condition, set_condition

__all__ = [
    "binding_document",
    "binding_patch",
    "release_patch",
    "snapshot_status",
    "unschedule_patch",
]


def binding_document(
    placement: Placement, new: NewBinding, deleting: Iterable[BindingView] = ()
) -> Json:
    """Return a binding to create; `deleting` are the placement's bindings under deletion.

    The name depends on the UID of the placement and on the deleting bindings to the same cluster: a
    second attempt has the name of the first one, and a binding that is being deleted does not block
    its successor. The binding has the finalizers of the scheduler and of the work generator from
    the start. It has no applyStrategy: the rollout writes it together with the release.
    """
    resource = scope_of(placement.key).bindings
    taken = [each.uid for each in deleting if each.target_cluster == new.target_cluster]
    suffix = names.binding_suffix(placement.uid, new.target_cluster, taken)
    metadata: Json = {
        "name": names.binding(placement.name, new.target_cluster, suffix),
        "labels": {names.LABEL_PARENT_PLACEMENT: placement.name},
        "finalizers": [names.FINALIZER_BINDING_SCHEDULER, names.FINALIZER_WORK],
    }
    if resource.namespaced:
        metadata["namespace"] = placement.namespace
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": {
            "state": str(new.state),
            "targetCluster": new.target_cluster,
            "resourceSnapshotName": "",
            "schedulingPolicySnapshotName": new.policy_snapshot,
            "clusterDecision": document(new.decision),
        },
    }


def binding_patch(patch: BindingPatch) -> Json:
    """Return the patch by which a binding refers to the current policy snapshot."""
    return {
        "metadata": {
            "resourceVersion": patch.binding.resource_version,
            "annotations": {names.ANNOTATION_PREVIOUS_STATE: None},
        },
        "spec": {
            "state": str(patch.state),
            "schedulingPolicySnapshotName": patch.policy_snapshot,
            "clusterDecision": _replaced_decision(patch.decision),
        },
    }


def _replaced_decision(decision: ClusterDecision) -> Json:
    """Return a decision with nulls for absent fields, which a merge patch would keep."""
    score: Json = {"affinityScore": None, "priorityScore": None}
    if decision.cluster_score is None:
        return document(decision) | {"clusterScore": None}
    return document(decision) | {"clusterScore": score | document(decision.cluster_score)}


def unschedule_patch(unscheduling: Unscheduling) -> Json:
    """Return the patch that marks a binding Unscheduled and keeps its state in an annotation."""
    return {
        "metadata": {
            "resourceVersion": unscheduling.binding.resource_version,
            "annotations": {
                names.ANNOTATION_PREVIOUS_STATE: str(unscheduling.previous_state),
            },
        },
        "spec": {"state": str(BindingState.UNSCHEDULED)},
    }


def release_patch(binding: BindingView) -> Json | None:
    """Return the patch that drops a binding's scheduler finalizer; None if it has none."""
    if names.FINALIZER_BINDING_SCHEDULER not in binding.finalizers:
        return None
    kept = [each for each in binding.finalizers if each != names.FINALIZER_BINDING_SCHEDULER]
    return {"metadata": {"resourceVersion": binding.resource_version, "finalizers": kept}}


def snapshot_status(
    result: SnapshotStatus, old: PolicySnapshotStatus, *, now: str
) -> PolicySnapshotStatus:
    """Return the whole status of a policy snapshot; equal to `old` if there is nothing to write.

    The condition Scheduled keeps its transition time while its status is the same. Other
    conditions, which no program of the fleet writes, are dropped. Selected clusters are sorted by
    name: the order of a cycle depends on the states of bindings.
    """
    selected = [decision for decision in result.target_clusters if decision.selected]
    before = find_condition(old.conditions, SCHEDULED.name)
    return PolicySnapshotStatus(
        observed_crp_generation=result.observed_generation,
        conditions=set_condition((before,) if before else (), result.condition, now=now),
        target_clusters=(
            *sorted(selected, key=lambda decision: decision.cluster_name),
            *(decision for decision in result.target_clusters if not decision.selected),
        ),
    )
