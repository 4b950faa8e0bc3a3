"""Staged update runs: the stages of a strategy, their progress, and requests for approval.

Each kind exists twice: cluster-scoped for ClusterResourcePlacements, namespaced for
ResourcePlacements. Both decode to one struct.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from kubeocean.api.fleet.clusters import NAME_RULE
from kubeocean.api.fleet.placements import PLACEMENT_GROUP, NamespacedName
from kubeocean.api.fleet.schema import (
    V1BETA1,
    Conditions,
    IntOrString,
    LabelSelectorDocument,
    Part,
    Time,
    field,
)
from kubeocean.api.fleet.strategies import ApplyStrategy
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json, Object, Resource

__all__ = [
    "APPROVAL_REQUESTS",
    "CLUSTER_APPROVAL_REQUESTS",
    "CLUSTER_STAGED_UPDATE_RUNS",
    "CLUSTER_STAGED_UPDATE_STRATEGIES",
    "STAGED_UPDATE_RUNS",
    "STAGED_UPDATE_STRATEGIES",
    "ApprovalRequest",
    "ApprovalRequestSpec",
    "ApprovalRequestStatus",
    "ClusterUpdateStatus",
    "Stage",
    "StageStatus",
    "StageTask",
    "StageTaskStatus",
    "StageTaskType",
    "UpdateRun",
    "UpdateRunSpec",
    "UpdateRunState",
    "UpdateRunStatus",
    "UpdateStrategy",
    "UpdateStrategySpec",
]


class UpdateRunState(StrEnum):
    """Values of an update run's `spec.state`."""

    INITIALIZE = "Initialize"
    RUN = "Run"
    STOP = "Stop"


class StageTaskType(StrEnum):
    """Types of tasks that a stage of an update run waits for."""

    TIMED_WAIT = "TimedWait"
    APPROVAL = "Approval"


# Strategies


class StageTask(Part, frozen=True):
    """Task that a stage of an update run waits for: an approval, or a time."""

    type: Annotated[str, field("Time or approval.", required=True, enum=StageTaskType)] = ""
    wait_time: Annotated[
        str | None,
        field(
            "Duration of a TimedWait, such as 1h30m.",
            pattern=r"^(?:(?:0|[1-9][0-9]*)(\.[0-9]+)?(?:s|m|h))+$",
        ),
    ] = None


_APPROVAL_WITHOUT_TIME: Final = rule(
    "self.all(t, t.type != 'Approval' || !has(t.waitTime))",
    "AfterStageTaskType is Approval, waitTime is not allowed",
)
_WAIT_WITH_TIME: Final = rule(
    "self.all(t, t.type != 'TimedWait' || has(t.waitTime))",
    "AfterStageTaskType is TimedWait, waitTime is required",
)
_NO_WAIT_BEFORE: Final = rule(
    "self.all(t, t.type != 'TimedWait')", "BeforeStageTaskType cannot be TimedWait"
)


class Stage(Part, frozen=True):
    """Stage of an update run: clusters that are updated together."""

    name: Annotated[
        str, field("Name of the stage.", required=True, maxLength=63, pattern="^[a-z0-9]+$")
    ] = ""
    label_selector: Annotated[
        LabelSelectorDocument | None,
        field("Labels of the stage's MemberClusters; all if empty, none if absent."),
    ] = None
    sorting_label_key: Annotated[
        str | None,
        field("Label with whole numbers that orders the clusters; by name, if absent."),
    ] = None
    max_concurrency: Annotated[
        IntOrString,
        field(
            "Clusters that are updated at a time, as a number or a percentage of the stage.",
            rule("type(self) != int || self >= 1", "maxConcurrency must be at least 1"),
            defaulted=True,
            pattern="^(100|[1-9][0-9]?)%$",
        ),
    ] = 1
    before_stage_tasks: Annotated[
        tuple[StageTask, ...],
        field(
            "Tasks that the stage waits for before it begins.",
            _APPROVAL_WITHOUT_TIME,
            _NO_WAIT_BEFORE,
            maxItems=1,
        ),
    ] = ()
    after_stage_tasks: Annotated[
        tuple[StageTask, ...],
        field(
            "Tasks that the next stage waits for after all clusters of this one are updated.",
            _APPROVAL_WITHOUT_TIME,
            _WAIT_WITH_TIME,
            maxItems=2,
        ),
    ] = ()


class UpdateStrategySpec(Part, frozen=True):
    """Stages of an update strategy."""

    stages: Annotated[
        tuple[Stage, ...], field("The stages, in order.", required=True, maxItems=31)
    ] = ()


class UpdateStrategy(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Stages, in order, in which update runs update clusters."""

    spec: Annotated[UpdateStrategySpec, field("The stages.", required=True)] = UpdateStrategySpec()


# Runs


def _transition(old: UpdateRunState, new: UpdateRunState) -> Json:
    return rule(
        f"!has(oldSelf.state) || !has(self.state)"
        f" || oldSelf.state != '{old}' || self.state != '{new}'",
        f"invalid state transition: cannot transition from {old} to {new}",
    )


class UpdateRunSpec(Part, frozen=True):
    """Placement, resource snapshot and strategy of an update run, and whether it runs."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule(
            "(has(self.resourceSnapshotIndex) ? self.resourceSnapshotIndex : '')"
            " == (has(oldSelf.resourceSnapshotIndex) ? oldSelf.resourceSnapshotIndex : '')",
            "resourceSnapshotIndex is immutable",
        ),
        _transition(UpdateRunState.INITIALIZE, UpdateRunState.STOP),
        _transition(UpdateRunState.RUN, UpdateRunState.INITIALIZE),
        _transition(UpdateRunState.STOP, UpdateRunState.INITIALIZE),
    )

    placement_name: Annotated[
        str,
        field(
            "Name of the placement.",
            rule("self == oldSelf", "placementName is immutable"),
            required=True,
            maxLength=255,
        ),
    ] = ""
    resource_snapshot_index: Annotated[
        str,
        field("Index of the resource snapshot to roll out; a fresh one, if empty or absent."),
    ] = ""
    staged_rollout_strategy_name: Annotated[
        str,
        field(
            "Name of the strategy.",
            rule("self == oldSelf", "stagedRolloutStrategyName is immutable"),
            required=True,
        ),
    ] = ""
    state: Annotated[
        str,
        field(
            "Whether the run is only prepared, runs, or stops.",
            defaulted=True,
            enum=UpdateRunState,
        ),
    ] = UpdateRunState.INITIALIZE


class ClusterUpdateStatus(Part, frozen=True):
    """Progress of the update of one cluster."""

    cluster_name: Annotated[str, field("Name of the MemberCluster.", required=True)] = ""
    cluster_resource_override_snapshots: Annotated[
        tuple[str, ...], field("ClusterResourceOverrideSnapshots that apply to the cluster.")
    ] = ()
    resource_override_snapshots: Annotated[
        tuple[NamespacedName, ...], field("ResourceOverrideSnapshots that apply to the cluster.")
    ] = ()
    conditions: Annotated[Conditions, field("Started and Succeeded.")] = ()


class StageTaskStatus(Part, frozen=True):
    """State of a task that a stage of an update run waits for."""

    type: Annotated[str, field("Time or approval.", required=True, enum=StageTaskType)] = ""
    approval_request_name: Annotated[str, field("Name of the approval request.")] = ""
    conditions: Annotated[
        Conditions,
        field("ApprovalRequestCreated and ApprovalRequestApproved, or WaitTimeElapsed."),
    ] = ()


class StageStatus(Part, frozen=True):
    """Progress of one stage of an update run, with the state of each cluster."""

    stage_name: Annotated[str, field("Name of the stage.", required=True)] = ""
    clusters: Annotated[
        tuple[ClusterUpdateStatus, ...],
        field("Clusters of the stage, in the order of updating.", required=True),
    ] = ()
    before_stage_task_status: Annotated[
        tuple[StageTaskStatus, ...],
        field("Tasks that the stage waits for before it begins.", maxItems=1),
    ] = ()
    after_stage_task_status: Annotated[
        tuple[StageTaskStatus, ...],
        field("Tasks that the next stage waits for.", maxItems=2),
    ] = ()
    start_time: Annotated[Time | None, field("Time when the stage began.")] = None
    end_time: Annotated[Time | None, field("Time when the stage ended.")] = None
    conditions: Annotated[Conditions, field("Progressing and Succeeded.")] = ()


class UpdateRunStatus(Part, frozen=True):
    """Progress of an update run."""

    policy_snapshot_index_used: Annotated[
        str, field("Index of the policy snapshot that picked the clusters.")
    ] = ""
    policy_observed_cluster_count: Annotated[int, field("Clusters that the policy picked.")] = 0
    resource_snapshot_index_used: Annotated[
        str, field("Index of the resource snapshot that is rolled out.")
    ] = ""
    applied_strategy: Annotated[
        ApplyStrategy | None, field("How objects are written in the clusters.")
    ] = None
    staged_update_strategy_snapshot: Annotated[
        UpdateStrategySpec | None,
        field("Copy of the strategy.", unchecked=True),
    ] = None
    stages_status: Annotated[tuple[StageStatus, ...], field("Progress of each stage.")] = ()
    deletion_stage_status: Annotated[
        StageStatus | None,
        field("Progress of removing the placement from clusters that are no longer picked."),
    ] = None
    conditions: Annotated[Conditions, field("Initialized, Progressing and Succeeded.")] = ()


class UpdateRun(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Rolls one resource snapshot of a placement out, stage by stage."""

    RULES: ClassVar[tuple[Json, ...]] = (NAME_RULE,)

    spec: Annotated[UpdateRunSpec, field("Desired run.", required=True)] = UpdateRunSpec()
    status: Annotated[UpdateRunStatus, field("Progress of the run.")] = UpdateRunStatus()


# Approvals


class ApprovalRequestSpec(Part, frozen=True):
    """Update run and stage that wait for an approval."""

    parent_stage_rollout: Annotated[str, field("Name of the run.", required=True)] = ""
    target_stage: Annotated[str, field("Name of the stage.", required=True)] = ""


class ApprovalRequestStatus(Part, frozen=True):
    """Status of an approval request: whether a user has approved."""

    conditions: Annotated[
        Conditions, field("Approved, set by a user, and ApprovalAccepted, set by the run.")
    ] = ()


class ApprovalRequest(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Asks a user to let a stage of an update run begin or end."""

    spec: Annotated[
        ApprovalRequestSpec,
        field(
            "Run and stage.",
            rule("self == oldSelf", "The spec field is immutable"),
            required=True,
        ),
    ] = ApprovalRequestSpec()
    status: Annotated[ApprovalRequestStatus, field("The answer.")] = ApprovalRequestStatus()


CLUSTER_STAGED_UPDATE_RUNS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterstagedupdateruns",
    "ClusterStagedUpdateRun",
    False,
    UpdateRun,
)
STAGED_UPDATE_RUNS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "stagedupdateruns", "StagedUpdateRun", True, UpdateRun
)
CLUSTER_STAGED_UPDATE_STRATEGIES: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterstagedupdatestrategies",
    "ClusterStagedUpdateStrategy",
    False,
    UpdateStrategy,
)
STAGED_UPDATE_STRATEGIES: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "stagedupdatestrategies",
    "StagedUpdateStrategy",
    True,
    UpdateStrategy,
)
CLUSTER_APPROVAL_REQUESTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterapprovalrequests",
    "ClusterApprovalRequest",
    False,
    ApprovalRequest,
)
APPROVAL_REQUESTS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "approvalrequests", "ApprovalRequest", True, ApprovalRequest
)
