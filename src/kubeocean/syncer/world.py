"""World: the two clusters of one binding, as the syncer sees them.

One client and one set of caches for each side, shared by all controllers. Only what is needed is
held: virtual nodes of this binding and the pods on them, the worker's nodes and policies, and of
other people's pods no more than what they request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Protocol

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Claim, Ids, claim_policy
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.leasing.counted import COUNTED_PODS
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, ObjectT, Resource
from kubeocean.syncer.podviews import (
    PHYSICAL_PODS,
    VIRTUAL_PODS,
    PhysicalPod,
    VirtualPod,
    bound_pods,
    virtual_key,
)
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.replicas import PROXIER_PODS, chosen_replica

__all__ = ["Cache", "World"]


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
    worker_id: Callable[[], str] = lambda: ""  # what `identity_of` says of the worker, once known
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
        # Everybody else's pods. Those that bear our label are in `ppods`, and come only once.
        self.elsewhere = self._cache(
            worker,
            COUNTED_PODS,
            fields=f"spec.nodeName!=,metadata.namespace!={self.mount_namespace}",
        )
        self.beside = self._cache(
            worker,
            COUNTED_PODS,
            namespace=self.mount_namespace,
            labels=f"{domain.managed_by}!={domain.product}",
            fields="spec.nodeName!=",
        )

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
            self.elsewhere,
            self.beside,
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

    def is_held(self, binding: ClusterBinding | None) -> bool:
        """Whether the binding cannot go before we have taken back what we lend to it."""
        held = binding.metadata.finalizers if binding is not None else None
        return self.domain.finalizer_syncer in (held or ())

    @property
    def ids(self) -> Ids:
        """What everything that we make in the worker is marked with."""
        return Ids(self.binding_name, self.cluster_id, self.computing_id)

    def concerns(self, policy: ResourceLeasingPolicy | None) -> bool:
        """Whether a policy lends to this binding, and not to one of that name elsewhere."""
        if policy is None or policy.spec.cluster != self.binding_name:
            return False
        return claim_policy(policy, ids=self.ids, domain=self.domain) is not Claim.FOREIGN

    def holds(self, policy: ResourceLeasingPolicy | None) -> bool:
        """Whether nobody can delete such a policy without us, nor lend by it."""
        if policy is None or not self.concerns(policy):
            return False
        finalized = self.domain.finalizer_policy in (policy.metadata.finalizers or ())
        return finalized and claim_policy(policy, ids=self.ids, domain=self.domain) is Claim.OURS

    def vnode_name(self, pnode: str) -> str:
        return naming.virtual_node(self.cluster_id, pnode)

    def now_text(self) -> str:
        """The time as Kubernetes writes it."""
        return f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"

    def proxier_ip(self, vnode: str) -> str:
        """The address of the replica that a virtual node points at; none if none runs."""
        return chosen_replica(self.proxiers.items(), vnode)

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
