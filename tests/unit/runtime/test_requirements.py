"""Requirements on one label: comparisons, and requirements that are invalid."""

from __future__ import annotations

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import Expression, Operator, Requirement


@pytest.mark.parametrize(
    ("value", "more", "less"),
    [
        ("4", False, True),
        ("5", False, False),
        ("6", True, False),
        ("+6", True, False),
        ("-6", False, True),
        ("0006", True, False),
        ("9223372036854775807", True, False),
        ("9223372036854775808", False, False),
        ("-9223372036854775808", False, True),
        ("-9223372036854775809", False, False),
        ("", False, False),
        ("six", False, False),
        ("6.5", False, False),
        ("6_0", False, False),
    ],
)
def test_comparisons_hold_for_integers_of_64_bits_only(value: str, more: bool, less: bool) -> None:
    assert Requirement.of("a", Operator.GT, ["5"]).matches({"a": value}) is more
    assert Requirement.of("a", Operator.LT, ["5"]).matches({"a": value}) is less


@pytest.mark.parametrize("values", [["1", "2"], ["x"], [""], ["9223372036854775808"]])
@pytest.mark.parametrize("operator", [Operator.GT, Operator.LT])
def test_a_comparison_takes_one_integer(operator: Operator, values: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"values: .. takes one integer") as refused:
        Requirement.of("a", operator, values)
    assert refused.value.value == values


def test_a_requirement_cannot_have_an_operator_that_its_owner_does_not_know() -> None:
    expression = Expression(key="a", operator="Gt", values=["1"])
    assert expression.requirement(Operator) == Requirement("a", Operator.GT, ("1",))
    with pytest.raises(ConfigError, match=r"operator: must be one of In, NotIn \(got 'Gt'\)"):
        expression.requirement([Operator.IN, Operator.NOT_IN])
