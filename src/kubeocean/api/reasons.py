"""Reasons: what events and pod statuses are called.

Events are for people, but people filter by reason; those marked new are not in the contract of the
earlier implementation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = [
    "PHYSICAL_POD_LOST",
    "POD_CREATED",
    "POD_SYNCED",
    "BindingEvent",
    "NodeEvent",
    "PodEvent",
    "PolicyEvent",
]

PHYSICAL_POD_LOST: Final = "PhysicalPodLost"  # `status.reason` of a pod whose copy disappeared
POD_CREATED: Final = "PhysicalPodCreated"  # new: a condition of a pod that cannot run in the worker
POD_SYNCED: Final = "PhysicalPodSynced"  # new: of one that runs, but not as it should


class BindingEvent(StrEnum):
    """What happened to a binding."""

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
    MOUNT_NAMESPACE_CREATED = "MountNamespaceCreated"
    ROLLED_OUT = "RolledOut"
    WORKER_TOO_OLD = "WorkerTooOld"
    POLICY_CLAIMED = "PolicyClaimed"
    POLICY_KIND_MISSING = "PolicyKindMissing"
    SERVICE_NOT_MIRRORED = "ServiceNotMirrored"
    LOG_CONFIG_NOT_COPIED = "LogConfigNotCopied"
    ORPHAN_FOUND = "OrphanFound"
    ORPHAN_REMOVED = "OrphanRemoved"
    INCONSISTENCY_FOUND = "InconsistencyFound"


class PolicyEvent(StrEnum):
    """What happened to a policy; all new."""

    INVALID = "Invalid"
    WINDOW_OPENED = "WindowOpened"
    WINDOW_CLOSED = "WindowClosed"
    RECLAIM_STARTED = "ReclaimStarted"
    RECLAIM_BLOCKED = "ReclaimBlocked"
    RECLAIMED = "Reclaimed"
    RECLAIM_STOPPED = "ReclaimStopped"
    BINDING_DELETED = "BindingDeleted"


class NodeEvent(StrEnum):
    """What happened to a virtual node; all new."""

    RECLAIMING = "Reclaiming"
    NAME_TAKEN = "NameTaken"
    ANNOTATIONS_LEFT_OUT = "AnnotationsLeftOut"


class PodEvent(StrEnum):
    """What happened to a virtual pod."""

    FAILED_CREATE = "FailedCreatePod"
    FAILED_SCHEDULING = "FailedSchedulingPod"
    # New
    RECLAIMED = "Reclaimed"
    RECLAIM_FORCED = "ReclaimForced"
    NAME_TAKEN = "NameTaken"
    FAILED_UPDATE = "FailedUpdatePod"
    LOST = "PhysicalPodLost"
