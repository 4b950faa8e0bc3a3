"""The choice of the policy that decides about a node.

Of the policies that apply to a node the oldest decides, and of equally old ones the first by name;
for the others the choice has a reason. A policy that is being deleted, or that names another
binding now, does not apply; its rules count until the nodes that it lent are reclaimed.

An invalid change stops nothing that runs. A policy that became invalid counts with its last valid
spec; if that is not known, the nodes that are lent by this policy are frozen: they stay as they
are. An invalid policy by which no node is lent does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from kubeocean.leasing.parsed_policy import ParsedPolicy

__all__ = ["Candidate", "Chosen", "PassedOver", "PolicyChoice", "Reason", "choose"]


class Reason(StrEnum):
    """Reason why a policy does not decide about a node."""

    DELETING = "Deleting"
    INVALID = "Invalid"
    NOT_SELECTED = "NotSelected"
    NOT_OLDEST = "NotOldest"
    WITHDRAWN = "Withdrawn"  # the policy names another binding now


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that may decide about a node, with its present and its last valid spec.

    `created` is the policy's creationTimestamp: the order of these texts is the order of time.
    """

    name: str
    created: str
    parsed: ParsedPolicy | None  # None: the present spec is invalid
    problem: str = ""  # why the present spec is invalid
    last_valid: ParsedPolicy | None = None
    deleting: bool = False
    withdrawn: bool = False  # lent to this binding before, and names another binding now
    rules_since: datetime | None = None  # since when its reclaim rules hold; None: always

    @property
    def effective(self) -> ParsedPolicy | None:
        """The present spec if it is valid, else the last valid one; None if the policy was never
        valid."""
        return self.parsed if self.parsed is not None else self.last_valid


@dataclass(frozen=True, slots=True)
class Chosen:
    """The policy that decides about a node. `problem` is set if its last valid spec is used."""

    name: str
    parsed: ParsedPolicy
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A policy that does not decide about a node, and the reason."""

    name: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy that decides about a node, if any does; the other policies in the order of their
    names.

    A node that is `frozen`, by a policy that was never valid, is left as it is.
    """

    chosen: Chosen | None
    passed_over: tuple[PassedOver, ...] = ()
    frozen: PassedOver | None = None

    def reason_of(self, name: str) -> Reason | None:
        """Return why this policy does not decide about the node; None if the policy decides, or is
        not a candidate."""
        others = (*self.passed_over, self.frozen) if self.frozen else self.passed_over
        return next((each.reason for each in others if each.name == name), None)


def choose(
    candidates: Iterable[Candidate], *, applies: Callable[[ParsedPolicy], bool], current: str = ""
) -> PolicyChoice:
    """Return which policy decides about a node.

    `current` is the policy that the virtual node names.
    """
    chosen: Chosen | None = None
    frozen: PassedOver | None = None
    passed_over: list[PassedOver] = []
    first = ""  # the policy that decides about the node or freezes it, once known
    for each in sorted(candidates, key=lambda each: (each.created, each.name)):
        parsed = each.effective
        if each.deleting:
            passed_over.append(PassedOver(each.name, Reason.DELETING, "it is being deleted"))
        elif each.withdrawn:
            message = "it names another binding now"
            passed_over.append(PassedOver(each.name, Reason.WITHDRAWN, message))
        elif parsed is None and each.name == current and not first:
            frozen, first = PassedOver(each.name, Reason.INVALID, each.problem), each.name
        elif parsed is None:
            passed_over.append(PassedOver(each.name, Reason.INVALID, each.problem))
        elif not applies(parsed):
            message = "it does not select this node"
            passed_over.append(PassedOver(each.name, Reason.NOT_SELECTED, message))
        elif first:
            message = f"policy {first} is older, or as old and first by name"
            passed_over.append(PassedOver(each.name, Reason.NOT_OLDEST, message))
        else:
            problem = each.problem if each.parsed is None else ""
            chosen, first = Chosen(each.name, parsed, problem), each.name
    return PolicyChoice(chosen, tuple(sorted(passed_over, key=lambda each: each.name)), frozen)
