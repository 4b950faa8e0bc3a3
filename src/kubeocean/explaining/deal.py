"""Deals: what policies make of a worker's node, by the very rules that the syncer goes by.

Pure. What only a running syncer remembers (a policy as it was before somebody broke it, evictions
that were tried) is not known here; the page says so where that matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo

from kubeocean.api.ownership import Claim, claim_policy, may_be_ours
from kubeocean.api.policy import ResourceLeasingPolicy, ResourceLimit
from kubeocean.errors import ConfigError
from kubeocean.explaining.facts import NodeFacts, Side
from kubeocean.explaining.story import Figure
from kubeocean.explaining.wording import in_order, moment, zone_name
from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.capacity import Bound, Capacity, base_of, offer
from kubeocean.leasing.merge import PassedOver, choose
from kubeocean.leasing.plans import Plan
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.situation import Situation
from kubeocean.leasing.terms import Terms
from kubeocean.leasing.usage import NodeUsage
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.quantity import ZERO
from kubeocean.syncer.bottomup.book import Entry, forced_since
from kubeocean.syncer.bottomup.guests import guest_of
from kubeocean.syncer.bottomup.lending import Decision, Lend, TakeBack, applies, decide

__all__ = ["Deal", "entry_of", "figures", "own_policies", "sentence", "strike", "window_text"]


@dataclass(frozen=True, slots=True)
class Deal:
    """What is decided about a node, and why not otherwise."""

    decision: Decision
    passed_over: tuple[PassedOver, ...] = ()
    capacity: Capacity | None = None  # where a policy lends it
    usage: NodeUsage | None = None
    plan: Plan | None = None  # where it has to come back, or is to be lent again

    @property
    def terms(self) -> Terms | None:
        """Of the policy that lends it."""
        return self.decision.policy.terms if isinstance(self.decision, Lend) else None


def entry_of(policy: ResourceLeasingPolicy, *, zone: tzinfo, now: datetime) -> Entry:
    """What a policy says."""
    try:
        terms = Terms.of(policy.spec, local=zone)
    except ConfigError as error:
        return Entry(policy, None, str(error), None)
    return Entry(policy, terms, "", terms, forced_since(policy, None, now=now))


def own_policies(side: Side) -> list[Entry]:
    """What the policies of this binding say."""
    return [
        entry_of(each, zone=side.zone, now=side.now)
        for each in side.policies
        if each.spec.cluster == side.name and not _is_elsewhere(each, side)
    ]


def _is_elsewhere(policy: ResourceLeasingPolicy, side: Side) -> bool:
    """Whether a binding of that name of another computing cluster has claimed it."""
    if side.ids is None:
        return False
    return claim_policy(policy, ids=side.ids, domain=side.domain) is Claim.FOREIGN


def strike(facts: NodeFacts) -> Deal:
    """What should be with the node now."""
    side, pnode = facts.side, _same(facts)
    candidates = [entry.candidate() for entry in own_policies(side)]
    applied = _applied(facts)
    decision = decide(
        pnode, applied=applied, binding=side.binding, candidates=candidates, now=side.now
    )
    passed_over: tuple[PassedOver, ...] = ()
    if pnode is not None and (binding := side.binding) is not None:
        verdict = choose(
            candidates,
            applies=lambda terms: applies(terms, pnode, binding),
            current=applied or "",
        )
        passed_over = verdict.passed_over
    usage = _usage(facts)
    capacity = None
    if isinstance(decision, Lend) and pnode is not None:
        base = base_of(pnode.status.allocatable, pnode.status.capacity)
        limits = decision.policy.terms.limits
        capacity = offer(base, others=usage.others, ours=usage.ours, limits=limits)
    return Deal(decision, passed_over, capacity, usage, _plan(facts, decision))


def _applied(facts: NodeFacts) -> str | None:
    """The policy that the virtual node says it is lent by."""
    if facts.vnode is None:
        return None
    return facts.vnode.annotations.get(facts.side.domain.policies_applied, "")


def _same(facts: NodeFacts) -> Node | None:
    """The worker's node, unless it is another one of that name than the virtual node is for."""
    if facts.vnode is None or facts.pnode is None:
        return facts.pnode
    key = facts.side.domain.physical_node_uid
    said = {facts.vnode.labels.get(key), facts.vnode.annotations.get(key)} - {None}
    return facts.pnode if not said or facts.pnode.uid in said else None


def _usage(facts: NodeFacts) -> NodeUsage:
    usage, side = NodeUsage(), facts.side
    for pod in facts.counted:
        ours = side.ids is not None and may_be_ours(pod, ids=side.ids, domain=side.domain)
        usage.put(pod.uid, requests_of(pod), ours=ours)
    return usage


def _plan(facts: NodeFacts, decision: Decision) -> Plan | None:
    if facts.vnode is None or not isinstance(decision, Lend | TakeBack):
        return None
    side = facts.side
    situation = Situation(
        now=side.now,
        cause=decision.cause,
        rules=decision.rules,
        taints=facts.vnode.spec.taints or (),
        guests=tuple(map(guest_of, facts.guests)),
        rules_since=decision.since,
        worker_answers=not side.problem,
        domain=side.domain,
    )
    return plan(situation)


# In words


def figures(deal: Deal) -> tuple[Figure, ...]:
    """Each resource of the node, from what it has to what is offered."""
    capacity, usage, terms = deal.capacity, deal.usage, deal.terms
    if capacity is None or usage is None or terms is None:
        return ()
    others, ours = usage.others, usage.ours
    return tuple(
        Figure(
            resource=name,
            allocatable=str(capacity.base[name]),
            others=str(others.get(name, ZERO)),
            leftover=str(capacity.leftover[name]),
            limit=_limit(name, terms.spec.resource_limits or ()),
            lent=str(capacity.lent[name]),
            used=str(ours.get(name, ZERO)),
            offered=str(capacity.offered[name]),
            bound=str(capacity.bound(name)),
        )
        for name in in_order(capacity.base)
    )


def sentence(deal: Deal, name: str) -> str:
    """Why so much of one resource is offered: `cpu 4 of 8 (policy p lends 50 % …)`."""
    capacity, usage = deal.capacity, deal.usage
    assert capacity is not None and usage is not None and isinstance(deal.decision, Lend)
    base, left = capacity.base[name], capacity.leftover[name]
    match capacity.bound(name):
        case Bound.LIMIT:
            limit = _limit(name, deal.decision.policy.terms.spec.resource_limits or ())
            why = f"policy {deal.decision.policy.name} lends {limit} of the {left} that are left"
        case Bound.OTHERS:
            why = f"pods of others request {_of(usage.others, name)}"
        case Bound.USE:
            lent = capacity.lent[name]
            why = f"our pods use that much already; only {lent} would be lent now"
        case _:
            why = "all that the node has"
    return f"{name} {capacity.offered[name]} of {base} ({why})"


def window_text(terms: Terms, now: datetime) -> str:
    """Whether the windows are open, and until when."""
    calendar = terms.calendar
    edge = next_edge(calendar, now)
    state = "open" if within(calendar, now) else "closed"
    if edge is None:
        return f"{state}, always"
    return f"{state} until {moment(edge, calendar.zone)}; it is now {_now(now, calendar.zone)}"


def _now(now: datetime, zone: tzinfo) -> str:
    return f"{now.astimezone(zone):%a %H:%M} {zone_name(zone)}"


def _of(some: Amounts, name: str) -> str:
    return str(some.get(name, ZERO))


def _limit(name: str, limits: Iterable[ResourceLimit]) -> str:
    """All limits of a resource, as they follow each other."""
    said = []
    for limit in limits:
        if limit.resource != name:
            continue
        parts = [f"{limit.percent} %"] if limit.percent is not None else []
        parts += [f"at most {limit.quantity}"] if limit.quantity is not None else []
        said.append(", ".join(parts))
    return "; then ".join(filter(None, said)) or "-"
