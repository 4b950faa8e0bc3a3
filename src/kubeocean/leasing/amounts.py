"""Amounts of resources, in steps that an API server stores.

An API server rounds each amount up to thousandths, and accepts only whole pods and whole extended
resources. Amounts that are computed here are rounded to such a step, in the direction that promises
less: requests up, offers down. Amounts are immutable by agreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "PODS",
    "Amounts",
    "Written",
    "add",
    "larger",
    "read_amounts",
    "round_down",
    "round_up",
    "subtract",
]

Amounts: TypeAlias = Mapping[str, Quantity]
Written: TypeAlias = Mapping[str, str | int | float]  # as an object's JSON has them

PODS: Final = "pods"

_MILLI: Final = 10**6  # in nano, as quantities count
_WHOLE: Final = 10**9
# From IsIntegerResourceName in kubernetes/pkg/apis/core/helper: besides these, every name with a
# domain that is not Kubernetes' own. A Node with 500m of one of them is refused.
_INTEGER: Final = frozenset(
    {
        PODS,
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    }
)


def read_amounts(written: Written | None, *, field: str = "") -> dict[str, Quantity]:
    """Return the quantities of a stored resource list, rounded up and capped as API servers do."""
    return {
        name: round_up(name, Quantity.stored(value, field=f"{field}.{name}"))
        for name, value in (written or {}).items()
    }


def round_down(resource: str, amount: Quantity) -> Quantity:
    """Return the largest amount, at most this one, that a Node may state of the resource."""
    step = _step(resource)
    return amount if amount.nano % step == 0 else _of(amount, amount.nano // step * step)


def round_up(resource: str, amount: Quantity) -> Quantity:
    """Return the smallest amount, at least this one, that a Node may state of the resource."""
    step = _step(resource)
    return amount if amount.nano % step == 0 else _of(amount, -(-amount.nano // step) * step)


def add(total: dict[str, Quantity], more: Amounts) -> None:
    """Add the amounts `more` to `total`, in place; an amount of zero adds no entry."""
    for name, amount in more.items():
        if amount:
            total[name] = total.get(name, ZERO) + amount


def subtract(total: dict[str, Quantity], less: Amounts) -> None:
    """Subtract the amounts `less` from `total`, in place; reverses `add`."""
    for name, amount in less.items():
        rest = total.get(name, ZERO) - amount
        if rest:
            total[name] = rest
        else:
            total.pop(name, None)


def larger(one: Amounts, other: Amounts) -> dict[str, Quantity]:
    """Return the larger amount of each resource that `one` or `other` has."""
    return {name: max(one.get(name, ZERO), other.get(name, ZERO)) for name in {**one, **other}}


def _step(resource: str) -> int:
    native = "/" not in resource or "kubernetes.io/" in resource
    return _WHOLE if resource in _INTEGER or not native else _MILLI


def _of(like: Quantity, nano: int) -> Quantity:
    return Quantity(nano, like.format)
