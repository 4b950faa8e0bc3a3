"""The capacity that a virtual node offers of its worker node.

    left over = allocatable - requests of pods of others         never below zero
    lent      = left over, within the policy's limits
    offered   = lent, but not below the requests of our pods     never above allocatable

So the offer never exceeds the free amount, and never falls below the requests of running pods: a
policy that shrinks, or a pod of others that grows, keeps new pods away, and makes no running pod
exceed its node.
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
    """The reason why not more of a resource is offered."""

    NODE = "Node"  # the node has no more, and pods of others use none of it
    OTHERS = "Others"  # pods of others take the rest
    LIMIT = "Limit"  # the policy lends no more
    USE = "Use"  # our pods request this much, which is more than would be lent now


@dataclass(frozen=True, slots=True)
class Capacity:
    """The steps from a node's allocatable to its virtual node's offer, of the same resources."""

    base: Amounts
    leftover: Amounts
    lent: Amounts
    offered: Amounts

    def limited_by(self, resource: str) -> LimitedBy:
        """Return why not more of the resource is offered."""
        if self.offered[resource] > self.lent[resource]:
            return LimitedBy.USE
        if self.lent[resource] < self.leftover[resource]:
            return LimitedBy.LIMIT
        return LimitedBy.OTHERS if self.leftover[resource] < self.base[resource] else LimitedBy.NODE


def base_of(allocatable: Written | None, capacity: Written | None) -> dict[str, Quantity]:
    """Return the amounts that a node has for pods: its allocatable, or else its capacity."""
    field = "status.allocatable" if allocatable else "status.capacity"
    return read_amounts(allocatable or capacity, field=field)


def offer(base: Amounts, *, others: Amounts, ours: Amounts, limits: Iterable[Limit]) -> Capacity:
    """Compute the offer of a node, given the requests of others' pods and of ours."""
    whole = {name: max(round_down(name, amount), _zero(amount)) for name, amount in base.items()}
    leftover = {
        name: max(round_down(name, amount - others.get(name, ZERO)), _zero(amount))
        for name, amount in whole.items()
    }
    lent = apply_limits(leftover, limits)
    return Capacity(whole, leftover, lent, _floor(lent, ours, whole))


def _floor(lent: Amounts, ours: Amounts, base: Amounts) -> Mapping[str, Quantity]:
    """Raise each amount to our requests, as far as the node has it, in the node's notation."""
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
    """Return what a virtual node offers, by its status.

    A node that takes no new pods has no allocatable `pods`; its capacity has the number.
    """
    pods = (capacity or {}).get(PODS)
    return dict(allocatable or {}) | ({PODS: pods} if pods is not None else {})
