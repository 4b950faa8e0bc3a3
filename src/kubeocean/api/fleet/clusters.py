"""MemberCluster and InternalMemberCluster: the clusters of a fleet.

A user creates a MemberCluster on the hub. The hub creates the InternalMemberCluster of the same
name in the member's namespace; the member's agent reports there, and the hub copies the report to
the MemberCluster. A member can therefore change neither its labels nor its taints.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

import msgspec

from kubeocean.api.fleet.schema import V1BETA1, Conditions, Part, Quantities, Time, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json, Object, Resource

__all__ = [
    "CLUSTER_GROUP",
    "INTERNAL_MEMBER_CLUSTERS",
    "LONGEST_NAME",
    "MEMBER_CLUSTERS",
    "NAME_RULE",
    "AgentStatus",
    "AgentType",
    "ClusterTaint",
    "DeleteOptions",
    "DeleteValidationMode",
    "InternalMemberCluster",
    "InternalMemberClusterSpec",
    "MemberCluster",
    "MemberClusterSpec",
    "MemberStatus",
    "MembershipState",
    "PropertyValue",
    "RbacSubject",
    "ResourceUsage",
    "TaintEffect",
]

CLUSTER_GROUP: Final = "cluster.kubernetes-fleet.io"
LONGEST_NAME: Final = 63  # a name becomes the value of labels
NAME_RULE: Final = rule(
    f"size(self.metadata.name) <= {LONGEST_NAME}", f"metadata.name max length is {LONGEST_NAME}"
)


class MembershipState(StrEnum):
    """Values of an InternalMemberCluster's `spec.state`."""

    JOIN = "Join"
    LEAVE = "Leave"


class AgentType(StrEnum):
    """Values of `status.agentStatus[].type` of a MemberCluster."""

    MEMBER = "MemberAgent"
    MULTI_CLUSTER_SERVICE = "MultiClusterServiceAgent"
    SERVICE_EXPORT_IMPORT = "ServiceExportImportAgent"


class TaintEffect(StrEnum):
    """Values of `effect` of a MemberCluster's taint."""

    NO_SCHEDULE = "NoSchedule"


class DeleteValidationMode(StrEnum):
    """Values of `spec.deleteOptions.validationMode` of a MemberCluster."""

    STRICT = "Strict"
    SKIP = "Skip"


class RbacSubject(Part, frozen=True):
    """User, group or service account, as a subject of RBAC."""

    kind: Annotated[str, field("User, Group or ServiceAccount.", required=True)] = ""
    name: Annotated[str, field("Name of the subject.", required=True)] = ""
    api_group: Annotated[
        str, field("API group of the kind; rbac.authorization.k8s.io for User and Group.")
    ] = ""
    namespace: Annotated[str, field("Namespace of a ServiceAccount.")] = ""


class ClusterTaint(Part, frozen=True):
    """Taint that keeps placements without a matching toleration off a cluster."""

    key: Annotated[str, field("Key of the taint.", required=True)] = ""
    value: Annotated[str, field("Value of the taint.")] = ""
    effect: Annotated[
        str, field("Effect on placements without toleration.", required=True, enum=TaintEffect)
    ] = TaintEffect.NO_SCHEDULE


class DeleteOptions(Part, frozen=True):
    """Checks that the deletion of a MemberCluster must pass."""

    validation_mode: Annotated[
        str,
        field(
            "Strict refuses the deletion while services of the cluster are exported to others.",
            defaulted=True,
            enum=DeleteValidationMode,
        ),
    ] = DeleteValidationMode.STRICT


_HEARTBEAT: Final = field(
    "Seconds between two heartbeats of the member.", defaulted=True, minimum=1, maximum=600
)


class MemberClusterSpec(Part, frozen=True):
    """Desired state of a member cluster."""

    identity: Annotated[
        RbacSubject,
        field(
            "Subject that the member's agent authenticates as on the hub; it is granted access to"
            " the member's namespace there.",
            required=True,
            **{"x-kubernetes-map-type": "atomic"},
        ),
    ] = RbacSubject()
    heartbeat_period_seconds: Annotated[int, _HEARTBEAT] = 60
    taints: Annotated[tuple[ClusterTaint, ...], field("Taints of the cluster.", maxItems=100)] = ()
    delete_options: Annotated[
        DeleteOptions | None, field("Options for deleting the cluster.", only=(V1BETA1,))
    ] = None


class PropertyValue(Part, frozen=True):
    """Value of a property, and when it was observed."""

    value: Annotated[
        str, field("The value; selectors and sorters need a quantity.", required=True)
    ] = ""
    observation_time: Annotated[Time | None, field("Time of the observation.", required=True)] = (
        None
    )


class ResourceUsage(Part, frozen=True):
    """Sums of the compute resources of a cluster."""

    capacity: Annotated[Quantities, field("Capacity of all nodes.")] = msgspec.field(
        default_factory=dict
    )
    allocatable: Annotated[Quantities, field("Resources that all nodes offer to pods.")] = (
        msgspec.field(default_factory=dict)
    )
    available: Annotated[Quantities, field("Resources that no pod has requested.")] = msgspec.field(
        default_factory=dict
    )
    observation_time: Annotated[Time | None, field("Time of the observation.")] = None


class AgentStatus(Part, frozen=True):
    """Report of one agent in the member cluster."""

    type: Annotated[str, field("Type of the agent, such as MemberAgent.", required=True)] = ""
    conditions: Annotated[Conditions, field("Joined and Healthy.")] = ()
    last_received_heartbeat: Annotated[Time | None, field("Time of the last heartbeat.")] = None


class MemberStatus(Part, frozen=True):
    """Observed state of a member cluster."""

    conditions: Annotated[Conditions, field("Conditions of the cluster.")] = ()
    properties: Annotated[
        dict[str, PropertyValue], field("Properties that placements can select and sort by.")
    ] = msgspec.field(default_factory=dict)
    resource_usage: Annotated[ResourceUsage, field("Compute resources of the cluster.")] = (
        ResourceUsage()
    )
    # None where the agent does not collect namespaces, which is not the same as none found
    namespaces: Annotated[
        dict[str, str] | None,
        field(
            "Namespaces of the cluster, each with the name of the AppliedWork that owns it, if any"
            " does.",
            only=(V1BETA1,),
        ),
    ] = None
    agent_status: Annotated[
        tuple[AgentStatus, ...], field("Reports of the agents in the cluster.")
    ] = ()


class MemberCluster(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A cluster of the fleet."""

    RULES: ClassVar[tuple[Json, ...]] = (NAME_RULE,)

    spec: Annotated[MemberClusterSpec, field("Desired state.", required=True)] = MemberClusterSpec()
    status: Annotated[MemberStatus, field("Observed state.")] = MemberStatus()


class InternalMemberClusterSpec(Part, frozen=True):
    """Instructions of the hub to the agents of a member."""

    state: Annotated[
        str, field("Whether the member joins or leaves.", required=True, enum=MembershipState)
    ] = ""
    heartbeat_period_seconds: Annotated[int, _HEARTBEAT] = 60


class InternalMemberCluster(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Instructions of the hub to the agents of one member, and the reports of these agents."""

    spec: Annotated[InternalMemberClusterSpec, field("Instructions of the hub.", required=True)] = (
        InternalMemberClusterSpec()
    )
    status: Annotated[MemberStatus, field("Report of the member's agents.")] = MemberStatus()


MEMBER_CLUSTERS: Final = Resource(
    CLUSTER_GROUP, V1BETA1, "memberclusters", "MemberCluster", False, MemberCluster
)
INTERNAL_MEMBER_CLUSTERS: Final = Resource(
    CLUSTER_GROUP,
    V1BETA1,
    "internalmemberclusters",
    "InternalMemberCluster",
    True,
    InternalMemberCluster,
)
