"""Capacity: what a virtual node offers of its worker node.

    left over = allocatable - what pods of others request        never below zero
    lent      = left over, within the policy's limits
    offered   = lent, but not below what our pods use already    never above allocatable

So nothing is offered that is gone, and nothing that runs is denied: a policy that shrinks, or a
neighbour that grows, keeps new pods away and makes no running one exceed its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kubeocean.leasing.amounts import Amounts, Written, read_amounts, round_down, round_up
from kubeocean.leasing.limits import Limit, apply_limits
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["Bound", "Capacity", "base_of", "offer"]


class Bound(StrEnum):
    """What an offered amount is decided by."""

    NODE = "Node"  # the node has no more, and nobody else uses it
    OTHERS = "Others"  # pods of others take the rest
    LIMIT = "Limit"  # the policy lends no more
    USE = "Use"  # our pods use this much, which is more than would be lent now


@dataclass(frozen=True, slots=True)
class Capacity:
    """The steps from what a node has to what its virtual node offers; all of the same resources."""

    base: Amounts
    leftover: Amounts
    lent: Amounts
    offered: Amounts

    def bound(self, resource: str) -> Bound:
        """Why this much of the resource is offered, and not more."""
        if self.offered[resource] > self.lent[resource]:
            return Bound.USE
        if self.lent[resource] < self.leftover[resource]:
            return Bound.LIMIT
        return Bound.OTHERS if self.leftover[resource] < self.base[resource] else Bound.NODE


def base_of(allocatable: Written | None, capacity: Written | None) -> dict[str, Quantity]:
    """What a node has for pods: its allocatable, or its capacity where it does not say."""
    field = "status.allocatable" if allocatable else "status.capacity"
    return read_amounts(allocatable or capacity, field=field)


def offer(base: Amounts, *, others: Amounts, ours: Amounts, limits: Iterable[Limit]) -> Capacity:
    """What to offer of a node on which others and we request so much."""
    whole = {name: max(round_down(name, amount), _zero(amount)) for name, amount in base.items()}
    leftover = {
        name: max(round_down(name, amount - others.get(name, ZERO)), _zero(amount))
        for name, amount in whole.items()
    }
    lent = apply_limits(leftover, limits)
    return Capacity(whole, leftover, lent, _floor(lent, ours, whole))


def _floor(lent: Amounts, ours: Amounts, base: Amounts) -> Mapping[str, Quantity]:
    """Lift each amount to what is used, as far as the node has it; the node's notation is kept."""
    offered = {}
    for name, amount in lent.items():
        used = min(round_up(name, ours.get(name, ZERO)), base[name])
        offered[name] = amount if amount >= used else Quantity(used.nano, base[name].format)
    return offered


def _zero(like: Quantity) -> Quantity:
    return Quantity(0, like.format)
