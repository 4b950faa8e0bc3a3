"""Properties of clusters: named quantities that selectors compare and sorters rank.

`resources.kubernetes-fleet.io/{total|allocatable|available}-RESOURCE` names an amount of
`status.resourceUsage`; only the first dash separates, so RESOURCE may contain dashes. Every other
name is an entry of `status.properties`, whose value is read as a quantity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kubeocean.api.fleet.names import RESOURCE_PROPERTY_PREFIX
from kubeocean.api.fleet.policies import (
    PropertyOperator,
    PropertyRequirement,
    PropertySorter,
    SortOrder,
)
from kubeocean.errors import ConfigError
from kubeocean.fleet.scheduler.model import (
    MemberView,
)
from kubeocean.runtime.quantity import Quantity

__all__ = [
    "Gap",
    "Property",
    "PropertyComparison",
    "Ranking",
    "ValueRange",
    "compile_requirement",
    "compile_sorter",
    "cut",
    "quoted",
]

_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    PropertyOperator.GREATER: operator.gt,
    PropertyOperator.GREATER_OR_EQUAL: operator.ge,
    PropertyOperator.EQUAL: operator.eq,
    PropertyOperator.NOT_EQUAL: operator.ne,
    PropertyOperator.LESS: operator.lt,
    PropertyOperator.LESS_OR_EQUAL: operator.le,
}
_LONGEST_QUOTE: Final = 80


def cut(text: str, length: int) -> str:
    """Return `text`, shortened to `length` characters; an ellipsis marks the cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def quoted(text: str) -> str:
    """Return `text` in quotes, cut to a length that fits a status."""
    return f'"{cut(text, _LONGEST_QUOTE)}"'


class Gap(Enum):
    """Why a cluster has no quantity for a property; the value completes `property "x" …`."""

    MISSING = "is not reported"
    UNREADABLE = "is not a quantity"


@dataclass(frozen=True, slots=True)
class Property:
    """A property name, resolved to the map of a MemberCluster's status that holds the property."""

    name: str
    table: Callable[[MemberView], Mapping[str, str]]
    key: str

    @classmethod
    def parse(cls, name: str) -> Property | None:
        """Resolve a property's name; None if it is a resource property of an unknown form."""
        if not name.startswith(RESOURCE_PROPERTY_PREFIX):
            return cls(name, lambda cluster: cluster.properties, name)
        amount, _, resource = name.removeprefix(RESOURCE_PROPERTY_PREFIX).partition("-")
        if not resource:
            return None
        match amount:
            case "total":
                return cls(name, lambda cluster: cluster.capacity, resource)
            case "allocatable":
                return cls(name, lambda cluster: cluster.allocatable, resource)
            case "available":
                return cls(name, lambda cluster: cluster.available, resource)
            case _:
                return None

    def read(self, cluster: MemberView) -> Quantity | Gap:
        """Return the property's value that `cluster` reports, or why there is none."""
        text = self.table(cluster).get(self.key)
        if text is None:
            return Gap.MISSING
        try:
            return Quantity.parse(text)
        except ConfigError:
            return Gap.UNREADABLE


@dataclass(frozen=True, slots=True)
class PropertyComparison:
    """A validated property requirement: property, operator and value."""

    property: Property
    operator: str
    expected: Quantity

    def holds(self, actual: Quantity) -> bool:
        """Whether the value `actual` meets the requirement."""
        return _COMPARISONS[self.operator](actual.nano, self.expected.nano)


def compile_requirement(requirement: PropertyRequirement) -> PropertyComparison | str:
    """Return the comparison that `requirement` describes, or the problem of the requirement."""
    name = Property.parse(requirement.name)
    if name is None:
        return _malformed(requirement.name)
    if requirement.operator not in _COMPARISONS:
        return f"unknown operator {quoted(requirement.operator)}"
    if len(requirement.values) != 1:
        return f"operator {requirement.operator} takes one value"
    try:
        return PropertyComparison(name, requirement.operator, Quantity.parse(requirement.values[0]))
    except ConfigError:
        return f"value {quoted(requirement.values[0])} is not a quantity"


class ValueRange(NamedTuple):
    """The smallest and the largest value of a property among the clusters that report it."""

    least: Quantity
    most: Quantity


@dataclass(frozen=True, slots=True)
class Ranking:
    """A validated property sorter, with the range of its property over all clusters."""

    property: Property
    descending: bool
    range: ValueRange | None  # None: no cluster reports the property

    def share(self, weight: int, actual: Quantity) -> int:
        """Return the part of `weight` for a cluster whose property has the value `actual`.

        Descending gives the whole weight to the largest value, Ascending to the smallest. The
        share is rounded to a whole number, halves away from zero. It is 0 if all values are equal.
        The arithmetic is exact; KubeFleet's floats may miss a half and round it the other way.
        """
        if self.range is None or self.range.least == self.range.most:
            return 0
        least, most = self.range
        above = actual.nano - least.nano if self.descending else most.nano - actual.nano
        return _round_half_away(above * weight, most.nano - least.nano)


def compile_sorter(sorter: PropertySorter, clusters: Iterable[MemberView]) -> Ranking | str:
    """Return the ranking of `clusters` that `sorter` describes, or the problem of the sorter."""
    name = Property.parse(sorter.name)
    if name is None:
        return _malformed(sorter.name)
    if sorter.sort_order not in tuple(SortOrder):
        return f"unknown sort order {quoted(sorter.sort_order)}"
    readings = (name.read(cluster) for cluster in clusters)
    values = [reading for reading in readings if isinstance(reading, Quantity)]
    range_ = ValueRange(min(values), max(values)) if values else None
    return Ranking(name, sorter.sort_order == SortOrder.DESCENDING, range_)


def _malformed(name: str) -> str:
    return f"resource property {quoted(name)} is not total-, allocatable- or available-RESOURCE"


def _round_half_away(dividend: int, divisor: int) -> int:
    """Return the quotient rounded to the nearest integer; `divisor` is positive."""
    rounded = (2 * abs(dividend) + divisor) // (2 * divisor)
    return rounded if dividend >= 0 else -rounded
