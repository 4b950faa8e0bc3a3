"""The parts of both clusters from which a node, a pod or a binding is explained.

Every part is read, absent (None) or a `NotRead`, as in `inspect.snapshot`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from kubeocean.api import group
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.policies import Eviction
from kubeocean.inspect.snapshot import (
    NotRead,
    SnapshotPart,
    WorkerSnapshot,
    WorkerState,
    failures,
)
from kubeocean.leasing.requests import CountedPod
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import Event, Lease, Node
from kubeocean.runtime.objects import Key
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

__all__ = [
    "BindingDetails",
    "BindingSnapshot",
    "EvictionRecord",
    "NodeSnapshot",
    "PodSnapshot",
    "RolloutSnapshot",
    "is_fresh",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSnapshot:
    """A binding with its worker, and the election of its syncers.

    `worker` is None if the binding does not exist.
    """

    now: datetime
    name: str = ""
    worker: WorkerSnapshot | NotRead | None = None
    election: Lease | NotRead | None = None
    zone: tzinfo = UTC  # of policies that name none
    domain: Domain = field(default=group.DEFAULT)

    @property
    def present(self) -> WorkerSnapshot | None:
        """The binding and its worker, if the binding exists and was read."""
        return None if isinstance(self.worker, NotRead) else self.worker

    @property
    def binding(self) -> ClusterBinding | None:
        return self.present.binding if self.present is not None else None

    @property
    def problem(self) -> str:
        """Why the worker cannot be read; empty if it answered."""
        worker = self.present
        if worker is None or worker.state is WorkerState.ANSWERED:
            return ""
        return worker.message or "it was not read"

    @property
    def mount(self) -> str:
        """The worker's namespace in which the binding's pods run."""
        named = self.binding.spec.mount_namespace if self.binding is not None else ""
        return named or self.domain.worker_namespace

    @property
    def unread(self) -> tuple[NotRead, ...]:
        worker = self.present
        parts = (worker.ids, worker.policies) if worker is not None else (self.worker,)
        return failures(*parts, self.election)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """A virtual node, the worker's node that it represents, and the pods on each."""

    binding: BindingSnapshot
    name: str  # of the virtual node
    pnode_name: str = ""
    vnode: Node | NotRead | None = None
    pnode: Node | NotRead | None = None
    worker_pods: SnapshotPart[tuple[CountedPod, ...]] = ()  # on the worker's node
    pods: SnapshotPart[tuple[VirtualPod, ...]] = ()  # on the virtual node
    heartbeat: Lease | NotRead | None = None
    # All nodes of the worker; read only if a policy limits a resource that this node does not have
    worker_nodes: SnapshotPart[tuple[Node, ...]] = ()
    namesakes: tuple[str, ...] = ()  # further bindings with a node of that name
    searched: tuple[NotRead, ...] = ()  # where a node that was not found could not be searched

    @property
    def virtual(self) -> Node | None:
        """The virtual node, if it exists and was read."""
        return None if isinstance(self.vnode, NotRead) else self.vnode

    @property
    def physical(self) -> Node | None:
        """The worker's node, if it exists and was read."""
        return None if isinstance(self.pnode, NotRead) else self.pnode

    @property
    def unread(self) -> tuple[NotRead, ...]:
        own = (self.vnode, self.pnode, self.worker_pods, self.pods, self.heartbeat)
        return failures(*self.binding.unread, *own, self.worker_nodes, *self.searched)


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """An eviction of a pod that the status of a policy records."""

    policy: str
    binding: str
    eviction: Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSnapshot:
    """A pod of the computing cluster, and the objects of both clusters that concern it.

    `absent` are objects that the pod refers to and that do not exist, as `ConfigMap ns/name`. A pod
    without a node has `nodes`: all virtual nodes, with the pods on each of them.
    """

    key: Key
    now: datetime
    domain: Domain = field(default=group.DEFAULT)
    pod: VirtualPod | NotRead | None = None  # with its raw bytes
    node: NodeSnapshot | NotRead | None = None  # to which the pod is bound
    nodes: SnapshotPart[tuple[Node, ...]] = ()
    node_pods: SnapshotPart[Mapping[str, tuple[CountedPod, ...]]] = field(default_factory=dict)
    closest: Mapping[str, NodeSnapshot] = field(default_factory=dict)  # by virtual node
    ppods: SnapshotPart[tuple[PhysicalPod, ...]] = ()  # with one of the names that the pod may have
    absent: tuple[str, ...] = ()
    events: SnapshotPart[tuple[Event, ...]] = ()
    worker_events: SnapshotPart[tuple[Event, ...]] = ()  # of the physical pod
    evictions: tuple[EvictionRecord, ...] = ()
    others: tuple[NotRead, ...] = ()  # further reads that failed

    @property
    def unread(self) -> tuple[NotRead, ...]:
        nodes = [*self.closest.values()]
        if isinstance(self.node, NodeSnapshot):
            nodes.append(self.node)
        own = (self.pod, self.node, self.nodes, self.node_pods, self.ppods)
        of_nodes = (part for node in nodes for part in node.unread)
        return failures(*own, self.events, self.worker_events, *of_nodes, *self.others)


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """Rollout of the Deployment of a binding's syncer or proxier: its state, and whether it is
    done.
    """

    name: str
    message: str
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingDetails:
    """A binding with the parts that explain it: other bindings, its programs and virtual nodes."""

    binding: BindingSnapshot
    others: SnapshotPart[tuple[ClusterBinding, ...]] = ()
    nodes: SnapshotPart[tuple[Node, ...]] = ()
    rollouts: SnapshotPart[tuple[RolloutSnapshot, ...]] = ()

    @property
    def unread(self) -> tuple[NotRead, ...]:
        worker = self.binding.present
        rights = (worker.server.version, worker.missing, worker.namespace) if worker else ()
        own = (self.others, self.nodes, self.rollouts)
        return failures(*self.binding.unread, *rights, *own)


def is_fresh(lease: Lease | NotRead | None, now: datetime) -> bool:
    """Whether the holder of a Lease has renewed it within the lease duration."""
    if lease is None or isinstance(lease, NotRead) or not lease.spec.renew_time:
        return False
    renewed = instant_of(lease.spec.renew_time)
    return (now - renewed).total_seconds() <= (lease.spec.lease_duration_seconds or 0)
