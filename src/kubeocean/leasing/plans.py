"""Plans: what to do about a virtual node and the pods on it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from kubeocean.leasing.notice import Notice
from kubeocean.leasing.situation import Guest, Move
from kubeocean.runtime.kinds import Taint

__all__ = ["Phase", "Plan", "Step", "Why"]


class Phase(StrEnum):
    """How far a node is on its way back."""

    LENT = "Lent"
    COOLING = "Cooling"  # lent again, but no new pods yet
    NOTICE = "Notice"
    HELD = "Held"  # pods have to leave by themselves, or the worker has to answer first
    EVICTING = "Evicting"
    FORCING = "Forcing"
    RECLAIMED = "Reclaimed"


class Why(StrEnum):
    """Why a pod is dealt with in this way."""

    FINISHED = "Finished"  # it uses nothing
    TOLERATES = "Tolerates"
    DAEMON = "Daemon"  # it goes with its node
    NOT_FORCED = "NotForced"
    GRACE = "Grace"
    TOLERATES_FOR_NOW = "ToleratesForNow"
    UNREACHABLE = "Unreachable"  # the worker, so nothing is touched
    PACE = "Pace"
    BUDGET = "Budget"  # a disruption budget refused
    RETRY = "Retry"  # the last try failed, or shows no effect yet
    DUE = "Due"
    DEADLINE = "Deadline"
    TERMINATING = "Terminating"
    UNCONFIRMED = "Unconfirmed"  # its end


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with a pod; `at` is when to look at it again if nothing happens."""

    guest: Guest
    move: Move
    why: Why
    at: datetime | None = None

    @property
    def settled(self) -> bool:
        """Whether taking back the node need not wait for this pod."""
        return self.move is Move.STAY and self.why is not Why.NOT_FORCED


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now.

    `taints` are all taints about taking back that the node should have, and `unschedulable` what
    its spec should say; they are written first. `steps` has one entry for each pod, in the order to
    act in.
    """

    phase: Phase
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    steps: tuple[Step, ...] = ()
    again_at: datetime | None = None  # None: only when something changes
    remove_node: bool = False
    notice: Notice | None = None

    def guests(self, move: Move) -> tuple[Guest, ...]:
        """The pods with which to do this, in order."""
        return tuple(step.guest for step in self.steps if step.move is move)
