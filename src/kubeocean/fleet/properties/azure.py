"""Azure: sizes of nodes, and the costs of a core and a gigabyte of the cluster.

The cost of a core is the price of all nodes divided by their cores, that of a gigabyte the same
price divided by their memory in GiB, both per hour and with three decimals. If the price of one
node is unknown, no costs are reported; an old price list gives costs with a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Final

from kubeocean.api.fleet.conditions import MemberReason
from kubeocean.fleet.properties.collection import NodeResources, property_value, usage_of
from kubeocean.fleet.properties.prices import PriceList
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity

__all__ = [
    "PER_CORE_COST",
    "PER_GB_COST",
    "UNDEFINED_SKU",
    "Costs",
    "costs_of",
    "region_of",
    "sku_counts",
]

PER_CORE_COST: Final = "kubernetes.azure.com/per-cpu-core-cost"
PER_GB_COST: Final = "kubernetes.azure.com/per-gb-memory-cost"
UNDEFINED_SKU: Final = "undefined"
_GIB: Final = 2**30
_NANO: Final = 10**9


def sku_counts(nodes: Iterable[NodeResources], now: str) -> dict[str, Json]:
    """Return a property for each node size, with the number of nodes of that size."""
    counts = Counter(node.sku or UNDEFINED_SKU for node in nodes)
    return {
        f"kubernetes.azure.com/vm-sizes/{sku}/count": property_value(str(count), now)
        for sku, count in sorted(counts.items())
    }


def region_of(nodes: Iterable[NodeResources], configured: str = "") -> str:
    """Return the configured region, else the region of the first node with a region label."""
    return configured or next((node.region for node in nodes if node.region), "")


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost properties of a cluster, and status, reason and message of the condition about them."""

    properties: dict[str, Json]
    status: str
    reason: str
    message: str


def costs_of(
    nodes: Sequence[NodeResources], region: str, prices: PriceList, now: datetime
) -> Costs:
    """Return the costs of a core and of a gigabyte in a cluster of these nodes."""
    by_sku = {node.sku: prices.price(region, node.sku) for node in nodes}
    unknown = sorted(sku or UNDEFINED_SKU for sku, price in by_sku.items() if price is None)
    if unknown:
        return _failed(f"no price is known for nodes of size {', '.join(unknown)}")
    price = sum((by_sku[node.sku] or Fraction(0) for node in nodes), Fraction(0))
    capacity = usage_of(nodes, None).capacity
    cores, gigabytes = _units(capacity["cpu"]), _units(capacity["memory"]) / _GIB
    if nodes and not (cores and gigabytes):
        return _failed("the nodes have no capacity")
    observed = text_of(now)
    properties = {
        PER_CORE_COST: property_value(_dollars(price, cores), observed),
        PER_GB_COST: property_value(_dollars(price, gigabytes), observed),
    }
    if prices.is_stale(now):
        message = f"the prices are of {text_of(prices.published)}"
        return Costs(properties, "True", MemberReason.COSTS_DEGRADED, message)
    return Costs(properties, "True", MemberReason.COSTS_CALCULATED, "the costs are calculated")


def _failed(message: str) -> Costs:
    return Costs({}, "False", MemberReason.COSTS_FAILED, message)


def _units(amount: Quantity) -> Fraction:
    return Fraction(amount.nano, _NANO)


def _dollars(price: Fraction, units: Fraction) -> str:
    return f"{float(price / units) if units else 0.0:.3f}"
