"""Nodes: why a virtual node is there or not, offers this much, and takes pods or not.

Pure. The rules are asked in order, and the first one that has an answer decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kubeocean.api.conditions import CONNECTED, READY
from kubeocean.explaining.deal import (
    Deal,
    figures,
    own_policies,
    sentence,
    strike,
    window_text,
)
from kubeocean.explaining.facts import NodeFacts, is_fresh
from kubeocean.explaining.story import Rule, Section, Story
from kubeocean.explaining.wording import ago, few, in_order, logs_of_syncer, moment, taint_text
from kubeocean.leasing.amounts import PODS
from kubeocean.leasing.capacity import Bound
from kubeocean.leasing.instants import instant_of
from kubeocean.leasing.notice import reclaim_taints
from kubeocean.leasing.plans import Phase, Plan, Step, Why
from kubeocean.leasing.report import counted
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Situation
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.bottomup.lending import Hold, Lend, TakeBack, is_lendable

__all__ = ["explain_node", "heartbeat", "is_ready", "policy_lines", "silence", "step_text"]

_CAUSES: Final = {
    Cause.WINDOW_CLOSED: "the window of policy {policy} is closed",
    Cause.POLICY_REMOVED: "policy {policy}, which lent it, is deleted or was let go of",
    Cause.POLICY_NARROWED: "policy {policy} does not select it any more, nor does another",
    Cause.BINDING_DELETED: "the binding {binding} is being deleted",
    Cause.NODE_GONE: "the worker's node {pnode} is gone",
}
_WHYS: Final = {
    Why.FINISHED: "has ended",
    Why.TOLERATES: "tolerates the taint, and stays",
    Why.DAEMON: "goes with its node",
    Why.NOT_FORCED: "stays until it ends by itself: the policy does not force",
    Why.GRACE: "has until {at}",
    Why.TOLERATES_FOR_NOW: "tolerates the taint until {at}",
    Why.UNREACHABLE: "is not touched while the worker does not answer",
    Why.PACE: "waits for its turn, at {at}: the policy limits evictions per minute",
    Why.BUDGET: "is held by a disruption budget",
    Why.RETRY: "is tried again at {at}",
    Why.DUE: "is evicted as soon as disruption budgets allow, at latest at {deadline}",
    Why.DEADLINE: "is deleted now, whatever protects it",
    Why.TERMINATING: "is terminating",
    Why.UNCONFIRMED: "is given up: nobody confirms its end",
}


_PHASES: Final = {
    Phase.LENT: "it is lent",
    Phase.COOLING: "it is lent again, and cools down",
    Phase.NOTICE: "pods were given notice",
    Phase.HELD: "pods are not made to leave",
    Phase.EVICTING: "pods are being evicted",
    Phase.FORCING: "the deadline is over: pods are being deleted",
    Phase.RECLAIMED: "it is free",
}


def explain_node(facts: NodeFacts) -> Story:
    """The page about a node."""
    side, about = facts.side, f"node {facts.name}"
    unread = (*side.unread, *facts.unread)
    if facts.vnode is None and facts.pnode is None:
        said = "there is no such node, neither here nor in a worker that could be read"
        return Story(about, Rule.NOT_FOUND, said, unread=unread)
    domain = side.domain
    if facts.vnode is not None and facts.vnode.labels.get(domain.managed_by) != domain.product:
        said = "it is a node of the computing cluster itself; Kubeocean has no part in it"
        return Story(about, Rule.NOT_OURS, said, unread=unread)
    if side.binding is None:
        said = f"it is left over: the binding {side.name}, which it belongs to, does not exist"
        remedies = ("remove its finalizer, or make the binding again: its syncer takes it over",)
        return Story(about, Rule.BINDING_GONE, said, remedies=remedies, unread=unread)
    if side.problem:
        return _unread(facts, unread)
    return _decided(facts, strike(facts), unread)


def _unread(facts: NodeFacts, unread: tuple[str, ...]) -> Story:
    """Nothing is decided from what nobody can see."""
    side = facts.side
    assert side.binding is not None
    said = f"the worker of binding {side.name} cannot be read; this is how it was when it could"
    reasons = [f"asked for the worker now: {side.problem}"]
    connected = find_condition(side.binding.status.conditions, CONNECTED)
    if connected is not None and connected.status != "True":
        reasons.append(f"the syncer says: {connected.message}")
    reasons += heartbeat(facts)
    reasons.append("while a worker does not answer nothing is taken away: its pods may well run")
    return Story(
        f"node {facts.name}",
        Rule.WORKER_UNREAD,
        said,
        tuple(reasons),
        sections=(_taints(facts),),
        remedies=("an API server of the worker that runs, and answers here",),
        unread=unread,
    )


def _decided(facts: NodeFacts, deal: Deal, unread: tuple[str, ...]) -> Story:
    rules: tuple[Callable[[NodeFacts, Deal], _Answer | None], ...] = (
        _leaving,
        _held,
        _taken_back,
        _not_lent,
        _closed,
        _not_there,
        _cooling,
        _silent,
        _not_ready,
    )
    for rule in rules:
        if (answer := rule(facts, deal)) is not None:
            break
    else:
        answer = _lent(facts, deal)
    return Story(
        f"node {facts.name}",
        answer[0],
        answer[1],
        (*answer[2], *_shows(facts, deal), *heartbeat(facts), *_namesakes(facts)),
        figures=figures(deal),
        sections=(
            Section("policies", policy_lines(facts, deal)),
            _taints(facts),
            Section("pods on it", tuple(_steps(deal.plan))),
        ),
        remedies=answer[3],
        unread=unread,
    )


def _namesakes(facts: NodeFacts) -> tuple[str, ...]:
    if not facts.namesakes:
        return ()
    others = few(facts.namesakes)
    return (f"it is the one of binding {facts.side.name}; of that name, by --binding: {others}",)


_Answer = tuple[Rule, str, tuple[str, ...], tuple[str, ...]]


# The rules, in order


def _leaving(facts: NodeFacts, deal: Deal) -> _Answer | None:
    if facts.vnode is None or not facts.vnode.deleting:
        return None
    since = facts.vnode.metadata.deletion_timestamp
    held = few(facts.vnode.metadata.finalizers or ()) or "nothing"
    said = f"it is being deleted since {since}; it is held by {held}"
    again = "the syncer lets go of it, and makes it again if a policy lends the worker's node"
    return Rule.TAKEN_BACK, said, (), (again,)


def _held(facts: NodeFacts, deal: Deal) -> _Answer | None:
    if not isinstance(deal.decision, Hold):
        return None
    said = f"it stays as it is: {deal.decision.why}"
    reasons = ("a policy that is broken changes nothing that runs; what it said before counts",)
    return Rule.POLICY_INVALID, said, reasons, ("correct the policy",)


def _taken_back(facts: NodeFacts, deal: Deal) -> _Answer | None:
    decision = deal.decision
    if not isinstance(decision, TakeBack):
        return None
    cause = _cause(facts, decision.cause, decision.policy.name if decision.policy else "")
    said = f"it is taken back: {cause}"
    remedies = {
        Cause.NODE_GONE: "a worker's node of that name and UID",
        Cause.BINDING_DELETED: "nothing: a binding that is being deleted goes",
    }.get(decision.cause, "a policy that selects the node")
    return Rule.TAKEN_BACK, said, _way_back(decision.rules, deal.plan), (remedies,)


def _not_lent(facts: NodeFacts, deal: Deal) -> _Answer | None:
    if isinstance(deal.decision, Lend):
        return None
    side = facts.side
    assert side.binding is not None
    if facts.pnode is not None and not is_lendable(facts.pnode.labels):
        said = "it is not lent: it is itself a virtual node, and is not lent once more"
        return Rule.NO_POLICY, said, (), ()
    own = own_policies(side)
    if not own:
        said = f"it is not lent: no policy of the worker names the binding {side.name}"
        others = sorted({each.spec.cluster for each in side.policies})
        reasons = (f"policies there name {few(others)}",) if others else ()
        return Rule.NO_POLICY, said, reasons, (f"a policy with spec.cluster: {side.name}",)
    names = few(each.policy.name for each in own)
    said = f"it is not lent: no policy applies to it ({names})"
    both = "both the binding and a policy have to select a node; see their nodeSelector"
    reasons = (both,) if side.binding.spec.node_selector else ()
    remedies = ("labels that the selectors ask for, or selectors that name the node",)
    return Rule.NO_POLICY, said, reasons, remedies


def _closed(facts: NodeFacts, deal: Deal) -> _Answer | None:
    decision = deal.decision
    assert isinstance(decision, Lend)
    if decision.cause is not Cause.WINDOW_CLOSED:
        return None
    window = window_text(decision.policy.terms, facts.side.now)
    said = f"it takes no new pods: the window of policy {decision.policy.name} is {window}"
    remedies = ("the next edge of the window; or other timeWindows in the policy",)
    return Rule.WINDOW_CLOSED, said, _way_back(decision.rules, deal.plan), remedies


def _not_there(facts: NodeFacts, deal: Deal) -> _Answer | None:
    decision, side = deal.decision, facts.side
    assert isinstance(decision, Lend)
    if facts.vnode is not None:
        return None
    policy = decision.policy.name
    held = any(
        each.name == policy and side.domain.finalizer_policy in (each.metadata.finalizers or ())
        for each in side.policies
    )
    said = f"policy {policy} lends it, but its virtual node {facts.name} is not there"
    reasons = (
        f"the syncer {'holds' if held else 'does not yet hold'} the policy with its finalizer",
        silence(facts),
    )
    return Rule.SYNCER_SILENT, said, reasons, ("a syncer at work makes it within a second",)


def _cooling(facts: NodeFacts, deal: Deal) -> _Answer | None:
    decision = deal.decision
    assert isinstance(decision, Lend) and facts.vnode is not None
    taints = facts.vnode.spec.taints or ()
    now = Situation(facts.side.now, None, decision.rules, taints, domain=facts.side.domain)
    left = reclaim_taints(now)
    if not left:
        return None
    said = f"it is lent again by policy {decision.policy.name}, but takes no new pods yet"
    cool_s = decision.rules.cool_down_s
    reasons = (
        f"it still has the taint {', '.join(map(taint_text, left))}",
        f"the policy lets a node cool down for {cool_s:g} s after the last eviction",
        silence(facts),
    )
    return Rule.COOLING, said, reasons, ("the syncer lifts the taint when that time is over",)


def _silent(facts: NodeFacts, deal: Deal) -> _Answer | None:
    if facts.vnode is None or is_fresh(facts.heartbeat, facts.side.now) or _reads_no_lease(facts):
        return None
    said = "it has no heartbeat, though the worker answers: its syncer is not at work"
    remedies = (logs_of_syncer(facts.side),)
    return Rule.SYNCER_SILENT, said, (silence(facts),), remedies


def _reads_no_lease(facts: NodeFacts) -> bool:
    return facts.heartbeat is None and any("lease" in each for each in facts.unread)


def _not_ready(facts: NodeFacts, deal: Deal) -> _Answer | None:
    for node, whose in ((facts.pnode, "the worker's node"), (facts.vnode, "the virtual node")):
        ready = find_condition(node.status.conditions, READY) if node is not None else None
        if ready is not None and ready.status != "True":
            said = f"{whose} is not Ready: {ready.reason or ready.status}"
            reasons = (ready.message,) if ready.message else ()
            return Rule.NOT_READY, said, reasons, ("the kubelet of the worker's node",)
    return None


def _lent(facts: NodeFacts, deal: Deal) -> _Answer:
    decision, capacity = deal.decision, deal.capacity
    assert isinstance(decision, Lend) and capacity is not None
    names = in_order(capacity.base)
    # That pods of others are so many pods is in the table; it hardly ever matters.
    bound = [n for n in names if capacity.bound(n) is not Bound.NODE and n != PODS]
    told = bound or names[:1]
    shown = ", ".join(sentence(deal, name) for name in told) or "nothing: it has nothing"
    said = f"it is lent by policy {decision.policy.name} and offers {shown}"
    reasons = [f"its window is {window_text(decision.policy.terms, facts.side.now)}"]
    if facts.vnode is not None and facts.vnode.spec.unschedulable:
        reasons.append("it is cordoned: no new pods until somebody uncordons it")
    remedies = []
    if any(capacity.lent[name] < capacity.leftover[name] for name in names):
        remedies.append(f"other resourceLimits in policy {decision.policy.name}")
    if any(capacity.bound(name) is Bound.OTHERS for name in names):
        remedies.append("fewer pods of others on the worker's node")
    return Rule.LENT, said, tuple(reasons), tuple(remedies)


# What stands in all of them


def policy_lines(facts: NodeFacts, deal: Deal) -> tuple[str, ...]:
    """Who decides, and why the others do not."""
    lines = []
    decision = deal.decision
    if isinstance(decision, Lend):
        window = window_text(decision.policy.terms, facts.side.now)
        lines.append(f"{decision.policy.name} decides: it applies, and is the oldest that does")
        lines.append(f"  its window is {window}")
        lines.append(f"  {_rules_text(decision.rules)}")
    lines += [f"{each.name} does not: {each.message}" for each in deal.passed_over]
    return tuple(lines)


def heartbeat(facts: NodeFacts) -> list[str]:
    """When somebody last said that the node is well."""
    lease, now = facts.heartbeat, facts.side.now
    if facts.vnode is None:
        return []
    if lease is None or not lease.spec.renew_time:
        return [] if _reads_no_lease(facts) else ["no heartbeat was ever written for it"]
    return [f"its last heartbeat was {ago(instant_of(lease.spec.renew_time), now)}"]


def silence(facts: NodeFacts) -> str:
    """Whether a syncer is at work, as far as its election tells."""
    election, now = facts.side.election, facts.side.now
    if election is None:
        return "no election lease of a syncer of this binding was found"
    renewed = instant_of(election.spec.renew_time)
    since = f"renewed {ago(renewed, now)}" if renewed is not None else "never renewed"
    alive = "leads" if is_fresh(election, now) else "led, and is silent now"
    return f"syncer {election.spec.holder_identity or '(nobody)'} {alive}: its lease was {since}"


def step_text(step: Step, plan: Plan) -> str:
    """What becomes of a pod on a node that is taken back."""
    at = moment(step.at) if step.at is not None else "some time"
    deadline = moment(plan.notice.deadline) if plan.notice is not None else "its deadline"
    return _WHYS[step.why].format(at=at, deadline=deadline)


def _steps(plan: Plan | None) -> Iterable[str]:
    if plan is None:
        return ()
    return (f"{step.guest.key} {step_text(step, plan)}" for step in plan.steps[:20])


def _shows(facts: NodeFacts, deal: Deal) -> list[str]:
    """Where the virtual node shows other amounts than it should."""
    if facts.vnode is None or deal.capacity is None:
        return []
    shown = facts.vnode.status.allocatable or {}
    wrong = [
        f"{name} {shown.get(name, 'nothing')} instead of {amount}"
        for name, amount in deal.capacity.offered.items()
        if Quantity.parse(shown.get(name, 0)) != amount
    ]
    if not wrong:
        return []
    return [f"the virtual node still shows {', '.join(wrong)}; {silence(facts)}"]


def _taints(facts: NodeFacts) -> Section:
    taints = (facts.vnode.spec.taints or ()) if facts.vnode is not None else ()
    return Section("taints", tuple(map(taint_text, taints)))


def _cause(facts: NodeFacts, cause: Cause, policy: str) -> str:
    vnode = facts.vnode
    applied = vnode.annotations.get(facts.side.domain.policies_applied, "") if vnode else ""
    names = {
        "policy": policy or applied or "(none)",
        "binding": facts.side.name,
        "pnode": facts.pnode_name,
    }
    return _CAUSES[cause].format_map(names)


def _way_back(rules: Rules, plan: Plan | None) -> tuple[str, ...]:
    said = [_rules_text(rules)]
    if plan is not None:
        waiting = sum(not step.settled for step in plan.steps)
        said.append(f"{_PHASES[plan.phase]}; {counted(waiting, 'pod')} to wait for")
    if plan is not None and plan.notice is not None and rules.force:
        said.append(f"evictions from {moment(plan.notice.evict_from)}")
        said.append(f"deletions, whatever protects pods, from {moment(plan.notice.deadline)}")
    return tuple(said)


def _rules_text(rules: Rules) -> str:
    if not rules.force:
        return "when it is taken back pods may stay until they end: it does not force"
    pace = f", {rules.evictions_per_minute} a minute" if rules.evictions_per_minute else ""
    return (
        f"when it is taken back pods have {rules.grace_s:g} s, then are evicted{pace},"
        f" and {rules.deadline_s:g} s later deleted"
    )


def is_ready(node: Node) -> bool:
    """Whether a node says that it is."""
    ready = find_condition(node.status.conditions, READY)
    return ready is not None and ready.status == "True"
