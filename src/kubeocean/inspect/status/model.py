"""The view of an installation that status and top show.

    InstallationView
    ├── manager: ProgramView
    ├── clusters: ClusterView       one for each binding
    │   ├── connection              the syncer's report on the worker
    │   ├── worker                  the answer of the worker to the reader itself
    │   ├── syncer, proxier: ProgramView
    │   ├── nodes: NodeView         one for each virtual node
    │   ├── leases: LeaseView       one for each policy
    │   └── pods: PodCounts
    └── health                      problems, and parts that could not be read

Only `InstallationView.at` depends on the time of the read: while nothing changes, two views differ
in nothing else. The fields are the keys of documents, and so an interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from kubeocean.inspect.findings import Finding
from kubeocean.inspect.pod_counts import PodCounts
from kubeocean.inspect.snapshot import NotRead, WorkerState
from kubeocean.leasing.amounts import Amounts

__all__ = [
    "ClusterView",
    "Connection",
    "ConnectionState",
    "Edge",
    "InstallationHealth",
    "InstallationView",
    "LeaseState",
    "LeaseView",
    "NodeState",
    "NodeView",
    "ProgramState",
    "ProgramView",
    "ReclaimView",
    "Resources",
    "WorkerView",
]


class ConnectionState(StrEnum):
    """Whether a worker is connected, as its syncer reports."""

    CONNECTED = "Connected"
    NOT_CONNECTED = "NotConnected"
    UNKNOWN = "Unknown"  # no syncer has reported yet


class ProgramState(StrEnum):
    """Whether a manager, a syncer or a proxier works."""

    RUNNING = "Running"
    DEGRADED = "Degraded"  # not all of its replicas serve
    DOWN = "Down"
    UNKNOWN = "Unknown"  # no Deployment, Lease or condition shows the state


class NodeState(StrEnum):
    """Whether a virtual node takes pods, as far as leasing decides."""

    LENT = "Lent"
    CORDONED = "Cordoned"
    CLOSED = "Closed"  # outside the windows of its policy
    LEAVING = "Leaving"  # being reclaimed for good


class LeaseState(StrEnum):
    """Whether a policy lends now."""

    OPEN = "Open"
    CLOSED = "Closed"
    INVALID = "Invalid"
    DELETING = "Deleting"
    UNKNOWN = "Unknown"  # depends on the zone of a syncer that has not reported on the policy


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of each resource: lent, requested by pods, and free for new pods."""

    lent: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    free: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether the worker answers its syncer, and since when."""

    state: ConnectionState = ConnectionState.UNKNOWN
    since: datetime | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Whether the worker answered the reader."""

    state: WorkerState = WorkerState.NOT_ASKED
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A manager, a syncer or a proxier; without a Deployment `wanted` is 0."""

    state: ProgramState = ProgramState.UNKNOWN
    wanted: int = 0
    serving: int = 0
    leader: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A virtual node. The lent amount of each resource is zero while its window is closed."""

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
    pod_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # a few, by count

    @property
    def is_ready(self) -> bool:
        return self.ready == "True"


@dataclass(frozen=True, slots=True)
class Edge:
    """The next time when a window opens or closes; `local` is that time in the policy's zone."""

    time: datetime
    local: datetime
    zone: str
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimView:
    """The progress of a policy's reclaim."""

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
    """A policy. `seen` is False if the policy itself was not read, only the nodes that it lends."""

    policy: str
    state: LeaseState
    seen: bool = True
    zone: str = ""
    windows: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    next_edge: Edge | None = None
    overdue: bool = False  # the last edge has passed, and no syncer has reported it
    nodes: int = 0
    force_reclaim: bool = False
    reclaim: ReclaimView | None = None  # while one is under way
    message: str = ""


@dataclass(frozen=True, slots=True)
class InstallationHealth:
    """The health of an installation: problems, which need action, and notes.

    `healthy` is None where there are no problems, but nodes or pods could not be read.
    """

    healthy: bool | None = True
    problems: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A binding and its worker: programs, nodes, policies and pods."""

    name: str
    cluster_id: str = ""
    phase: str = ""
    message: str = ""
    deleting: bool = False
    waits_for: str = ""  # while the binding is being deleted
    troubles: tuple[str, ...] = ()  # messages of further conditions that report a problem
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
class InstallationView:
    """The view of an installation: all bindings, the manager, and the health."""

    at: datetime
    manager: ProgramView = field(default_factory=ProgramView)
    clusters: tuple[ClusterView, ...] = ()
    pods: PodCounts = field(default_factory=PodCounts)
    resources: Resources = field(default_factory=Resources)
    health: InstallationHealth = field(default_factory=InstallationHealth)
    not_read: tuple[NotRead, ...] = ()

    def why_not_read(self, *parts: str) -> str:
        """Return why the first unread part among `parts` was not read; empty if all were read."""
        reasons = {each.what: each.refusal for each in self.not_read}
        return next((reasons[part] for part in parts if part in reasons), "")
