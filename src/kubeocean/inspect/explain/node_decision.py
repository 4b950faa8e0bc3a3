"""Evaluates policies for a worker's node, by the same functions that the syncer uses.

Pure. Two things that only a running syncer remembers are not known: a policy as it was before it
became invalid, and evictions that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from kubeocean.api.ownership import Ownership, may_be_ours, policy_ownership
from kubeocean.api.policies import ResourceLeasingPolicy, ResourceLimit
from kubeocean.errors import ConfigError
from kubeocean.inspect.explain.report import OfferedResource
from kubeocean.inspect.explain.snapshots import BindingSnapshot, NodeSnapshot
from kubeocean.inspect.format import few, in_order, moment, zone_name
from kubeocean.inspect.snapshot import NotRead, known
from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.cached_policy import CachedPolicy, forced_since
from kubeocean.leasing.capacity import Capacity, LimitedBy, node_capacity, resources_of
from kubeocean.leasing.decision import BindingSelector, Decision, Lend, Reclaim, applies, decide
from kubeocean.leasing.limits import unknown_resources
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.policy_choice import PassedOver, choose
from kubeocean.leasing.reclaim import ReclaimInput, ReclaimPlan, plan_reclaim, pod_on_node
from kubeocean.leasing.requests import NodeUsage, requests_of
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.quantity import ZERO

__all__ = [
    "Evaluation",
    "evaluate",
    "limits_absent_resource",
    "misnamed_limit_remedy",
    "offered_resources",
    "offered_text",
    "own_policies",
    "window_text",
]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The decision about a worker's node, and the policies that were passed over.

    `capacity` and `usage` are None where no policy lends the node, or its pods were not read.
    """

    decision: Decision
    passed_over: tuple[PassedOver, ...] = ()
    capacity: Capacity | None = None
    usage: NodeUsage | None = None
    plan: ReclaimPlan | None = None  # of a node that is reclaimed, or lent again

    @property
    def parsed(self) -> ParsedPolicy | None:
        """The parsed policy that lends the node."""
        return self.decision.policy.parsed if isinstance(self.decision, Lend) else None


def _parsed(policy: ResourceLeasingPolicy, *, zone: tzinfo, now: datetime) -> CachedPolicy:
    try:
        parsed = ParsedPolicy.of(policy.spec, local=zone)
    except ConfigError as error:
        return CachedPolicy(policy, None, str(error), None)
    return CachedPolicy(policy, parsed, "", parsed, forced_since(policy, None, now=now))


def own_policies(binding: BindingSnapshot) -> list[CachedPolicy]:
    """Return the worker's policies that name this binding and that no other cluster has claimed."""
    worker = binding.present
    if worker is None:
        return []
    return [
        _parsed(each, zone=binding.zone, now=binding.now)
        for each in known(worker.policies, ())
        if each.spec.cluster == binding.name and not _is_foreign(each, binding)
    ]


def _is_foreign(policy: ResourceLeasingPolicy, binding: BindingSnapshot) -> bool:
    """Whether a binding of the same name in another computing cluster has claimed the policy."""
    worker = binding.present
    if worker is None or isinstance(worker.ids, NotRead):
        return False
    return policy_ownership(policy, ids=worker.ids, domain=binding.domain) is Ownership.FOREIGN


def evaluate(node: NodeSnapshot) -> Evaluation:
    """Return the decision of the policies about a worker's node at the present time."""
    binding, pnode = node.binding, _same_node(node)
    candidates = [entry.candidate() for entry in own_policies(binding)]
    applied = _applied_policy(node)
    selector = BindingSelector().of(binding.binding)
    decision = decide(
        pnode,
        applied=applied,
        binding=binding.binding,
        selector=selector,
        candidates=candidates,
        now=binding.now,
    )
    passed_over: tuple[PassedOver, ...] = ()
    if pnode is not None and binding.binding is not None:
        verdict = choose(
            candidates,
            applies=lambda parsed: applies(parsed, pnode, selector, lent=applied is not None),
            current=applied or "",
        )
        passed_over = verdict.passed_over
    usage = _usage(node)
    evaluation = Evaluation(decision, passed_over, None, usage, _plan(node, decision))
    if not isinstance(decision, Lend) or pnode is None or usage is None:
        return evaluation
    unknown = _unknown_limits(node, decision.policy.parsed, selector)
    if unknown is None:
        return evaluation  # the offer depends on nodes that could not be read
    limits = decision.policy.parsed.limits
    return replace(evaluation, capacity=node_capacity(pnode, usage, limits, unknown))


def limits_absent_resource(binding: BindingSnapshot, pnode: Node) -> bool:
    """Whether a policy of a binding limits a resource that a node does not have."""
    resources = resources_of(pnode)
    policies = (each.parsed for each in own_policies(binding) if each.parsed is not None)
    return any(limit.resource not in resources for parsed in policies for limit in parsed.limits)


def _unknown_limits(
    node: NodeSnapshot, parsed: ParsedPolicy, selector: NodeSelector | None
) -> tuple[str, ...] | None:
    """Return limited resources that no selected node has; None if nodes were not read."""
    nodes = node.worker_nodes
    own = (node.physical,) if node.physical is not None else ()
    resources: set[str] = set()
    for pnode in (*own, *(() if isinstance(nodes, NotRead) else nodes)):
        if applies(parsed, pnode, selector, lent=True):
            resources |= resources_of(pnode)
    unknown = unknown_resources(parsed.limits, resources)
    return None if unknown and isinstance(nodes, NotRead) else unknown


def _applied_policy(node: NodeSnapshot) -> str | None:
    """Return the policy that lends the virtual node, as the node's annotation names it."""
    if node.virtual is None:
        return None
    return node.virtual.annotations.get(node.binding.domain.policies_applied, "")


def _same_node(node: NodeSnapshot) -> Node | None:
    """Return the worker's node; None if its UID is not the one that the virtual node records."""
    vnode, pnode = node.virtual, node.physical
    if vnode is None or pnode is None:
        return pnode
    key = node.binding.domain.physical_node_uid
    recorded = {vnode.labels.get(key), vnode.annotations.get(key)} - {None}
    return pnode if not recorded or pnode.uid in recorded else None


def _usage(node: NodeSnapshot) -> NodeUsage | None:
    worker = node.binding.present
    if isinstance(node.worker_pods, NotRead) or worker is None or isinstance(worker.ids, NotRead):
        return None
    usage = NodeUsage()
    for pod in node.worker_pods:
        ours = may_be_ours(pod, ids=worker.ids, domain=node.binding.domain)
        usage.put(pod.uid, requests_of(pod), ours=ours)
    return usage


def _plan(node: NodeSnapshot, decision: Decision) -> ReclaimPlan | None:
    pods, binding = node.pods, node.binding
    if node.virtual is None or isinstance(pods, NotRead):
        return None
    if not isinstance(decision, Lend | Reclaim):
        return None
    situation = ReclaimInput(
        now=binding.now,
        cause=decision.cause,
        rules=decision.rules,
        taints=node.virtual.spec.taints or (),
        pods=tuple(map(pod_on_node, pods)),
        rules_since=decision.since,
        worker_answers=not binding.problem,
        domain=binding.domain,
    )
    return plan_reclaim(situation)


# Text


def offered_resources(evaluation: Evaluation) -> tuple[OfferedResource, ...]:
    """Return the steps from allocatable to offered amount, for each resource of the node."""
    capacity, usage, parsed = evaluation.capacity, evaluation.usage, evaluation.parsed
    if capacity is None or usage is None or parsed is None:
        return ()
    others, ours = usage.others, usage.ours
    return tuple(
        OfferedResource(
            resource=name,
            allocatable=str(capacity.base[name]),
            others=str(others.get(name, ZERO)),
            leftover=str(capacity.leftover[name]),
            limit=(
                "withheld"
                if name in capacity.withheld
                else _limit(name, parsed.spec.resource_limits or ())
            ),
            lent=str(capacity.lent[name]),
            used=str(ours.get(name, ZERO)),
            offered=str(capacity.offered[name]),
            bound=str(capacity.limited_by(name)),
        )
        for name in in_order(capacity.base)
    )


def offered_text(evaluation: Evaluation, name: str) -> str:
    """Return a text about why so much is offered: `cpu 4 of 8 (policy p lends 50 % …)`."""
    capacity, usage, decision = evaluation.capacity, evaluation.usage, evaluation.decision
    assert capacity is not None and usage is not None and isinstance(decision, Lend)
    base, left = capacity.base[name], capacity.leftover[name]
    match capacity.limited_by(name):
        case (LimitedBy.LIMIT | LimitedBy.USE) as limited_by if name in capacity.withheld:
            unknown = ", ".join(capacity.unknown)
            why = f"policy {decision.policy.name} limits {unknown}, which no node has"
            if limited_by is LimitedBy.USE:
                why = f"pods of the binding request that much already; {why}, so no more is lent"
        case LimitedBy.LIMIT:
            limit = _limit(name, decision.policy.parsed.spec.resource_limits or ())
            why = f"policy {decision.policy.name} lends {limit} of the {left} that are left"
        case LimitedBy.OTHERS:
            why = f"pods of others request {_of(usage.others, name)}"
        case LimitedBy.USE:
            lent = capacity.lent[name]
            why = f"pods of the binding request that much already; only {lent} would be lent now"
        case _:
            why = "all that the node has"
    return f"{name} {capacity.offered[name]} of {base} ({why})"


def misnamed_limit_remedy(evaluation: Evaluation) -> str:
    """Return the remedy for limits of resources that no node has; empty if there are none."""
    capacity, decision = evaluation.capacity, evaluation.decision
    if capacity is None or not capacity.unknown or not isinstance(decision, Lend):
        return ""
    return f"a correct name instead of {few(capacity.unknown)} in policy {decision.policy.name}"


def window_text(parsed: ParsedPolicy, now: datetime) -> str:
    """Return a text about whether a policy's windows are open, and until when."""
    calendar = parsed.calendar
    edge = next_edge(calendar, now)
    state = "open" if within(calendar, now) else "closed"
    if edge is None:
        return f"{state}, always"
    return f"{state} until {moment(edge, calendar.zone)}; it is now {_now(now, calendar.zone)}"


def _now(now: datetime, zone: tzinfo) -> str:
    return f"{now.astimezone(zone):%a %H:%M} {zone_name(zone)}"


def _of(amounts: Amounts, name: str) -> str:
    return str(amounts.get(name, ZERO))


def _limit(name: str, limits: Iterable[ResourceLimit]) -> str:
    """Return a policy's limits of a resource as text, in order; "-" if there are none."""
    texts = []
    for limit in limits:
        if limit.resource != name:
            continue
        parts = [f"{limit.percent} %"] if limit.percent is not None else []
        parts += [f"at most {limit.quantity}"] if limit.quantity is not None else []
        texts.append(", ".join(parts) or "none, without a number")
    return "; then ".join(texts) or "-"
