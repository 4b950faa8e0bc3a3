"""Properties: sums over nodes and pods, prices and costs, namespaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.limits import MOST_NAMESPACES
from kubeocean.errors import ConfigError
from kubeocean.fleet.properties.azure import Costs, costs_of, region_of, sku_counts
from kubeocean.fleet.properties.collection import (
    NodeResources,
    PodRequests,
    Usage,
    namespaces_of,
    node_count,
    usage_of,
)
from kubeocean.fleet.properties.prices import BUILT_IN, PriceList, read_prices
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity

NOW = datetime(2025, 5, 16, 12, tzinfo=UTC)
TEXT = "2025-05-16T12:00:00Z"


def node(
    cpu: str = "2", memory: str = "8Gi", *, allocatable: Any = None, **labels: str
) -> NodeResources:
    names = {"sku": "beta.kubernetes.io/instance-type", "region": "topology.kubernetes.io/region"}
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": "1"}
    return NodeResources.from_json(
        {
            "metadata": {"labels": {names[name]: text for name, text in labels.items()}},
            "spec": {"unschedulable": True},
            "status": {"capacity": amounts, "allocatable": {**amounts, **(allocatable or {})}},
        }
    )


def pod(*requests: Json, on: str = "node", phase: str = "Running", **spec: Any) -> PodRequests:
    containers = [{"name": str(n), "resources": {"requests": r}} for n, r in enumerate(requests)]
    spec = {"nodeName": on, "containers": containers, **spec}
    return PodRequests.from_json({"spec": spec, "status": {"phase": phase}})


def usage(nodes: list[NodeResources], pods: list[PodRequests] | None) -> Json:
    return usage_of(nodes, pods).to_json("t")


# --- arithmetic


def test_all_nodes_count() -> None:
    empty = NodeResources.from_json({"metadata": {"name": "registered-just-now"}})
    nodes = [node(), node("1500m", "512Mi", allocatable={"cpu": "1"}), empty]
    assert node_count(nodes, "t") == {
        "kubernetes-fleet.io/node-count": {"value": "3", "observationTime": "t"}
    }
    assert usage(nodes, None) == {
        "capacity": {"cpu": "3500m", "memory": "8704Mi"},
        "allocatable": {"cpu": "3", "memory": "8704Mi"},
        "observationTime": "t",
    }


def test_a_cluster_without_nodes_has_nothing() -> None:
    none = {"cpu": "0", "memory": "0"}
    assert node_count([], "t")["kubernetes-fleet.io/node-count"]["value"] == "0"
    assert usage([], []) == {
        "capacity": none,
        "allocatable": none,
        "available": none,
        "observationTime": "t",
    }


CPU = {"cpu": "500m"}


@pytest.mark.parametrize(
    ("subject", "left"),
    [
        (pod(CPU), "1500m"),
        (pod(CPU, CPU), "1"),
        (pod(CPU, phase="Pending"), "1500m"),
        (pod(CPU, on=""), "2"),
        (pod(CPU, phase="Succeeded"), "2"),
        (pod(CPU, phase="Failed"), "2"),
        (pod({}, initContainers=[{"name": "i", "resources": {"requests": CPU}}]), "2"),
        (pod({}, overhead=CPU), "2"),
        (pod({"cpu": "20"}), "0"),
        (PodRequests.from_json({}), "2"),
        (pod({"cpu": "1e99999"}), "2"),
    ],
)
def test_what_is_available(subject: PodRequests, left: str) -> None:
    available = usage([node()], [subject])["available"]
    assert available == {"cpu": left, "memory": "8Gi"}


AMOUNTS = st.fixed_dictionaries(
    {"cpu": st.integers(0, 10**6).map(Quantity.milli), "memory": st.integers(0).map(Quantity.whole)}
)


@given(st.lists(AMOUNTS), st.lists(AMOUNTS))
def test_available_is_between_nothing_and_allocatable(
    nodes: list[dict[str, Quantity]], pods: list[dict[str, Quantity]]
) -> None:
    summed: Usage = usage_of(
        [NodeResources(each, each) for each in nodes], [PodRequests(each) for each in pods]
    )
    assert summed.available is not None
    for name in ("cpu", "memory"):
        offered, requested = (sum(each[name].nano for each in part) for part in (nodes, pods))
        assert summed.allocatable[name].nano == summed.capacity[name].nano == offered
        assert summed.available[name].nano == max(0, offered - requested)


# --- sizes and costs


def test_nodes_are_counted_by_size() -> None:
    nodes = [node(sku="Standard_D8s_v5"), node(sku=""), node(), node(sku="Standard_D8s_v5")]
    values = {name: each["value"] for name, each in sku_counts(nodes, "t").items()}
    assert values == {
        "kubernetes.azure.com/vm-sizes/Standard_D8s_v5/count": "2",
        "kubernetes.azure.com/vm-sizes/undefined/count": "2",
    }


def test_the_region_is_configured_or_that_of_a_node() -> None:
    nodes = [node(), node(region="westus"), node(region="eastus")]
    assert region_of(nodes, "eastasia") == "eastasia"
    assert region_of(nodes) == "westus"
    assert region_of([]) == ""


FRESH = PriceList(NOW - timedelta(hours=24), BUILT_IN.regions)


def values(costs: Costs) -> list[str]:
    assert all(each["observationTime"] == TEXT for each in costs.properties.values())
    names = ("per-cpu-core-cost", "per-gb-memory-cost")
    costs_by_name = [costs.properties.get(f"kubernetes.azure.com/{name}") for name in names]
    return [each["value"] for each in costs_by_name if each]


@pytest.mark.parametrize(
    ("region", "skus", "expected"),
    [
        ("westus", ["Standard_B2ats_v2"], ["0.006", "0.011"]),
        ("northeurope", ["Standard_B2ts_v2", "Standard_B2ts_v2"], ["0.010", "0.021"]),
        ("eastasia", ["Standard_D8s_v5"], ["0.264", "0.528"]),
        ("atlantis", ["Standard_D8s_v5"], ["0.192", "0.384"]),
        ("westus", [], ["0.000", "0.000"]),
    ],
)
def test_costs(region: str, skus: list[str], expected: list[str]) -> None:
    nodes = [node("2", "1Gi", sku=sku) for sku in skus]
    costs = costs_of(nodes, region, FRESH, NOW)
    assert (costs.status, costs.reason) == ("True", "CostsCalculated")
    assert values(costs) == expected


def test_nodes_of_several_sizes_share_their_price() -> None:
    nodes = [
        node("8", "32Gi", sku="Standard_D8s_v5"),
        node("16", "128Gi", sku="Standard_E16_v5"),
    ]
    costs = costs_of(nodes, "westus", FRESH, NOW)
    total = 0.448 + 1.12
    assert values(costs) == [f"{total / 24:.3f}", f"{total / 160:.3f}"]


@pytest.mark.parametrize("sku", ["", "Standard_Unheard_of", "Standard_No_price"])
def test_one_unknown_price_leaves_no_costs(sku: str) -> None:
    regions = {"westus": {**BUILT_IN.regions["westus"], "Standard_No_price": Fraction(999)}}
    prices = PriceList(NOW, regions)
    costs = costs_of([node(sku="Standard_D8s_v5"), node(sku=sku)], "westus", prices, NOW)
    assert (costs.properties, costs.status, costs.reason) == ({}, "False", "CostsCalculationFailed")
    assert (sku or "undefined") in costs.message


def test_nodes_without_capacity_leave_no_costs() -> None:
    costs = costs_of([node("0", "0", sku="Standard_D8s_v5")], "westus", FRESH, NOW)
    assert costs.reason == "CostsCalculationFailed"


def test_old_prices_are_used_and_said_to_be_old() -> None:
    nodes = [node("8", "32Gi", sku="Standard_D8s_v5")]
    stale = PriceList(NOW - timedelta(hours=24, seconds=1), BUILT_IN.regions)
    costs = costs_of(nodes, "westus", stale, NOW)
    assert (costs.status, costs.reason) == ("True", "CostsCalculationDegraded")
    assert values(costs) == ["0.056", "0.014"]
    assert BUILT_IN.is_stale(NOW + timedelta(days=365))


def test_prices_are_read_from_a_file() -> None:
    text = b'{"published": "2025-05-16T12:00:00Z", "regions": {"eastus": {"A": 0.1, "B": 2}}}'
    prices = read_prices(text)
    assert prices.published == NOW
    assert prices.price("eastus", "A") == Fraction("0.1")
    assert prices.price("elsewhere", "B") == 2
    assert prices.price("eastus", "C") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"regions": {}}',
        '{"published": "soon", "regions": {}}',
        '{"published": "2025-05-16", "regions": {"a": {"b": "cheap"}}}',
        '{"published": "2025-05-16", "regions": {"a": {"b": -1}}}',
        '{"published": "2025-05-16", "regions": {"a": {"b": true}}}',
    ],
)
def test_a_price_list_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="price"):
        read_prices(text.encode())


# --- namespaces


def namespace(name: str, *owners: Json, phase: str = "Active", **metadata: Any) -> Json:
    meta = {"name": name, "ownerReferences": list(owners), **metadata}
    return {"metadata": meta, "status": {"phase": phase}}


APPLIED_WORK = {
    "apiVersion": "placement.kubernetes-fleet.io/v1beta1",
    "kind": "AppliedWork",
    "name": "crp-work",
}


def test_namespaces_name_the_work_that_placed_them() -> None:
    listed = namespaces_of(
        [
            namespace("placed", {"kind": "Other", "name": "x"}, APPLIED_WORK),
            namespace("local"),
            namespace("going", phase="Terminating"),
            namespace("gone", deletionTimestamp="t"),
        ]
    )
    assert listed.works == {"local": "", "placed": "crp-work"}
    assert (listed.status, listed.reason) == ("True", "Succeeded")


def test_two_hundred_namespaces_are_listed() -> None:
    many = [namespace(f"n{number:03}") for number in range(MOST_NAMESPACES)]
    assert len(namespaces_of(many).works) == MOST_NAMESPACES
    assert namespaces_of(many).reason == "Succeeded"
    more = namespaces_of([namespace("zzz"), *many])
    assert (len(more.works), more.status, more.reason) == (MOST_NAMESPACES, "False", "Degraded")
    assert "zzz" not in more.works
