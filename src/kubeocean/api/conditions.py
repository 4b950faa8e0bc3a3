"""Conditions: everything that a status can say about a policy or a binding, in one table.

A `Verdict` is a type, a status and a reason that belong together, and a sentence for people with
room for the facts. Types and reasons are an interface: tools wait for them, so none is spelled
elsewhere. Those marked new are not in the contract of the earlier implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kubeocean.runtime.objects import Condition

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
    "BINDING_VERDICTS",
    "CONFLICTED",
    "CONFLICT_NONE",
    "CONFLICT_POLICIES",
    "CONNECTED",
    "CONNECTION_FAILED",
    "CONNECTION_LOST",
    "CONNECTION_MISTAKEN",
    "CONNECTION_PASSED",
    "CONNECTION_WITHOUT_POLICIES",
    "DRAINED",
    "DRAIN_DONE",
    "DRAIN_RUNNING",
    "DRAIN_UNCONFIRMED",
    "PERMISSIONS_GRANTED",
    "PERMISSIONS_MISSING",
    "PERMITTED",
    "POLICY_ACTIVE",
    "POLICY_INACTIVE",
    "POLICY_INVALID",
    "POLICY_NOT_ACTIVATED",
    "POLICY_UNBOUND",
    "POLICY_VALID",
    "POLICY_VERDICTS",
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
    "RECLAIM_WAITING",
    "SYNCER_CREATED",
    "SYNCER_NOT_READY",
    "SYNCER_NOT_SET_UP",
    "SYNCER_READY",
    "SYNCER_UPDATING",
    "VALID",
    "Verdict",
]

_LONGEST_MESSAGE: Final = 32_768  # what a server accepts


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing to say; the sentence names its facts in braces."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    sentence: str

    def condition(self, *, generation: int = 0, **facts: object) -> Condition:
        """The condition, about the object as it was at that generation."""
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


# Policies: is it well-formed, does it lend now, is it taking back

VALID: Final = "Valid"
ACTIVE: Final = "Active"
RECLAIMING: Final = "Reclaiming"  # new

POLICY_VALID: Final = Verdict(VALID, "True", "ValidationPassed", "The policy is well-formed{notes}")
POLICY_INVALID: Final = Verdict(
    VALID, "False", "ValidationError", "Policy validation failed: {problems}"
)
POLICY_NOT_ACTIVATED: Final = Verdict(
    ACTIVE,
    "False",
    "ValidationError",
    "The policy is not well-formed; what it lent before stays as it was",
)
POLICY_ACTIVE: Final = Verdict(ACTIVE, "True", "ActiveTimeWindow", "The policy lends{until}")
POLICY_INACTIVE: Final = Verdict(
    ACTIVE, "False", "InactiveTimeWindow", "The policy is outside its time windows{until}"
)
POLICY_UNBOUND: Final = Verdict(  # new
    ACTIVE, "False", "BindingDeleted", "ClusterBinding {binding} is deleted; nothing is lent to it"
)
RECLAIM_WAITING: Final = Verdict(
    RECLAIMING, "True", "GracePeriod", "{pods} on {nodes} may run until {until}"
)
RECLAIM_EVICTING: Final = Verdict(
    RECLAIMING, "True", "Evicting", "{pods} on {nodes} left to be evicted"
)
RECLAIM_HELD: Final = Verdict(
    RECLAIMING, "True", "NotForced", "{pods} on {nodes} may stay until they end by themselves"
)
RECLAIM_BLOCKED: Final = Verdict(
    RECLAIMING, "True", "BlockedByBudget", "Disruption budgets hold back {pods}{until}"
)
RECLAIM_FORCING: Final = Verdict(
    RECLAIMING,
    "True",
    "DeadlinePassed",
    "{pods} on {nodes} left to be deleted, whatever protects them",
)
RECLAIM_DONE: Final = Verdict(
    RECLAIMING, "False", "Reclaimed", "The nodes are free again; evicted: {evicted}"
)
RECLAIM_STOPPED: Final = Verdict(
    RECLAIMING, "False", "LendingAgain", "The nodes are lent again; evicted: {evicted}"
)

POLICY_VERDICTS: Final = (
    POLICY_VALID,
    POLICY_INVALID,
    POLICY_NOT_ACTIVATED,
    POLICY_ACTIVE,
    POLICY_INACTIVE,
    POLICY_UNBOUND,
    RECLAIM_WAITING,
    RECLAIM_EVICTING,
    RECLAIM_HELD,
    RECLAIM_BLOCKED,
    RECLAIM_FORCING,
    RECLAIM_DONE,
    RECLAIM_STOPPED,
)

# Bindings: does it work, does the worker answer, may we do there what has to be done, are our
# programs there, has all been cleared up

READY: Final = "Ready"
CONNECTED: Final = "Connected"
SYNCER_READY: Final = "SyncerReady"
PROXIER_READY: Final = "ProxierReady"
PERMITTED: Final = "Permitted"  # new
DRAINED: Final = "Drained"  # new
CONFLICTED: Final = "Conflicted"  # new; only of bindings that were

BINDING_INITIALIZING: Final = Verdict(
    READY, "False", "Initializing", "The binding is being set up{waits}"
)
BINDING_INVALID: Final = Verdict(
    READY, "False", "ValidationFailed", "The binding is not well-formed: {problems}"
)
BINDING_DISCONNECTED: Final = Verdict(
    READY, "False", "ConnectivityFailed", "The worker cluster cannot be reached: {error}"
)
BINDING_PROXIER_FAILED: Final = Verdict(
    READY, "False", "ProxierFailed", "The proxier could not be set up: {error}"
)
BINDING_SYNCER_FAILED: Final = Verdict(
    READY, "False", "SyncerFailed", "The syncer could not be set up: {error}"
)
BINDING_READY: Final = Verdict(READY, "True", "ValidationPassed", "The binding is set up")
BINDING_FORBIDDEN: Final = Verdict(  # new
    READY,
    "False",
    "PermissionsMissing",
    "The credential may not do in the worker cluster what has to be done there: {missing}",
)
BINDING_UNPREPARED: Final = Verdict(  # new
    READY, "False", "MountNamespaceMissing", "The mount namespace cannot be used: {error}"
)
BINDING_DELETING: Final = Verdict(  # new
    READY, "False", "Deleting", "The binding is being deleted: {waits}"
)
CONNECTION_FAILED: Final = Verdict(
    CONNECTED, "False", "ConnectivityFailed", "The worker cluster cannot be reached: {error}"
)
CONNECTION_PASSED: Final = Verdict(
    CONNECTED, "True", "ConnectivityPassed", "The worker cluster answers"
)
CONNECTION_LOST: Final = Verdict(  # new
    CONNECTED,
    "False",
    "WorkerUnreachable",
    "The worker cluster has not answered since {since}; its virtual nodes are no longer renewed"
    " and nothing is deleted: {error}",
)
PERMISSIONS_GRANTED: Final = Verdict(  # new, as is the next
    PERMITTED, "True", "PermissionsGranted", "The credential may do all that is needed{notes}"
)
PERMISSIONS_MISSING: Final = Verdict(
    PERMITTED, "False", "PermissionsMissing", "The credential may not: {missing}"
)
CONNECTION_MISTAKEN: Final = Verdict(  # new
    CONNECTED,
    "False",
    "AnotherWorker",
    "The kubeconfig leads to another cluster since {since}, where nothing is done; virtual nodes"
    " are no longer renewed and nothing is deleted: {error}",
)
CONNECTION_WITHOUT_POLICIES: Final = Verdict(  # new
    CONNECTED,
    "False",
    "PolicyKindMissing",
    "The worker cluster answers, but does not know the kind {kind}: install its definition there"
    " (kubeocean join does); until then nothing is lent",
)
SYNCER_CREATED: Final = Verdict(SYNCER_READY, "True", "SyncerCreated", "The syncer is set up")
SYNCER_UPDATING: Final = Verdict(  # new, as are the next two
    SYNCER_READY, "True", "SyncerUpdating", "A syncer works, and not all do: {reason}"
)
SYNCER_NOT_READY: Final = Verdict(
    SYNCER_READY, "False", "SyncerNotReady", "No syncer works: {reason}"
)
SYNCER_NOT_SET_UP: Final = Verdict(
    SYNCER_READY, "False", "SyncerFailed", "The syncer could not be set up: {reason}"
)
PROXIER_CREATED: Final = Verdict(PROXIER_READY, "True", "ProxierCreated", "The proxier is set up")
PROXIER_UPDATING: Final = Verdict(  # new, as are the next two
    PROXIER_READY, "True", "ProxierUpdating", "A proxier works, and not all do: {reason}"
)
PROXIER_NOT_READY: Final = Verdict(
    PROXIER_READY, "False", "ProxierNotReady", "No proxier works: {reason}"
)
PROXIER_NOT_SET_UP: Final = Verdict(
    PROXIER_READY, "False", "ProxierFailed", "The proxier could not be set up: {reason}"
)
DRAIN_RUNNING: Final = Verdict(DRAINED, "False", "Draining", "Still there: {remaining}")
DRAIN_DONE: Final = Verdict(DRAINED, "True", "Drained", "Nothing of the binding is left")
DRAIN_UNCONFIRMED: Final = Verdict(
    DRAINED, "Unknown", "Unconfirmed", "Given up after {after} s; not confirmed gone: {remaining}"
)
CONFLICT_POLICIES: Final = Verdict(
    CONFLICTED,
    "True",
    "PolicyClaimed",
    "Another computing cluster has a binding of this name, too, and claimed first: {policies}."
    " These lend nothing here until it lets go of them",
)
CONFLICT_NONE: Final = Verdict(
    CONFLICTED, "False", "NoConflict", "No policy for this binding is claimed by another cluster"
)

BINDING_VERDICTS: Final = (
    BINDING_INITIALIZING,
    BINDING_INVALID,
    BINDING_DISCONNECTED,
    BINDING_PROXIER_FAILED,
    BINDING_SYNCER_FAILED,
    BINDING_READY,
    BINDING_FORBIDDEN,
    BINDING_UNPREPARED,
    BINDING_DELETING,
    CONNECTION_FAILED,
    CONNECTION_PASSED,
    CONNECTION_LOST,
    CONNECTION_MISTAKEN,
    CONNECTION_WITHOUT_POLICIES,
    PERMISSIONS_GRANTED,
    PERMISSIONS_MISSING,
    SYNCER_CREATED,
    SYNCER_UPDATING,
    SYNCER_NOT_READY,
    SYNCER_NOT_SET_UP,
    PROXIER_CREATED,
    PROXIER_UPDATING,
    PROXIER_NOT_READY,
    PROXIER_NOT_SET_UP,
    DRAIN_RUNNING,
    DRAIN_DONE,
    DRAIN_UNCONFIRMED,
    CONFLICT_POLICIES,
    CONFLICT_NONE,
)
