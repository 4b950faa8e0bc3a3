"""Conditions of a fleet's objects: types, reasons and messages, by kind.

Tools wait for types and reasons, and compare the messages literally. A message with variables is a
format string. Reasons of an enumeration are grouped by the condition that they belong to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "APPLIED",
    "APPLY",
    "APPLY_FAILED",
    "AVAILABLE",
    "DIFF_REPORTED",
    "INVALID_SELECTORS",
    "NO_OVERRIDES",
    "OVERRIDDEN",
    "OVERRIDE_FAILED",
    "REPORT_DIFF",
    "ROLLOUT_STARTED",
    "SCHEDULED",
    "STATUS_REPORTED_BACK",
    "STATUS_SYNCED",
    "STATUS_SYNC_FAILED",
    "STATUS_SYNC_SUCCEEDED",
    "WORK_SYNCHRONIZED",
    "WORK_SYNC_FAILED",
    "AgentCondition",
    "AgentReason",
    "ApprovalCondition",
    "ApprovalReason",
    "Availability",
    "DecisionMessage",
    "EvictionCondition",
    "EvictionMessage",
    "EvictionReason",
    "ManifestReason",
    "MemberCondition",
    "MemberEvent",
    "MemberReason",
    "PlacementReason",
    "ProfileCondition",
    "ProfileReason",
    "RunCondition",
    "RunMessage",
    "RunProblem",
    "RunReason",
    "StageReason",
    "StageTaskCondition",
    "StageTaskReason",
    "Step",
    "UpdateCondition",
    "UpdateReason",
    "Words",
    "WorkCondition",
    "WorkReason",
]


# MemberCluster


class MemberCondition(StrEnum):
    """Condition types of a MemberCluster."""

    READY_TO_JOIN = "ReadyToJoin"
    JOINED = "Joined"
    HEALTHY = "Healthy"  # an extension: KubeFleet declares the type and never writes it
    PROVIDER_STARTED = "ClusterPropertyProviderStarted"
    PROPERTIES_COLLECTED = "ClusterPropertyCollectionSucceeded"
    COSTS_COLLECTED = "AKSClusterCostPropertiesCollectionSucceeded"
    NAMESPACES_COLLECTED = "NamespaceCollectionSucceeded"


class MemberReason(StrEnum):
    """Reasons of a MemberCluster's conditions."""

    READY_TO_JOIN = "MemberClusterReadyToJoin"
    NOT_READY_TO_JOIN = "MemberClusterNotReadyToJoin"
    JOINED = "MemberClusterJoined"
    LEFT = "MemberClusterLeft"
    JOIN_STATE_UNKNOWN = "MemberClusterJoinStateUnknown"
    HEALTHY = "MemberClusterHealthy"  # this reason and the next two belong to the extension Healthy
    UNHEALTHY = "MemberClusterUnhealthy"
    HEARTBEAT_LOST = "HeartbeatLost"
    PROVIDER_STARTED = "Started"
    PROVIDER_FAILED_TO_START = "FailedToStart"
    TIMED_OUT = "TimedOut"  # of starting a property provider, and of collecting properties
    PROPERTIES_COLLECTED = "PropertiesCollected"
    TOO_MANY_CALLS = "TooManyCalls"
    COSTS_CALCULATED = "CostsCalculated"
    COSTS_DEGRADED = "CostsCalculationDegraded"
    COSTS_FAILED = "CostsCalculationFailed"
    NAMESPACES_COLLECTED = "Succeeded"
    NAMESPACES_DEGRADED = "Degraded"


class AgentCondition(StrEnum):
    """Condition types in `status.agentStatus`."""

    JOINED = "Joined"
    HEALTHY = "Healthy"


class AgentReason(StrEnum):
    """Reasons of an agent's conditions."""

    JOINED = "InternalMemberClusterJoined"
    FAILED_TO_JOIN = "InternalMemberClusterFailedToJoin"
    LEFT = "InternalMemberClusterLeft"
    FAILED_TO_LEAVE = "InternalMemberClusterFailedToLeave"
    HEALTHY = "InternalMemberClusterHealthy"
    UNHEALTHY = "InternalMemberClusterUnhealthy"


class MemberEvent(StrEnum):
    """Reasons of events about a MemberCluster, other than those of its Joined condition."""

    NAMESPACE_CREATED = "NamespaceCreated"
    NAMESPACE_PATCHED = "NamespacePatched"
    ROLE_CREATED = "RoleCreated"
    ROLE_UPDATED = "RoleUpdated"
    ROLE_BINDING_CREATED = "RoleBindingCreated"
    ROLE_BINDING_UPDATED = "RoleBindingUpdated"
    INTERNAL_CREATED = "InternalMemberClusterCreated"
    INTERNAL_UPDATED = "InternalMemberClusterSpecUpdated"


# ClusterProfile


class ProfileCondition(StrEnum):
    """Condition types of a ClusterProfile."""

    CONTROL_PLANE_HEALTHY = "ControlPlaneHealthy"


class ProfileReason(StrEnum):
    """Reasons of a ClusterProfile's condition ControlPlaneHealthy, in the order of checks."""

    NO_STATUS = "MemberAgentReportedNoStatus"
    NO_HEALTH = "MemberAgentReportedNoHealthInfo"
    HEARTBEAT_LOST = "MemberAgentHeartbeatLost"
    UNHEALTHY = "MemberClusterAPIServerUnhealthy"
    HEALTHY = "MemberClusterAPIServerHealthy"


# Placements and bindings: a chain of steps, each a condition


class Words(NamedTuple):
    """Reasons of a condition by its status; empty for a status that is never written."""

    true: str
    false: str
    unknown: str = ""


class Step(NamedTuple):
    """A step of a placement: its condition type, and the reasons for each status.

    Bindings and entries of clusters have the type `name` and the reasons of `cluster`. Placements
    have the type with the prefix of their scope, and the reasons of `placement`. A condition about
    an older generation counts as Unknown.
    """

    name: str
    placement: Words
    cluster: Words


_ROLLOUT: Final = Words("RolloutStarted", "RolloutNotStartedYet", "RolloutStartedUnknown")
_OVERRIDDEN: Final = Words("OverriddenSucceeded", "OverriddenFailed", "OverriddenPending")

SCHEDULED: Final = Step(
    "Scheduled",
    Words("SchedulingPolicyFulfilled", "SchedulingPolicyUnfulfilled", "SchedulePending"),
    Words("Scheduled", "ScheduleFailed"),
)
ROLLOUT_STARTED: Final = Step("RolloutStarted", _ROLLOUT, _ROLLOUT)
OVERRIDDEN: Final = Step("Overridden", _OVERRIDDEN, _OVERRIDDEN)
WORK_SYNCHRONIZED: Final = Step(
    "WorkSynchronized",
    Words("WorkSynchronized", "WorkNotSynchronizedYet", "WorkSynchronizedUnknown"),
    Words("AllWorkSynced", "SyncWorkFailed", "WorkSynchronizedUnknown"),
)
APPLIED: Final = Step(
    "Applied",
    Words("ApplySucceeded", "ApplyFailed", "ApplyPending"),
    Words("AllWorkHaveBeenApplied", "NotAllWorkHaveBeenApplied", "ApplyPending"),
)
AVAILABLE: Final = Step(
    "Available",
    Words("ResourceAvailable", "ResourceNotAvailableYet", "ResourceAvailableUnknown"),
    Words("AllWorkAreAvailable", "NotAllWorkAreAvailable", "ResourceAvailableUnknown"),
)
DIFF_REPORTED: Final = Step(
    "DiffReported",
    Words("DiffReportingCompleted", "DiffReportingIncompleteOrFailed", "DiffReportingPending"),
    Words("AllWorkHaveDiffReported", "NotAllWorkHaveDiffReported", "DiffReportingPending"),
)

APPLY: Final = (ROLLOUT_STARTED, OVERRIDDEN, WORK_SYNCHRONIZED, APPLIED, AVAILABLE)
REPORT_DIFF: Final = (ROLLOUT_STARTED, OVERRIDDEN, WORK_SYNCHRONIZED, DIFF_REPORTED)

STATUS_SYNCED: Final = "ClusterResourcePlacementStatusSynced"  # of a ClusterResourcePlacement
# Kubeocean's own condition of a placement whose objects get the status that a member reports
STATUS_REPORTED_BACK: Final = "StatusReportedBack"


class PlacementReason(StrEnum):
    """Reasons of placements and bindings other than those of the steps."""

    INVALID_SELECTORS = "InvalidResourceSelectors"  # of Scheduled False
    CONTROLLED_EXTERNALLY = "RolloutControlledByExternalController"  # of RolloutStarted Unknown
    NO_OVERRIDE = "NoOverrideSpecified"  # of Overridden True
    APPLY_IN_PROGRESS = "ApplyInProgress"  # of a cluster's Applied False
    NOT_ALL_TRACKABLE = "NotAllWorkAreAvailabilityTrackable"  # of a cluster's Available True
    DIFF_IN_PROGRESS = "DiffReportInProgress"  # of a cluster's DiffReported False
    STATUS_SYNC_SUCCEEDED = "StatusSyncSucceeded"
    STATUS_SYNC_FAILED = "StatusSyncFailed"
    # Of StatusReportedBack, which is an extension
    REPORTED_BACK = "StatusReportedBack"
    NOT_ON_ONE_CLUSTER = "NotPlacedOnOneCluster"
    REPORT_BACK_FAILED = "StatusReportBackFailed"


INVALID_SELECTORS: Final = "The resource selectors are invalid: {error}"
STATUS_SYNC_SUCCEEDED: Final = (
    "Successfully created or updated ClusterResourcePlacementStatus in namespace '{namespace}'"
)
STATUS_SYNC_FAILED: Final = "Failed to create or update ClusterResourcePlacementStatus: {error}"
OVERRIDE_FAILED: Final = "Failed to apply the override rules on the resources: {error}"
NO_OVERRIDES: Final = "This hub applies no overrides; the Works of this cluster stay as they are"
WORK_SYNC_FAILED: Final = "Failed to synchronize the work to the latest: {error}"


class DecisionMessage(StrEnum):
    """Reasons of a policy snapshot's decisions."""

    PICKED = (
        'Successfully scheduled resources for placement in "{cluster}": picked by scheduling policy'
    )
    PICKED_BY_SCORE = (
        'Successfully scheduled resources for placement in "{cluster}" (affinity score:'
        " {affinity}, topology spread score: {spread}): picked by scheduling policy"
    )
    SCORE_TOO_LOW = (
        'Cluster "{cluster}" does not score high enough (affinity score: {affinity}, topology'
        " spread score: {spread})"
    )
    NOT_ELIGIBLE = 'Cluster "{cluster}" is not eligible for resource placement yet: {why}'
    NOT_FOUND = 'Specified cluster "{cluster}" is not found'


# Work


class WorkCondition(StrEnum):
    """Condition types of a Work and, but for the last one, of a manifest."""

    APPLIED = "Applied"
    AVAILABLE = "Available"
    DIFF_REPORTED = "DiffReported"
    STATUS_TRIMMED = "StatusTrimmed"


class WorkReason(StrEnum):
    """Reasons of a Work's conditions."""

    ALL_APPLIED = "AllManifestsApplied"
    NOT_ALL_APPLIED = "SomeManifestsAreNotApplied"
    ALL_AVAILABLE = "AllManifestsAvailable"
    NOT_TRACKABLE = "WorkNotTrackable"
    NOT_ALL_TRACKABLE = "SomeManifestsAreNotAvailabilityTrackable"  # read, not written
    NOT_ALL_AVAILABLE = "SomeManifestsAreNotAvailable"
    ALL_DIFF_REPORTED = "AllManifestsDiffReported"
    NOT_ALL_DIFF_REPORTED = "SomeManifestsHaveNotReportedDiff"
    OVERSIZED = "Oversized"


class ManifestReason(StrEnum):
    """Reasons of a manifest's conditions Applied and DiffReported."""

    APPLIED = "Applied"
    APPLIED_WITH_FAILED_DRIFT_DETECTION = "AppliedWithFailedDriftDetection"
    PREPARING = "PreparingToProcess"
    DECODING_ERRED = "DecodingErred"
    FOUND_GENERATE_NAME = "FoundGenerateName"
    DUPLICATED = "Duplicated"
    FAILED_TO_FIND_OBJECT = "FailedToFindObjInMemberCluster"
    FAILED_TO_TAKE_OVER = "FailedToTakeOver"
    NOT_TAKEN_OVER = "NotTakenOver"
    FAILED_TO_RUN_DRIFT_DETECTION = "FailedToRunDriftDetection"
    FOUND_DRIFTS = "FoundDrifts"
    FOUND_DRIFTS_DEGRADED = "FoundDriftsInDegradedMode"
    APPLY_FAILED = "ManifestApplyFailed"
    NO_DIFF_FOUND = "NoDiffFound"
    FOUND_DIFF = "FoundDiff"
    FOUND_DIFF_DEGRADED = "FoundDiffInDegradedMode"
    FAILED_TO_REPORT_DIFF = "FailedToReportDiff"

    @property
    def is_applied(self) -> bool:
        """Whether a manifest with this reason was applied."""
        return self in (ManifestReason.APPLIED, ManifestReason.APPLIED_WITH_FAILED_DRIFT_DETECTION)

    @property
    def is_diff_reported(self) -> bool:
        """Whether a manifest with this reason was compared with its object.

        True also for degraded mode, which KubeFleet does not count: its Work never becomes
        DiffReported.
        """
        return self in (
            ManifestReason.NO_DIFF_FOUND,
            ManifestReason.FOUND_DIFF,
            ManifestReason.FOUND_DIFF_DEGRADED,
        )


class Availability(StrEnum):
    """Reasons of a manifest's condition Available."""

    AVAILABLE = "Available"
    NOT_YET = "ManifestNotAvailableYet"
    NOT_TRACKABLE = "NotTrackable"
    FAILED = "Failed"  # the availability could not be computed

    @property
    def counts_as_available(self) -> bool:
        """Whether a manifest's condition Available with this reason is True."""
        return self in (Availability.AVAILABLE, Availability.NOT_TRACKABLE)


APPLY_FAILED: Final = "Failed to apply the manifest (error: {error})"


# ClusterResourcePlacementEviction


class EvictionCondition(StrEnum):
    """Condition types of an eviction."""

    VALID = "Valid"
    EXECUTED = "Executed"


class EvictionReason(StrEnum):
    """Reasons of an eviction's conditions."""

    VALID = "ClusterResourcePlacementEvictionValid"
    INVALID = "ClusterResourcePlacementEvictionInvalid"
    EXECUTED = "ClusterResourcePlacementEvictionExecuted"
    NOT_EXECUTED = "ClusterResourcePlacementEvictionNotExecuted"


class EvictionMessage(StrEnum):
    """Messages of an eviction's conditions."""

    VALID = "Eviction is valid"
    # Valid False
    NO_PLACEMENT = "Failed to find ClusterResourcePlacement targeted by eviction"
    PLACEMENT_DELETING = "Found deleting ClusterResourcePlacement targeted by eviction"
    PICK_FIXED = "Found ClusterResourcePlacement with PickFixed placement type targeted by eviction"
    NO_BINDING = "Failed to find scheduler decision for placement in cluster targeted by eviction"
    SEVERAL_BINDINGS = (
        "Found more than one scheduler decision for placement in cluster targeted by eviction"
    )
    # Executed True
    NO_BUDGET = "Eviction is allowed, no ClusterResourcePlacementDisruptionBudget specified"
    BEING_REMOVED = (
        "Eviction is allowed, resources propagated by placement is currently being removed from"
        " cluster targeted by eviction"
    )
    PLACEMENT_FAILED = "Eviction is allowed, placement has failed"
    ALLOWED = (
        "Eviction is allowed by specified ClusterResourcePlacementDisruptionBudget,"
        " availablePlacements: {available}, totalPlacements: {total}"
    )
    # Executed False
    BAD_BUDGET = (
        "Eviction is blocked by misconfigured ClusterResourcePlacementDisruptionBudget, either"
        " MaxUnavailable is specified or MinAvailable is specified as a percentage for PickAll"
        " ClusterResourcePlacement"
    )
    NOT_PLACED = "Eviction is blocked, placement has not propagated resources to target cluster yet"
    BLOCKED = (
        "Eviction is blocked by specified ClusterResourcePlacementDisruptionBudget,"
        " availablePlacements: {available}, totalPlacements: {total}"
    )


# Staged update runs


class RunCondition(StrEnum):
    """Condition types of an update run and, but for the first one, of a stage."""

    INITIALIZED = "Initialized"
    PROGRESSING = "Progressing"
    SUCCEEDED = "Succeeded"


class RunReason(StrEnum):
    """Reasons of an update run's conditions."""

    INITIALIZED = "UpdateRunInitializedSuccessfully"
    INITIALIZATION_FAILED = "UpdateRunInitializedFailed"
    PROGRESSING = "UpdateRunProgressing"
    WAITING = "UpdateRunWaiting"
    STUCK = "UpdateRunStuck"
    STOPPING = "UpdateRunStopping"
    STOPPED = "UpdateRunStopped"
    FAILED = "UpdateRunFailed"  # of Progressing and of Succeeded
    SUCCEEDED = "UpdateRunSucceeded"  # of Progressing and of Succeeded


class StageReason(StrEnum):
    """Reasons of the conditions of an update run's stage."""

    STARTED = "StageUpdatingStarted"
    WAITING = "StageUpdatingWaiting"
    STOPPING = "StageUpdatingStopping"
    STOPPED = "StageUpdatingStopped"
    FAILED = "StageUpdatingFailed"
    SUCCEEDED = "StageUpdatingSucceeded"
    SKIPPED = "StageUpdatingSkippedNoClusters"


class UpdateCondition(StrEnum):
    """Condition types of a cluster in a stage of an update run."""

    STARTED = "Started"
    SUCCEEDED = "Succeeded"


class UpdateReason(StrEnum):
    """Reasons of the conditions of a cluster in a stage of an update run."""

    STARTED = "ClusterUpdatingStarted"
    SUCCEEDED = "ClusterUpdatingSucceeded"
    FAILED = "ClusterUpdatingFailed"


class StageTaskCondition(StrEnum):
    """Condition types of a task, such as an approval, of an update run's stage."""

    REQUEST_CREATED = "ApprovalRequestCreated"
    REQUEST_APPROVED = "ApprovalRequestApproved"
    WAIT_ELAPSED = "WaitTimeElapsed"


class StageTaskReason(StrEnum):
    """Reasons of the conditions of a task of an update run's stage."""

    REQUEST_CREATED = "StageTaskApprovalRequestCreated"
    REQUEST_APPROVED = "StageTaskApprovalRequestApproved"
    WAIT_ELAPSED = "AfterStageTaskWaitTimeElapsed"


class ApprovalCondition(StrEnum):
    """Condition types of an approval request; users set the first one."""

    APPROVED = "Approved"
    ACCEPTED = "ApprovalAccepted"


class ApprovalReason(StrEnum):
    """Reasons of an approval request's conditions; the command line writes the first two."""

    CLUSTER_APPROVED = "ClusterApprovalRequestApproved"
    APPROVED = "ApprovalRequestApproved"
    ACCEPTED = "ApprovalRequestApprovalAccepted"


class RunMessage(StrEnum):
    """Messages of the conditions of update runs and their stages."""

    COMPLETED = "All stages are completed"
    SUCCEEDED = "All stages are completed successfully"
    ABORTED = "The stages are aborted due to a non-recoverable error"
    WAITING = "The updateRun is waiting for {when}-stage tasks in stage {stage} to complete"
    STUCK = (
        "The updateRun is stuck waiting for {clusters} cluster(s) in stage {stage} to finish"
        " updating, please check placement status for potential errors"
    )
    INVALID = "cannot continue the updateRun: failed to validate the updateRun: {problem}"


class RunProblem(StrEnum):
    """Why an update run cannot be initialized; inserted into `RunMessage.INVALID`."""

    NO_PLACEMENT = "parent placement not found"
    NOT_EXTERNAL = (
        "parent placement does not have an external rollout strategy, current strategy: {strategy}"
    )
    NOT_SCHEDULED = "policy snapshot `{snapshot}` not fully scheduled yet"
    NO_STRATEGY = "referenced updateStrategy not found: `{strategy}`"
    CLUSTER_TWICE = "cluster `{cluster}` appears in more than one stages"
    CLUSTERS_WITHOUT_STAGE = (
        "some clusters are not placed in any stage, total {total}, showing up to 10: {clusters}"
    )
    BAD_SORTING_LABEL = (
        "the sorting label `{key}:{value}` on cluster `{cluster}` is not valid: {error}"
    )
    BAD_INDEX = "invalid resource snapshot index `{index}` provided, expected an integer >= 0"
    NO_SNAPSHOT = "no resourceSnapshots with index `{index}` found for placement `{placement}`"
