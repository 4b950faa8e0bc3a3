"""Offered capacity: a table computed by hand, and properties that hold for any numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import ResourceLimit
from kubeocean.leasing.amounts import Amounts, add
from kubeocean.leasing.capacity import (
    LimitedBy,
    base_of,
    capped_capacity,
    node_capacity,
    offer,
    reaches_offer,
    resources_of,
)
from kubeocean.leasing.limits import Limit, parse_limits
from kubeocean.leasing.requests import CountedPod, NodeUsage, requests_of
from kubeocean.runtime.kinds import Node, NodeStatus
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import ZERO, Format, Quantity
from unit.leasing.cases import CASES, Case, container, pod

unhurried = settings(deadline=None)
RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage")


def total_of(pods: tuple[Json, ...]) -> Amounts:
    total: dict[str, Quantity] = {}
    for each in pods:
        add(total, requests_of(msgspec.convert(each, CountedPod)))
    return total


def usage_of(*, ours: tuple[Json, ...] = (), others: tuple[Json, ...] = ()) -> NodeUsage:
    """Return the requests on a node with these pods."""
    usage = NodeUsage()
    usage.put("ours", total_of(ours), ours=True)
    usage.put("others", total_of(others), ours=False)
    return usage


def node_with(allocatable: dict[str, str], capacity: dict[str, str] | None = None) -> Node:
    return Node(status=NodeStatus(capacity={**(capacity or {})}, allocatable={**allocatable}))


def texts(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_worked_case(case: Case) -> None:
    capacity = node_capacity(
        node_with(case.allocatable, case.capacity),
        usage_of(ours=case.ours, others=case.others),
        parse_limits(msgspec.convert(case.limits, tuple[ResourceLimit, ...])),
        unknown=(),
    )
    assert texts(capacity.offered) == case.offered


def test_the_capacity_of_a_node_has_every_step_to_the_offer() -> None:
    pnode = node_with({"cpu": "8", "memory": "32Gi", "pods": "110"})
    usage = usage_of(ours=(pod(container(cpu="1")),), others=(pod(container(cpu="2")),))
    limits = (Limit("cpu", percent=50), Limit("memroy", Quantity.parse("4Gi")))
    capacity = node_capacity(pnode, usage, limits, unknown=("memroy",))
    assert texts(capacity.base) == {"cpu": "8", "memory": "32Gi", "pods": "110"}
    assert texts(capacity.leftover) == {"cpu": "6", "memory": "32Gi", "pods": "109"}
    assert texts(capacity.lent) == {"cpu": "3", "memory": "0", "pods": "109"}
    assert texts(capacity.offered) == texts(capacity.lent)
    assert (capacity.unknown, capacity.withheld) == (("memroy",), ("memory",))
    assert capacity.limited_by("memory") is LimitedBy.LIMIT


def test_a_node_without_allocatable_has_the_resources_of_its_capacity() -> None:
    pnode = node_with({}, {"cpu": "8"})
    assert resources_of(pnode) == {"cpu"}
    assert texts(node_capacity(pnode, NodeUsage(), (), ()).offered) == {"cpu": "8"}
    assert resources_of(Node()) == frozenset()


def test_a_capped_offer_shrinks_with_the_node_and_never_grows() -> None:
    vnode = node_with({"cpu": "3", "memory": "4Gi", "pods": "0"}, {"pods": "20"})
    large = node_with({"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "4"})
    offered = texts(capped_capacity(large, NodeUsage(), vnode).offered)
    assert offered == {"cpu": "3", "memory": "4Gi", "pods": "20", "nvidia.com/gpu": "0"}
    usage = usage_of(ours=(pod(container(cpu="500m")),), others=(pod(container(cpu="6")),))
    assert texts(capped_capacity(large, usage, vnode).offered) == offered | {"cpu": "2"}


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


# Few and small numbers, so that requests, limits and offers often meet. Requests are in steps that
# an API server stores, as `requests_of` returns them.
few = st.integers(0, 6).map(Quantity.whole)
few_amounts = st.fixed_dictionaries({"cpu": few}, optional={"memory": few, "pods": few})
whole_nodes = st.fixed_dictionaries(
    dict.fromkeys(RESOURCES, st.integers(4, 12).map(Quantity.whole))
)
few_limits = st.lists(st.builds(Limit, st.sampled_from(["cpu", "memory"]), few), max_size=2)


@unhurried
@given(
    base=few_amounts, others=few_amounts, before=few_amounts, after=few_amounts, limits=few_limits
)
def test_an_offer_does_not_depend_on_requests_of_our_pods_below_it(
    base: Amounts, others: Amounts, before: Amounts, after: Amounts, limits: list[Limit]
) -> None:
    offered = offer(base, others=others, ours=before, limits=limits).offered
    changed = offer(base, others=others, ours=after, limits=limits).offered
    if not reaches_offer(before, offered) and not reaches_offer(after, offered):
        assert texts(changed) == texts(offered)


def test_an_amount_below_zero_is_offered_as_nothing() -> None:
    capacity = offer({"cpu": Quantity.whole(-1)}, others={}, ours={}, limits=())
    assert capacity.offered == {"cpu": ZERO}


def test_an_offer_lifted_to_use_keeps_the_notation_of_the_node() -> None:
    base = base_of({"memory": "8Gi"}, None)
    used = base_of({"memory": "3221225472"}, None)
    limit = Limit("memory", Quantity.parse("1G"))
    capacity = offer(base, others={}, ours=used, limits=(limit,))
    assert str(capacity.offered["memory"]) == "3Gi"
