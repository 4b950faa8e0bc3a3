"""Explains a node: why it is lent or not, how much it offers, and whether it takes pods.

Pure. The rules are applied in order; the first one with an answer decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kubeocean.api import naming
from kubeocean.api.conditions import CONNECTED, READY
from kubeocean.api.policies import problems
from kubeocean.api.validation import describe
from kubeocean.inspect.explain.node_decision import (
    Evaluation,
    evaluate,
    misnamed_limit_remedy,
    offered_resources,
    offered_text,
    own_policies,
    window_text,
)
from kubeocean.inspect.explain.report import Answer, Explanation, ExplanationRule, Section, not_read
from kubeocean.inspect.explain.snapshots import BindingSnapshot, NodeSnapshot, is_fresh
from kubeocean.inspect.format import age, few, in_order, moment, taint_text
from kubeocean.inspect.snapshot import NotRead, known
from kubeocean.leasing.amounts import PODS
from kubeocean.leasing.capacity import LimitedBy, shown_offer
from kubeocean.leasing.decision import (
    LeaveUnchanged,
    Lend,
    Reclaim,
    ReclaimCause,
    ReclaimRules,
    is_lendable,
)
from kubeocean.leasing.reclaim import (
    PodStep,
    ReclaimInput,
    ReclaimPhase,
    ReclaimPlan,
    StepReason,
    reclaim_taints,
)
from kubeocean.leasing.report import counted
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.quantity import Quantity

__all__ = [
    "explain_node",
    "heartbeat_text",
    "is_ready",
    "policy_lines",
    "silent_worker",
    "step_text",
    "syncer_logs",
    "syncer_text",
]

_CAUSES: Final = {
    ReclaimCause.WINDOW_CLOSED: "the window of policy {policy} is closed",
    ReclaimCause.POLICY_REMOVED: (
        "policy {policy}, which lent it, is deleted or does not name this binding any more"
    ),
    ReclaimCause.POLICY_NARROWED: "policy {policy} does not select it any more, nor does another",
    ReclaimCause.BINDING_DELETED: "the binding {binding} is being deleted",
    ReclaimCause.NODE_DELETING: "the worker's node {pnode} is being deleted",
    ReclaimCause.NODE_REPLACED: "the worker's node {pnode} was registered anew",
    ReclaimCause.NODE_GONE: "the worker's node {pnode} is gone",
}
_WHYS: Final = {
    StepReason.FINISHED: "has ended",
    StepReason.TOLERATES: "tolerates the taint, and stays",
    StepReason.DAEMON: "is deleted with its node",
    StepReason.NOT_FORCED: "stays until it ends by itself: the policy does not force",
    StepReason.GRACE: "has until {at}",
    StepReason.TOLERATES_FOR_NOW: "tolerates the taint until {at}",
    StepReason.UNREACHABLE: "is neither evicted nor deleted while the worker does not answer",
    StepReason.PACE: "waits until {at}: the policy limits evictions per minute",
    StepReason.BUDGET: "is held by a disruption budget",
    StepReason.RETRY: "is tried again at {at}",
    StepReason.DUE: "is evicted as soon as disruption budgets allow, at latest at {deadline}",
    StepReason.DEADLINE: "is deleted now, regardless of disruption budgets",
    StepReason.TERMINATING: "is terminating",
    StepReason.UNCONFIRMED: "is not waited for any more: its end is not confirmed",
}


_PHASES: Final = {
    ReclaimPhase.LENT: "it is lent",
    ReclaimPhase.COOLING: "it is lent again, and cools down",
    ReclaimPhase.NOTICE: "the grace period of its pods has begun",
    ReclaimPhase.HELD: "pods stay until they end, none is evicted",
    ReclaimPhase.EVICTING: "pods are being evicted",
    ReclaimPhase.FORCING: "the deadline is over: pods are being deleted",
    ReclaimPhase.RECLAIMED: "it is free",
}


def explain_node(node: NodeSnapshot) -> Explanation:
    """Return the explanation of a virtual node, or of a worker's node."""
    about, unread = f"node {node.name}", node.unread
    if (answer := _without_worker(node)) is not None:
        sections = (_taints(node),) if answer.rule is ExplanationRule.WORKER_UNREAD else ()
        return Explanation.of(about, answer, sections=sections, unread=unread)
    evaluation = evaluate(node)
    rules: tuple[Callable[[NodeSnapshot, Evaluation], Answer | None], ...] = (
        _leaving,
        _unchanged,
        _reclaimed,
        _not_lent,
        _closed,
        _not_created,
        _cooling,
        _without_heartbeat,
        _not_ready,
        _cordoned,
    )
    answers = (rule(node, evaluation) for rule in rules)
    return Explanation.of(
        about,
        next((each for each in answers if each is not None), None) or _lent(node, evaluation),
        more=(*_outdated(node, evaluation), *heartbeat_text(node), *_namesakes(node)),
        resources=offered_resources(evaluation),
        sections=(
            Section("policies", policy_lines(node, evaluation)),
            _taints(node),
            Section("pods on it", tuple(_steps(evaluation.plan))),
        ),
        unread=unread,
    )


# Answers that need no decision about the worker's node


def _without_worker(node: NodeSnapshot) -> Answer | None:
    binding = node.binding
    if (answer := not_read((node.vnode, binding.worker))) is not None:
        return answer
    if node.virtual is None and node.physical is None:
        missing = not_read(
            (node.pnode, *node.searched), "it was not found, and not everything could be searched"
        )
        verdict = "there is no such node, neither in the computing cluster nor in a worker"
        return missing or Answer(ExplanationRule.NOT_FOUND, verdict)
    domain = binding.domain
    if node.virtual is not None and node.virtual.labels.get(domain.managed_by) != domain.product:
        verdict = "it is a node of the computing cluster itself; Kubeocean does not manage it"
        return Answer(ExplanationRule.NOT_OURS, verdict)
    worker = binding.present
    if worker is None:
        verdict = (
            f"it is left over: the binding {binding.name}, which it belongs to, does not exist"
        )
        remedy = "remove its finalizer, or create the binding again: its syncer adopts the node"
        return Answer(ExplanationRule.BINDING_GONE, verdict, remedies=(remedy,))
    if binding.problem:
        answer = silent_worker(binding, "this is how the node was when it could be read")
        last = "while a worker does not answer nothing is deleted: its pods may well run"
        return answer._replace(reasons=(*answer.reasons, *heartbeat_text(node), last))
    return not_read((node.pnode, worker.policies, worker.ids))


def silent_worker(binding: BindingSnapshot, consequence: str) -> Answer:
    """Return the answer for a node or pod whose worker cluster cannot be read."""
    assert binding.binding is not None
    verdict = f"the worker of binding {binding.name} cannot be read; {consequence}"
    reasons = [f"reading the worker failed just now: {binding.problem}"]
    connected = find_condition(binding.binding.status.conditions, CONNECTED)
    if connected is not None and connected.status != "True":
        reasons.append(f"the syncer reports: {connected.message}")
    remedy = "a running API server of the worker, which answers this machine"
    return Answer(ExplanationRule.WORKER_UNREAD, verdict, tuple(reasons), (remedy,))


# The rules, in order


def _leaving(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    if node.virtual is None or not node.virtual.deleting:
        return None
    meta = node.virtual.metadata
    held = few(meta.finalizers or ()) or "nothing"
    verdict = f"it is being deleted since {meta.deletion_timestamp}; it is held by {held}"
    again = "the syncer removes its finalizer, and creates it again if a policy lends the node"
    return Answer(ExplanationRule.TAKEN_BACK, verdict, remedies=(again,))


def _unchanged(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    if not isinstance(evaluation.decision, LeaveUnchanged):
        return None
    verdict = f"it stays as it is: {evaluation.decision.why}"
    reason = "an invalid policy changes nothing that runs; its last valid form counts"
    return Answer(ExplanationRule.POLICY_INVALID, verdict, (reason,), ("correct the policy",))


def _reclaimed(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    decision = evaluation.decision
    if not isinstance(decision, Reclaim):
        return None
    cause = _cause_text(node, decision.cause, decision.policy.name if decision.policy else "")
    remedy = {
        ReclaimCause.NODE_DELETING: "nothing: the worker's node is being deleted",
        ReclaimCause.NODE_REPLACED: "nothing: the new node is lent as soon as the pods have left",
        ReclaimCause.NODE_GONE: "a worker's node of that name and UID",
        ReclaimCause.BINDING_DELETED: "nothing: the binding is being deleted",
    }.get(decision.cause, "a policy that selects the node")
    reasons = _reclaim_text(decision.rules, evaluation.plan)
    return Answer(ExplanationRule.TAKEN_BACK, f"it is being reclaimed: {cause}", reasons, (remedy,))


def _not_lent(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    if isinstance(evaluation.decision, Lend):
        return None
    binding, worker = node.binding, node.binding.present
    assert worker is not None
    if node.physical is not None and not is_lendable(node.physical.labels):
        verdict = "it is not lent: it is itself a virtual node, and those are not lent again"
        return Answer(ExplanationRule.NO_POLICY, verdict)
    own = own_policies(binding)
    if not own:
        verdict = f"it is not lent: no policy of the worker names the binding {binding.name}"
        others = sorted({each.spec.cluster for each in known(worker.policies, ())})
        reasons = (f"its policies name {few(others)}",) if others else ()
        remedy = f"a policy with spec.cluster: {binding.name}"
        return Answer(ExplanationRule.NO_POLICY, verdict, reasons, (remedy,))
    names = few(each.policy.name for each in own)
    both = "both the binding and a policy have to select a node; see their nodeSelector"
    return Answer(
        ExplanationRule.NO_POLICY,
        f"it is not lent: no policy applies to it ({names})",
        (both,) if worker.binding.spec.node_selector else (),
        ("labels that match the selectors, or selectors that match the node",),
    )


def _closed(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    decision = evaluation.decision
    assert isinstance(decision, Lend)
    if decision.cause is not ReclaimCause.WINDOW_CLOSED:
        return None
    window = window_text(decision.policy.parsed, node.binding.now)
    verdict = f"it takes no new pods: the window of policy {decision.policy.name} is {window}"
    remedy = "the next edge of the window; or other timeWindows in the policy"
    reasons = _reclaim_text(decision.rules, evaluation.plan)
    return Answer(ExplanationRule.WINDOW_CLOSED, verdict, reasons, (remedy,))


def _not_created(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    decision, worker = evaluation.decision, node.binding.present
    assert isinstance(decision, Lend) and worker is not None
    if node.virtual is not None:
        return None
    policy, finalizer = decision.policy.name, node.binding.domain.finalizer_policy
    held = any(
        each.name == policy and finalizer in (each.metadata.finalizers or ())
        for each in known(worker.policies, ())
    )
    verdict = f"policy {policy} lends it, but its virtual node {node.name} does not exist"
    reasons = (
        f"the syncer {'holds' if held else 'does not yet hold'} the policy with its finalizer",
        syncer_text(node.binding),
    )
    remedy = "a syncer at work creates it within a second"
    return Answer(ExplanationRule.SYNCER_SILENT, verdict, reasons, (remedy,))


def _cooling(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    decision = evaluation.decision
    assert isinstance(decision, Lend) and node.virtual is not None
    taints = node.virtual.spec.taints or ()
    now, domain = node.binding.now, node.binding.domain
    left = reclaim_taints(ReclaimInput(now, None, decision.rules, taints, domain=domain))
    if not left:
        return None
    verdict = f"it is lent again by policy {decision.policy.name}, but takes no new pods yet"
    cool_down_s = decision.rules.cool_down_s
    reasons = (
        f"it still has the taint {', '.join(map(taint_text, left))}",
        f"the policy lets a node cool down for {cool_down_s:g} s after the last eviction",
        syncer_text(node.binding),
    )
    remedy = "the syncer removes the taint when that time is over"
    return Answer(ExplanationRule.COOLING, verdict, reasons, (remedy,))


def _without_heartbeat(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    lease = node.heartbeat
    if node.virtual is None or isinstance(lease, NotRead) or is_fresh(lease, node.binding.now):
        return None
    verdict = "it has no heartbeat, though the worker answers: its syncer is not at work"
    reasons = (syncer_text(node.binding),)
    return Answer(ExplanationRule.SYNCER_SILENT, verdict, reasons, (syncer_logs(node.binding),))


def _not_ready(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    for obj, name in ((node.physical, "the worker's node"), (node.virtual, "the virtual node")):
        ready = find_condition(obj.status.conditions, READY) if obj is not None else None
        if ready is not None and ready.status != "True":
            verdict = f"{name} is not Ready: {ready.reason or ready.status}"
            reasons = (ready.message,) if ready.message else ()
            return Answer(
                ExplanationRule.NOT_READY, verdict, reasons, ("the kubelet of the worker's node",)
            )
    return None


def _cordoned(node: NodeSnapshot, evaluation: Evaluation) -> Answer | None:
    decision, vnode = evaluation.decision, node.virtual
    assert isinstance(decision, Lend)
    if node.physical is not None and node.physical.spec.unschedulable:
        what, remedy = "the worker's node", f"kubectl uncordon {node.pnode_name} in the worker"
    elif vnode is not None and vnode.spec.unschedulable:
        what, remedy = "the virtual node", f"kubectl uncordon {node.name}"
    else:
        return None
    policy = decision.policy.name
    verdict = f"it is lent by policy {policy}, but takes no new pods: {what} is cordoned"
    return Answer(ExplanationRule.CORDONED, verdict, remedies=(remedy,))


def _lent(node: NodeSnapshot, evaluation: Evaluation) -> Answer:
    decision, capacity = evaluation.decision, evaluation.capacity
    assert isinstance(decision, Lend)
    policy = decision.policy.name
    reasons = [f"its window is {window_text(decision.policy.parsed, node.binding.now)}"]
    if capacity is None:
        verdict = f"it is lent by policy {policy}; how much it offers is not known"
        return Answer(ExplanationRule.LENT, verdict, tuple(reasons))
    if capacity.unknown:
        unknown, withheld = few(capacity.unknown), few(capacity.withheld)
        reasons.append(
            f"policy {policy} limits {unknown}, a resource of no node that it selects; read"
            f" cautiously, that lends nothing of {withheld or 'no resource of this node'}"
        )
    names = in_order(capacity.base)
    # The number of pods of others is in the table; it hardly ever is the limit that matters.
    bound = [n for n in names if capacity.limited_by(n) is not LimitedBy.NODE and n != PODS]
    offered = ", ".join(offered_text(evaluation, name) for name in bound or names[:1])
    remedies = []
    if remedy := misnamed_limit_remedy(evaluation):
        remedies.append(remedy)
    elif any(capacity.lent[name] < capacity.leftover[name] for name in names):
        remedies.append(f"other resourceLimits in policy {policy}")
    if any(capacity.limited_by(name) is LimitedBy.OTHERS for name in names):
        remedies.append("fewer pods of others on the worker's node")
    verdict = f"it is lent by policy {policy} and offers {offered or 'nothing: it has nothing'}"
    return Answer(ExplanationRule.LENT, verdict, tuple(reasons), tuple(remedies))


# Reasons and sections that several rules share


def policy_lines(node: NodeSnapshot, evaluation: Evaluation) -> tuple[str, ...]:
    """Return lines about the policy that decides about a node, and why other policies do not."""
    lines = []
    decision = evaluation.decision
    if isinstance(decision, Lend):
        window = window_text(decision.policy.parsed, node.binding.now)
        lines.append(f"{decision.policy.name} decides: it applies, and is the oldest that does")
        lines.append(f"  its window is {window}")
        lines.append(f"  {_rules_text(decision.rules)}")
        if mistakes := describe(problems(decision.policy.parsed.spec)):
            lines.append(f"  probable mistakes: {mistakes}")
    lines += [f"{each.name} does not: {each.message}" for each in evaluation.passed_over]
    return tuple(lines)


def heartbeat_text(node: NodeSnapshot) -> list[str]:
    """Return a text about when the Lease of a virtual node was last renewed."""
    lease = node.heartbeat
    if node.virtual is None or isinstance(lease, NotRead):
        return []
    if lease is None or not lease.spec.renew_time:
        return ["no heartbeat was ever written for it"]
    return [f"its last heartbeat was {age(instant_of(lease.spec.renew_time), node.binding.now)}"]


def syncer_text(binding: BindingSnapshot) -> str:
    """Return a text about whether a syncer of a binding leads, by its election Lease."""
    election, now = binding.election, binding.now
    if isinstance(election, NotRead):
        return f"the election lease of its syncer could not be read: {election.reason}"
    if election is None:
        return "no syncer of this binding has an election lease"
    renewed = instant_of(election.spec.renew_time)
    since = f"renewed {age(renewed, now)}" if renewed is not None else "never renewed"
    leads = "leads" if is_fresh(election, now) else "led, and does not renew its lease any more"
    return f"syncer {election.spec.holder_identity or '(none)'} {leads}: its lease was {since}"


def syncer_logs(binding: BindingSnapshot) -> str:
    """Return the remedy for a syncer that is not at work, with the command that shows its logs."""
    domain = binding.domain
    cluster_id = binding.binding.spec.cluster_id if binding.binding is not None else binding.name
    name = naming.syncer_deployment(cluster_id, domain)
    return f"a syncer at work; see: kubectl -n {domain.system_namespace} logs deployment/{name}"


def step_text(step: PodStep, plan: ReclaimPlan) -> str:
    """Return a text about the next step for a pod on a node that is being reclaimed."""
    at = moment(step.at) if step.at is not None else "a later time"
    deadline = moment(plan.notice.deadline) if plan.notice is not None else "its deadline"
    return _WHYS[step.reason].format(at=at, deadline=deadline)


def is_ready(node: Node) -> bool:
    """Whether the condition Ready of a node is True."""
    ready = find_condition(node.status.conditions, READY)
    return ready is not None and ready.status == "True"


def _steps(plan: ReclaimPlan | None) -> Iterable[str]:
    if plan is None:
        return ()
    return (f"{step.pod.key} {step_text(step, plan)}" for step in plan.steps[:20])


def _outdated(node: NodeSnapshot, evaluation: Evaluation) -> list[str]:
    """Return a text about amounts that the virtual node shows and that are not offered now."""
    if node.virtual is None or evaluation.capacity is None:
        return []
    status = node.virtual.status
    shown = shown_offer(status.allocatable, status.capacity)
    wrong = [
        f"{name} {shown.get(name, 'nothing')} instead of {amount}"
        for name, amount in evaluation.capacity.offered.items()
        if Quantity.stored(shown.get(name, 0)) != amount
    ]
    if not wrong:
        return []
    return [f"the virtual node still shows {', '.join(wrong)}; {syncer_text(node.binding)}"]


def _namesakes(node: NodeSnapshot) -> tuple[str, ...]:
    if not node.namesakes:
        return ()
    others = few(node.namesakes)
    return (f"it is the one of binding {node.binding.name}; of that name, by --binding: {others}",)


def _taints(node: NodeSnapshot) -> Section:
    taints = (node.virtual.spec.taints or ()) if node.virtual is not None else ()
    return Section("taints", tuple(map(taint_text, taints)))


def _cause_text(node: NodeSnapshot, cause: ReclaimCause, policy: str) -> str:
    vnode, domain = node.virtual, node.binding.domain
    applied = vnode.annotations.get(domain.policies_applied, "") if vnode is not None else ""
    names = {
        "policy": policy or applied or "(none)",
        "binding": node.binding.name,
        "pnode": node.pnode_name,
    }
    return _CAUSES[cause].format_map(names)


def _reclaim_text(rules: ReclaimRules, plan: ReclaimPlan | None) -> tuple[str, ...]:
    texts = [_rules_text(rules)]
    if plan is not None:
        waiting = sum(not step.settled for step in plan.steps)
        texts.append(f"{_PHASES[plan.phase]}; {counted(waiting, 'pod')} to wait for")
    if plan is not None and plan.notice is not None and rules.force:
        texts.append(f"evictions from {moment(plan.notice.evict_from)}")
        texts.append(f"deletions, whatever protects pods, from {moment(plan.notice.deadline)}")
    return tuple(texts)


def _rules_text(rules: ReclaimRules) -> str:
    if not rules.force:
        return "when it is reclaimed pods may stay until they end: it does not force"
    pace = f", {rules.evictions_per_minute} a minute" if rules.evictions_per_minute else ""
    return (
        f"when it is reclaimed pods have {rules.grace_s:g} s, then are evicted{pace},"
        f" and {rules.deadline_s:g} s later deleted"
    )
