"""The capacity that a virtual node offers of its worker node.

    left over = allocatable - requests of other pods                    never below zero
    lent      = left over, within the policy's limits
    offered   = lent, but not below the requests of the binding's pods   never above allocatable

The binding's pods are those on the node that run for the computing cluster; all pods that the
binding did not create are other pods. So the offer never exceeds the free amount, and never falls
below the requests of running pods: a policy that shrinks, or another pod that grows, keeps new pods
away, and makes no running pod exceed its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kubeocean.leasing.amounts import (
    PODS,
    Amounts,
    Written,
    read_amounts,
    round_down,
    round_up,
)
from kubeocean.leasing.limits import Limit, apply_limits
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["Capacity", "LimitedBy", "base_of", "offer", "shown_offer"]


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
