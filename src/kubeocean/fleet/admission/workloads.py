"""Bans of workloads on a hub that runs none: Pods, ReplicaSets and PodDisruptionBudgets. Pure.

The bans are off unless flags enable them. Reserved namespaces are always exempt.
"""

from __future__ import annotations

from typing import Final

from kubeocean.fleet.admission.guard_rail import is_reserved
from kubeocean.fleet.admission.reviews import ALLOWED, Decision, Operation, Request, denied

__all__ = ["decide_workload"]

_WORKLOAD: Final = "{kind} {namespace}/{name} creation is disallowed in the fleet hub cluster."
_BUDGET: Final = (
    "PDBs {namespace}/{name} cannot be directly created in the hub cluster due to potential side"
    " effects; to place a PDB to member clusters, consider wrapping it in a resource envelope."
)
_TEXTS: Final = {"Pod": _WORKLOAD, "ReplicaSet": _WORKLOAD, "PodDisruptionBudget": _BUDGET}


def decide_workload(request: Request) -> Decision:
    """Allow or deny the creation of a Pod, ReplicaSet or PodDisruptionBudget."""
    text = _TEXTS.get(request.kind.kind)
    if text is None or request.operation is not Operation.CREATE or is_reserved(request.namespace):
        return ALLOWED
    name, namespace = request.name, request.namespace
    return denied(text.format(kind=request.kind.kind, namespace=namespace, name=name))
