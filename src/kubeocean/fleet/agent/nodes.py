"""Provider of properties from the nodes, pods and namespaces of the member.

Caches hold the nodes, pods (reduced to their requests) and namespaces, so that a heartbeat sends no
request to the member except for its version, every 15 minutes. All pods count.

With `azure` the provider reports the properties and conditions of KubeFleet's provider of that
name: nodes per size, and the costs of a core and a gigabyte from a list of prices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import PropertyValue, ResourceUsage
from kubeocean.api.fleet.conditions import MemberCondition
from kubeocean.errors import ApiError
from kubeocean.fleet.agent.protocols import Collection
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.properties import azure
from kubeocean.fleet.properties.cluster import (
    ClusterFacts,
    NodeFacts,
    RequestTotals,
    identity_properties,
)
from kubeocean.fleet.properties.collection import (
    Namespaces,
    PodRequests,
    namespaces_of,
    node_count,
    property_value,
    usage_of,
)
from kubeocean.fleet.properties.leasing import LeasingSource
from kubeocean.fleet.properties.prices import BUILT_IN, PriceList
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, Container, Namespace, Node, Pod
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Json, Key, Meta

__all__ = ["AzureOptions", "NodeProperties"]

_VERSION_S: Final = 900.0  # a control plane is upgraded rarely
_SCHEDULED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """Settings of the property provider `azure`."""

    region: str = ""
    with_costs: bool = True
    with_available: bool = True
    prices: PriceList = BUILT_IN


class NodeProperties:
    """Property provider that computes a member's properties from caches of its objects.

    - `certificate_authority`: certificate authority of the member's API server, PEM.
    - `with_namespaces`: whether the namespaces of the member are listed.
    - `leasing`: source of the properties about leasing; None for a member that reports none.
    """

    def __init__(
        self,
        member: Client,
        *,
        options: AzureOptions | None = None,
        with_namespaces: bool = False,
        extensions: Extensions = OURS,
        certificate_authority: str = "",
        leasing: LeasingSource | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._member, self._options, self._extensions = member, options, extensions
        self._leasing = leasing
        self._certificate_authority = certificate_authority
        self._clock = clock = clock or RealClock()
        metrics = metrics or Metrics()
        self._facts: dict[Key, NodeFacts] = {}
        self._requests = RequestTotals()
        self._version = ""
        self._version_read_at = float("-inf")
        self._nodes: Informer[Node] = Informer(
            member, NODES, prune=_node, clock=clock, metrics=metrics
        )
        self._nodes.on_change(self._node_changed)
        self._pods: Informer[Pod] | None = None
        if options is None or options.with_available:
            self._pods = Informer(
                member, PODS, fields=_SCHEDULED, prune=_pod, clock=clock, metrics=metrics
            )
            self._pods.on_change(self._requests.change)
        self._namespaces: Informer[Namespace] | None = None
        if with_namespaces:
            self._namespaces = Informer(
                member, NAMESPACES, prune=_namespace, clock=clock, metrics=metrics
            )

    async def run(self) -> None:
        """Run the caches of nodes, pods and namespaces until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers():
                group.create_task(informer.run())

    async def start(self) -> None:
        """Return when all caches are filled."""
        for informer in self._informers():
            await informer.synced()

    def _informers(self) -> list[Informer[Node] | Informer[Pod] | Informer[Namespace]]:
        optional = (self._pods, self._namespaces)
        return [self._nodes, *(each for each in optional if each is not None)]

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._facts[new.key] = NodeFacts.from_node(new)
        elif old is not None:
            self._facts.pop(old.key, None)

    async def collect(self) -> Collection:
        """Return the properties, resources and namespaces of the member."""
        await self._read_version()
        now = self._clock.now()
        facts = ClusterFacts(
            tuple(self._facts.values()),
            None if self._pods is None else self._requests.amounts,
            self._version,
            self._certificate_authority,
            None if self._leasing is None else self._leasing.leasing(now),
        )
        namespaces = None
        if self._namespaces is not None:
            namespaces = tuple(self._namespaces.items())
        # A cluster of thousands of nodes takes longer than the event loop may be held up.
        return await asyncio.to_thread(self._summarize, facts, namespaces, now)

    async def _read_version(self) -> None:
        now = self._clock.monotonic()
        if now - self._version_read_at < _VERSION_S:
            return
        try:
            answer = await self._member.request_json("GET", "/version")
        except ApiError:
            return  # the version that was read last stays; the next collection tries again
        self._version = str(answer.get("gitVersion") or "")
        self._version_read_at = now

    def _summarize(
        self, facts: ClusterFacts, namespaces: tuple[Namespace, ...] | None, now: datetime
    ) -> Collection:
        observed = text_of(now)
        nodes = [node.resources for node in facts.nodes]
        properties: dict[str, Json] = node_count(nodes, observed)
        conditions: list[Condition] = []
        texts: Mapping[str, str] = {}
        if self._options is not None:
            properties |= azure.sku_counts(nodes, observed)
            if self._options.with_costs:
                region = azure.region_of(nodes, self._options.region)
                costs = azure.costs_of(nodes, region, self._options.prices, now)
                properties |= costs.properties
                conditions.append(_condition(MemberCondition.COSTS_COLLECTED, costs))
            texts = identity_properties(facts)
        for name, value in {**self._extensions.properties(facts), **texts}.items():
            properties[name] = property_value(value, observed)
        listed: Namespaces | None = None
        if namespaces is not None:
            listed = namespaces_of(_namespace_document(each) for each in namespaces)
            conditions.append(_condition(MemberCondition.NAMESPACES_COLLECTED, listed))
        requested = None if facts.requested is None else [PodRequests(facts.requested)]
        usage = usage_of(nodes, requested).to_json(observed)
        return Collection(
            msgspec.convert(properties, dict[str, PropertyValue]),
            msgspec.convert(usage, ResourceUsage),
            None if listed is None else listed.works,
            tuple(conditions),
        )


def _condition(type_: str, outcome: azure.Costs | Namespaces) -> Condition:
    return Condition(type_, outcome.status, outcome.reason, outcome.message)


def _identity(meta: Meta) -> Meta:
    return Meta(meta.name, meta.namespace, meta.uid, meta.resource_version)


def _node(node: Node) -> Node:
    """Return a node for the cache: without its taints, conditions and addresses."""
    metadata = msgspec.structs.replace(_identity(node.metadata), labels=node.metadata.labels)
    status = msgspec.structs.replace(node.status, conditions=None, addresses=None)
    return Node(metadata=metadata, status=status)


def _pod(pod: Pod) -> Pod:
    """Return a pod for the cache: with its node, phase and requests only."""
    containers = tuple(
        Container(resources=each.resources)
        for each in pod.spec.containers or ()
        if each.resources and each.resources.requests
    )
    spec = msgspec.structs.replace(Pod().spec, node_name=pod.spec.node_name, containers=containers)
    status = msgspec.structs.replace(Pod().status, phase=pod.status.phase)
    return Pod(metadata=_identity(pod.metadata), spec=spec, status=status)


def _namespace(namespace: Namespace) -> Namespace:
    """Return a namespace for the cache: with its owners, phase and time of deletion only."""
    meta = namespace.metadata
    metadata = msgspec.structs.replace(
        _identity(meta),
        owner_references=meta.owner_references,
        deletion_timestamp=meta.deletion_timestamp,
    )
    return Namespace(metadata=metadata, status=namespace.status)


def _namespace_document(namespace: Namespace) -> Json:
    meta = namespace.metadata
    return {
        "metadata": {
            "name": meta.name,
            "deletionTimestamp": meta.deletion_timestamp,
            "ownerReferences": msgspec.to_builtins(meta.owner_references or ()),
        },
        "status": {"phase": namespace.status.phase},
    }
