"""Admission of pods to a node by its resources, with the rules of a kubelet.

The rules are those of `GeneralPredicates` in kubernetes/pkg/kubelet/lifecycle/predicate.go, read at
v1.34: a resource that the pod does not request is not checked, nor a resource that the node does
not have at all; the first resource that is short is the reason. The caller orders the pods, the
oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from kubeocean.leasing.amounts import PODS, Amounts, add
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["Shortage", "admit", "shortage"]

_CPU: Final = "cpu"
_ORDER: Final = (PODS, _CPU, "memory", "ephemeral-storage")  # before all others, by name

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class Shortage:
    """Resource of which a node has too little for a pod."""

    resource: str
    requested: Quantity
    used: Quantity
    capacity: Quantity

    @property
    def reason(self) -> str:
        """Reason for the status of the refused pod, and for its event."""
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        """The kubelet's message for the refused pod: CPU in thousandths, other resources in whole
        units."""
        requested, used, capacity = (
            amount.milli_value() if self.resource == _CPU else amount.value()
            for amount in (self.requested, self.used, self.capacity)
        )
        return (
            f"Node didn't have enough resource: {self.resource},"
            f" requested: {requested}, used: {used}, capacity: {capacity}"
        )


def shortage(requests: Amounts, *, used: Amounts, capacity: Amounts) -> Shortage | None:
    """Return the first resource that is short for a pod with these requests; None if the pod
    fits."""
    for resource in (*_ORDER, *sorted(requests.keys() - set(_ORDER))):
        amount, total = requests.get(resource, ZERO), capacity.get(resource)
        if total is None or not amount:
            continue
        taken = used.get(resource, ZERO)
        if amount > total - taken:
            return Shortage(resource, amount, taken, total)
    return None


def admit(
    waiting: Iterable[tuple[KeyT, Amounts]], *, used: Amounts, capacity: Amounts
) -> dict[KeyT, Shortage]:
    """Admit the waiting pods to a node in this order; return the shortage of each pod that does not
    fit."""
    taken = dict(used)
    short: dict[KeyT, Shortage] = {}
    for key, requests in waiting:
        missing = shortage(requests, used=taken, capacity=capacity)
        if missing is None:
            add(taken, requests)
        else:
            short[key] = missing
    return short
