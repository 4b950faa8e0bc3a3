"""Placement of a physical pod: on the one node that its virtual node stands for.

Where the pod should run was decided above. What led there (selectors, affinity, spreading, gates,
priority) is left behind: below it would be judged against other nodes and other pods, and could
only keep the pod from its place. Tolerations stay.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podcontext import Context

__all__ = ["LEFT_BEHIND", "place"]

LEFT_BEHIND: Final = frozenset(
    {
        "affinity",
        "nodeName",
        "nodeSelector",
        "schedulerName",
        "schedulingGates",
        "schedulingGroup",
        "topologySpreadConstraints",
        "workloadRef",
        # The worker's admission fills these in from the class; others than its own are refused.
        "priority",
        "preemptionPolicy",
        # The same of the runtime class, which has its own costs in each cluster.
        "overhead",
    }
)


def place(context: Context) -> Json:
    """The fields of a pod's spec that put it in its place."""
    ours: Json = {"priorityClassName": context.priority_class or context.domain.priority_class}
    if context.direct_scheduling:
        return ours | {"nodeName": context.node}
    only = {"key": "metadata.name", "operator": "In", "values": [context.node]}
    required = {"nodeSelectorTerms": [{"matchFields": [only]}]}
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return ours | {"affinity": {"nodeAffinity": node_affinity}}
