"""All kinds of a fleet: their resources, columns and versions, and which kinds belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic

from kubeocean.api.fleet.bindings import CLUSTER_RESOURCE_BINDINGS, RESOURCE_BINDINGS, Binding
from kubeocean.api.fleet.clusters import (
    CLUSTER_GROUP,
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
)
from kubeocean.api.fleet.evictions import DISRUPTION_BUDGETS, EVICTIONS
from kubeocean.api.fleet.inventory import CLUSTER_PROFILES
from kubeocean.api.fleet.networking import (
    ENDPOINT_SLICE_EXPORTS,
    INTERNAL_SERVICE_EXPORTS,
    INTERNAL_SERVICE_IMPORTS,
)
from kubeocean.api.fleet.overrides import (
    CLUSTER_RESOURCE_OVERRIDE_SNAPSHOTS,
    CLUSTER_RESOURCE_OVERRIDES,
    RESOURCE_OVERRIDE_SNAPSHOTS,
    RESOURCE_OVERRIDES,
)
from kubeocean.api.fleet.placements import (
    CLUSTER_PLACEMENT_RULES,
    CLUSTER_RESOURCE_PLACEMENT_STATUSES,
    CLUSTER_RESOURCE_PLACEMENTS,
    PLACEMENT_GROUP,
    RESOURCE_PLACEMENTS,
    Placement,
)
from kubeocean.api.fleet.schema import V1, V1ALPHA1, V1BETA1
from kubeocean.api.fleet.snapshots import (
    CLUSTER_RESOURCE_SNAPSHOTS,
    CLUSTER_SCHEDULING_POLICY_SNAPSHOTS,
    RESOURCE_SNAPSHOTS,
    SCHEDULING_POLICY_SNAPSHOTS,
    PolicySnapshot,
    ResourceSnapshot,
)
from kubeocean.api.fleet.staged import (
    APPROVAL_REQUESTS,
    CLUSTER_APPROVAL_REQUESTS,
    CLUSTER_STAGED_UPDATE_RUNS,
    CLUSTER_STAGED_UPDATE_STRATEGIES,
    STAGED_UPDATE_RUNS,
    STAGED_UPDATE_STRATEGIES,
    ApprovalRequest,
    UpdateRun,
    UpdateStrategy,
)
from kubeocean.api.fleet.works import (
    APPLIED_WORKS,
    CLUSTER_RESOURCE_ENVELOPES,
    RESOURCE_ENVELOPES,
    WORKS,
)
from kubeocean.runtime.objects import Json, Key, ObjectT, Resource

__all__ = ["CLUSTER", "KINDS", "NAMESPACED", "Column", "Kind", "PlacementScope", "scope_of"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that `kubectl get` prints for a kind."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Kind(Generic[ObjectT]):
    """The properties of a kind in its CustomResourceDefinition.

    `resource.version` is the version that is stored.
    """

    resource: Resource[ObjectT]
    description: str
    versions: tuple[str, ...] = (V1BETA1,)
    short_name: str = ""
    has_status: bool = True
    columns: tuple[Column, ...] = ()
    spec_rules: tuple[Json, ...] = ()  # CEL rules in addition to those of the struct
    in_member: bool = False  # stored in the member clusters, not on the hub

    @property
    def categories(self) -> tuple[str, ...]:
        """Names under which `kubectl get` lists the kind together with others."""
        area = {CLUSTER_GROUP: "fleet-cluster", PLACEMENT_GROUP: "fleet-placement"}
        group = self.resource.group
        return ("fleet", area[group]) if group in area else ()


_ALPHA_TO_V1: Final = (V1, V1BETA1, V1ALPHA1)
_BETA_TO_V1: Final = (V1, V1BETA1)
_ALPHA_TO_BETA: Final = (V1BETA1, V1ALPHA1)

_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
_GENERATION: Final = Column("Gen", ".metadata.generation")


def _condition(name: str, type_: str, field: str = "status", *, wide: bool = False) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{type_}")].{field}', wide=wide)


def _placement_columns(prefix: str) -> tuple[Column, ...]:
    scheduled, synchronized = f"{prefix}Scheduled", f"{prefix}WorkSynchronized"
    available = f"{prefix}Available"
    return (
        _GENERATION,
        Column("Type", ".spec.policy.placementType", wide=True),
        _condition("Scheduled", scheduled),
        _condition("Scheduled-Gen", scheduled, "observedGeneration"),
        _condition("Work-Synchronized", synchronized, wide=True),
        _condition("Work-Synchronized-Gen", synchronized, "observedGeneration", wide=True),
        _condition("Available", available),
        _condition("Available-Gen", available, "observedGeneration"),
        _AGE,
    )


_BINDING_COLUMNS: Final = (
    _condition("WorkSynchronized", "WorkSynchronized"),
    _condition("ResourcesApplied", "Applied"),
    _condition("ResourceAvailable", "Available", wide=True),
    _AGE,
)
_RUN_COLUMNS: Final = (
    Column("Placement", ".spec.placementName"),
    Column("Resource-Snapshot-Index", ".status.resourceSnapshotIndexUsed"),
    Column("Policy-Snapshot-Index", ".status.policySnapshotIndexUsed"),
    _condition("Initialized", "Initialized"),
    _condition("Progressing", "Progressing"),
    _condition("Succeeded", "Succeeded"),
    _AGE,
    Column("Strategy", ".spec.stagedRolloutStrategyName", wide=True),
)
_APPROVAL_COLUMNS: Final = (
    Column("Update-Run", ".spec.parentStageRollout"),
    Column("Stage", ".spec.targetStage"),
    _condition("Approved", "Approved"),
    _AGE,
)

KINDS: Final[tuple[Kind[Any], ...]] = (
    Kind(
        MEMBER_CLUSTERS,
        "A cluster of the fleet.",
        _BETA_TO_V1,
        "cluster",
        columns=(
            _condition("Joined", "Joined"),
            _AGE,
            Column(
                "Member-Agent-Last-Seen",
                '.status.agentStatus[?(@.type=="MemberAgent")].lastReceivedHeartbeat',
                "date",
            ),
            Column("Node-Count", r".status.properties.kubernetes-fleet\.io/node-count.value"),
            Column("Available-CPU", ".status.resourceUsage.available.cpu"),
            Column("Available-Memory", ".status.resourceUsage.available.memory"),
            Column("Allocatable-CPU", ".status.resourceUsage.allocatable.cpu", wide=True),
            Column("Allocatable-Memory", ".status.resourceUsage.allocatable.memory", wide=True),
        ),
    ),
    Kind(
        INTERNAL_MEMBER_CLUSTERS,
        "Instructions of the hub to the agents of one member, and the reports of these agents.",
        _BETA_TO_V1,
        "imc",
        columns=(_AGE,),
    ),
    Kind(
        CLUSTER_RESOURCE_PLACEMENTS,
        "Places cluster-scoped objects, and namespaces with their objects, on member clusters.",
        _BETA_TO_V1,
        "crp",
        columns=_placement_columns("ClusterResourcePlacement"),
        spec_rules=CLUSTER_PLACEMENT_RULES,
    ),
    Kind(
        RESOURCE_PLACEMENTS,
        "Places objects of its namespace on member clusters.",
        _BETA_TO_V1,
        "rp",
        columns=_placement_columns("ResourcePlacement"),
    ),
    Kind(
        CLUSTER_RESOURCE_PLACEMENT_STATUSES,
        "Copy of the status of the ClusterResourcePlacement of the same name.",
        _BETA_TO_V1,
        "crps",
        has_status=False,
        columns=(
            Column("Resource-Index", ".sourceStatus.observedResourceIndex"),
            Column("Last-Updated", ".lastUpdatedTime"),
            _AGE,
        ),
    ),
    Kind(
        CLUSTER_SCHEDULING_POLICY_SNAPSHOTS,
        "Policy of a ClusterResourcePlacement at one time, and the clusters picked for it.",
        _BETA_TO_V1,
        "csps",
        columns=(_GENERATION, _AGE),
    ),
    Kind(
        SCHEDULING_POLICY_SNAPSHOTS,
        "Policy of a ResourcePlacement at one time, and the clusters picked for it.",
        short_name="sps",
        columns=(_GENERATION, _AGE),
    ),
    Kind(
        CLUSTER_RESOURCE_SNAPSHOTS,
        "Objects that a ClusterResourcePlacement selected at one time, or a part of them.",
        _BETA_TO_V1,
        "crs",
        columns=(_GENERATION, _AGE),
    ),
    Kind(
        RESOURCE_SNAPSHOTS,
        "Objects that a ResourcePlacement selected at one time, or a part of them.",
        short_name="rs",
        columns=(_GENERATION, _AGE),
    ),
    Kind(
        CLUSTER_RESOURCE_BINDINGS,
        "Binds a ClusterResourcePlacement to a cluster.",
        _BETA_TO_V1,
        "crb",
        columns=_BINDING_COLUMNS,
    ),
    Kind(
        RESOURCE_BINDINGS,
        "Binds a ResourcePlacement to a cluster.",
        short_name="rb",
        columns=_BINDING_COLUMNS,
    ),
    Kind(
        WORKS,
        "Manifests that the member of this namespace writes in its cluster.",
        _BETA_TO_V1,
    ),
    Kind(
        APPLIED_WORKS,
        "Owner of all objects that were written for the Work of the same name.",
        _BETA_TO_V1,
        in_member=True,
    ),
    Kind(
        CLUSTER_RESOURCE_OVERRIDES,
        "Changes cluster-scoped objects, or all objects of a namespace, for some clusters.",
        _ALPHA_TO_V1,
        has_status=False,
    ),
    Kind(
        RESOURCE_OVERRIDES,
        "Changes objects of its namespace for some clusters.",
        _ALPHA_TO_V1,
        has_status=False,
    ),
    Kind(
        CLUSTER_RESOURCE_OVERRIDE_SNAPSHOTS,
        "A ClusterResourceOverride at one time.",
        _ALPHA_TO_V1,
        has_status=False,
    ),
    Kind(
        RESOURCE_OVERRIDE_SNAPSHOTS,
        "A ResourceOverride at one time.",
        _ALPHA_TO_V1,
        has_status=False,
    ),
    Kind(
        CLUSTER_RESOURCE_ENVELOPES,
        "Cluster-scoped manifests that are placed on members and do not take effect on the hub.",
        has_status=False,
    ),
    Kind(
        RESOURCE_ENVELOPES,
        "Manifests of its namespace that are placed on members and do not take effect on the hub.",
        has_status=False,
    ),
    Kind(
        EVICTIONS,
        "Removes a ClusterResourcePlacement from a cluster once, if its disruption budget allows.",
        _ALPHA_TO_BETA,
        "crpe",
    ),
    Kind(
        DISRUPTION_BUDGETS,
        "Limits evictions of the ClusterResourcePlacement of the same name.",
        _ALPHA_TO_BETA,
        "crpdb",
        has_status=False,
    ),
    Kind(
        CLUSTER_STAGED_UPDATE_RUNS,
        "Rolls one resource snapshot of a ClusterResourcePlacement out, stage by stage.",
        _ALPHA_TO_V1,
        "csur",
        columns=_RUN_COLUMNS,
    ),
    Kind(
        STAGED_UPDATE_RUNS,
        "Rolls one resource snapshot of a ResourcePlacement out, stage by stage.",
        _BETA_TO_V1,
        "sur",
        columns=_RUN_COLUMNS,
    ),
    Kind(
        CLUSTER_STAGED_UPDATE_STRATEGIES,
        "Stages in which ClusterStagedUpdateRuns update clusters.",
        _ALPHA_TO_V1,
        "csus",
    ),
    Kind(
        STAGED_UPDATE_STRATEGIES,
        "Stages in which StagedUpdateRuns of its namespace update clusters.",
        _BETA_TO_V1,
        "sus",
        has_status=False,
    ),
    Kind(
        CLUSTER_APPROVAL_REQUESTS,
        "Asks a user to let a stage of a ClusterStagedUpdateRun begin or end.",
        _ALPHA_TO_V1,
        "careq",
        columns=_APPROVAL_COLUMNS,
    ),
    Kind(
        APPROVAL_REQUESTS,
        "Asks a user to let a stage of a StagedUpdateRun begin or end.",
        _BETA_TO_V1,
        "areq",
        columns=_APPROVAL_COLUMNS,
    ),
    Kind(CLUSTER_PROFILES, "A cluster in the inventory of this cluster.", (V1ALPHA1,)),
    Kind(ENDPOINT_SLICE_EXPORTS, "Endpoints that a member exports.", (V1ALPHA1,)),
    Kind(INTERNAL_SERVICE_EXPORTS, "Service that a member exports.", (V1ALPHA1,)),
    Kind(INTERNAL_SERVICE_IMPORTS, "Service that a member imports.", (V1ALPHA1,)),
)


@dataclass(frozen=True, slots=True)
class PlacementScope:
    """Kinds that belong to one kind of placement, and the prefix of its condition types."""

    prefix: str
    placements: Resource[Placement]
    policy_snapshots: Resource[PolicySnapshot]
    resource_snapshots: Resource[ResourceSnapshot]
    bindings: Resource[Binding]
    runs: Resource[UpdateRun]
    strategies: Resource[UpdateStrategy]
    approvals: Resource[ApprovalRequest]


CLUSTER: Final = PlacementScope(
    "ClusterResourcePlacement",
    CLUSTER_RESOURCE_PLACEMENTS,
    CLUSTER_SCHEDULING_POLICY_SNAPSHOTS,
    CLUSTER_RESOURCE_SNAPSHOTS,
    CLUSTER_RESOURCE_BINDINGS,
    CLUSTER_STAGED_UPDATE_RUNS,
    CLUSTER_STAGED_UPDATE_STRATEGIES,
    CLUSTER_APPROVAL_REQUESTS,
)
NAMESPACED: Final = PlacementScope(
    "ResourcePlacement",
    RESOURCE_PLACEMENTS,
    SCHEDULING_POLICY_SNAPSHOTS,
    RESOURCE_SNAPSHOTS,
    RESOURCE_BINDINGS,
    STAGED_UPDATE_RUNS,
    STAGED_UPDATE_STRATEGIES,
    APPROVAL_REQUESTS,
)


def scope_of(placement: Key) -> PlacementScope:
    """Return the kinds of a placement's objects; `placement` with a namespace is namespaced."""
    return NAMESPACED if placement.namespace else CLUSTER
