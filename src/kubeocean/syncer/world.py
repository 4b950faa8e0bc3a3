"""World: the two clusters of one binding, as the syncer sees them.

One client and one set of caches for each side, shared by all controllers. Only what is needed is
held: virtual nodes of this binding and the pods on them, the worker's nodes and policies, and of
other people's pods no more than what they request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final, Protocol

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.leasing.counted import COUNTED_PODS
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Key, Object, ObjectT, Resource
from kubeocean.syncer.podviews import (
    PHYSICAL_PODS,
    VIRTUAL_PODS,
    PhysicalPod,
    VirtualPod,
    bound_pods,
    virtual_key,
)
from kubeocean.syncer.reach import Reach

__all__ = ["PROXIER_PODS", "Cache", "ProxierPod", "World", "chosen_replica"]


class _ProxierStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = None


class ProxierPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A replica of the proxier, as far as virtual nodes point at it."""

    status: _ProxierStatus = msgspec.field(default_factory=_ProxierStatus)

    @property
    def address(self) -> str:
        """Where it runs; nothing if it does not."""
        return self.status.pod_ip if self.status.phase == "Running" else ""

    @property
    def ready(self) -> bool:
        """Whether it takes work, and goes on doing so."""
        said = self.status.conditions or ()
        return not self.deleting and any(c.type == "Ready" and c.status == "True" for c in said)


PROXIER_PODS: Final = Resource("", "v1", "pods", "Pod", True, ProxierPod)


class Cache(Protocol):
    """An informer of anything."""

    @property
    def has_synced(self) -> bool: ...

    async def run(self) -> None: ...


@dataclass(kw_only=True)
class World:
    """What every controller of a syncer shares."""

    binding_name: str
    cluster_id: str
    computing_id: str  # what `identity_of` says of the computing cluster
    computing: Client
    worker: Client
    reach: Reach
    events: EventRecorder
    worker_events: EventRecorder
    domain: Domain = group.DEFAULT
    mount_namespace: str = ""  # where pods run in the worker; none means the domain's own
    zone: tzinfo = UTC  # of policies that name none
    metrics_port: int = group.VNODE_METRICS_PORT
    clock: Clock = field(default_factory=RealClock)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        domain, computing, worker = self.domain, self.computing, self.worker
        self.mount_namespace = self.mount_namespace or domain.worker_namespace
        binding = naming.label_value(self.binding_name)
        self._vnode_prefix = naming.virtual_node_prefix(self.cluster_id)
        self.bindings = self._cache(
            computing, CLUSTER_BINDINGS, fields=f"metadata.name={self.binding_name}"
        )
        self.vnodes = self._cache(
            computing,
            NODES,
            labels=f"{domain.managed_by}={domain.product},{domain.cluster_binding}={binding}",
            indexes={"policy": self._policy_of},
            keep_raw=True,
        )
        self.vpods = self._cache(
            computing,
            VIRTUAL_PODS,
            fields=bound_pods(domain),
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            keep=self._may_be_ours,
            keep_raw=True,
        )
        self.proxiers = self._cache(
            computing,
            PROXIER_PODS,
            namespace=domain.system_namespace,
            labels=f"{group.APP_NAME}={domain.proxier},{group.APP_INSTANCE}={binding}",
        )
        self.pnodes = self._cache(worker, NODES, keep_raw=True)
        self.ppods = self._cache(
            worker,
            PHYSICAL_PODS,
            namespace=self.mount_namespace,
            labels=f"{domain.managed_by}={domain.product}",
            indexes={"virtual": self._virtual_of},
            keep_raw=True,
        )
        self.policies = self._cache(worker, RESOURCE_LEASING_POLICIES, keep_raw=True)
        self.counted = self._cache(worker, COUNTED_PODS, fields="spec.nodeName!=")

    def _cache(
        self,
        client: Client,
        resource: Resource[ObjectT],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Callable[[ObjectT], Iterable[str]]] | None = None,
        keep: Callable[[ObjectT], bool] | None = None,
        keep_raw: bool = False,
    ) -> Informer[ObjectT]:
        return Informer(
            client,
            resource,
            namespace=namespace,
            labels=labels,
            fields=fields,
            indexes=indexes,
            keep=keep,
            keep_raw=keep_raw,
            clock=self.clock,
            metrics=self.metrics,
        )

    @property
    def caches(self) -> tuple[Cache, ...]:
        """All of them, in the order in which they are started."""
        return (
            self.bindings,
            self.vnodes,
            self.vpods,
            self.proxiers,
            self.pnodes,
            self.ppods,
            self.policies,
            self.counted,
        )

    @property
    def synced(self) -> bool:
        return all(cache.has_synced for cache in self.caches)

    @property
    def computing_synced(self) -> bool:
        """Whether enough is known to let go of everything without the worker's word."""
        caches = (self.bindings, self.vnodes, self.vpods)
        return all(cache.has_synced for cache in caches)

    @property
    def binding(self) -> ClusterBinding | None:
        return self.bindings.get(Key("", self.binding_name))

    @property
    def ids(self) -> Ids:
        """What everything that we make in the worker is marked with."""
        return Ids(self.binding_name, self.cluster_id, self.computing_id)

    def vnode_name(self, pnode: str) -> str:
        return naming.virtual_node(self.cluster_id, pnode)

    def now_text(self) -> str:
        """The time as Kubernetes writes it."""
        return f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"

    def proxier_ip(self) -> str:
        """The address of the replica that virtual nodes point at; none if none runs."""
        return chosen_replica(self.proxiers.items())

    def pnode_of(self, vnode: Node) -> str:
        """The name of the worker's node that a virtual node stands for."""
        name = vnode.annotations.get(self.domain.physical_node_name)
        return name or vnode.labels.get(self.domain.physical_node_name, "")

    def _may_be_ours(self, pod: VirtualPod) -> bool:
        """By the name of its node alone: which nodes there are may not be known yet."""
        return pod.spec.node_name.startswith(self._vnode_prefix)

    def _virtual_of(self, pod: PhysicalPod) -> tuple[str, ...]:
        return (str(virtual_key(pod, self.domain)),)

    def _policy_of(self, vnode: Node) -> tuple[str, ...]:
        return (vnode.annotations.get(self.domain.policies_applied, ""),)


def chosen_replica(replicas: Iterable[ProxierPod]) -> str:
    """The address of the oldest replica that is ready, so that one that comes moves no node; while
    none is, of one that may become so, so that a blink moves none either."""
    running = [replica for replica in replicas if replica.address]

    def preference(replica: ProxierPod) -> tuple[bool, bool, str, str]:
        age = replica.metadata.creation_timestamp or ""
        return not replica.ready, replica.deleting, age, replica.address

    return min(running, key=preference).address if running else ""
