"""Offered capacity: a table computed by hand, and properties that hold for any numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import ResourceLimit
from kubeocean.leasing.amounts import Amounts, add
from kubeocean.leasing.capacity import LimitedBy, base_of, offer
from kubeocean.leasing.limits import Limit, parse_limits
from kubeocean.leasing.requests import CountedPod, requests_of
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import ZERO, Format, Quantity
from unit.leasing.cases import CASES, Case

unhurried = settings(deadline=None)
RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage")


def total_of(pods: tuple[Json, ...]) -> Amounts:
    total: dict[str, Quantity] = {}
    for pod in pods:
        add(total, requests_of(msgspec.convert(pod, CountedPod)))
    return total


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_worked_case(case: Case) -> None:
    capacity = offer(
        base_of(case.allocatable, case.capacity),
        others=total_of(case.others),
        ours=total_of(case.ours),
        limits=parse_limits(msgspec.convert(case.limits, tuple[ResourceLimit, ...])),
    )
    assert {name: str(amount) for name, amount in capacity.offered.items()} == case.offered


def test_the_table_is_large_enough_to_be_reused_on_real_clusters() -> None:
    assert len(CASES) >= 20
    assert sum(case.plain for case in CASES) >= 20
    assert len({case.name for case in CASES}) == len(CASES)


amounts = st.builds(
    Quantity,
    st.integers(0, 10**6).map(lambda n: n * 10**3)
    | st.integers(0, 10**6).map(lambda n: n * 10**6)
    | st.integers(0, 2**44).map(lambda n: n * 10**9),
    st.sampled_from(Format),
)
lists = st.dictionaries(st.sampled_from(RESOURCES), amounts)
limits = st.lists(
    st.builds(
        Limit,
        st.sampled_from(RESOURCES),
        st.none() | amounts.filter(bool),
        st.none() | st.integers(1, 100),
    ),
    max_size=4,
)


def step(resource: str) -> int:
    return 10**9 if resource in ("pods", "nvidia.com/gpu") else 10**6


@unhurried
@given(base=lists, others=lists, ours=lists, limits=limits)
def test_what_is_offered_keeps_every_promise(
    base: Amounts, others: Amounts, ours: Amounts, limits: list[Limit]
) -> None:
    capacity = offer(base, others=others, ours=ours, limits=limits)
    assert capacity.offered.keys() == base.keys()
    for name, offered in capacity.offered.items():
        used, has = ours.get(name, ZERO), base[name]
        leftover = max(has.nano - others.get(name, ZERO).nano, 0)
        assert 0 <= offered.nano <= has.nano
        assert offered.nano % step(name) == 0, "finer than servers store"
        if offered.nano > leftover or any(
            limit.resource == name and limit.quantity is not None and offered > limit.quantity
            for limit in limits
        ):
            assert offered.nano - used.nano < step(name), "only use lifts it above"
        assert offered.nano >= min(used.nano, has.nano // step(name) * step(name))
        assert capacity.lent[name].nano <= leftover


@unhurried
@given(base=lists, others=lists, ours=lists, limits=limits)
def test_the_bound_that_is_named_is_the_one_that_holds(
    base: Amounts, others: Amounts, ours: Amounts, limits: list[Limit]
) -> None:
    capacity = offer(base, others=others, ours=ours, limits=limits)
    for name, offered in capacity.offered.items():
        match capacity.limited_by(name):
            case LimitedBy.USE:
                assert offered > capacity.lent[name]
            case LimitedBy.LIMIT:
                assert offered == capacity.lent[name] < capacity.leftover[name]
            case LimitedBy.OTHERS:
                assert offered == capacity.leftover[name] < capacity.base[name]
            case LimitedBy.NODE:
                assert offered == capacity.base[name]


def test_an_amount_below_zero_is_offered_as_nothing() -> None:
    capacity = offer({"cpu": Quantity.whole(-1)}, others={}, ours={}, limits=())
    assert capacity.offered == {"cpu": ZERO}


def test_an_offer_lifted_to_use_keeps_the_notation_of_the_node() -> None:
    base = base_of({"memory": "8Gi"}, None)
    used = base_of({"memory": "3221225472"}, None)
    limit = Limit("memory", Quantity.parse("1G"))
    capacity = offer(base, others={}, ours=used, limits=(limit,))
    assert str(capacity.offered["memory"]) == "3Gi"
