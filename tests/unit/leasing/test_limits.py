"""Limits, against a model in fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import ResourceLimit
from kubeocean.errors import ConfigError
from kubeocean.leasing.limits import (
    Limit,
    apply_limits,
    cautious_limits,
    parse_limits,
    unknown_resources,
    withheld_resources,
)
from kubeocean.runtime.quantity import Format, Quantity

unhurried = settings(deadline=None)

quantities = st.builds(
    Quantity, st.integers(0, 2**50).map(lambda n: n * 10**6), st.sampled_from(Format)
)
entries = st.builds(
    Limit,
    st.sampled_from(["cpu", "nvidia.com/gpu"]),
    st.none() | quantities.filter(bool),
    st.none() | st.integers(1, 100),
)


def lent(amount: Fraction, limit: Limit, *, whole: bool) -> Fraction:
    """Compute the lent amount without rounding until the end."""
    bounds = [amount]
    if limit.percent is not None:
        unit = Fraction(1) if whole else Fraction(1, 1000)
        bounds.append(math.floor(amount * limit.percent / 100 / unit) * unit)
    if limit.quantity is not None:
        bounds.append(Fraction(limit.quantity.nano, 10**9))
    unit = Fraction(1) if limit.resource == "nvidia.com/gpu" else Fraction(1, 1000)
    return math.floor(min(bounds) / unit) * unit


@unhurried
@given(st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu"]), quantities), st.lists(entries))
def test_limits_apply_in_order_each_to_what_the_one_before_left(
    leftover: dict[str, Quantity], limits: list[Limit]
) -> None:
    expected = {name: Fraction(amount.nano, 10**9) for name, amount in leftover.items()}
    formats = {name: amount.format for name, amount in leftover.items()}
    for limit in limits:
        name = limit.resource
        if name in expected:
            whole = formats[name] is Format.BINARY_SI
            before, expected[name] = expected[name], lent(expected[name], limit, whole=whole)
            if limit.quantity is not None and expected[name] < before:
                formats[name] = apply_limits(leftover, limits[: limits.index(limit) + 1])[
                    name
                ].format
    assert {k: Fraction(v.nano, 10**9) for k, v in apply_limits(leftover, limits).items()} == (
        expected
    )


@unhurried
@given(st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities), st.lists(entries))
def test_a_limit_never_adds(leftover: dict[str, Quantity], limits: list[Limit]) -> None:
    result = apply_limits(leftover, limits)
    assert result.keys() == leftover.keys()
    assert all(result[name] <= leftover[name] for name in leftover)


def test_what_is_left_over_is_not_changed() -> None:
    leftover = {"cpu": Quantity.whole(4)}
    apply_limits(leftover, (Limit("cpu", percent=50),))
    assert leftover == {"cpu": Quantity.whole(4)}


def test_limits_are_read_as_they_are_written() -> None:
    written = (
        ResourceLimit("cpu", "500m", 50),
        ResourceLimit("memory", 1024),
        ResourceLimit("pods", percent=10),
    )
    assert parse_limits(written) == (
        Limit("cpu", Quantity.milli(500), 50),
        Limit("memory", Quantity.whole(1024)),
        Limit("pods", percent=10),
    )
    assert parse_limits(None) == ()


@pytest.mark.parametrize("nothing", [0, "0", "0Gi", "0m"])
def test_a_quantity_of_zero_lends_none(nothing: str | int) -> None:
    limit = Limit.parse(ResourceLimit("cpu", nothing))
    assert str(limit.of(Quantity.whole(4))) == "0"


@pytest.mark.parametrize("percent", [0, -1, -100])
def test_a_percentage_of_zero_or_less_lends_none(percent: int) -> None:
    limit = Limit.parse(ResourceLimit("cpu", percent=percent))
    assert str(limit.of(Quantity.whole(4))) == "0"


def test_a_limit_without_amounts_lends_none() -> None:
    assert str(Limit.parse(ResourceLimit("cpu")).of(Quantity.whole(4))) == "0"


NODE = ("cpu", "ephemeral-storage", "memory", "nvidia.com/gpu", "pods")


@pytest.mark.parametrize(
    ("written", "withheld"),
    [
        (("cpuu",), ("cpu", "memory")),  # the only limit: nothing that runs a pod is lent
        (("cpuu", "memory"), ("cpu",)),
        (("CPU", "memory"), ("cpu",)),
        (("mem", "cpu"), ("memory",)),
        (("storage", "cpu"), ("ephemeral-storage",)),
        (("gpu", "cpu"), ("nvidia.com/gpu",)),
        (("nvidia.com/gpuu", "cpu"), ("nvidia.com/gpu",)),
        (("qqq", "cpu"), ("cpu", "memory")),
        (("example.com/fpga",), ("cpu", "memory")),
        (("cpu", "memory"), ()),
        ((), ()),
    ],
)
def test_a_misspelled_limit_withholds_what_its_author_meant(
    written: tuple[str, ...], withheld: tuple[str, ...]
) -> None:
    limits = parse_limits(ResourceLimit(name, percent=50) for name in written)
    unknown = unknown_resources(limits, NODE)
    assert withheld_resources(limits, unknown, NODE) == withheld
    leftover = dict.fromkeys(NODE, Quantity.whole(8))
    lent = apply_limits(leftover, cautious_limits(limits, unknown, NODE))
    assert {name for name in NODE if not lent[name]} == set(withheld)


def test_a_limited_resource_is_unknown_only_beside_known_ones() -> None:
    limits = [Limit(name, percent=50) for name in ("cpuu", "cpu", "xyz", "cpuu")]
    assert unknown_resources(limits, NODE) == ("cpuu", "xyz")
    assert unknown_resources(limits, ("cpu", "cpuu", "xyz")) == ()
    assert unknown_resources(limits, ()) == ()


@pytest.mark.parametrize("percent", [1, 100])
def test_a_percentage_may_be_anything_up_to_all(percent: int) -> None:
    limit = Limit.parse(ResourceLimit("cpu", percent=percent))
    assert limit.of(Quantity.whole(1)) == Quantity.milli(percent * 10)


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        (ResourceLimit("cpu", "-1"), "resourceLimits[1].quantity"),
        (ResourceLimit("cpu", "many"), "resourceLimits[1].quantity"),
        (ResourceLimit("cpu", percent=101), "resourceLimits[1].percent"),
    ],
)
def test_a_mistake_is_named_by_its_path(limit: ResourceLimit, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_limits((ResourceLimit("memory"), limit))
    assert error.value.field == field


def test_a_limit_of_nothing_that_has_a_name_means_nothing() -> None:
    assert apply_limits({"cpu": Quantity.whole(1)}, (Limit("", percent=1),)) == {
        "cpu": Quantity.whole(1)
    }
