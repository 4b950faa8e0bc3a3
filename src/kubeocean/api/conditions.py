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
    "BINDING_DISCONNECTED",
    "BINDING_INITIALIZING",
    "BINDING_INVALID",
    "BINDING_PROXIER_FAILED",
    "BINDING_READY",
    "BINDING_SYNCER_FAILED",
    "BINDING_VERDICTS",
    "CONNECTED",
    "CONNECTION_FAILED",
    "CONNECTION_LOST",
    "CONNECTION_PASSED",
    "DRAINED",
    "DRAIN_DONE",
    "DRAIN_RUNNING",
    "DRAIN_UNCONFIRMED",
    "POLICY_ACTIVE",
    "POLICY_INACTIVE",
    "POLICY_INVALID",
    "POLICY_NOT_ACTIVATED",
    "POLICY_VALID",
    "POLICY_VERDICTS",
    "PROXIER_CREATED",
    "PROXIER_READY",
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
    "SYNCER_READY",
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
    RECLAIM_WAITING,
    RECLAIM_EVICTING,
    RECLAIM_HELD,
    RECLAIM_BLOCKED,
    RECLAIM_FORCING,
    RECLAIM_DONE,
    RECLAIM_STOPPED,
)

# Bindings: does it work, does the worker answer, are our programs there, has all been cleared up

READY: Final = "Ready"
CONNECTED: Final = "Connected"
SYNCER_READY: Final = "SyncerReady"
PROXIER_READY: Final = "ProxierReady"
DRAINED: Final = "Drained"  # new

BINDING_INITIALIZING: Final = Verdict(READY, "False", "Initializing", "The binding is being set up")
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
SYNCER_CREATED: Final = Verdict(SYNCER_READY, "True", "SyncerCreated", "The syncer is set up")
PROXIER_CREATED: Final = Verdict(PROXIER_READY, "True", "ProxierCreated", "The proxier is set up")
DRAIN_RUNNING: Final = Verdict(DRAINED, "False", "Draining", "Still there: {remaining}")
DRAIN_DONE: Final = Verdict(DRAINED, "True", "Drained", "Nothing of the binding is left")
DRAIN_UNCONFIRMED: Final = Verdict(
    DRAINED, "Unknown", "Unconfirmed", "Given up after {after} s; not confirmed gone: {remaining}"
)

BINDING_VERDICTS: Final = (
    BINDING_INITIALIZING,
    BINDING_INVALID,
    BINDING_DISCONNECTED,
    BINDING_PROXIER_FAILED,
    BINDING_SYNCER_FAILED,
    BINDING_READY,
    CONNECTION_FAILED,
    CONNECTION_PASSED,
    CONNECTION_LOST,
    SYNCER_CREATED,
    PROXIER_CREATED,
    DRAIN_RUNNING,
    DRAIN_DONE,
    DRAIN_UNCONFIRMED,
)
