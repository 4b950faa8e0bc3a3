"""The read model of status, top, explain and doctor.

A `Snapshot` represents one computing cluster and, as a `WorkerSnapshot` each, the worker clusters
of its bindings, all read at about one time. Each part has one of three values:

- a value: the part was read;
- None: the API server answered that the object does not exist;
- `NotRead`: the API server did not answer, or did not permit the read.

Nothing follows from a part that was not read: neither that it is absent, nor a remedy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

from kubeocean.api import group
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.fleet.clusters import InternalMemberCluster, MemberCluster
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.errors import ApiError, Forbidden, KubeoceanError, NotFound, remedy_of
from kubeocean.inspect.pod_counts import NodeUse
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import Deployment, Lease, Node
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.syncer.cleanup.diff import Difference

__all__ = [
    "ADMINISTRATOR",
    "NOT_REQUESTED",
    "FleetSnapshot",
    "MissingPart",
    "NotRead",
    "ServerSnapshot",
    "Snapshot",
    "SnapshotPart",
    "WorkerSnapshot",
    "WorkerState",
    "failures",
    "known",
    "read_object",
    "read_part",
    "require",
]

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class NotRead:
    """A part of a snapshot that could not be read, and the reason."""

    what: str
    reason: str
    forbidden: bool = False
    remedy: str = ""  # for an API server that does not answer, or rejects the credential

    @classmethod
    def after(cls, what: str, error: ApiError) -> NotRead:
        """Return the part whose read failed with this error."""
        return cls(what, str(error), isinstance(error, Forbidden), remedy_of(error))

    @property
    def refusal(self) -> str:
        """The reason why the part was not read; short if the user may not list the objects."""
        return "not allowed to list them" if self.forbidden else self.reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


SnapshotPart: TypeAlias = T | NotRead
NOT_REQUESTED: Final = NotRead("", "the part was not requested")
ADMINISTRATOR: Final = "do everything, as an administrator"  # a right that includes all others


def known(part: T | NotRead, otherwise: D) -> T | D:
    """Return a part of a snapshot if it was read, else `otherwise`."""
    return otherwise if isinstance(part, NotRead) else part


def failures(*parts: object) -> tuple[NotRead, ...]:
    """Return those of the given parts that could not be read, each once."""
    unread = (part for part in parts if isinstance(part, NotRead) and part is not NOT_REQUESTED)
    return tuple(dict.fromkeys(unread))


class MissingPart(KubeoceanError):
    """Raised if a conclusion needs a part of a snapshot that was not read."""


def require(part: T | NotRead | None) -> T:
    """Return a part of a snapshot that was read.

    :raises MissingPart: the part was not read.
    """
    if part is None or isinstance(part, NotRead):
        raise MissingPart(str(part))
    return part


async def read_object(what: str, reading: Awaitable[T]) -> T | NotRead | None:
    """Await the read of an object; return it, None if it does not exist, or a NotRead."""
    try:
        return await reading
    except NotFound:
        return None
    except ApiError as error:
        return NotRead.after(what, error)


async def read_part(what: str, reading: Awaitable[T]) -> T | NotRead:
    """Await the read of a list or answer and return it; a NotRead if that failed (404 included)."""
    try:
        return await reading
    except ApiError as error:
        return NotRead.after(what, error)


class WorkerState(StrEnum):
    """Whether a worker cluster answered the reader."""

    ANSWERED = "Answered"
    SILENT = "Silent"  # no answer in time
    REFUSED = "Refused"  # the worker refused the credential or the read
    UNUSABLE = "Unusable"  # the binding's Secret is missing or invalid
    NOT_ALLOWED = "NotAllowed"  # the user may not read the binding's Secret
    NOT_ASKED = "NotAsked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSnapshot:
    """An API server: its version, and how far its clock is ahead of this machine's.

    `definitions` are the CustomResourceDefinitions of Kubeocean by name; None: not installed.
    """

    version: SnapshotPart[Json] = NOT_REQUESTED
    skew: SnapshotPart[timedelta] = NOT_REQUESTED
    definitions: SnapshotPart[Mapping[str, Json | None]] = NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A binding and its worker cluster; `message` is the reason if `state` is not ANSWERED."""

    binding: ClusterBinding
    ids: SnapshotPart[Ids] = NOT_REQUESTED
    state: WorkerState = WorkerState.NOT_ASKED
    message: str = ""
    access: Access | None = None
    server: ServerSnapshot = field(default_factory=ServerSnapshot)
    policies: SnapshotPart[tuple[ResourceLeasingPolicy, ...]] = NOT_REQUESTED  # of the whole worker
    namespace: SnapshotPart[bool] = NOT_REQUESTED  # whether the mount namespace exists
    # PodSecurity level that the mount namespace enforces; empty if its labels name none
    pod_security: SnapshotPart[str] = NOT_REQUESTED
    # Rights that the credential needs and lacks
    missing: SnapshotPart[tuple[str, ...]] = NOT_REQUESTED
    # Rights that the credential has and must not
    excess: SnapshotPart[tuple[str, ...]] = NOT_REQUESTED
    exposed: SnapshotPart[bool] = NOT_REQUESTED  # whether kubelets are sent the credential itself
    # Limits that the worker does not enforce
    unenforced: SnapshotPart[tuple[str, ...]] = NOT_REQUESTED
    tls: SnapshotPart[Mapping[str, bytes]] = NOT_REQUESTED  # certificates of the proxier, by Secret
    differences: SnapshotPart[tuple[Difference, ...]] = NOT_REQUESTED  # in two comparisons
    left_over: SnapshotPart[frozenset[str]] = NOT_REQUESTED  # UIDs of policies, in two reads
    unread: tuple[NotRead, ...] = ()  # reads that failed

    @property
    def name(self) -> str:
        return self.binding.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """The hub of a fleet in the computing cluster: its members and placements.

    `unseen` are the UIDs of placements on whose spec the hub had not reported in two reads.
    """

    definitions: SnapshotPart[Mapping[str, Json | None]] = NOT_REQUESTED  # None: not installed
    # In the fleet's namespace, by name
    elections: SnapshotPart[Mapping[str, Lease]] = NOT_REQUESTED
    members: SnapshotPart[tuple[MemberCluster, ...]] = NOT_REQUESTED
    internals: SnapshotPart[Mapping[str, InternalMemberCluster]] = NOT_REQUESTED  # by member
    placements: SnapshotPart[tuple[Placement, ...]] = NOT_REQUESTED  # of both scopes
    unseen: SnapshotPart[frozenset[str]] = NOT_REQUESTED

    @property
    def unread(self) -> tuple[NotRead, ...]:
        return failures(
            self.definitions,
            self.elections,
            self.members,
            self.internals,
            self.placements,
            self.unseen,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A computing cluster and the workers of its bindings, read at one time.

    `at` is the time of the computing cluster's API server. Where `only` names a binding, objects of
    other bindings may be left out.
    """

    at: datetime
    only: str = ""
    domain: Domain = field(default=group.DEFAULT)
    server: ServerSnapshot = field(default_factory=ServerSnapshot)
    management: str = ""  # UID of the cluster in which our programs run; empty: the computing one
    bindings: SnapshotPart[tuple[ClusterBinding, ...]] = NOT_REQUESTED
    nodes: SnapshotPart[tuple[Node, ...]] = NOT_REQUESTED  # virtual nodes
    # Of virtual nodes with pods, by name
    usage: SnapshotPart[Mapping[str, NodeUse]] = NOT_REQUESTED
    heartbeats: SnapshotPart[Mapping[str, Lease]] = NOT_REQUESTED  # by node
    elections: SnapshotPart[Mapping[str, Lease]] = NOT_REQUESTED  # in the system namespace, by name
    # In the system namespace, by name
    deployments: SnapshotPart[Mapping[str, Deployment]] = NOT_REQUESTED
    program_pods: SnapshotPart[tuple[Json, ...]] = NOT_REQUESTED  # of manager, syncers and proxiers
    accounts: SnapshotPart[Mapping[str, tuple[str, ...] | None]] = NOT_REQUESTED  # rights they lack
    # For pods in workers, by name
    services: SnapshotPart[Mapping[str, Json | None]] = NOT_REQUESTED
    marked: Mapping[str, SnapshotPart[tuple[Untyped, ...]]] = field(default_factory=dict)  # by kind
    # UIDs of nodes and marked objects, twice read
    left_over: SnapshotPart[frozenset[str]] = NOT_REQUESTED
    fleet: FleetSnapshot | None = None  # None: the cluster serves no kind of a fleet
    workers: Mapping[str, WorkerSnapshot] = field(default_factory=dict)  # by binding
    unread: tuple[NotRead, ...] = ()  # reads that failed

    @property
    def chosen(self) -> tuple[ClusterBinding, ...]:
        """The bindings to show: the one named by `only`, or all."""
        return tuple(each for each in known(self.bindings, ()) if self.only in ("", each.name))
