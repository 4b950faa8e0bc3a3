"""Facts: what was read of both clusters, all at about one time, and what could not be read.

Rules decide from these alone. A worker that cannot be read leaves its facts empty and `problem`
says why; whoever decides has to look at that first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from kubeocean.api import group
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import Eviction, ResourceLeasingPolicy
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.kinds import Event, Lease, Node
from kubeocean.runtime.objects import Key
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod

__all__ = ["BindingFacts", "Evicted", "NodeFacts", "PodFacts", "Roll", "Side", "is_fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A binding, and what is known of its worker; `problem` is why that cannot be read."""

    now: datetime
    name: str = ""
    binding: ClusterBinding | None = None
    ids: Ids | None = None
    problem: str = ""
    policies: tuple[ResourceLeasingPolicy, ...] = ()  # of the whole worker
    election: Lease | None = None  # that of the syncers
    zone: tzinfo = UTC  # of policies that name none
    domain: Domain = field(default=group.DEFAULT)
    unread: tuple[str, ...] = ()

    @property
    def mount(self) -> str:
        """Where pods run in the worker."""
        said = self.binding.spec.mount_namespace if self.binding is not None else ""
        return said or self.domain.worker_namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A virtual node and the worker's node that it stands for; either may be missing."""

    side: Side
    name: str  # of the virtual node
    pnode_name: str = ""
    vnode: Node | None = None
    pnode: Node | None = None
    counted: tuple[CountedPod, ...] = ()  # all pods on the worker's node
    guests: tuple[VirtualPod, ...] = ()
    heartbeat: Lease | None = None
    namesakes: tuple[str, ...] = ()  # further bindings whose worker has a node of that name
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evicted:
    """A policy says that it made a pod of this name leave."""

    policy: str
    binding: str
    eviction: Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod of the computing cluster, and all that may be said of it on either side.

    `absent` are objects that it refers to and that are not there, as `ConfigMap ns/name`. Pods
    without a node have `nodes`: all virtual ones, with what the pods on each request.
    """

    key: Key
    now: datetime
    domain: Domain = field(default=group.DEFAULT)
    pod: VirtualPod | None = None  # with its bytes
    node: NodeFacts | None = None  # where it is bound to
    nodes: tuple[Node, ...] = ()
    taken: Mapping[str, tuple[CountedPod, ...]] = field(default_factory=dict)  # by node
    bindings: Mapping[str, NodeFacts] = field(default_factory=dict)  # by virtual node
    ppods: tuple[PhysicalPod, ...] = ()  # of its names, or that say that they are for it
    absent: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()  # above
    below: tuple[Event, ...] = ()  # of the physical pod
    evicted: tuple[Evicted, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Roll:
    """A program of a binding, as its Deployment says."""

    name: str
    said: str
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingFacts:
    """A binding, its programs, and what it may do in its worker."""

    side: Side
    others: tuple[ClusterBinding, ...] = ()
    secret: str = ""  # what is wrong with its credentials
    version: str = ""  # of the worker
    missing: tuple[str, ...] = ()  # rights
    namespace: bool | None = None  # whether the mount namespace is there; None: not known
    nodes: tuple[Node, ...] = ()
    rolls: tuple[Roll, ...] = ()
    unread: tuple[str, ...] = ()


def is_fresh(lease: Lease | None, now: datetime) -> bool:
    """Whether whoever holds a lease is alive."""
    if lease is None or not lease.spec.renew_time:
        return False
    renewed = instant_of(lease.spec.renew_time)
    return (now - renewed).total_seconds() <= (lease.spec.lease_duration_seconds or 0)
