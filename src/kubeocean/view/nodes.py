"""Nodes: how a virtual node is shown."""

from __future__ import annotations

from typing import Final

from kubeocean.api.conditions import READY
from kubeocean.api.group import Domain
from kubeocean.leasing.amounts import Amounts, read_amounts
from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.objects import Condition, find_condition
from kubeocean.runtime.quantity import ZERO
from kubeocean.view.facts import NodeUse
from kubeocean.view.kinds import VirtualNode
from kubeocean.view.model import NodeState, NodeView, PodCounts, Resources

__all__ = ["node_view"]

_UNHEARD: Final = Condition(READY, "Unknown")


def node_view(node: VirtualNode, use: NodeUse | None, domain: Domain) -> NodeView:
    """A node and its pods; None: nobody may see what pods there are."""
    ready = find_condition(node.status.conditions, READY) or _UNHEARD
    state = _state(node, domain)
    offered = read_amounts(node.status.allocatable, field="status.allocatable")
    takes = state is NodeState.LENT and ready.status == "True"
    return NodeView(
        name=node.name,
        physical=node.annotations.get(domain.physical_node_name, ""),
        ready=ready.status,
        since=instant_of(ready.last_transition_time),
        reason=ready.reason,
        state=state,
        policy=node.annotations.get(domain.policies_applied, ""),
        offered=offered,
        resources=_resources(
            offered, use, lends=state not in (NodeState.CLOSED, NodeState.LEAVING), takes=takes
        ),
        pods=use.pods if use is not None else PodCounts(),
    )


def _resources(offered: Amounts, use: NodeUse | None, *, lends: bool, takes: bool) -> Resources:
    lent = offered if lends else _nothing(offered)
    if use is None:
        return Resources(lent)
    used = {name: use.used.get(name, ZERO) for name in {**offered, **use.used}}
    left = {name: max(amount - used[name], ZERO) for name, amount in offered.items()}
    return Resources(lent, used, left if takes else _nothing(offered))


def _nothing(of: Amounts) -> Amounts:
    return dict.fromkeys(of, ZERO)


def _state(node: VirtualNode, domain: Domain) -> NodeState:
    keys = {taint.key for taint in node.spec.taints or ()}
    if node.deleting or domain.taint_vnode_deleting in keys:
        return NodeState.LEAVING
    if domain.taint_out_of_time_windows in keys:
        return NodeState.CLOSED
    if node.spec.unschedulable or domain.taint_physical_unschedulable in keys:
        return NodeState.CORDONED
    return NodeState.LENT
