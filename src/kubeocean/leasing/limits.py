"""Limits of a policy: how much it lends of what pods of others leave over.

A limit is an amount, a share in percent of what is left over, or the smaller of both. Limits apply
in the order of their list, and each to what the one before it left: twice 50 % is 25 %. An amount
of zero and a share of zero or less are no limit; a resource without a limit is lent whole, and a
limit of a resource that the node does not have has no effect.

Shares are exact: thousandths, or whole units of amounts written in powers of two, rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.api.policies import ResourceLimit
from kubeocean.errors import ConfigError
from kubeocean.leasing.amounts import Amounts, round_down
from kubeocean.runtime.quantity import Quantity

__all__ = ["Limit", "apply_limits", "parse_limits"]

_ALL: Final = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a policy lends of a resource; None is no limit."""

    resource: str
    quantity: Quantity | None = None
    percent: int | None = None

    @classmethod
    def parse(cls, written: ResourceLimit, *, field: str = "") -> Limit:
        """Parse a policy's limit; a `ConfigError` names the field within `field`, and its value."""
        return cls(
            written.resource,
            quantity=_parse_quantity(written.quantity, field=f"{field}.quantity"),
            percent=_parse_percent(written.percent, field=f"{field}.percent"),
        )

    def of(self, amount: Quantity) -> Quantity:
        """Return what is lent of this amount."""
        lent = amount
        if self.percent is not None:
            lent = amount.percent(self.percent)
        if self.quantity is not None:
            lent = min(lent, self.quantity)
        return round_down(self.resource, lent)


def parse_limits(
    written: Iterable[ResourceLimit] | None, *, field: str = "resourceLimits"
) -> tuple[Limit, ...]:
    """Parse the limits of a policy; the first mistake in them is a `ConfigError`."""
    return tuple(
        Limit.parse(limit, field=f"{field}[{index}]") for index, limit in enumerate(written or ())
    )


def apply_limits(leftover: Amounts, limits: Iterable[Limit]) -> dict[str, Quantity]:
    """Return what is lent of what is left over."""
    lent = dict(leftover)
    for limit in limits:
        if limit.resource in lent:
            lent[limit.resource] = limit.of(lent[limit.resource])
    return lent


def _parse_quantity(written: str | int | float | None, *, field: str) -> Quantity | None:
    if written is None:
        return None
    quantity = Quantity.parse(written, field=field)
    if quantity.nano < 0:
        raise ConfigError("must be zero or more", field=field, value=written)
    return quantity if quantity else None


def _parse_percent(written: int | None, *, field: str) -> int | None:
    """Parse a share; more than 100 is an error (the earlier implementation ignored it)."""
    if written is None or written <= 0:
        return None
    if written > _ALL:
        raise ConfigError("must be between 1 and 100", field=field, value=written)
    return written
