"""The two clusters of one binding: clients, caches and identity, shared by all controllers.

There is one client and one set of caches for each cluster. The caches hold only objects that the
syncer needs: the virtual nodes of this binding and the pods on them, the worker's nodes and
policies, and of foreign pods no more than their requests.

Each virtual node points at one replica of the proxier. Nodes are spread over all ready replicas:
each node ranks the replicas by a hash of both names and takes the first. So no assignment is
stored; when a replica is gone, only its nodes move, and a new replica takes its share from all
others alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from functools import cached_property
from typing import Final, Protocol

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import NodeEvent
from kubeocean.api.group import Domain
from kubeocean.api.ownership import (
    Ids,
    Ownership,
    has_claimed,
    is_virtual_node_of,
    policy_ownership,
)
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.leasing.requests import COUNTED_PODS
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder, reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Key, Object, ObjectT, Resource
from kubeocean.syncer.pods.plan import is_own_node
from kubeocean.syncer.pods.views import (
    PHYSICAL_PODS,
    VIRTUAL_PODS,
    PhysicalPod,
    VirtualPod,
    bound_pods,
    virtual_key,
)
from kubeocean.syncer.worker_health import WorkerHealth

__all__ = ["PROXIER_PODS", "Cache", "Clusters", "ProxierPod", "chosen_replica"]


class _ProxierStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = None


class ProxierPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A replica of the proxier."""

    status: _ProxierStatus = msgspec.field(default_factory=_ProxierStatus)

    @property
    def address(self) -> str:
        """The IP address of the pod; empty if it does not run."""
        return self.status.pod_ip if self.status.phase == "Running" else ""

    @property
    def ready(self) -> bool:
        """Whether the pod is Ready and not being deleted."""
        conditions = self.status.conditions or ()
        ready = any(c.type == "Ready" and c.status == "True" for c in conditions)
        return ready and not self.deleting


PROXIER_PODS: Final = Resource("", "v1", "pods", "Pod", True, ProxierPod)


def chosen_replica(replicas: Iterable[ProxierPod], vnode: str) -> str:
    """Return the address of the proxier replica that a virtual node points at; empty if none runs.

    Ready replicas come first, then replicas that are not ready, then replicas being deleted.
    """
    running = [replica for replica in replicas if replica.address]

    def preference(replica: ProxierPod) -> tuple[bool, bool, bytes, str]:
        return not replica.ready, replica.deleting, _rank(replica.name, vnode), replica.address

    return min(running, key=preference).address if running else ""


def _rank(replica: str, vnode: str) -> bytes:
    """Return a hash of two names, by which a virtual node ranks the replicas of the proxier.

    Addresses do not count: a replica that restarts under its name keeps its nodes.
    """
    return hashlib.sha256(f"{replica}\0{vnode}".encode()).digest()


class Cache(Protocol):
    """An informer of objects of any kind."""

    @property
    def has_synced(self) -> bool: ...

    async def run(self) -> None: ...

    def on_listed(self, handler: Callable[[], None]) -> None: ...


@dataclass(kw_only=True)
class Clusters:
    """The clients, caches and identity that all controllers of a syncer share."""

    binding_name: str
    cluster_id: str
    computing_id: str  # of the computing cluster, by `identity_of`
    computing: Client
    worker: Client
    worker_health: WorkerHealth
    events: EventRecorder
    worker_events: EventRecorder
    domain: Domain = group.DEFAULT
    mount_namespace: str = ""  # of physical pods; empty means the domain's own
    zone: tzinfo = UTC  # of policies that set none
    worker_id: Callable[[], str] = lambda: ""  # of the worker, by `identity_of`, once it is known
    metrics_port: int = group.VNODE_METRICS_PORT
    remove_nodes_after_s: float = 0  # without an answer of the worker; 0 means never
    secrets_by_namespace: bool = False  # whether Secrets are read only where the manager grants it
    proxier_namespace: str = ""  # of the proxier's replicas; empty means the domain's own
    management: Client | None = None  # of the cluster with the proxier's replicas, if another
    clock: Clock = field(default_factory=RealClock)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        domain, computing, worker = self.domain, self.computing, self.worker
        self.mount_namespace = self.mount_namespace or domain.worker_namespace
        binding = naming.label_value(self.binding_name)
        self._warned: set[str] = set()  # UIDs of foreign nodes that have our labels
        self._vnode_prefix = naming.virtual_node_prefix(self.cluster_id)
        self.bindings = self._cache(
            computing, CLUSTER_BINDINGS, fields=f"metadata.name={self.binding_name}"
        )
        self.vnodes = self._cache(
            computing,
            NODES,
            labels=f"{domain.managed_by}={domain.product},{domain.cluster_binding}={binding}",
            indexes={"policy": self._policy_of},
            keep=self._is_our_vnode,
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
            self.management or computing,
            PROXIER_PODS,
            namespace=self.proxier_namespace or domain.system_namespace,
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
        # Foreign pods. Pods with our label are in `ppods`, and are watched only once.
        self.foreign_pods = self._cache(
            worker,
            COUNTED_PODS,
            fields=f"spec.nodeName!=,metadata.namespace!={self.mount_namespace}",
        )
        self.foreign_pods_in_mount = self._cache(
            worker,
            COUNTED_PODS,
            namespace=self.mount_namespace,
            labels=f"{domain.managed_by}!={domain.product}",
            fields="spec.nodeName!=",
        )
        required = (
            self.pnodes,
            self.ppods,
            self.policies,
            self.foreign_pods,
            self.foreign_pods_in_mount,
        )
        for each in required:
            self.worker_health.require(each.scope.path)
            self.worker_health.relist_on_return(each.scope.path, each)
        self._synced_handlers: list[Callable[[], None]] = []
        for cache in self.caches:
            cache.on_listed(self._listed)

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
        """All caches of both clusters, in the order in which they are started."""
        return (
            self.bindings,
            self.vnodes,
            self.vpods,
            self.proxiers,
            self.pnodes,
            self.ppods,
            self.policies,
            self.foreign_pods,
            self.foreign_pods_in_mount,
        )

    @property
    def synced(self) -> bool:
        return all(cache.has_synced for cache in self.caches)

    def on_synced(self, handler: Callable[[], None]) -> None:
        """Call `handler` once, when all caches have synced: keys that were reconciled before then
        wait for a retry."""
        self._synced_handlers.append(handler)

    def _listed(self) -> None:
        if self._synced_handlers and self.synced:
            handlers, self._synced_handlers = self._synced_handlers, []
            for handler in handlers:
                handler()

    @property
    def computing_synced(self) -> bool:
        """Whether the caches that a deletion needs while the worker does not answer have synced."""
        caches = (self.bindings, self.vnodes, self.vpods)
        return all(cache.has_synced for cache in caches)

    @property
    def binding(self) -> ClusterBinding | None:
        return self.bindings.get(Key("", self.binding_name))

    @property
    def trusts_fully(self) -> bool:
        """Whether the binding gives its worker more trust than Kubernetes gives a kubelet."""
        return self.binding is not None and self.binding.spec.trusts_fully

    def has_finalizer(self, binding: ClusterBinding | None) -> bool:
        """Whether a binding has the syncer's finalizer, until its nodes are reclaimed."""
        finalizers = binding.metadata.finalizers if binding is not None else None
        return self.domain.finalizer_syncer in (finalizers or ())

    @cached_property
    def ids(self) -> Ids:
        """The IDs in the labels of every object that this syncer creates in the worker."""
        return Ids(self.binding_name, self.cluster_id, self.computing_id)

    def concerns(self, policy: ResourceLeasingPolicy | None) -> bool:
        """Whether a policy lends to this binding, and not to its namesake in another cluster."""
        if policy is None or policy.spec.cluster != self.binding_name:
            return False
        return policy_ownership(policy, ids=self.ids, domain=self.domain) is not Ownership.FOREIGN

    def is_ours(self, policy: ResourceLeasingPolicy | None) -> bool:
        """Whether a policy lends to this binding, and has our finalizer and claim."""
        if policy is None or not self.concerns(policy):
            return False
        finalized = self.domain.finalizer_policy in (policy.metadata.finalizers or ())
        return (
            finalized
            and policy_ownership(policy, ids=self.ids, domain=self.domain) is Ownership.OURS
        )

    def was_ours(self, policy: ResourceLeasingPolicy) -> bool:
        """Whether a policy with our claim names another binding now."""
        named = policy.spec.cluster == self.binding_name
        return not named and has_claimed(policy, ids=self.ids, domain=self.domain)

    def vnode_name(self, pnode: str) -> str:
        return naming.virtual_node(self.cluster_id, pnode)

    def now_text(self) -> str:
        """Return the current time in the format of Kubernetes."""
        return f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"

    def proxier_ip(self, vnode: str) -> str:
        """Return the address of the proxier replica of a virtual node; empty if none runs."""
        return chosen_replica(self.proxiers.items(), vnode)

    def pnode_of(self, vnode: Node) -> str:
        """Return the name of the worker's node that a virtual node stands for."""
        name = vnode.annotations.get(self.domain.physical_node_name)
        return name or vnode.labels.get(self.domain.physical_node_name, "")

    def is_on_own_node(self, vpod: VirtualPod) -> bool:
        """Whether a virtual pod is bound to an existing virtual node of this binding."""
        return is_own_node(self.vnodes.get(Key("", vpod.spec.node_name)), self.ids, self.domain)

    def is_vnode(self, node: Node) -> bool:
        """Whether a Node of the computing cluster is a virtual node of this binding."""
        return is_virtual_node_of(
            node, binding=self.binding_name, cluster_id=self.cluster_id, domain=self.domain
        )

    def _is_our_vnode(self, node: Node) -> bool:
        """Whether a node is a virtual node of this binding; a foreign node with our labels is
        reported by an event and stays out of the cache.
        """
        if self.is_vnode(node):
            self._warned.discard(node.uid)
            return True
        if node.uid not in self._warned:
            self._warned.add(node.uid)
            message = (
                f"This node has the labels of a virtual node of binding {self.binding_name}, but"
                " is not one; Kubeocean does not change it"
            )
            self.events.emit(reference(NODES, node), "Warning", NodeEvent.NOT_VIRTUAL, message)
        return False

    def _may_be_ours(self, pod: VirtualPod) -> bool:
        """Whether the name of the pod's node has the prefix of this binding's virtual nodes.

        Only names are compared, because the cache of nodes may not have synced. The clusterID of
        another binding may begin with this binding's clusterID; then its nodes match, too. Use
        `is_on_own_node` to exclude these.
        """
        return pod.spec.node_name.startswith(self._vnode_prefix)

    def _virtual_of(self, pod: PhysicalPod) -> tuple[str, ...]:
        return (str(virtual_key(pod, self.domain)),)

    def _policy_of(self, vnode: Node) -> tuple[str, ...]:
        return (vnode.annotations.get(self.domain.policies_applied, ""),)
