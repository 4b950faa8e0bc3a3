"""Plans for pods: the next action for one virtual pod, given both pods as the caches show them.

Everything here is pure. A plan is made from caches, which may be behind: before an action deletes a
pod or reports it lost, the controller reads the pod from its API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import (
    Ids,
    Ownership,
    bears_ids,
    ownership_labels,
    pod_marks,
    pod_ownership,
)
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, Key, controller_of, find_condition
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

__all__ = [
    "FORCED_GRACE_S",
    "UNSCHEDULED_S",
    "Action",
    "Plan",
    "bound_for_s",
    "excluded_because",
    "grace_of",
    "is_due",
    "is_live",
    "is_ours",
    "is_own_node",
    "is_stray",
    "may_run_in_worker",
    "missing_marks",
    "ownership_of",
    "physical_names",
    "physical_node",
    "plan",
    "possible_keys",
    "reclaim_reason",
]

FORCED_GRACE_S: Final = 1  # for containers of a pod whose virtual pod is gone
UNSCHEDULED_S: Final = 300.0  # how long the worker's scheduler has to find a node for a pod
_INVALID_NAMESPACES: Final = {"", ".", ".."}


class Action(Enum):
    """The possible next actions on a virtual pod and its physical pod."""

    NONE = auto()
    CREATE = auto()  # the pod should run and never had a physical pod: create one
    SYNC = auto()  # the pod runs: apply changes to the physical pod, report its status
    DELETE = auto()  # the virtual pod was deleted or has ended: delete the physical pod
    FINALIZE = auto()  # the virtual pod was deleted and nothing runs for it: remove it
    REPORT_EXCLUDED = auto()  # the pod is not meant to run in the worker: report that
    REPORT_LOST = auto()  # the physical pod disappeared: fail the virtual pod
    DELETE_STRAYS = auto()  # there is no virtual pod: delete its physical pods


@dataclass(frozen=True, slots=True)
class Plan:
    """The action on one virtual pod.

    - `ppod`: the physical pod that runs for the virtual pod.
    - `strays`: other physical pods of this binding that are marked with its name, to be deleted
      whatever the action is.
    """

    action: Action
    ppod: PhysicalPod | None = None
    strays: tuple[PhysicalPod, ...] = ()


def plan(
    vpod: VirtualPod | None,
    ppods: Iterable[PhysicalPod],
    *,
    own_node: bool,
    may_run: bool,
    had_physical: Callable[[], bool],
    ids: Ids,
    domain: Domain,
) -> Plan:
    """Return the next action for a virtual pod.

    - `own_node`: its node is a virtual node of this binding. If not, nothing is written to the
      virtual pod, which may be another binding's; a physical pod that has to end is deleted all the
      same.
    - `may_run`: the pod may run in the worker cluster.
    - `had_physical`: whether this virtual pod ever had a physical pod.
    """
    known = list(ppods)
    if vpod is None:
        strays = tuple(p for p in known if bears_ids(p, ids=ids, domain=domain))
        return Plan(Action.DELETE_STRAYS, strays=strays)
    ownerships = [(p, ownership_of(vpod, p, ids=ids, domain=domain)) for p in known]
    ours = [p for p, ownership in ownerships if is_ours(ownership)]
    recorded = vpod.annotations.get(domain.physical_pod_uid)
    # Every replica chooses the same pod: the recorded one, else the oldest.
    ours.sort(key=lambda p: (p.uid != recorded, p.metadata.creation_timestamp or "", p.name))
    strays = tuple(p for p, ownership in ownerships if ownership is Ownership.STALE) + tuple(
        p for p in ours[1:] if bears_ids(p, ids=ids, domain=domain)
    )
    if ours:
        ended = vpod.finished and not ours[0].finished
        if vpod.deleting or ended:
            return Plan(Action.DELETE, ours[0], strays)
        return Plan(Action.SYNC, ours[0], strays) if own_node else Plan(Action.NONE, strays=strays)
    action = _without_physical(vpod, own_node=own_node, may_run=may_run, had_physical=had_physical)
    return Plan(action, strays=strays)


def _without_physical(
    vpod: VirtualPod, *, own_node: bool, may_run: bool, had_physical: Callable[[], bool]
) -> Action:
    if not own_node:
        # Another binding's pod; or its node is gone, and Kubernetes removes such pods.
        return Action.NONE
    if vpod.deleting:
        return Action.FINALIZE
    if vpod.finished:
        return Action.NONE
    if had_physical():
        return Action.REPORT_LOST
    return Action.CREATE if may_run else Action.REPORT_EXCLUDED


# Ownership


def ownership_of(vpod: VirtualPod, ppod: PhysicalPod, *, ids: Ids, domain: Domain) -> Ownership:
    """Return to which degree a physical pod belongs to a virtual pod, as an Ownership."""
    recorded = vpod.annotations.get(domain.physical_pod_uid, "")
    return pod_ownership(
        ppod, virtual=vpod.key, uid=vpod.uid, ids=ids, domain=domain, recorded=recorded
    )


def is_ours(ownership: Ownership) -> bool:
    """Whether a physical pod with this ownership runs for the virtual pod."""
    return ownership in (Ownership.OURS, Ownership.TAKEABLE)


def may_run_in_worker(vpod: VirtualPod, binding: ClusterBinding | None, domain: Domain) -> bool:
    """Whether a pod may run in the worker: no system pods, DaemonSet pods only on request."""
    return binding is not None and not excluded_because(vpod, binding, domain)


def excluded_because(vpod: VirtualPod, binding: ClusterBinding, domain: Domain) -> str:
    """Return why a pod is not meant to run in the worker; empty if it is."""
    if vpod.namespace in domain.system_namespaces:
        return f"pods of namespace {vpod.namespace} do not run in workers"
    owner = controller_of(vpod)
    if owner is None or owner.kind != "DaemonSet" or binding.spec.running_daemonset_by_default:
        return ""
    if vpod.annotations.get(domain.running_daemonset) == group.TRUE:
        return ""
    return (
        f"pods of DaemonSets run in workers only with the annotation {domain.running_daemonset}:"
        f' "{group.TRUE}", or if the binding sets runningDaemonsetByDefault'
    )


def is_own_node(vnode: Node | None, ids: Ids, domain: Domain) -> bool:
    """Whether a virtual node is one of this binding's, by its labels.

    The name does not decide: the clusterID of one binding may begin with that of another.
    """
    if vnode is None or vnode.labels.get(domain.physical_cluster_id) != ids.cluster_id:
        return False
    binding = naming.label_value(ids.binding)
    return vnode.labels.get(domain.cluster_binding, binding) == binding


def physical_node(vnode: Node, ids: Ids, domain: Domain) -> str | None:
    """Return the worker's node that a virtual node stands for; None if name and annotation differ.

    Users who may edit nodes may change that annotation. The name of a virtual node is a function of
    the worker's node and cannot be changed, so the two have to agree.
    """
    key = domain.physical_node_name
    pnode = vnode.annotations.get(key) or vnode.labels.get(key, "")
    return pnode if naming.virtual_node(ids.cluster_id, pnode) == vnode.name else None


def reclaim_reason(vnode: Node, domain: Domain) -> str:
    """Return why a virtual node takes no new pods, by the syncer's taints; empty if it does."""
    keys = {taint.key for taint in vnode.spec.taints or ()}
    if domain.taint_out_of_time_windows in keys:
        return "its time window is closed"
    return "it is being reclaimed" if domain.taint_vnode_deleting in keys else ""


# Names and marks


def physical_names(vpod: VirtualPod) -> tuple[str, str]:
    """Return the first and the second name of a physical pod; the second if the first is taken."""
    return (
        naming.physical_name(vpod.name, vpod.namespace),
        naming.second_physical_name(vpod.name, vpod.namespace, uid=vpod.uid),
    )


def possible_keys(vpod: VirtualPod, mount_namespace: str, domain: Domain) -> list[Key]:
    """Return every namespace and name that the physical pod of a virtual pod may have.

    The binding may have had another mount namespace when the pod was created.
    """
    recorded = vpod.annotations.get(domain.physical_pod_namespace, "")
    namespaces = sorted({mount_namespace, recorded} - _INVALID_NAMESPACES)
    return [Key(namespace, name) for namespace in namespaces for name in physical_names(vpod)]


def missing_marks(vpod: VirtualPod, ppod: PhysicalPod, *, ids: Ids, domain: Domain) -> Json:
    """Return the labels and annotations that `ppod` has lost and that the cache selects by."""
    return {
        "labels": _missing(ownership_labels(ids, domain), ppod.labels),
        "annotations": _missing(pod_marks(vpod.key, vpod.uid, domain), ppod.annotations),
    }


def _missing(marks: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if key not in present}


# Whether a cache is right


def bound_for_s(vpod: VirtualPod, now: datetime) -> float:
    """Return for how many seconds a pod has been bound to its node."""
    scheduled = find_condition(vpod.status.conditions, "PodScheduled")
    since = scheduled.last_transition_time if scheduled is not None else None
    since = since or vpod.metadata.creation_timestamp
    return (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0


def is_live(cached: VirtualPod, live: VirtualPod) -> bool:
    """Whether `live`, read from the API server, is the cached virtual pod and should run."""
    return live.uid == cached.uid and not live.deleting and not live.finished


def is_stray(
    ppod: PhysicalPod, live: VirtualPod | None, *, runs: PhysicalPod | None, domain: Domain
) -> bool:
    """Whether a physical pod runs for no virtual pod, by `live` as read from the API server.

    `runs` is the physical pod that runs for the virtual pod: any other one is a stray.
    """
    if runs is not None and runs.uid != ppod.uid:
        return True
    return live is None or live.uid != ppod.annotations.get(domain.virtual_pod_uid, "")


# Deletion


def grace_of(vpod: VirtualPod | None) -> int | None:
    """Return the seconds that containers have to end; None: the physical pod's own grace period.

    The grace period is that of the virtual pod's deletion, also if that was shortened later. A
    virtual pod that is gone was deleted by force; even then the kubelet confirms the end of the
    containers, so the grace period is never zero.
    """
    if vpod is None:
        return FORCED_GRACE_S
    grace_s = vpod.metadata.deletion_grace_period_seconds
    return None if grace_s is None else max(grace_s, FORCED_GRACE_S)


def is_due(ppod: PhysicalPod, grace_s: int | None) -> bool:
    """Whether a deletion has to be sent: the first one, or one with a shorter grace period."""
    if not ppod.deleting:
        return True
    current_s = ppod.metadata.deletion_grace_period_seconds
    return grace_s is not None and current_s is not None and grace_s < current_s
