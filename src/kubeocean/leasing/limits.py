"""Limits of a policy: how much is lent of the amounts that other pods leave over.

A limit is an amount, a share in percent of the left-over amount, or the smaller of both. Limits
apply in the order of their list, each to the result of the one before: twice 50 % is 25 %. A
resource without a limit is lent whole.

Mistakes are interpreted so that less is lent. An amount of zero, a share of zero or less, and a
limit with neither lend none of the resource. A limit of a resource that no selected node has is
probably misspelled: nothing is lent of the resources whose names resemble the written name, and of
CPU and memory if no name does or if the policy has no other limit. On a node that lacks a resource
which another selected node has, the limit of that resource has no effect.

Shares are exact: thousandths, or whole units of amounts written in powers of two, rounded down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from kubeocean.api.policies import ResourceLimit
from kubeocean.errors import ConfigError
from kubeocean.leasing.amounts import Amounts, round_down
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "Limit",
    "apply_limits",
    "cautious_limits",
    "parse_limits",
    "unknown_resources",
    "withheld_resources",
]

_ALL: Final = 100
_ESSENTIAL: Final = ("cpu", "memory")  # every pod needs them
_ALIKE: Final = 0.6  # similarity of names; 1.0 means equal


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a policy: the largest amount or share of a resource that is lent; None means
    unlimited."""

    resource: str
    quantity: Quantity | None = None
    percent: int | None = None

    @classmethod
    def parse(cls, written: ResourceLimit, *, field: str = "") -> Limit:
        """Parse a limit of a policy; a `ConfigError` names the field within `field`, and its
        value."""
        quantity = _parse_quantity(written.quantity, field=f"{field}.quantity")
        percent = _parse_percent(written.percent, field=f"{field}.percent")
        if quantity is None and percent is None:
            quantity = ZERO
        return cls(written.resource, quantity, percent)

    def of(self, amount: Quantity) -> Quantity:
        """Return the part of a left-over amount that is lent."""
        lent = amount
        if self.percent is not None:
            lent = amount.percent(self.percent)
        if self.quantity is not None and self.quantity < lent:
            # Zero is written as the node writes its amounts, so that no notation changes.
            lent = self.quantity or Quantity(0, amount.format)
        return round_down(self.resource, lent)


def parse_limits(
    written: Iterable[ResourceLimit] | None, *, field: str = "resourceLimits"
) -> tuple[Limit, ...]:
    """Return the limits of a policy, parsed.

    :raises ConfigError: the first mistake in the limits.
    """
    return tuple(
        Limit.parse(limit, field=f"{field}[{index}]") for index, limit in enumerate(written or ())
    )


def apply_limits(leftover: Amounts, limits: Iterable[Limit]) -> dict[str, Quantity]:
    """Return the lent part of the left-over amounts: each limit applied in order."""
    lent = dict(leftover)
    for limit in limits:
        if limit.resource in lent:
            lent[limit.resource] = limit.of(lent[limit.resource])
    return lent


def unknown_resources(limits: Iterable[Limit], resources: Collection[str]) -> tuple[str, ...]:
    """Return the limited resources that are not among `resources`, those of all selected nodes.

    Empty if no selected node has any resource: then no name can be recognised as misspelled.
    """
    names = dict.fromkeys(limit.resource for limit in limits)
    return tuple(name for name in names if resources and name not in resources)


def withheld_resources(
    limits: Sequence[Limit], unknown: Collection[str], resources: Iterable[str]
) -> tuple[str, ...]:
    """Return the resources of a node of which nothing is lent, because a limit has a misspelled
    name.

    `unknown` are the names of limits that no selected node has as a resource.
    """
    if not unknown:
        return ()
    names = sorted({*resources})
    alone = all(limit.resource in unknown for limit in limits)
    withheld: set[str] = set()
    for name in unknown:
        alike = _resembling(name, names)
        withheld.update(alike)
        if alone or not alike:
            withheld.update(_ESSENTIAL)
    return tuple(name for name in names if name in withheld)


def cautious_limits(
    limits: Sequence[Limit], unknown: Collection[str], resources: Iterable[str]
) -> tuple[Limit, ...]:
    """Return the limits for a node with these resources, plus limits of zero for the resources that
    a misspelled limit may mean."""
    withheld = withheld_resources(limits, unknown, resources)
    return (*limits, *(Limit(name, ZERO) for name in withheld))


def _resembling(name: str, resources: Iterable[str]) -> list[str]:
    """Return the resources that the author of a limit with this name may have meant."""
    by_name: dict[str, list[str]] = {}
    for resource in resources:
        for form in {resource.lower(), resource.lower().rpartition("/")[2]}:
            by_name.setdefault(form, []).append(resource)
    written = {name.lower(), name.lower().rpartition("/")[2]} - {""}
    alike = written & by_name.keys()
    for each in () if alike else written:
        alike.update(get_close_matches(each, by_name, n=3, cutoff=_ALIKE))
        alike.update(form for form in by_name if each in form or form in each)
    return [resource for form in alike for resource in by_name[form]]


def _parse_quantity(written: str | int | float | None, *, field: str) -> Quantity | None:
    if written is None:
        return None
    quantity = Quantity.parse(written, field=field)
    if quantity.nano < 0:
        raise ConfigError("must be zero or more", field=field, value=written)
    return quantity


def _parse_percent(written: int | None, *, field: str) -> int | None:
    """Return a share in percent, parsed; more than 100 is an error (the earlier implementation
    ignored such a share)."""
    if written is None:
        return None
    if written > _ALL:
        raise ConfigError("must be between 1 and 100", field=field, value=written)
    return max(written, 0)
