"""Kubeocean's kinds: constants, names, views, validation, conditions, CustomResourceDefinitions.

A name exported here is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.api.bindings import CLUSTER_BINDINGS, BindingPhase, BindingSpec, ClusterBinding
    from kubeocean.api.conditions import BindingEvent, NodeEvent, PodEvent, PolicyEvent
    from kubeocean.api.crds import binding_definition, policy_definition
    from kubeocean.api.group import Domain
    from kubeocean.api.ownership import Ids, Ownership
    from kubeocean.api.policies import (
        RESOURCE_LEASING_POLICIES,
        PolicyPhase,
        PolicySpec,
        ResourceLeasingPolicy,
        ResourceLimit,
        TimeWindow,
    )
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "bindings": ("CLUSTER_BINDINGS", "BindingPhase", "BindingSpec", "ClusterBinding"),
            "conditions": ("BindingEvent", "NodeEvent", "PodEvent", "PolicyEvent"),
            "crds": ("binding_definition", "policy_definition"),
            "group": ("Domain",),
            "ownership": ("Ids", "Ownership"),
            "policies": (
                "RESOURCE_LEASING_POLICIES",
                "PolicyPhase",
                "PolicySpec",
                "ResourceLeasingPolicy",
                "ResourceLimit",
                "TimeWindow",
            ),
        },
    )

__all__ = [
    "CLUSTER_BINDINGS",
    "RESOURCE_LEASING_POLICIES",
    "BindingEvent",
    "BindingPhase",
    "BindingSpec",
    "ClusterBinding",
    "Domain",
    "Ids",
    "NodeEvent",
    "Ownership",
    "PodEvent",
    "PolicyEvent",
    "PolicyPhase",
    "PolicySpec",
    "ResourceLeasingPolicy",
    "ResourceLimit",
    "TimeWindow",
    "binding_definition",
    "policy_definition",
]
