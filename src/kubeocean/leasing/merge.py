"""Merge: which of several policies speaks for a node.

Of the policies that apply to a node the oldest decides, and of equally old ones the first by name;
the others are told why they do not. A policy that is being deleted does not apply.

A mistake changes nothing that runs. A policy that was made invalid counts with what it said before;
if nobody remembers what that was, the nodes that run under it are frozen: they stay as they are. An
invalid policy that nothing runs under does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from kubeocean.leasing.terms import Terms

__all__ = ["Candidate", "Chosen", "PassedOver", "Reason", "Verdict", "choose"]


class Reason(StrEnum):
    """Why a policy does not decide about a node."""

    DELETING = "Deleting"
    INVALID = "Invalid"
    NOT_SELECTED = "NotSelected"
    NOT_OLDEST = "NotOldest"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy, as it is and as it last made sense.

    `created` is its creationTimestamp: servers write them so that their order is that of time.
    """

    name: str
    created: str
    terms: Terms | None  # None: what is written is invalid
    problem: str = ""  # what is wrong with it then
    last_valid: Terms | None = None
    deleting: bool = False
    rules_since: datetime | None = None  # since when its rules of taking back hold; None: always

    @property
    def effective(self) -> Terms | None:
        """The terms that count; None if none ever did."""
        return self.terms if self.terms is not None else self.last_valid


@dataclass(frozen=True, slots=True)
class Chosen:
    """The policy that decides. `problem` is set if it does by what it said before."""

    name: str
    terms: Terms
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A policy that does not decide, and why."""

    name: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who decides about a node, if anybody; the others in the order of their names.

    If it is `frozen`, by a policy that cannot be read, nobody does: what runs is left alone.
    """

    chosen: Chosen | None
    passed_over: tuple[PassedOver, ...] = ()
    frozen: PassedOver | None = None

    def reason_of(self, name: str) -> Reason | None:
        """Why that policy does not decide; None if it does, or is not there."""
        others = (*self.passed_over, self.frozen) if self.frozen else self.passed_over
        return next((each.reason for each in others if each.name == name), None)


def choose(
    candidates: Iterable[Candidate], *, applies: Callable[[Terms], bool], current: str = ""
) -> Verdict:
    """The verdict about a node to which terms apply, or not.

    `current` is the policy that the node runs under, as the node itself says.
    """
    chosen: Chosen | None = None
    frozen: PassedOver | None = None
    passed_over: list[PassedOver] = []
    first = ""  # who decides or freezes, once that is known
    for each in sorted(candidates, key=lambda each: (each.created, each.name)):
        terms = each.effective
        if each.deleting:
            passed_over.append(PassedOver(each.name, Reason.DELETING, "it is being deleted"))
        elif terms is None and each.name == current and not first:
            frozen, first = PassedOver(each.name, Reason.INVALID, each.problem), each.name
        elif terms is None:
            passed_over.append(PassedOver(each.name, Reason.INVALID, each.problem))
        elif not applies(terms):
            message = "it does not select this node"
            passed_over.append(PassedOver(each.name, Reason.NOT_SELECTED, message))
        elif first:
            message = f"policy {first} is older, or as old and first by name"
            passed_over.append(PassedOver(each.name, Reason.NOT_OLDEST, message))
        else:
            problem = each.problem if each.terms is None else ""
            chosen, first = Chosen(each.name, terms, problem), each.name
    return Verdict(chosen, tuple(sorted(passed_over, key=lambda each: each.name)), frozen)
