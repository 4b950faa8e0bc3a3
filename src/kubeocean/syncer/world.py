"""World: the two clusters of one binding, as the syncer sees them.

One client and one set of caches for each side, shared by all controllers. Only what is needed is
held: virtual nodes of this binding, the worker's nodes and policies, and of pods no more than what
they request or tolerate.
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
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.leasing.counted import COUNTED_PODS
from kubeocean.leasing.tolerations import Toleration
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource
from kubeocean.syncer.reach import Reach

__all__ = ["GUEST_PODS", "PROXIER_PODS", "Cache", "GuestPod", "ProxierPod", "World"]


class _GuestSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    priority: int | None = None
    tolerations: tuple[Toleration, ...] | None = None


class _GuestStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""


class GuestPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod of the computing cluster, as far as taking back its node needs it."""

    spec: _GuestSpec = msgspec.field(default_factory=_GuestSpec)
    status: _GuestStatus = msgspec.field(default_factory=_GuestStatus)


class _ProxierStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class ProxierPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A replica of the proxier, as far as virtual nodes point at it."""

    status: _ProxierStatus = msgspec.field(default_factory=_ProxierStatus)


GUEST_PODS: Final = Resource("", "v1", "pods", "Pod", True, GuestPod)
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
    computing: Client
    worker: Client
    reach: Reach
    events: EventRecorder
    worker_events: EventRecorder
    domain: Domain = group.DEFAULT
    zone: tzinfo = UTC  # of policies that name none
    metrics_port: int = group.VNODE_METRICS_PORT
    clock: Clock = field(default_factory=RealClock)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        domain, computing, worker = self.domain, self.computing, self.worker
        binding = naming.label_value(self.binding_name)
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
        self.guests = self._cache(
            computing,
            GUEST_PODS,
            fields="spec.nodeName!=",
            indexes={"node": lambda pod: (pod.spec.node_name,)},
        )
        self.proxiers = self._cache(
            computing,
            PROXIER_PODS,
            namespace=domain.system_namespace,
            labels=f"{group.APP_NAME}={domain.proxier},{group.APP_INSTANCE}={binding}",
        )
        self.pnodes = self._cache(worker, NODES, keep_raw=True)
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
        keep_raw: bool = False,
    ) -> Informer[ObjectT]:
        return Informer(
            client,
            resource,
            namespace=namespace,
            labels=labels,
            fields=fields,
            indexes=indexes,
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
            self.guests,
            self.proxiers,
            self.pnodes,
            self.policies,
            self.counted,
        )

    @property
    def synced(self) -> bool:
        return all(cache.has_synced for cache in self.caches)

    @property
    def binding(self) -> ClusterBinding | None:
        return self.bindings.get(Key("", self.binding_name))

    def vnode_name(self, pnode: str) -> str:
        return naming.virtual_node(self.cluster_id, pnode)

    def now_text(self) -> str:
        """The time as Kubernetes writes it."""
        return f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"

    def proxier_ip(self) -> str:
        """The address of a running replica; always the same one while it runs."""
        running = (p for p in self.proxiers.items() if p.status.phase == "Running")
        return min((p.status.pod_ip for p in running if p.status.pod_ip), default="")

    def pnode_of(self, vnode: Node) -> str:
        """The name of the worker's node that a virtual node stands for."""
        name = vnode.annotations.get(self.domain.physical_node_name)
        return name or vnode.labels.get(self.domain.physical_node_name, "")

    def _policy_of(self, vnode: Node) -> tuple[str, ...]:
        return (vnode.annotations.get(self.domain.policies_applied, ""),)
