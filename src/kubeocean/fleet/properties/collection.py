"""Collection: nodes, resources and namespaces of a member, as its status reports them.

    capacity     of all nodes
    allocatable  resources that their kubelets offer to pods
    available    allocatable less the requests of pods on a node that have not ended, never below 0

All nodes count, also those that are not ready or cordoned. Requests are those of the main
containers; init containers and overhead do not count. Only CPU and memory are reported. A quantity
that cannot be read counts as 0.

The scheduler places objects of a namespace only on members that have it. A status holds a limited
number of namespaces; a member with more reports the first ones, and that the list is not complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.fleet.conditions import MemberReason
from kubeocean.api.fleet.limits import MOST_NAMESPACES
from kubeocean.api.fleet.names import PROPERTY_NODE_COUNT
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.manifests import is_applied_work
from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import ZERO, Quantity
from kubeocean.runtime.selectors import check_label_value

__all__ = [
    "Namespaces",
    "NodeResources",
    "PodRequests",
    "Usage",
    "is_segment",
    "namespaces_of",
    "node_count",
    "property_value",
    "usage_of",
]

RESOURCES: Final = ("cpu", "memory")  # the only ones that are reported

_ENDED: Final = ("Succeeded", "Failed")
_SKU_LABEL: Final = "beta.kubernetes.io/instance-type"
_REGION_LABEL: Final = "topology.kubernetes.io/region"


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Capacity, allocatable resources, size and region of a node."""

    capacity: Amounts
    allocatable: Amounts
    sku: str = ""
    region: str = ""

    @classmethod
    def from_json(cls, node: Json) -> NodeResources:
        labels = (node.get("metadata") or {}).get("labels") or {}
        status = node.get("status") or {}
        return cls(
            _read(status.get("capacity")),
            _read(status.get("allocatable")),
            labels.get(_SKU_LABEL) or "",
            labels.get(_REGION_LABEL) or "",
        )


@dataclass(frozen=True, slots=True)
class PodRequests:
    """The resource requests of a pod; empty if it has no node or has ended."""

    requests: Amounts

    @classmethod
    def from_json(cls, pod: Json) -> PodRequests:
        spec = pod.get("spec") or {}
        if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in _ENDED:
            return cls({})
        containers = spec.get("containers") or ()
        return cls(
            _sum(_read((each.get("resources") or {}).get("requests")) for each in containers)
        )


def _read(written: Mapping[str, Any] | None) -> Amounts:
    return {name: _quantity((written or {}).get(name)) for name in RESOURCES}


def _quantity(written: Any) -> Quantity:
    try:
        return ZERO if written is None else Quantity.parse(written)
    except ConfigError:
        return ZERO


def _sum(amounts: Iterable[Amounts]) -> dict[str, Quantity]:
    total = dict.fromkeys(RESOURCES, ZERO)
    for each in amounts:
        for name in RESOURCES:
            total[name] += each.get(name, ZERO)
    return total


@dataclass(frozen=True, slots=True)
class Usage:
    """The `resourceUsage` of a member; `available` is None if pods are not counted."""

    capacity: Amounts
    allocatable: Amounts
    available: Amounts | None

    def to_json(self, now: str) -> Json:
        usage: Json = {
            "capacity": _written(self.capacity),
            "allocatable": _written(self.allocatable),
            "observationTime": now,
        }
        if self.available is not None:
            usage["available"] = _written(self.available)
        return usage


def _written(amounts: Amounts) -> dict[str, str]:
    return {name: str(amounts[name]) for name in RESOURCES}


def usage_of(nodes: Iterable[NodeResources], pods: Iterable[PodRequests] | None) -> Usage:
    """Return the sums over nodes and requests of pods; without pods `available` is None."""
    nodes = list(nodes)
    capacity = _sum(node.capacity for node in nodes)
    allocatable = _sum(node.allocatable for node in nodes)
    if pods is None:
        return Usage(capacity, allocatable, None)
    requested = _sum(pod.requests for pod in pods)
    available = {name: max(ZERO, allocatable[name] - requested[name]) for name in RESOURCES}
    return Usage(capacity, allocatable, available)


def is_segment(value: str) -> bool:
    """Whether a value, such as a label of a node, can be a segment of a property's name."""
    try:
        check_label_value(value)
    except ConfigError:
        return False
    return bool(value)


def property_value(value: str, now: str) -> Json:
    """Return a property as a MemberCluster's status holds it: the value and its time."""
    return {"value": value, "observationTime": now}


def node_count(nodes: Iterable[NodeResources], now: str) -> dict[str, Json]:
    """Return the property with the number of nodes, which every provider reports."""
    return {PROPERTY_NODE_COUNT: property_value(str(sum(1 for _ in nodes)), now)}


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces of a member, each with the name of the Work that placed it, and a condition.

    The condition reports whether the list is complete.
    """

    works: dict[str, str]
    status: str
    reason: str
    message: str


def namespaces_of(namespaces: Iterable[Json]) -> Namespaces:
    """Return the namespaces that are not being deleted, in the order of their names."""
    works = {
        namespace["metadata"]["name"]: _work(namespace)
        for namespace in namespaces
        if not _is_terminating(namespace)
    }
    listed = dict(sorted(works.items())[:MOST_NAMESPACES])
    if len(listed) < len(works):
        message = f"{len(listed)} of {len(works)} namespaces are listed"
        return Namespaces(listed, "False", MemberReason.NAMESPACES_DEGRADED, message)
    return Namespaces(
        listed, "True", MemberReason.NAMESPACES_COLLECTED, "all namespaces are listed"
    )


def _is_terminating(namespace: Json) -> bool:
    phase = (namespace.get("status") or {}).get("phase")
    return phase == "Terminating" or bool(namespace["metadata"].get("deletionTimestamp"))


def _work(namespace: Json) -> str:
    for reference in namespace["metadata"].get("ownerReferences") or ():
        if is_applied_work(reference):
            return str(reference.get("name") or "")
    return ""
