"""The capacity that a virtual node offers of its worker node.

    left over = allocatable - requests of other pods                    never below zero
    lent      = left over, within the policy's limits
    offered   = lent, but not below the requests of the binding's pods   never above allocatable

The binding's pods are those on the node that run for the computing cluster; all pods that the
binding did not create are other pods. So the offer never exceeds the free amount, and never falls
below the requests of running pods: a policy that shrinks, or another pod that grows, keeps new pods
away, and makes no running pod exceed its node.

Requests of the binding's pods change an offer only if they reach it (`reaches_offer`), before or
after the change: as long as they are smaller in every resource, the offered amount is the lent one.
The syncer relies on this: it does not reconcile a node for each pod that starts or ends there
(`syncer/nodes/usage.py`).

`node_capacity` computes these steps from a node and its pods, for the syncer and for `explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kubeocean.leasing.amounts import (
    PODS,
    Amounts,
    Written,
    read_amounts,
    round_down,
    round_up,
)
from kubeocean.leasing.limits import Limit, apply_limits, cautious_limits, withheld_resources
from kubeocean.leasing.requests import NodeUsage
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "Capacity",
    "LimitedBy",
    "base_of",
    "capped_capacity",
    "node_capacity",
    "offer",
    "reaches_offer",
    "resources_of",
    "shown_offer",
]


class LimitedBy(StrEnum):
    """Reason why a virtual node does not offer more of a resource."""

    NODE = "Node"  # the whole node is offered
    OTHERS = "Others"  # other pods than the binding's request the rest
    LIMIT = "Limit"  # the policy lends no more
    USE = "Use"  # the binding's pods request this much, which is more than would be lent now


@dataclass(frozen=True, slots=True)
class Capacity:
    """Steps from a worker node's allocatable to the offer of its virtual node, for each
    resource."""

    base: Amounts
    leftover: Amounts
    lent: Amounts
    offered: Amounts
    unknown: tuple[str, ...] = ()  # resources of limits that no node has which the policy selects
    withheld: tuple[str, ...] = ()  # resources that are not lent because of `unknown`

    def limited_by(self, resource: str) -> LimitedBy:
        """Return why the virtual node does not offer more of this resource."""
        if self.offered[resource] > self.lent[resource]:
            return LimitedBy.USE
        if self.lent[resource] < self.leftover[resource]:
            return LimitedBy.LIMIT
        return LimitedBy.OTHERS if self.leftover[resource] < self.base[resource] else LimitedBy.NODE


def base_of(allocatable: Written | None, capacity: Written | None) -> dict[str, Quantity]:
    """Return the amounts that a node has for pods: its allocatable, or its capacity if it states no
    allocatable."""
    field = "status.allocatable" if allocatable else "status.capacity"
    return read_amounts(allocatable or capacity, field=field)


def resources_of(pnode: Node) -> frozenset[str]:
    """Return the names of the resources that a worker's node has for pods."""
    return frozenset(pnode.status.allocatable or pnode.status.capacity or ())


def node_capacity(
    pnode: Node, usage: NodeUsage, limits: Sequence[Limit], unknown: Collection[str]
) -> Capacity:
    """Compute the offer of a worker's node that a policy with these limits lends.

    `unknown` are the limited resources that no selected node has (`limits.unknown_resources`).
    """
    base = base_of(pnode.status.allocatable, pnode.status.capacity)
    chosen = cautious_limits(limits, unknown, base)
    return replace(
        offer(base, others=usage.others, ours=usage.ours, limits=chosen),
        unknown=tuple(unknown),
        withheld=withheld_resources(limits, unknown, base),
    )


def capped_capacity(pnode: Node, usage: NodeUsage, vnode: Node) -> Capacity:
    """Compute the offer of a worker's node whose policy is not known: at most the amounts that its
    virtual node offers at present."""
    base = base_of(pnode.status.allocatable, pnode.status.capacity)
    present = shown_offer(vnode.status.allocatable, vnode.status.capacity)
    limits = [Limit(name, Quantity.stored(present.get(name, 0))) for name in base]
    return offer(base, others=usage.others, ours=usage.ours, limits=limits)


def offer(base: Amounts, *, others: Amounts, ours: Amounts, limits: Iterable[Limit]) -> Capacity:
    """Compute the offer of a virtual node: `ours` are the requests of the binding's pods on the
    worker node, `others` those of all other pods."""
    whole = {name: max(round_down(name, amount), _zero(amount)) for name, amount in base.items()}
    leftover = {
        name: max(round_down(name, amount - others.get(name, ZERO)), _zero(amount))
        for name, amount in whole.items()
    }
    lent = apply_limits(leftover, limits)
    return Capacity(whole, leftover, lent, _floor(lent, ours, whole))


def reaches_offer(ours: Amounts, offered: Amounts) -> bool:
    """Whether the requests of the binding's pods are as large as the offer in any resource; if not,
    the offer does not depend on them."""
    return any(amount >= offered.get(resource, ZERO) for resource, amount in ours.items())


def _floor(lent: Amounts, ours: Amounts, base: Amounts) -> Mapping[str, Quantity]:
    """Raise each lent amount to the requests `ours` of the binding's pods, at most to the node's
    amount, in the node's notation."""
    offered = {}
    for name, amount in lent.items():
        used = min(round_up(name, ours.get(name, ZERO)), base[name])
        offered[name] = amount if amount >= used else Quantity(used.nano, base[name].format)
    return offered


def _zero(like: Quantity) -> Quantity:
    return Quantity(0, like.format)


def shown_offer(
    allocatable: Written | None, capacity: Written | None
) -> dict[str, str | int | float]:
    """Return the amounts that a virtual node offers, read from its status.

    A node that takes no new pods has no allocatable `pods`; its capacity has the number.
    """
    pods = (capacity or {}).get(PODS)
    return dict(allocatable or {}) | ({PODS: pods} if pods is not None else {})
