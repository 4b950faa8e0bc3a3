"""Lending: whether a worker's node is lent, by which policy, and if not, why not any more.

Pure: everything is passed in. The answer is one of

- `Lend`: this policy lends it; within its windows, or outside (then the cause says so);
- `TakeBack`: there is a virtual node, and it has to go for this cause, by these rules;
- `Hold`: leave everything as it is, because what would decide makes no sense;
- `Ignore`: there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from kubeocean.api import group
from kubeocean.api.binding import ClusterBinding
from kubeocean.leasing.instants import instant_of
from kubeocean.leasing.merge import Candidate, Chosen, Reason, Verdict, choose
from kubeocean.leasing.rules import Cause, Rules, rules_of
from kubeocean.leasing.terms import Terms
from kubeocean.leasing.windows import within
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.nodeselectors import NodeSelector

__all__ = ["Decision", "Hold", "Ignore", "Lend", "TakeBack", "applies", "decide", "is_lendable"]


@dataclass(frozen=True, slots=True)
class Lend:
    """The node is lent by this policy; `cause` is set while its windows are closed.

    `since` is when the rules began to hold, where that can be later than the cause.
    """

    policy: Chosen
    cause: Cause | None
    rules: Rules
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The virtual node goes. `since` is when the rules began to hold, where somebody knows."""

    cause: Cause
    rules: Rules
    policy: Chosen | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing changes until somebody mends this."""

    why: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """Not lent, and never was."""


Decision: TypeAlias = Lend | TakeBack | Hold | Ignore


def is_lendable(labels: Mapping[str, str]) -> bool:
    """Whether a node is a machine: a virtual node is not lent once more, whatever event arrives."""
    types = (labels.get(group.LABEL_INSTANCE_TYPE), labels.get(group.LABEL_INSTANCE_TYPE_BETA))
    if any(each in group.EXCLUDED_INSTANCE_TYPES for each in types):
        return False
    return labels.get(group.LABEL_NODE_TYPE) != group.NODE_TYPE_VIRTUAL


def decide(
    pnode: Node | None,
    *,
    applied: str | None,
    binding: ClusterBinding | None,
    candidates: Iterable[Candidate],
    now: datetime,
) -> Decision:
    """What is to become of a node; `applied` is the policy of its virtual node, if it has one."""
    known = list(candidates)
    own = next((each for each in known if each.name == applied), None)
    known_terms = own.effective if own is not None else None
    spec = known_terms.spec if known_terms is not None else None
    if binding is None:
        return Hold("the binding is not there") if applied is not None else Ignore()
    if binding.deleting:
        since = instant_of(binding.metadata.deletion_timestamp)
        rules = rules_of(spec, Cause.BINDING_DELETED)
        return _unless_free(applied, TakeBack(Cause.BINDING_DELETED, rules, since=since))
    if pnode is None or pnode.deleting:
        rules = rules_of(spec, Cause.NODE_GONE)
        return _unless_free(applied, TakeBack(Cause.NODE_GONE, rules))

    verdict = choose(
        known, applies=lambda terms: applies(terms, pnode, binding), current=applied or ""
    )
    if verdict.frozen is not None:
        return Hold(f"policy {verdict.frozen.name} is invalid: {verdict.frozen.message}")
    if verdict.chosen is not None:
        terms = verdict.chosen.terms
        cause = None if within(terms.calendar, now) else Cause.WINDOW_CLOSED
        chosen = next(each for each in known if each.name == verdict.chosen.name)
        return Lend(verdict.chosen, cause, rules_of(terms.spec, cause), chosen.rules_since)
    if applied is None:
        return Ignore()
    return _withdraw(applied, own, verdict)


def _withdraw(applied: str, own: Candidate | None, verdict: Verdict) -> Decision:
    """Nobody lends a node that is lent: because of what became of the policy that did."""
    reason = verdict.reason_of(applied)
    terms = own.effective if own is not None else None
    policy = Chosen(applied, terms) if terms is not None else None
    spec = terms.spec if terms is not None else None
    gone = own is None or reason is Reason.DELETING
    cause = Cause.POLICY_REMOVED if gone else Cause.POLICY_NARROWED
    since = own.rules_since if own is not None else None
    return TakeBack(cause, rules_of(spec, cause), policy, since)


def applies(terms: Terms, pnode: Node, binding: ClusterBinding) -> bool:
    """Whether a policy's terms are about this node: both it and the binding have to select it."""
    if not is_lendable(pnode.labels):
        return False
    selector = NodeSelector.from_document(binding.spec.node_selector or {})
    chosen = not selector.terms or selector.matches(pnode.name, pnode.labels)
    return chosen and terms.selects(pnode.name, pnode.labels)


def _unless_free(applied: str | None, decision: TakeBack) -> Decision:
    return Ignore() if applied is None else decision
