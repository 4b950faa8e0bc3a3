"""The decision about one node of a worker: whether it is lent, by which policy, by which rules.

`leasing.capacity` computes how much of a lent node is offered. `decide` is pure: all facts are
arguments. Its result is one of

- `Lend`: the policy lends the node, and a time window is open;
- `WindowClosed`: the policy lends the node, but not now. The virtual node stays, and its pods are
  reclaimed;
- `Reclaim`: the pods of the virtual node are reclaimed, then the virtual node is deleted;
- `LeaveUnchanged`: leave everything as it is, because the binding or the policy cannot be read;
- `Ignore`: the node is not lent and has no virtual node.

The cause of a reclaim decides which rules apply. A closed window, a deleted policy and a policy
that no longer selects the node are the owner's choice: the rules of the policy apply. A node that
is being deleted waits for a finalizer (of Karpenter, of Cluster API): its pods are evicted by the
policy's grace period, budgets and deadline, also if the policy does not force; so are the pods of a
node that was registered anew, because they may still run there. The deletion of a binding must end,
so pods that do not leave are deleted. A node that was deleted has no pod left to wait for.

A binding with an invalid nodeSelector must not keep an owner's nodes: `BindingSelector` keeps the
last valid one. Without any, no further node is lent; for nodes that are lent, time windows, reclaim
and capacity go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from kubeocean.api import group
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.policies import PolicySpec
from kubeocean.errors import ConfigError
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.policy_choice import Candidate, Chosen, PolicyChoice, Reason, choose
from kubeocean.leasing.windows import within
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json

__all__ = [
    "ABANDON_S",
    "DEADLINE_S",
    "BindingSelector",
    "Decision",
    "Ignore",
    "LeaveUnchanged",
    "Lend",
    "Reclaim",
    "ReclaimCause",
    "ReclaimRules",
    "WindowClosed",
    "applies",
    "decide",
    "is_lendable",
    "reclaim_rules_of",
]

DEADLINE_S: Final = 300  # how long disruption budgets can delay evictions by default
ABANDON_S: Final = 120  # how long a forced deletion may take before a virtual node is deleted


class ReclaimCause(StrEnum):
    """Cause of the reclaim of a node."""

    WINDOW_CLOSED = "WindowClosed"
    POLICY_REMOVED = "PolicyRemoved"
    POLICY_NARROWED = "PolicyNarrowed"  # the policy no longer selects this node
    BINDING_DELETED = "BindingDeleted"
    NODE_DELETING = "NodeDeleting"  # the worker's Node waits for a finalizer
    NODE_REPLACED = "NodeReplaced"  # the worker has another Node of this name
    NODE_GONE = "NodeGone"  # deleted in the worker, as the worker's API server confirms

    @property
    def removes_node(self) -> bool:
        """Whether the virtual node is deleted, too; a closed window only evicts its pods."""
        return self is not ReclaimCause.WINDOW_CLOSED


@dataclass(frozen=True, slots=True)
class ReclaimRules:
    """Rules by which a node is reclaimed.

    Pods have `grace_s` to end by themselves. With `force`, pods that still run are then evicted,
    within the pace and as far as disruption budgets allow, and after another `deadline_s` deleted
    regardless of budgets. With `abandon_s`, a pod that still exists so long after that is deleted
    without a grace period. A node from which pods were evicted takes no new pods for `cool_down_s`.
    Without `respect_tolerations`, a toleration of a closed window's taint keeps no pod.
    """

    force: bool = False
    grace_s: float = 0
    deadline_s: float = DEADLINE_S
    evictions_per_minute: int | None = None  # None: no limit
    cool_down_s: float = 0
    abandon_s: float | None = None  # None: never
    respect_tolerations: bool = True  # of a closed window's taint


def reclaim_rules_of(spec: PolicySpec | None, cause: ReclaimCause | None) -> ReclaimRules:
    """Return the rules of a policy for a reclaim with this cause; for an unknown policy, rules that
    never force.

    Without a cause, return the rules of a node that is lent.
    """
    own = _policy_rules(spec if spec is not None else PolicySpec())
    if cause is ReclaimCause.BINDING_DELETED:
        return replace(own, force=True, abandon_s=ABANDON_S)
    if cause in (ReclaimCause.NODE_DELETING, ReclaimCause.NODE_REPLACED):
        return replace(own, force=True)
    if cause is ReclaimCause.NODE_GONE:
        return ReclaimRules(force=True, deadline_s=0, abandon_s=ABANDON_S)
    return own


def _policy_rules(spec: PolicySpec) -> ReclaimRules:
    deadline_s, pace = spec.force_reclaim_deadline_seconds, spec.max_evictions_per_minute
    return ReclaimRules(
        force=spec.force_reclaim,
        grace_s=max(spec.graceful_reclaim_period_seconds, 0),
        deadline_s=DEADLINE_S if deadline_s is None else max(deadline_s, 0),
        evictions_per_minute=pace if pace is not None and pace > 0 else None,
        cool_down_s=max(spec.cool_down_seconds, 0),
        respect_tolerations=spec.respects_tolerations,
    )


@dataclass(frozen=True, slots=True)
class Lend:
    """Decision: the policy lends the node now.

    `since` is when the reclaim rules began to hold (`forceReclaim` switched on, policy deleted);
    None: always. `others` are younger policies that also select the node and have no effect.
    """

    policy: Chosen
    rules: ReclaimRules
    since: datetime | None = None
    others: tuple[str, ...] = ()

    @property
    def cause(self) -> ReclaimCause | None:
        """Cause of the reclaim of the node's pods; None while a window is open."""
        return None


@dataclass(frozen=True, slots=True)
class WindowClosed(Lend):
    """Decision: the policy lends the node, but none of its time windows is open.

    At the end of a window the virtual node stays, with its capacity, and gets the taint
    `out-of-time-windows` (NoSchedule) with the time. If the policy has `forceReclaim`, the pods on
    the node are evicted once `gracefulReclaimPeriodSeconds` have passed since then, and deleted
    after the deadline; otherwise pods may stay until they end. The taint is removed when the next
    window opens. `leasing.reclaim` has the steps in detail.
    """

    @property
    def cause(self) -> ReclaimCause:
        return ReclaimCause.WINDOW_CLOSED


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Decision: the pods of the virtual node are reclaimed, then the virtual node is deleted.

    `since` is when the reclaim rules began to hold, if known.
    """

    cause: ReclaimCause
    rules: ReclaimRules
    policy: Chosen | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class LeaveUnchanged:
    """Decision: leave the node as it is until a person corrects the policy or the binding that
    `why` names."""

    why: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """Decision: the node is not lent and has no virtual node."""


Decision: TypeAlias = Lend | WindowClosed | Reclaim | LeaveUnchanged | Ignore


class BindingSelector:
    """Keeps the last valid nodeSelector of a binding."""

    def __init__(self) -> None:
        self._uid = ""
        self._document: Json | None = None  # the nodeSelector that was last parsed
        self._selector: NodeSelector | None = None

    def of(self, binding: ClusterBinding | None) -> NodeSelector | None:
        """Return the binding's nodeSelector, or its last valid one; None if the binding never had a
        valid one."""
        if binding is None:
            return None
        document = binding.spec.node_selector or {}
        if binding.uid != self._uid:
            self._uid, self._document, self._selector = binding.uid, None, None
        if document != self._document:
            self._document = document
            with suppress(ConfigError):  # the manager's condition names the field and the value
                self._selector = NodeSelector.from_document(document)
        return self._selector


def is_lendable(labels: Mapping[str, str]) -> bool:
    """Whether a worker's node may be lent: not if it is a virtual node itself."""
    types = (labels.get(group.LABEL_INSTANCE_TYPE), labels.get(group.LABEL_INSTANCE_TYPE_BETA))
    if any(each in group.EXCLUDED_INSTANCE_TYPES for each in types):
        return False
    return labels.get(group.LABEL_NODE_TYPE) != group.NODE_TYPE_VIRTUAL


def decide(
    pnode: Node | None,
    *,
    applied: str | None,
    binding: ClusterBinding | None,
    selector: NodeSelector | None,
    candidates: Iterable[Candidate],
    now: datetime,
    replaced: bool = False,
) -> Decision:
    """Return the decision about a worker's node.

    `applied` is the policy that the node's virtual node names, None without a virtual node;
    `selector` is the binding's, None if the binding never had a valid one. `replaced`: the virtual
    node was created for an earlier node of the same name.
    """
    policies = {each.name: each for each in candidates}
    current = policies.get(applied) if applied is not None else None
    if binding is None:
        return LeaveUnchanged("the binding does not exist") if applied is not None else Ignore()
    if binding.deleting:
        since = instant_of(binding.metadata.deletion_timestamp)
        return _reclaim(applied, current, ReclaimCause.BINDING_DELETED, since)
    if pnode is None:
        return _reclaim(applied, current, ReclaimCause.NODE_GONE)
    if replaced:
        return _reclaim(applied, current, ReclaimCause.NODE_REPLACED)
    if pnode.deleting:
        since = instant_of(pnode.metadata.deletion_timestamp)
        return _reclaim(applied, current, ReclaimCause.NODE_DELETING, since)

    choice = choose(
        policies.values(),
        applies=lambda parsed: applies(parsed, pnode, selector, lent=applied is not None),
        current=applied or "",
    )
    if choice.frozen is not None:
        return LeaveUnchanged(f"policy {choice.frozen.name} is invalid: {choice.frozen.message}")
    if choice.chosen is not None:
        parsed, since = choice.chosen.parsed, policies[choice.chosen.name].rules_since
        kind = Lend if within(parsed.calendar, now) else WindowClosed
        others = tuple(each.name for each in choice.passed_over if each.reason is Reason.NOT_OLDEST)
        return kind(choice.chosen, reclaim_rules_of(parsed.spec, None), since, others)
    if applied is None:
        return Ignore()
    return _withdraw(applied, current, choice)


def _reclaim(
    applied: str | None,
    current: Candidate | None,
    cause: ReclaimCause,
    since: datetime | None = None,
) -> Decision:
    """Return a reclaim whose cause is the binding or the node, by the rules of the policy
    `current`; `Ignore` without a virtual node."""
    if applied is None:
        return Ignore()
    parsed = current.effective if current is not None else None
    rules = reclaim_rules_of(parsed.spec if parsed is not None else None, cause)
    return Reclaim(cause, rules, since=since)


def _withdraw(applied: str, current: Candidate | None, choice: PolicyChoice) -> Decision:
    """Return the reclaim of a node that no policy lends any more, by the rules of the policy that
    lent it."""
    parsed = current.effective if current is not None else None
    removed = current is None or choice.reason_of(applied) in (Reason.DELETING, Reason.WITHDRAWN)
    cause = ReclaimCause.POLICY_REMOVED if removed else ReclaimCause.POLICY_NARROWED
    return Reclaim(
        cause,
        reclaim_rules_of(parsed.spec if parsed is not None else None, cause),
        Chosen(applied, parsed) if parsed is not None else None,
        current.rules_since if current is not None else None,
    )


def applies(
    parsed: ParsedPolicy, pnode: Node, selector: NodeSelector | None, *, lent: bool
) -> bool:
    """Whether a policy applies to this node: the policy and the binding must both select the node.

    Without a valid nodeSelector of the binding, nodes that are lent stay selected.
    """
    if not is_lendable(pnode.labels):
        return False
    if selector is None:
        selected = lent
    else:
        selected = not selector.terms or selector.matches(pnode.name, pnode.labels)
    return selected and parsed.selects(pnode.name, pnode.labels)
