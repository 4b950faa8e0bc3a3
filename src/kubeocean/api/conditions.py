"""Conditions of policies and bindings, and the reasons of events, in one table.

A `ConditionTemplate` has a type, a status and a reason that belong together, and a message with
variables. Types and reasons are an interface: tools wait for them and people filter by them, so
they are written in no other module. Those marked new are not in the contract of the earlier
implementation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from kubeocean.runtime.objects import Condition, find_condition

__all__ = [
    "ACTIVE",
    "BINDING_DELETING",
    "BINDING_DISCONNECTED",
    "BINDING_FORBIDDEN",
    "BINDING_INITIALIZING",
    "BINDING_INVALID",
    "BINDING_PROXIER_FAILED",
    "BINDING_READY",
    "BINDING_SYNCER_FAILED",
    "BINDING_UNPREPARED",
    "CONFLICTED",
    "CONFLICT_NONE",
    "CONFLICT_POLICIES",
    "CONNECTED",
    "CONNECTION_FAILED",
    "CONNECTION_LOST",
    "CONNECTION_MISTAKEN",
    "CONNECTION_PASSED",
    "CONNECTION_WITHOUT_POLICIES",
    "CREDENTIAL_EXPIRES",
    "CREDENTIAL_KEPT",
    "CREDENTIAL_NOT_RENEWED",
    "CREDENTIAL_RENEWED",
    "CREDENTIAL_UNKNOWN",
    "CREDENTIAL_VALID",
    "DRAINED",
    "DRAIN_DONE",
    "DRAIN_RUNNING",
    "DRAIN_UNCONFIRMED",
    "EXPIRED",
    "FLEET_AWAITS_SYNCER",
    "FLEET_HAS_LEFT",
    "FLEET_JOINED",
    "FLEET_JOINING",
    "FLEET_LEAVING",
    "FLEET_MEMBERSHIP",
    "FLEET_REFUSED",
    "LIMITS_KNOWN",
    "LIMITS_UNKNOWN",
    "NODES_EXPIRED",
    "NODES_KEPT",
    "NODE_PORTS",
    "OVERLAPPING",
    "PERMISSIONS_GRANTED",
    "PERMISSIONS_MISSING",
    "PERMITTED",
    "PHYSICAL_POD_LOST",
    "POD_CREATED",
    "POD_EXPECTED",
    "POD_SYNCED",
    "POLICIES",
    "POLICIES_INVALID",
    "POLICIES_NONE",
    "POLICIES_VALID",
    "POLICY_ACTIVE",
    "POLICY_ALONE",
    "POLICY_BINDING_DELETED",
    "POLICY_INACTIVE",
    "POLICY_INVALID",
    "POLICY_NOT_ACTIVATED",
    "POLICY_OVERLAPS",
    "POLICY_VALID",
    "POLICY_WITHOUT_BINDING",
    "PROXIER_CREATED",
    "PROXIER_NOT_READY",
    "PROXIER_NOT_SET_UP",
    "PROXIER_READY",
    "PROXIER_UPDATING",
    "READY",
    "RECLAIMING",
    "RECLAIM_BLOCKED",
    "RECLAIM_DONE",
    "RECLAIM_EVICTING",
    "RECLAIM_FORCING",
    "RECLAIM_HELD",
    "RECLAIM_STOPPED",
    "RECLAIM_TOLERATED",
    "RECLAIM_WAITING",
    "SYNCER_CREATED",
    "SYNCER_NOT_READY",
    "SYNCER_NOT_SET_UP",
    "SYNCER_READY",
    "SYNCER_UPDATING",
    "UNKNOWN_RESOURCE",
    "VALID",
    "WORKER_TRUSTED",
    "WORKER_TRUSTED_FULLY",
    "WORKER_TRUSTED_LIKE_A_KUBELET",
    "BindingEvent",
    "ConditionTemplate",
    "NodeEvent",
    "PodEvent",
    "PolicyEvent",
    "is_in_fleet",
]

_LONGEST_MESSAGE: Final = 32_768  # an API server refuses longer ones


@dataclass(frozen=True, slots=True)
class ConditionTemplate:
    """Type, status, reason and message of a condition; the message has variables in braces."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    sentence: str

    def condition(self, *, generation: int = 0, **facts: object) -> Condition:
        """Return the condition for this generation of an object; `facts` fill the message's
        variables.
        """
        message = self.sentence.format_map(facts)
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE - 1]}…"
        return Condition(
            type=self.type,
            status=self.status,
            reason=self.reason,
            message=message,
            observed_generation=generation,
        )


# Conditions of policies

VALID: Final = "Valid"
ACTIVE: Final = "Active"
RECLAIMING: Final = "Reclaiming"  # new
UNKNOWN_RESOURCE: Final = "UnknownResource"  # new; absent until it was True once
OVERLAPPING: Final = "Overlapping"  # new; absent until it was True once

POLICY_VALID: Final = ConditionTemplate(
    VALID, "True", "ValidationPassed", "The policy is well-formed{notes}"
)
POLICY_INVALID: Final = ConditionTemplate(
    VALID, "False", "ValidationError", "Policy validation failed: {problems}"
)
POLICY_NOT_ACTIVATED: Final = ConditionTemplate(
    ACTIVE,
    "False",
    "ValidationError",
    "The policy is not well-formed; nodes that it lends stay as they are",
)
POLICY_ACTIVE: Final = ConditionTemplate(
    ACTIVE, "True", "ActiveTimeWindow", "The policy lends{until}"
)
POLICY_INACTIVE: Final = ConditionTemplate(
    ACTIVE, "False", "InactiveTimeWindow", "The policy is outside its time windows{until}"
)
POLICY_BINDING_DELETED: Final = ConditionTemplate(  # new
    ACTIVE, "False", "BindingDeleted", "ClusterBinding {binding} is deleted; nothing is lent to it"
)
POLICY_WITHOUT_BINDING: Final = ConditionTemplate(  # new
    ACTIVE,
    "False",
    "BindingNotFound",
    "spec.cluster: no ClusterBinding {binding} exists in the computing cluster of ClusterBinding"
    " {known}; nothing is lent",
)
LIMITS_UNKNOWN: Final = ConditionTemplate(
    UNKNOWN_RESOURCE,
    "True",
    "UnknownResource",
    "spec.resourceLimits: no node that the policy selects has {unknown}; nothing of {withheld} is"
    " lent until the name is corrected",
)
LIMITS_KNOWN: Final = ConditionTemplate(
    UNKNOWN_RESOURCE,
    "False",
    "ResourcesKnown",
    "Every limit names a resource of a node that the policy selects",
)
POLICY_OVERLAPS: Final = ConditionTemplate(
    OVERLAPPING,
    "True",
    "OlderPolicyDecides",
    "The policy has no effect on nodes that an older policy selects, too: {overlaps}",
)
POLICY_ALONE: Final = ConditionTemplate(
    OVERLAPPING, "False", "NoOverlap", "No older policy selects a node of this policy"
)
RECLAIM_WAITING: Final = ConditionTemplate(
    RECLAIMING, "True", "GracePeriod", "{pods} on {nodes} may run until {until}"
)
RECLAIM_EVICTING: Final = ConditionTemplate(
    RECLAIMING, "True", "Evicting", "{pods} on {nodes} left to be evicted"
)
RECLAIM_HELD: Final = ConditionTemplate(
    RECLAIMING, "True", "NotForced", "{pods} on {nodes} may stay until they end by themselves"
)
RECLAIM_TOLERATED: Final = ConditionTemplate(  # new
    RECLAIMING,
    "True",
    "Tolerated",
    "{pods} on {nodes} tolerate the closed window and may stay; spec.reclaim.respectTolerations:"
    " false would evict them",
)
RECLAIM_BLOCKED: Final = ConditionTemplate(
    RECLAIMING, "True", "BlockedByBudget", "Disruption budgets hold back {pods}{until}"
)
RECLAIM_FORCING: Final = ConditionTemplate(
    RECLAIMING,
    "True",
    "DeadlinePassed",
    "{pods} on {nodes} left to be deleted, regardless of disruption budgets",
)
RECLAIM_DONE: Final = ConditionTemplate(
    RECLAIMING, "False", "Reclaimed", "The nodes are free again; evicted: {evicted}"
)
RECLAIM_STOPPED: Final = ConditionTemplate(
    RECLAIMING, "False", "LendingAgain", "The nodes are lent again; evicted: {evicted}"
)

# Conditions of bindings

READY: Final = "Ready"
CONNECTED: Final = "Connected"
SYNCER_READY: Final = "SyncerReady"
PROXIER_READY: Final = "ProxierReady"
PERMITTED: Final = "Permitted"  # new
POLICIES: Final = "PoliciesValid"  # new
EXPIRED: Final = "NodesExpired"  # new; absent until it was True once
DRAINED: Final = "Drained"  # new
CONFLICTED: Final = "Conflicted"  # new; absent until it was True once
CREDENTIAL_VALID: Final = "CredentialValid"  # new; only of credentials whose expiry is known
WORKER_TRUSTED: Final = "WorkerTrustedFully"  # new; absent until it was True once
FLEET_MEMBERSHIP: Final = "FleetMember"  # new; absent until the binding is annotated as a member

BINDING_INITIALIZING: Final = ConditionTemplate(
    READY, "False", "Initializing", "The binding is being set up{waits}"
)
BINDING_INVALID: Final = ConditionTemplate(
    READY, "False", "ValidationFailed", "The binding is not well-formed: {problems}"
)
BINDING_DISCONNECTED: Final = ConditionTemplate(
    READY, "False", "ConnectivityFailed", "The worker cluster cannot be reached: {error}"
)
BINDING_PROXIER_FAILED: Final = ConditionTemplate(
    READY, "False", "ProxierFailed", "The proxier could not be set up: {error}"
)
BINDING_SYNCER_FAILED: Final = ConditionTemplate(
    READY, "False", "SyncerFailed", "The syncer could not be set up: {error}"
)
BINDING_READY: Final = ConditionTemplate(READY, "True", "ValidationPassed", "The binding is set up")
BINDING_FORBIDDEN: Final = ConditionTemplate(  # new
    READY,
    "False",
    "PermissionsMissing",
    "The credential may not do in the worker cluster what has to be done there: {missing}",
)
BINDING_UNPREPARED: Final = ConditionTemplate(  # new
    READY, "False", "MountNamespaceMissing", "The mount namespace cannot be used: {error}"
)
BINDING_DELETING: Final = ConditionTemplate(  # new
    READY, "False", "Deleting", "The binding is being deleted: {waits}"
)
CONNECTION_FAILED: Final = ConditionTemplate(
    CONNECTED, "False", "ConnectivityFailed", "The worker cluster cannot be reached: {error}"
)
CONNECTION_PASSED: Final = ConditionTemplate(
    CONNECTED, "True", "ConnectivityPassed", "The worker cluster answers"
)
CONNECTION_LOST: Final = ConditionTemplate(  # new
    CONNECTED,
    "False",
    "WorkerUnreachable",
    "The worker cluster {trouble} since {since}; its virtual nodes are no longer renewed and"
    " nothing is deleted: {error}",
)
POLICIES_VALID: Final = ConditionTemplate(  # new, as are the next two
    POLICIES, "True", "PoliciesValid", "{total}, and all are valid"
)
POLICIES_INVALID: Final = ConditionTemplate(
    POLICIES, "False", "PolicyInvalid", "{total}, {valid} valid; invalid: {invalid}"
)
POLICIES_NONE: Final = ConditionTemplate(
    POLICIES, "False", "NoPolicy", "No policy of the worker names this binding; nothing is lent"
)
NODES_EXPIRED: Final = ConditionTemplate(  # new, as is the next
    EXPIRED,
    "True",
    "WorkerUnreachable",
    "The virtual nodes were deleted, because the worker cluster has not answered since {since},"
    " longer than --remove-unreachable-nodes-after allows; they come back when it answers",
)
NODES_KEPT: Final = ConditionTemplate(EXPIRED, "False", "WorkerAnswers", "The worker answers again")
PERMISSIONS_GRANTED: Final = ConditionTemplate(  # new, as is the next
    PERMITTED, "True", "PermissionsGranted", "The credential may do all that is needed{notes}"
)
PERMISSIONS_MISSING: Final = ConditionTemplate(
    PERMITTED, "False", "PermissionsMissing", "The credential may not: {missing}"
)
CONNECTION_MISTAKEN: Final = ConditionTemplate(  # new
    CONNECTED,
    "False",
    "AnotherWorker",
    "The kubeconfig has pointed to another cluster since {since}, where nothing is read or"
    " written; virtual nodes are no longer renewed and nothing is deleted: {error}",
)
CONNECTION_WITHOUT_POLICIES: Final = ConditionTemplate(  # new
    CONNECTED,
    "False",
    "PolicyKindMissing",
    "The worker cluster answers, but does not serve the kind {kind}: install its definition there"
    " (kubeocean join does); until then nothing is lent",
)
SYNCER_CREATED: Final = ConditionTemplate(
    SYNCER_READY, "True", "SyncerCreated", "The syncer is set up"
)
SYNCER_UPDATING: Final = ConditionTemplate(  # new, as are the next two
    SYNCER_READY, "True", "SyncerUpdating", "A syncer works, and not all do: {reason}"
)
SYNCER_NOT_READY: Final = ConditionTemplate(
    SYNCER_READY, "False", "SyncerNotReady", "No syncer works: {reason}"
)
SYNCER_NOT_SET_UP: Final = ConditionTemplate(
    SYNCER_READY, "False", "SyncerFailed", "The syncer could not be set up: {reason}"
)
PROXIER_CREATED: Final = ConditionTemplate(
    PROXIER_READY, "True", "ProxierCreated", "The proxier is set up"
)
PROXIER_UPDATING: Final = ConditionTemplate(  # new, as are the next two
    PROXIER_READY, "True", "ProxierUpdating", "A proxier works, and not all do: {reason}"
)
PROXIER_NOT_READY: Final = ConditionTemplate(
    PROXIER_READY, "False", "ProxierNotReady", "No proxier works: {reason}"
)
PROXIER_NOT_SET_UP: Final = ConditionTemplate(
    PROXIER_READY, "False", "ProxierFailed", "The proxier could not be set up: {reason}"
)
DRAIN_RUNNING: Final = ConditionTemplate(DRAINED, "False", "Draining", "Still there: {remaining}")
DRAIN_DONE: Final = ConditionTemplate(DRAINED, "True", "Drained", "Nothing of the binding is left")
DRAIN_UNCONFIRMED: Final = ConditionTemplate(
    DRAINED, "Unknown", "Unconfirmed", "Given up after {after} s; not confirmed gone: {remaining}"
)
CONFLICT_POLICIES: Final = ConditionTemplate(
    CONFLICTED,
    "True",
    "PolicyClaimed",
    "Another computing cluster has a binding of this name, too, and claimed first: {policies}."
    " They lend nothing here until that cluster removes its claim",
)
CONFLICT_NONE: Final = ConditionTemplate(
    CONFLICTED, "False", "NoConflict", "No policy for this binding is claimed by another cluster"
)
WORKER_TRUSTED_FULLY: Final = ConditionTemplate(
    WORKER_TRUSTED,
    "True",
    "WorkerTrustFull",
    "spec.workerTrust is Full: the worker chooses labels of virtual nodes and pods, and with them"
    " which pods are scheduled to it, and which Services and NetworkPolicies its pods are under",
)
WORKER_TRUSTED_LIKE_A_KUBELET: Final = ConditionTemplate(
    WORKER_TRUSTED,
    "False",
    "WorkerTrustKubelet",
    "The worker sets labels and annotations no further than Kubernetes lets a kubelet",
)
CREDENTIAL_RENEWED: Final = ConditionTemplate(  # new, as are the next four
    CREDENTIAL_VALID,
    "True",
    "RenewedByManager",
    "The worker's credential ends at {ends}; the manager renews it before",
)
CREDENTIAL_KEPT: Final = ConditionTemplate(
    CREDENTIAL_VALID,
    "True",
    "NotRenewed",
    "The worker's credential ends at {ends}; kubeocean join did not make it, so the manager does"
    " not renew it",
)
CREDENTIAL_NOT_RENEWED: Final = ConditionTemplate(
    CREDENTIAL_VALID,
    "False",
    "RenewalFailed",
    "The worker's credential ends at {ends}, and could not be renewed: {error}; to renew it, run:"
    " {command}",
)
CREDENTIAL_EXPIRES: Final = ConditionTemplate(
    CREDENTIAL_VALID,
    "False",
    "ExpiresSoon",
    "The worker's credential ends at {ends}; the manager does not renew it, because kubeocean join"
    " did not make it: put another kubeconfig into Secret {secret}",
)
CREDENTIAL_UNKNOWN: Final = ConditionTemplate(
    CREDENTIAL_VALID, "Unknown", "ExpiryUnknown", "The worker's credential does not name its expiry"
)

FLEET_AWAITS_SYNCER: Final = ConditionTemplate(
    FLEET_MEMBERSHIP,
    "Unknown",
    "AwaitingSyncer",
    "The syncer of the binding has not recorded its identity yet, in the annotation {annotation}",
)
FLEET_JOINING: Final = ConditionTemplate(
    FLEET_MEMBERSHIP, "Unknown", "Joining", "The worker joins the fleet{waits}"
)
FLEET_JOINED: Final = ConditionTemplate(
    FLEET_MEMBERSHIP, "True", "Joined", "The worker is a member of the fleet"
)
FLEET_LEAVING: Final = ConditionTemplate(
    FLEET_MEMBERSHIP, "Unknown", "Leaving", "The worker leaves the fleet"
)
FLEET_HAS_LEFT: Final = ConditionTemplate(
    FLEET_MEMBERSHIP, "False", "Left", "The worker is no member of the fleet"
)
FLEET_REFUSED: Final = ConditionTemplate(
    FLEET_MEMBERSHIP, "False", "Refused", "The worker cannot join the fleet: {problem}"
)

NODE_PORTS: Final = "NodePorts"  # `status.reason` of a pod with a host port that another pod has
PHYSICAL_POD_LOST: Final = "PhysicalPodLost"  # `status.reason` of a pod whose copy disappeared
POD_CREATED: Final = "PhysicalPodCreated"  # new: a condition of a pod that cannot run in the worker
POD_EXPECTED: Final = "PhysicalPodExpected"  # new: of a pod that is not meant to run in the worker
POD_SYNCED: Final = "PhysicalPodSynced"  # new: of a running pod with changes that were not synced


def is_in_fleet(conditions: Iterable[Condition] | None) -> bool:
    """Whether a binding's worker has a MemberCluster, which may be joining or leaving."""
    reasons = (FLEET_JOINING.reason, FLEET_JOINED.reason, FLEET_LEAVING.reason)
    condition = find_condition(conditions, FLEET_MEMBERSHIP)
    return condition is not None and condition.reason in reasons


class BindingEvent(StrEnum):
    """Reasons of events about a ClusterBinding."""

    RECONCILING = "Reconciling"
    STATUS_UPDATED = "StatusUpdated"
    READY = "Ready"
    WAITING_SYNCER_CLEANUP = "WaitingSyncerCleanup"
    CLEANUP_IN_PROGRESS = "CleanupInProgress"
    CLEANUP = "Cleanup"
    CLEANUP_FAILED = "CleanupFailed"
    PROXIER_CLEANUP_FAILED = "ProxierCleanupFailed"
    CERTIFICATE_CLEANUP_FAILED = "CertificateCleanupFailed"
    DELETED = "Deleted"
    # New
    WORKER_UNREACHABLE = "WorkerUnreachable"
    WORKER_ANSWERS = "WorkerAnswers"
    ANOTHER_WORKER = "AnotherWorker"
    CLEANUP_UNCONFIRMED = "CleanupUnconfirmed"
    KUBECONFIG_ROTATED = "KubeconfigRotated"
    KUBECONFIG_REFUSED = "KubeconfigRefused"
    CREDENTIAL_RENEWED = "CredentialRenewed"
    CREDENTIAL_NOT_RENEWED = "RenewalFailed"
    CREDENTIAL_EXPIRES = "ExpiresSoon"
    MOUNT_NAMESPACE_CREATED = "MountNamespaceCreated"
    ROLLED_OUT = "RolledOut"
    WORKER_TOO_OLD = "WorkerTooOld"
    POLICY_CLAIMED = "PolicyClaimed"
    POLICY_KIND_MISSING = "PolicyKindMissing"
    SERVICE_NOT_MIRRORED = "ServiceNotMirrored"
    LOG_CONFIG_NOT_COPIED = "LogConfigNotCopied"
    SECRETS_REFUSED = "SecretsRefused"
    ORPHAN_FOUND = "OrphanFound"
    ORPHAN_REMOVED = "OrphanRemoved"
    INCONSISTENCY_FOUND = "InconsistencyFound"


class PolicyEvent(StrEnum):
    """Reasons of events about a ResourceLeasingPolicy; the Go implementation has none."""

    INVALID = "Invalid"
    WINDOW_OPENED = "WindowOpened"
    WINDOW_CLOSED = "WindowClosed"
    RECLAIM_STARTED = "ReclaimStarted"
    RECLAIM_BLOCKED = "ReclaimBlocked"
    RECLAIMED = "Reclaimed"
    RECLAIM_STOPPED = "ReclaimStopped"
    BINDING_DELETED = "BindingDeleted"
    PROBABLE_MISTAKE = "ProbableMistake"
    UNKNOWN_RESOURCE = "UnknownResource"
    OVERLAPPING = "Overlapping"
    BINDING_NOT_FOUND = "BindingNotFound"


class NodeEvent(StrEnum):
    """Reasons of events about a virtual node; the Go implementation has none."""

    RECLAIMING = "Reclaiming"
    NAME_TAKEN = "NameTaken"
    NOT_VIRTUAL = "NotVirtualNode"
    EXPIRED = "Expired"
    ANNOTATIONS_LEFT_OUT = "AnnotationsLeftOut"


class PodEvent(StrEnum):
    """Reasons of events about a virtual pod."""

    FAILED_CREATE = "FailedCreatePod"
    FAILED_SCHEDULING = "FailedSchedulingPod"
    # New
    RECLAIMED = "Reclaimed"
    RECLAIM_FORCED = "ReclaimForced"
    FAILED_UPDATE = "FailedUpdatePod"
    LOST = "PhysicalPodLost"
    NODE_CLOSED = "NodeClosed"
    NOT_REPLICATED = "NotReplicated"
