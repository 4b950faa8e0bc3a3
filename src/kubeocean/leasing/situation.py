"""Situation: all that a reclaim plan is made from.

It holds what can be read again after a restart: the taints of the virtual node, the pods on it, a
time. What was tried, and when, may be forgotten; forgetting makes the next try come sooner, and
never a deletion before its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.tolerations import Toleration
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Key

__all__ = ["Answer", "Attempt", "Guest", "Move", "Situation"]


class Move(StrEnum):
    """What is to be done with a pod."""

    STAY = "Stay"  # nothing, now or later
    WAIT = "Wait"  # nothing yet
    EVICT = "Evict"  # through the Eviction API, which asks the disruption budgets
    DELETE = "Delete"  # without asking, with the pod's own grace period
    LEAVE = "Leave"  # nothing: it is terminating
    ABANDON = "Abandon"  # delete without grace: nobody confirms that it ended


class Answer(StrEnum):
    """What an API server said to a move."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"  # 429: a disruption budget
    FAILED = "Failed"  # anything else


_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 10.0  # a budget may allow the next eviction at any time, and does not tell
_UNSEEN_S: Final = 30.0  # accepted, and yet the pod does not leave


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last time that a move was tried on a pod, and how often in a row that was."""

    move: Move
    at: datetime
    answer: Answer
    count: int = 1
    retry_after_s: float = 0  # as the server asked

    @property
    def retry_at(self) -> datetime:
        """When the same move may be tried again."""
        if self.answer is Answer.ACCEPTED:
            return self.at + timedelta(seconds=_UNSEEN_S)
        doubled = _FIRST_RETRY_S * 2 ** min(self.count - 1, 10)
        wait_s = max(self.retry_after_s, min(doubled, _LAST_RETRY_S))
        return self.at + timedelta(seconds=wait_s)


@dataclass(frozen=True, slots=True)
class Guest:
    """A pod on the virtual node; our own placeholders are not among them."""

    key: Key
    uid: str
    created: datetime
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    finished: bool = False  # it succeeded or failed
    daemon: bool = False  # a DaemonSet controls it
    leaving_by: datetime | None = None  # its deletionTimestamp
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """A virtual node at an instant.

    `rules_since` is when the rules began to hold, where that can be later than the taint: the
    deletionTimestamp of the binding or the policy, or the moment a policy began to force. Grace and
    deadline count from the later of the two. `evictions` are the instants that count against the
    pace, of this node or of all that share it; `last_eviction` is this node's.
    """

    now: datetime
    cause: Cause | None  # None: the node is lent
    rules: Rules
    taints: tuple[Taint, ...] = ()
    guests: tuple[Guest, ...] = ()
    rules_since: datetime | None = None
    evictions: tuple[datetime, ...] = ()
    last_eviction: datetime | None = None
    worker_answers: bool = True
    domain: Domain = DEFAULT
