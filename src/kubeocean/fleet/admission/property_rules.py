"""Rules for properties of clusters in a placement's affinity. Pure.

Requirements on one property that no value can meet are refused, because a placement with them would
wait for a cluster for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kubeocean.api.fleet.names import RESOURCE_PROPERTY_PREFIX
from kubeocean.api.fleet.policies import (
    PropertyOperator,
    PropertyRequirement,
    PropertySorter,
    SortOrder,
)
from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.go_names import qualified_name_problems, subdomain_problems
from kubeocean.runtime.quantity import Quantity

__all__ = ["requirements_problems", "sorter_problems"]

_CAPACITY_TYPES: Final = ("allocatable", "available", "total")


def requirements_problems(requirements: Sequence[PropertyRequirement]) -> list[str]:
    """Return all problems of the property requirements of one selector."""
    problems = []
    for each in requirements:
        if problem := _name_problem(each.name):
            problems.append(f"invalid property name {each.name}: {problem}")
        if problem := _value_problem(each):
            problems.append(f"invalid requirement on property {each.name}: {problem}")
    names = dict.fromkeys(each.name for each in requirements)
    problems += [
        f"inconsistent requirements on property {name}: {problem}"
        for name in names
        if (problem := _contradiction(each for each in requirements if each.name == name))
    ]
    return problems


def sorter_problems(sorter: PropertySorter) -> list[str]:
    """Return all problems of a property sorter."""
    problems = [problem] if (problem := _name_problem(sorter.name)) else []
    if sorter.sort_order not in tuple(SortOrder):
        problems.append(f"invalid property sort order {sorter.sort_order}")
    return problems


def _name_problem(name: str) -> str:
    if name.startswith(RESOURCE_PROPERTY_PREFIX):
        capacity, dash, _ = name.removeprefix(RESOURCE_PROPERTY_PREFIX).partition("-")
        if not dash:
            return (
                f"invalid resource property name {name}, expected format is"
                " [PREFIX]/[CAPACITY_TYPE]-[RESOURCE_NAME]"
            )
        if capacity not in _CAPACITY_TYPES:
            return (
                f"invalid capacity type in resource property name {name},"
                f" supported values are [{' '.join(_CAPACITY_TYPES)}]"
            )
        problems = qualified_name_problems(name)
        return f"property name {name} is not valid: {'; '.join(problems)}" if problems else ""
    first, *rest = name.split("/")
    if not rest:
        problems = qualified_name_problems(name)
        return f"property name {name} is not valid: {'; '.join(problems)}" if problems else ""
    if subdomain_problems(first) and qualified_name_problems(first):
        return (
            f"property name first segment {first} is not valid: it is neither a DNS subdomain nor a"
            " qualified name"
        )
    for segment in rest:
        if problems := qualified_name_problems(segment):
            return f"property name segment {segment} is not valid: {'; '.join(problems)}"
    return ""


def _value_problem(requirement: PropertyRequirement) -> str:
    operator, values = requirement.operator, requirement.values
    if operator not in tuple(PropertyOperator):
        return f"unsupported operator {operator}"
    if len(values) != 1:
        return f"operator {operator} requires exactly one value, got {len(values)}"
    if _quantity(values[0]) is None:
        return f'value "{values[0]}" is not a valid resource.Quantity'
    return ""


def _quantity(text: str) -> Quantity | None:
    try:
        return Quantity.parse(text)
    except ConfigError:
        return None


class _Bound(NamedTuple):
    """Lower or upper bound of a property's value; a `strict` bound excludes the value itself."""

    nano: int
    strict: bool
    text: str


def _contradiction(requirements: Iterable[PropertyRequirement]) -> str:
    """Return why no value can meet all requirements on one property; empty if a value can."""
    lower: _Bound | None = None
    upper: _Bound | None = None
    equal: _Bound | None = None
    unequal: list[_Bound] = []
    for each in requirements:
        if _value_problem(each):
            continue
        quantity = _quantity(each.values[0])
        assert quantity is not None
        is_strict = each.operator in (PropertyOperator.GREATER, PropertyOperator.LESS)
        bound = _Bound(quantity.nano, is_strict, each.values[0])
        match each.operator:
            case PropertyOperator.EQUAL:
                if equal is not None and equal.nano != bound.nano:
                    return f"conflicting Eq values {equal.text} and {bound.text}"
                equal = bound
            case PropertyOperator.NOT_EQUAL:
                unequal.append(bound)
            case PropertyOperator.GREATER | PropertyOperator.GREATER_OR_EQUAL:
                lower = max(lower or bound, bound)
            case _:
                upper = min(upper or bound, bound, key=lambda each: (each.nano, not each.strict))
    if equal is not None and any(each.nano == equal.nano for each in unequal):
        return f"conflicting Eq and Ne on same value {equal.text}"
    if lower is not None and upper is not None and not _meet(lower, upper):
        return f"lower bound ({lower.text}) and upper bound ({upper.text}) exclude all values"
    if equal is not None and lower is not None and not _meet(lower, equal):
        return f"eq value {equal.text} violates lower bound {lower.text}"
    if equal is not None and upper is not None and not _meet(equal, upper):
        return f"eq value {equal.text} violates upper bound {upper.text}"
    return ""


def _meet(lower: _Bound, upper: _Bound) -> bool:
    """Whether a value can lie between `lower` and `upper`."""
    if lower.nano == upper.nano:
        return not lower.strict and not upper.strict
    return lower.nano < upper.nano
