"""Admission: whether a pod fits its node, asked as a kubelet asks before it starts one.

The rules are those of `GeneralPredicates` in kubernetes/pkg/kubelet/lifecycle/predicate.go, read at
v1.34: a resource that the pod does not request is not looked at, nor one that the node does not
have at all; the first one that is short is told. Of several pods that wait the oldest comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from kubeocean.leasing.amounts import PODS, Amounts, add
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["Shortage", "admit", "shortage"]

_CPU: Final = "cpu"
_ORDER: Final = (PODS, _CPU, "memory", "ephemeral-storage")  # then the others, by name

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a node has too little of for a pod."""

    resource: str
    requested: Quantity
    used: Quantity
    capacity: Quantity

    @property
    def reason(self) -> str:
        """The reason of the pod's status, and of the event."""
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        """A kubelet's words for it: thousandths of CPUs, and whole units of all else."""
        requested, used, capacity = (
            amount.milli_value() if self.resource == _CPU else amount.value()
            for amount in (self.requested, self.used, self.capacity)
        )
        return (
            f"Node didn't have enough resource: {self.resource},"
            f" requested: {requested}, used: {used}, capacity: {capacity}"
        )


def shortage(wanted: Amounts, *, used: Amounts, capacity: Amounts) -> Shortage | None:
    """What is short, if a pod that wants this much comes to a node of which so much is used."""
    for resource in (*_ORDER, *sorted(wanted.keys() - set(_ORDER))):
        amount, there = wanted.get(resource, ZERO), capacity.get(resource)
        if there is None or not amount:
            continue
        taken = used.get(resource, ZERO)
        if amount > there - taken:
            return Shortage(resource, amount, taken, there)
    return None


def admit(
    waiting: Iterable[tuple[KeyT, Amounts]], *, used: Amounts, capacity: Amounts
) -> dict[KeyT, Shortage]:
    """Let pods in, in this order, each beside those before it; why those that stay out do."""
    taken = dict(used)
    short: dict[KeyT, Shortage] = {}
    for key, wanted in waiting:
        found = shortage(wanted, used=taken, capacity=capacity)
        if found is None:
            add(taken, wanted)
        else:
            short[key] = found
    return short
