"""Amounts of resources, rounded to steps that an API server stores."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.leasing.amounts import larger, read_amounts, round_down, round_up
from kubeocean.runtime.quantity import ZERO, Quantity


@settings(deadline=None)
@given(st.sampled_from(["cpu", "nvidia.com/gpu", "pods"]), st.integers(-(10**10), 10**10))
def test_amounts_are_rounded_to_what_a_server_stores(resource: str, nano: int) -> None:
    step = 10**6 if resource == "cpu" else 10**9
    down, up = round_down(resource, Quantity(nano)).nano, round_up(resource, Quantity(nano)).nano
    assert down % step == up % step == 0
    assert nano - step < down <= nano <= up < nano + step


def test_an_amount_that_needs_no_rounding_stays_as_it_is_written() -> None:
    written = Quantity.parse("1.500")
    assert round_down("cpu", written) is round_up("cpu", written) is written


def test_names_of_kubernetes_own_domain_may_have_parts() -> None:
    half = Quantity.milli(500)
    for resource in ("cpu", "memory", "attachable-volumes-csi", "storage.kubernetes.io/speed"):
        assert round_down(resource, half) == half
    for resource in ("pods", "example.com/fpga"):
        assert round_down(resource, half) == ZERO


def test_the_larger_of_two_lists_is_taken_resource_by_resource() -> None:
    one = read_amounts({"cpu": "2", "memory": "1Gi"})
    other = read_amounts({"cpu": "1", "pods": "3"})
    assert larger(one, other) == read_amounts({"cpu": "2", "memory": "1Gi", "pods": "3"})
    assert read_amounts(None) == {}
