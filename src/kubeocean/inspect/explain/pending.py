"""Explains a pod without a node: which virtual nodes it could be bound to, and why not to others.

Pure. All virtual nodes pass filters in order: the pod's selectors, its tolerations, windows,
whether a node takes pods, and its free resources. The first filter that no node passes is the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeocean.api.group import TAINT_UNSCHEDULABLE, Domain
from kubeocean.errors import ConfigError
from kubeocean.inspect.explain.node import policy_lines
from kubeocean.inspect.explain.node_decision import (
    Evaluation,
    evaluate,
    misnamed_limit_remedy,
    offered_resources,
    offered_text,
    window_text,
)
from kubeocean.inspect.explain.report import Answer, Explanation, ExplanationRule, Section, not_read
from kubeocean.inspect.explain.snapshots import NodeSnapshot, PodSnapshot
from kubeocean.inspect.format import amounts, few, taint_text
from kubeocean.inspect.snapshot import NotRead, known
from kubeocean.leasing.amounts import Amounts, add, read_amounts
from kubeocean.leasing.decision import Lend
from kubeocean.leasing.report import counted
from kubeocean.leasing.requests import CountedPod, requests_of
from kubeocean.leasing.taints import NO_EXECUTE, NO_SCHEDULE, Toleration, tolerates
from kubeocean.runtime.kinds import Node, Taint
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json, decode_object, find_condition
from kubeocean.runtime.quantity import ZERO, Quantity
from kubeocean.syncer.pods.views import VirtualPod

__all__ = ["FilteredNodes", "NodeFilter", "closest_node", "explain_pending", "filter_nodes"]

_SHOWN: Final = 10
_BUILT_IN: Final = "node.kubernetes.io/"  # taints that Kubernetes sets and removes
_NOT_READY: Final = frozenset({f"{_BUILT_IN}not-ready", f"{_BUILT_IN}unreachable"})
_UNSCHEDULABLE: Final = Taint(TAINT_UNSCHEDULABLE, "", NO_SCHEDULE)
_SINGULAR: Final = {
    "match its selectors": "matches its selectors",
    "are tolerated": "is tolerated",
    "are in their window": "is in its window",
    "take new pods": "takes new pods",
    "have enough left": "has enough left",
}


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes that passed one filter, and why each other node was rejected."""

    rule: ExplanationRule
    label: str
    passed: tuple[Node, ...]
    rejected: dict[str, str]  # by node


@dataclass(frozen=True, slots=True)
class FilteredNodes:
    """The results of all filters, up to the first filter that no node passed."""

    total: int
    filters: tuple[NodeFilter, ...]

    @property
    def rule(self) -> ExplanationRule:
        """The rule of the filter that no node passed; FITS if some nodes passed all filters."""
        if not self.total:
            return ExplanationRule.NO_NODE
        return ExplanationRule.FITS if self.last.passed else self.last.rule

    @property
    def last(self) -> NodeFilter:
        return self.filters[-1]

    @property
    def candidates(self) -> tuple[Node, ...]:
        """The nodes that passed the most filters: all filters, or all but the last."""
        if not self.filters:
            return ()
        if self.last.passed:
            return self.last.passed
        return self.filters[-2].passed if len(self.filters) > 1 else ()


def explain_pending(snapshot: PodSnapshot) -> Explanation:
    """Return the explanation of a pod without a node."""
    pod, about = _pod(snapshot), f"pod {snapshot.key}"
    spec: Json = pod.content()["spec"]
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    if gates:
        verdict = f"it waits for its scheduling gates: {few(gates)}"
        answer = Answer(ExplanationRule.GATED, verdict, remedies=("the removal of these gates",))
        return Explanation.of(about, answer, unread=snapshot.unread)
    if (
        unread := not_read((snapshot.nodes,), "it is pending, and the reason is not known")
    ) is None:
        unread = _unread_usage(snapshot)
    if unread is not None:
        return Explanation.of(about, unread, unread=snapshot.unread)
    filtered = filter_nodes(snapshot)
    closest = closest_node(snapshot, filtered)
    node = snapshot.closest.get(closest.name) if closest is not None else None
    evaluation = evaluate(node) if node is not None and _is_decidable(node) else None
    verdict, remedies = _verdict(snapshot, filtered, closest, node, evaluation)
    offered = filtered.rule is ExplanationRule.TOO_LITTLE and evaluation is not None
    return Explanation.of(
        about,
        Answer(filtered.rule, verdict, tuple(_reasons(snapshot, filtered)), remedies),
        resources=offered_resources(evaluation) if offered and evaluation is not None else (),
        sections=(
            Section("virtual nodes", _rejected(filtered)),
            Section("policies", _policies(node, evaluation)),
        ),
        unread=snapshot.unread,
    )


def _unread_usage(snapshot: PodSnapshot) -> Answer | None:
    """Return the answer that free resources are not known, if pods on nodes were not read."""
    if filter_nodes(snapshot).rule not in (ExplanationRule.FITS, ExplanationRule.TOO_LITTLE):
        return None
    return not_read((snapshot.node_pods,), "it is pending, and free resources are not known")


def _is_decidable(node: NodeSnapshot) -> bool:
    worker = node.binding.present
    if worker is None or node.binding.problem:
        return False
    return not any(isinstance(part, NotRead) for part in (node.pnode, worker.policies, worker.ids))


def _pod(snapshot: PodSnapshot) -> VirtualPod:
    assert snapshot.pod is not None and not isinstance(snapshot.pod, NotRead)
    return snapshot.pod


# Filters


def filter_nodes(snapshot: PodSnapshot) -> FilteredNodes:
    """Apply the filters to all virtual nodes that were read."""
    pod, domain = _pod(snapshot), snapshot.domain
    tolerations = pod.spec.tolerations or ()
    requests = _requests(pod)
    pods = known(snapshot.node_pods, {})
    checks: tuple[tuple[ExplanationRule, str, Callable[[Node], str]], ...] = (
        (ExplanationRule.NOT_SELECTED, "match its selectors", _selector(pod.content()["spec"])),
        (ExplanationRule.NOT_TOLERATED, "are tolerated", lambda n: _taints(n, tolerations, domain)),
        (
            ExplanationRule.WINDOW_CLOSED,
            "are in their window",
            lambda n: _closed(n, tolerations, domain),
        ),
        (
            ExplanationRule.CLOSED_TO_PODS,
            "take new pods",
            lambda n: _takes_pods(n, tolerations, domain),
        ),
        (ExplanationRule.TOO_LITTLE, "have enough left", lambda n: _shortage(n, requests, pods)),
    )
    nodes = known(snapshot.nodes, ())
    return FilteredNodes(len(nodes), tuple(_filters(nodes, checks)))


def closest_node(snapshot: PodSnapshot, filtered: FilteredNodes) -> Node | None:
    """Return, of the nodes that passed most filters, the one with the smallest shortage."""
    requests = _requests(_pod(snapshot))
    pods = known(snapshot.node_pods, {})

    def rank(node: Node) -> tuple[int, int, str]:
        free = _free(node, pods.get(node.name, ()))
        short = _lacking(requests, free)
        return len(short), -sum(free.get(name, ZERO).nano for name in short), node.name

    return min(filtered.candidates, key=rank, default=None)


def _filters(
    nodes: tuple[Node, ...], checks: Sequence[tuple[ExplanationRule, str, Callable[[Node], str]]]
) -> Iterator[NodeFilter]:
    left = nodes
    for rule, label, check in checks:
        if not left:
            return
        reasons = {node.name: check(node) for node in left}
        rejected = {name: why for name, why in reasons.items() if why}
        left = tuple(node for node in left if node.name not in rejected)
        yield NodeFilter(rule, label, left, rejected)


def _selector(spec: Json) -> Callable[[Node], str]:
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    affinity: Json = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: Json | None = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    try:
        affinity_selector = NodeSelector.from_document(required) if required is not None else None
    except ConfigError:
        affinity_selector = None  # of a newer form than we know: the scheduler decides

    def why(node: Node) -> str:
        for key, value in selector.items():
            if node.labels.get(key) != value:
                return f"its label {key} is not {value}"
        if affinity_selector is not None and not affinity_selector.matches(node.name, node.labels):
            return "the pod's required node affinity does not match it"
        return ""

    return why


def _untolerated(node: Node, tolerations: Sequence[Toleration]) -> list[Taint]:
    return [
        taint
        for taint in node.spec.taints or ()
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE)
        and not any(tolerates(each, taint) for each in tolerations)
    ]


def _taints(node: Node, tolerations: Sequence[Toleration], domain: Domain) -> str:
    """Return a text about users' taints that a pod does not tolerate; empty if there are none.

    Taints of windows and of a node's state have filters of their own.
    """
    state = (
        domain.taint_out_of_time_windows,
        domain.taint_vnode_deleting,
        domain.taint_physical_unschedulable,
    )
    taints = [
        taint
        for taint in _untolerated(node, tolerations)
        if taint.key not in state and not taint.key.startswith(_BUILT_IN)
    ]
    return f"the pod does not tolerate {', '.join(map(taint_text, taints))}" if taints else ""


def _closed(node: Node, tolerations: Sequence[Toleration], domain: Domain) -> str:
    key = domain.taint_out_of_time_windows
    closed = any(taint.key == key for taint in _untolerated(node, tolerations))
    policy = node.annotations.get(domain.policies_applied, "")
    return f"the window of policy {policy} is closed" if closed else ""


def _takes_pods(node: Node, tolerations: Sequence[Toleration], domain: Domain) -> str:
    """Return why the scheduler binds no pod with these tolerations to a node; empty if it does.

    Taints decide, not the condition Ready.
    """
    taints = _untolerated(node, tolerations)
    keys = {taint.key for taint in taints}
    if domain.taint_vnode_deleting in keys:
        return "it is being reclaimed"
    if domain.taint_physical_unschedulable in keys:
        return "the worker's node is cordoned"
    tolerated = any(tolerates(each, _UNSCHEDULABLE) for each in tolerations)
    if node.spec.unschedulable and not tolerated:
        return "it is cordoned"
    if keys & _NOT_READY:
        return "it is not Ready"
    return f"it has the taint {', '.join(map(taint_text, taints))}" if taints else ""


def _shortage(node: Node, wanted: Amounts, pods: Mapping[str, tuple[CountedPod, ...]]) -> str:
    free = _free(node, pods.get(node.name, ()))
    lacking = _lacking(wanted, free)
    return ", ".join(f"{name} {max(free.get(name, ZERO), ZERO)} free" for name in lacking)


def _requests(pod: VirtualPod) -> Amounts:
    return requests_of(decode_object(CountedPod, pod.raw, keep_raw=False))


def _free(node: Node, pods: Sequence[CountedPod]) -> dict[str, Quantity]:
    """Return the resources of a node that are free for further pods, as the scheduler counts."""
    used: dict[str, Quantity] = {}
    for pod in pods:
        add(used, requests_of(pod))
    allocatable = read_amounts(node.status.allocatable)
    return {name: amount - used.get(name, ZERO) for name, amount in allocatable.items()}


def _lacking(wanted: Amounts, free: Amounts) -> list[str]:
    """Return the names of the resources of which less is free than `wanted`."""
    return [name for name, amount in wanted.items() if amount > free.get(name, ZERO)]


# Text


def _verdict(
    snapshot: PodSnapshot,
    filtered: FilteredNodes,
    closest: Node | None,
    node: NodeSnapshot | None,
    evaluation: Evaluation | None,
) -> tuple[str, tuple[str, ...]]:
    match filtered.rule:
        case ExplanationRule.NO_NODE:
            verdict = "it is pending: there is no virtual node at all; nothing is lent"
            return verdict, ("a binding and a policy that lends; see: kubeocean status",)
        case ExplanationRule.NOT_SELECTED:
            verdict = f"it is pending: its selectors match none of {_count(filtered)}"
            return verdict, ("another nodeSelector or node affinity in the pod",)
        case ExplanationRule.NOT_TOLERATED:
            verdict = f"it is pending: no virtual node is tolerated: {_rejections(filtered)}"
            return verdict, ("tolerations for these taints in the pod",)
        case ExplanationRule.WINDOW_CLOSED:
            return _window_verdict(filtered, node, evaluation)
        case ExplanationRule.CLOSED_TO_PODS:
            verdict = "it is pending: no virtual node that it could go to takes new pods: "
            return verdict + _rejections(filtered), ("see: kubeocean explain node NAME",)
        case ExplanationRule.TOO_LITTLE:
            assert closest is not None
            verdict, remedies = _resource_verdict(snapshot, closest, evaluation)
            return verdict, (*remedies, *_openings(filtered))
        case _:
            return _fitting_verdict(snapshot, filtered)


def _window_verdict(
    filtered: FilteredNodes, node: NodeSnapshot | None, evaluation: Evaluation | None
) -> tuple[str, tuple[str, ...]]:
    decision = evaluation.decision if evaluation is not None else None
    if node is None or not isinstance(decision, Lend):
        return f"it is pending: {_rejections(filtered)}", ("the next edge of the window",)
    window = window_text(decision.policy.parsed, node.binding.now)
    verdict = f"it is pending: the window of policy {decision.policy.name} is {window}"
    return verdict, ("the next edge of the window; or other timeWindows in the policy",)


def _resource_verdict(
    snapshot: PodSnapshot, closest: Node, evaluation: Evaluation | None
) -> tuple[str, tuple[str, ...]]:
    requests = _requests(_pod(snapshot))
    pods = known(snapshot.node_pods, {}).get(closest.name, ())
    free, offered = _free(closest, pods), _free(closest, ())
    short = _lacking(requests, free)
    name = next((each for each in short if requests[each] > offered.get(each, ZERO)), short[0])
    verdict = (
        f"it is pending: it requests {name} {requests[name]}, and no virtual node has more free"
        f" than {max(free.get(name, ZERO), ZERO)} ({closest.name})"
    )
    remedies = ["smaller requests"]
    capacity = evaluation.capacity if evaluation is not None else None
    if evaluation is not None and capacity is not None and name in capacity.base:
        verdict += f"; that one offers {offered_text(evaluation, name)}"
        if name in capacity.withheld:  # fewer or smaller pods would not change that
            return verdict, (misnamed_limit_remedy(evaluation),)
        assert isinstance(evaluation.decision, Lend)
        policy = evaluation.decision.policy.name
        remedies.append(f"a higher limit in policy {policy}, or more nodes")
    else:
        verdict += f"; that one offers {offered.get(name, ZERO)}"
    if free.get(name, ZERO) < offered.get(name, ZERO):
        verdict += f", of which the pods on it request {offered[name] - free[name]}"
        remedies.append("the end of pods on that node")
    return verdict, tuple(remedies)


def _fitting_verdict(snapshot: PodSnapshot, filtered: FilteredNodes) -> tuple[str, tuple[str, ...]]:
    names = few(node.name for node in filtered.candidates)
    scheduled = find_condition(_pod(snapshot).status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        verdict = f"it fits on {names}, and waits for the scheduler of the computing cluster"
        return verdict, ("a scheduler that is at work",)
    verdict = (
        f"it is pending: Kubeocean does not keep it off {names}, the scheduler has other reasons"
    )
    return verdict, ("see the scheduler's message: volumes, ports and other pods count, too",)


def _openings(filtered: FilteredNodes) -> tuple[str, ...]:
    """Return a line about nodes that were rejected because their windows are closed."""
    windows = (each for each in filtered.filters if each.rule is ExplanationRule.WINDOW_CLOSED)
    closed = {why for each in windows for why in each.rejected.values()}
    if not closed:
        return ()
    return (f"more nodes, at the next edge of a window: {few(sorted(closed))}",)


def _reasons(snapshot: PodSnapshot, filtered: FilteredNodes) -> list[str]:
    pod = _pod(snapshot)
    reasons = [f"it requests {amounts(_requests(pod))}"]
    steps = "".join(f"; {_passed(each)}" for each in filtered.filters)
    reasons.append(f"{_count(filtered)}{steps}")
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status != "True":
        reasons.append(f"the scheduler reports: {scheduled.message or scheduled.reason}")
    return reasons


def _passed(filter_: NodeFilter) -> str:
    number = len(filter_.passed)
    return f"{number} {_SINGULAR[filter_.label] if number == 1 else filter_.label}"


def _count(filtered: FilteredNodes) -> str:
    return counted(filtered.total, "virtual node")


def _rejections(filtered: FilteredNodes) -> str:
    return few(sorted(set(filtered.last.rejected.values())))


def _rejected(filtered: FilteredNodes) -> tuple[str, ...]:
    """Return a line for each node that the last filter rejected, with the reason."""
    if not filtered.filters or filtered.rule is ExplanationRule.FITS:
        return ()
    rejected = filtered.last.rejected
    lines = [f"{name}: {why}" for name, why in sorted(rejected.items())[:_SHOWN]]
    more = [f"and {len(rejected) - _SHOWN} more"] if len(rejected) > _SHOWN else []
    return (*lines, *more)


def _policies(node: NodeSnapshot | None, evaluation: Evaluation | None) -> tuple[str, ...]:
    return policy_lines(node, evaluation) if node is not None and evaluation is not None else ()
