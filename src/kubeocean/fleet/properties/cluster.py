"""Facts about a member's nodes and pods, and the properties that Kubeocean adds from them. Pure.

KubeFleet's properties cover CPU and memory. Kubeocean adds the following properties, all as
quantities, so that selectors and sorters of placements work on them:

    kubeocean.io/resources/RESOURCE/capacity      of extended resources, such as nvidia.com/gpu
    kubeocean.io/resources/RESOURCE/allocatable
    kubeocean.io/resources/RESOURCE/available     allocatable less the requests of pods
    kubeocean.io/skus/SKU/nodes                   nodes per machine type
    kubeocean.io/zones/ZONE/nodes                 nodes per zone
    kubeocean.io/regions/REGION/nodes             nodes per region

The version and the certificate authority of the cluster are KubeFleet's properties. In KubeFleet
only the provider `azure` reports them, in Kubeocean every provider. A cluster reports at most 50
names of each family, the first ones in alphabetical order, because labels of nodes are unlimited.
`leasing` has the properties of members that lend nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubeocean.api.fleet.names import (
    EXTENSION_PROPERTY_PREFIX,
    PROPERTY_CERTIFICATE_AUTHORITY,
    PROPERTY_KUBERNETES_VERSION,
)
from kubeocean.errors import ConfigError
from kubeocean.fleet.properties.collection import NodeResources, is_segment
from kubeocean.fleet.properties.leasing import LeasingFacts, leasing_properties
from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.kinds import Node, Pod
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "ClusterFacts",
    "NodeFacts",
    "RequestTotals",
    "extension_properties",
    "identity_properties",
    "requests_of",
]

_MOST: Final = 50
_ENDED: Final = ("Succeeded", "Failed")
_SKU_LABEL: Final = "node.kubernetes.io/instance-type"
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_NATIVE_DOMAIN: Final = "kubernetes.io/"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Resources of a node as KubeFleet reports them, and the facts that Kubeocean adds."""

    resources: NodeResources
    sku: str = ""
    zone: str = ""
    extended_capacity: Amounts = field(default_factory=dict)
    extended_allocatable: Amounts = field(default_factory=dict)

    @classmethod
    def from_node(cls, node: Node) -> NodeFacts:
        labels, status = node.labels, node.status
        document: Json = {
            "metadata": {"labels": dict(labels)},
            "status": {"capacity": status.capacity, "allocatable": status.allocatable},
        }
        resources = NodeResources.from_json(document)
        return cls(
            resources,
            labels.get(_SKU_LABEL) or resources.sku,
            labels.get(_ZONE_LABEL) or "",
            _extended(status.capacity),
            _extended(status.allocatable),
        )


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Nodes, requests, version and leasing of a member cluster at one time.

    `requested` is None if pods are not counted, `leasing` if there are no facts about leasing.
    """

    nodes: Sequence[NodeFacts]
    requested: Amounts | None = None
    version: str = ""
    certificate_authority: str = ""  # PEM
    leasing: LeasingFacts | None = None


class RequestTotals:
    """Sum of the requests of all pods, kept up to date with each change of a pod."""

    def __init__(self) -> None:
        self._totals: dict[str, Quantity] = {}

    @property
    def amounts(self) -> Amounts:
        return dict(self._totals)

    def change(self, old: Pod | None, new: Pod | None) -> None:
        """Update the sums after a change of a pod; a handler for the informer of pods."""
        for pod, sign in ((old, -1), (new, 1)):
            if pod is None:
                continue
            for name, amount in requests_of(pod).items():
                total = self._totals.get(name, ZERO)
                self._totals[name] = total + amount if sign > 0 else total - amount


def requests_of(pod: Pod) -> dict[str, Quantity]:
    """Return the requests of a pod's main containers; empty if it has no node or has ended."""
    if not pod.spec.node_name or pod.status.phase in _ENDED:
        return {}
    requests: dict[str, Quantity] = {}
    for container in pod.spec.containers or ():
        written = container.resources.requests if container.resources else None
        for name, value in (written or {}).items():
            requests[name] = requests.get(name, ZERO) + _quantity(value)
    return requests


def identity_properties(facts: ClusterFacts) -> dict[str, str]:
    """Return the cluster's version and certificate authority as properties, if known."""
    properties = {
        PROPERTY_KUBERNETES_VERSION: facts.version,
        PROPERTY_CERTIFICATE_AUTHORITY: facts.certificate_authority,
    }
    return {name: value for name, value in properties.items() if value}


def extension_properties(facts: ClusterFacts) -> dict[str, str]:
    """Return all properties that Kubeocean adds to KubeFleet's."""
    properties = identity_properties(facts)
    properties |= _extended_resources(facts)
    for family, value_of in _FAMILIES.items():
        values = Counter(filter(is_segment, map(value_of, facts.nodes)))
        for value, count in sorted(values.items())[:_MOST]:
            properties[f"{EXTENSION_PROPERTY_PREFIX}{family}/{value}/nodes"] = str(count)
    return properties | dict(leasing_properties(facts.leasing))


_FAMILIES: Final[dict[str, Callable[[NodeFacts], str]]] = {
    "skus": lambda node: node.sku,
    "zones": lambda node: node.zone,
    "regions": lambda node: node.resources.region,
}


def _extended_resources(facts: ClusterFacts) -> dict[str, str]:
    capacity = _sum(node.extended_capacity for node in facts.nodes)
    allocatable = _sum(node.extended_allocatable for node in facts.nodes)
    properties: dict[str, str] = {}
    for name in sorted(capacity)[:_MOST]:
        offered = allocatable.get(name, ZERO)
        properties[f"{EXTENSION_PROPERTY_PREFIX}resources/{name}/capacity"] = str(capacity[name])
        properties[f"{EXTENSION_PROPERTY_PREFIX}resources/{name}/allocatable"] = str(offered)
        if facts.requested is not None:
            free = max(ZERO, offered - facts.requested.get(name, ZERO))
            properties[f"{EXTENSION_PROPERTY_PREFIX}resources/{name}/available"] = str(free)
    return properties


def _extended(written: Mapping[str, Any] | None) -> dict[str, Quantity]:
    return {name: _quantity(value) for name, value in (written or {}).items() if _is_extended(name)}


def _is_extended(name: str) -> bool:
    """Whether a resource name has a domain other than Kubernetes', as of device plugins."""
    domain, slash, resource = name.partition("/")
    is_ours = bool(slash) and not f"{domain}/".endswith(_NATIVE_DOMAIN)
    return is_ours and is_segment(domain) and is_segment(resource)


def _sum(amounts: Iterable[Amounts]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, ZERO) + amount
    return total


def _quantity(written: Any) -> Quantity:
    try:
        return Quantity.parse(written)
    except ConfigError:
        return ZERO
