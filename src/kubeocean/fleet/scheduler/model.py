"""Inputs of the scheduler: the fields of member clusters, policy snapshots and bindings it reads.

Each view holds the fields of one API kind that decide where objects are placed, as the API server
stores them. Views are values: the scheduler reads no clock, no cache and no server. A view may hold
invalid values: texts that are no quantity, unknown operators and negative numbers are checked where
they are used, and reject a cluster at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import (
    ClusterToleration,
    PlacementType,
    PropertyRequirement,
    PropertySorter,
    TopologySpreadConstraint,
)
from kubeocean.api.fleet.snapshots import ClusterDecision
from kubeocean.errors import ConfigError
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import LabelSelector

__all__ = [
    "AgentView",
    "BindingView",
    "ClusterTerm",
    "InvalidSelector",
    "MemberView",
    "PolicyView",
    "PreferredTerm",
    "TermSelector",
    "read_term_selector",
]


# Member clusters.


@dataclass(frozen=True, slots=True)
class AgentView:
    """The entry of type `MemberAgent` in `MemberCluster.status.agentStatus`."""

    heartbeat: datetime | None = None  # lastReceivedHeartbeat
    joined: str | None = None  # status of the condition Joined; None: absent
    healthy: str | None = None  # status of the condition Healthy; None: absent
    healthy_since: datetime | None = None  # lastTransitionTime of the condition Healthy


@dataclass(frozen=True, slots=True)
class MemberView:
    """The fields of a MemberCluster that the scheduler reads."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[ClusterTaint, ...] = ()
    deleting: bool = False
    agent: AgentView | None = None
    properties: Mapping[str, str] = field(default_factory=dict)  # values of status.properties
    capacity: Mapping[str, str] = field(default_factory=dict)  # status.resourceUsage.capacity
    allocatable: Mapping[str, str] = field(default_factory=dict)
    available: Mapping[str, str] = field(default_factory=dict)
    namespaces: Mapping[str, str] | None = None  # None: the field is absent
    collects_namespaces: bool = False  # whether the condition NamespaceCollectionSucceeded exists


# Policies.


@dataclass(frozen=True, slots=True)
class InvalidSelector:
    """A label selector that an API server would refuse; it selects no cluster."""

    problem: str


TermSelector = LabelSelector | InvalidSelector | None  # None: absent, which matches every cluster


def read_term_selector(document: Json | None) -> TermSelector:
    """Return the label selector of an affinity term."""
    if document is None:
        return None
    try:
        return LabelSelector.from_document(document)
    except ConfigError as error:
        return InvalidSelector(str(error))


@dataclass(frozen=True, slots=True)
class ClusterTerm:
    """A required affinity term: the label selector and every property requirement must match."""

    labels: TermSelector = None
    properties: tuple[PropertyRequirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    """A preferred affinity term: weight, label selector and property sorter."""

    weight: int
    labels: TermSelector = None
    sorter: PropertySorter | None = None


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The fields of a policy snapshot that the scheduler reads; no policy means PickAll."""

    name: str
    namespace: str = ""  # of a ResourcePlacement
    generation: int = 0
    placement_generation: int = 0  # annotation CRP-generation
    placement_type: str = PlacementType.PICK_ALL
    number_of_clusters: int | None = None  # annotation number-of-clusters; None: absent, unreadable
    cluster_names: tuple[str, ...] = ()
    required: tuple[ClusterTerm, ...] = ()
    preferred: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[ClusterToleration, ...] = ()
    spread: tuple[TopologySpreadConstraint, ...] = ()
    decisions: tuple[ClusterDecision, ...] = ()  # of the last cycle: status.targetClusters


# Bindings.


@dataclass(frozen=True, slots=True)
class BindingView:
    """The fields of a ClusterResourceBinding or ResourceBinding that the scheduler reads."""

    name: str
    target_cluster: str
    state: str
    policy_snapshot: str  # schedulingPolicySnapshotName
    deleting: bool = False
    previous_state: str | None = None  # annotation previous-binding-state
    decision: ClusterDecision | None = None
    uid: str = ""
    resource_version: str = ""
    finalizers: tuple[str, ...] = ()
