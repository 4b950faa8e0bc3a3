"""Model: the ocean at one instant.

    OceanView
    ├── manager: ProgramView
    ├── clusters: ClusterView       one for each binding
    │   ├── connection              what the syncer says of the worker
    │   ├── worker                  what we heard of the worker ourselves
    │   ├── syncer, proxier: ProgramView
    │   ├── nodes: NodeView         one for each virtual node
    │   ├── leases: LeaseView       one for each policy
    │   └── pods: PodCounts
    └── health                      what is not well, and what could not be seen

Views hold no time that passes by itself, but for `OceanView.at`: as long as nothing happens, two of
them differ in nothing else. Their fields are the keys of documents, and so an interface.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from kubeocean.leasing.amounts import Amounts

__all__ = [
    "ClusterView",
    "Connection",
    "ConnectionState",
    "Edge",
    "Health",
    "LeaseState",
    "LeaseView",
    "NodeState",
    "NodeView",
    "OceanView",
    "PodCounts",
    "ProgramState",
    "ProgramView",
    "ReclaimView",
    "Remark",
    "Resources",
    "WorkerState",
    "WorkerView",
]


class ConnectionState(StrEnum):
    """What the syncer says of its worker."""

    CONNECTED = "Connected"
    NOT_CONNECTED = "NotConnected"
    UNKNOWN = "Unknown"  # nobody has said anything yet


class WorkerState(StrEnum):
    """What became of our own question to a worker."""

    ANSWERED = "Answered"
    SILENT = "Silent"  # no answer in time
    REFUSED = "Refused"  # it answered that we may not know
    UNUSABLE = "Unusable"  # the binding's Secret is missing, or makes no sense
    NOT_ALLOWED = "NotAllowed"  # the viewer may not read that Secret
    NOT_ASKED = "NotAsked"


class ProgramState(StrEnum):
    """Whether one of our programs works."""

    RUNNING = "Running"
    DEGRADED = "Degraded"  # not all of its replicas serve
    DOWN = "Down"
    UNKNOWN = "Unknown"  # there is nothing to see it by


class NodeState(StrEnum):
    """Whether a virtual node takes pods, as far as the lease decides."""

    LENT = "Lent"
    CORDONED = "Cordoned"
    CLOSED = "Closed"  # outside the windows of its policy
    LEAVING = "Leaving"  # it is being taken back for good


class LeaseState(StrEnum):
    """Whether a policy lends now."""

    OPEN = "Open"
    CLOSED = "Closed"
    INVALID = "Invalid"
    DELETING = "Deleting"
    UNKNOWN = "Unknown"  # it depends on the zone of a syncer that has not looked at it


@dataclass(frozen=True, slots=True)
class Resources:
    """What is lent, what pods request of it, and what of it new pods could have."""

    lent: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    free: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods by phase; `terminating`, `refused` and `late` are counted in their phase as well."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    refused: int = 0  # the worker does not take them
    late: int = 0  # minutes ago something should have been done with them

    @property
    def total(self) -> int:
        return self.pending + self.running + self.succeeded + self.failed + self.unknown


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether the worker answers its syncer, and since when that is so."""

    state: ConnectionState = ConnectionState.UNKNOWN
    since: datetime | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Whether the worker answered us."""

    state: WorkerState = WorkerState.NOT_ASKED
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProgramView:
    """One of our programs; without a Deployment no replicas are wanted."""

    state: ProgramState = ProgramState.UNKNOWN
    wanted: int = 0
    serving: int = 0
    leader: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One virtual node. `lent` is zero of everything while its lease is closed."""

    name: str
    physical: str = ""
    ready: str = "Unknown"  # True, False or Unknown
    since: datetime | None = None
    reason: str = ""
    state: NodeState = NodeState.LENT
    policy: str = ""
    offered: Amounts = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    pods: PodCounts = field(default_factory=PodCounts)

    @property
    def is_ready(self) -> bool:
        return self.ready == "True"


@dataclass(frozen=True, slots=True)
class Edge:
    """When a lease opens or closes next; `local` is the same time in the policy's own zone."""

    time: datetime
    local: datetime
    zone: str
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimView:
    """How far taking back is."""

    reason: str = ""
    message: str = ""
    since: datetime | None = None
    evicts_from: datetime | None = None
    deadline: datetime | None = None
    nodes: int = 0
    pods: int = 0
    evicted: int = 0
    blocked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """One policy. `seen` is whether the policy itself was read, or only nodes that it lends."""

    policy: str
    state: LeaseState
    seen: bool = True
    zone: str = ""
    windows: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    next_edge: Edge | None = None
    overdue: bool = False  # the last edge has passed, and nobody has told of it
    nodes: int = 0
    force_reclaim: bool = False
    reclaim: ReclaimView | None = None  # while it is under way
    message: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to say of a cluster, or of the ocean; what is not `bad` is only good to know."""

    cluster: str
    message: str
    bad: bool = True

    def __str__(self) -> str:
        return f"{self.cluster}: {self.message}" if self.cluster else self.message


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all is well; problems are why not, notes what is good to know."""

    healthy: bool = True
    problems: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One binding and its worker."""

    name: str
    cluster_id: str = ""
    phase: str = ""
    message: str = ""
    deleting: bool = False
    waits_for: str = ""  # while it is deleted
    troubles: tuple[str, ...] = ()  # what else its conditions complain about
    connection: Connection = field(default_factory=Connection)
    worker: WorkerView = field(default_factory=WorkerView)
    syncer: ProgramView = field(default_factory=ProgramView)
    proxier: ProgramView = field(default_factory=ProgramView)
    nodes: tuple[NodeView, ...] = ()
    leases: tuple[LeaseView, ...] = ()
    pods: PodCounts = field(default_factory=PodCounts)
    resources: Resources = field(default_factory=Resources)

    @property
    def ready_nodes(self) -> int:
        return sum(node.is_ready for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OceanView:
    """Everything."""

    at: datetime
    manager: ProgramView = field(default_factory=ProgramView)
    clusters: tuple[ClusterView, ...] = ()
    pods: PodCounts = field(default_factory=PodCounts)
    resources: Resources = field(default_factory=Resources)
    health: Health = field(default_factory=Health)
