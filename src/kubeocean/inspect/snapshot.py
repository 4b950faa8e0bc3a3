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
from kubeocean.errors import ApiError, Forbidden, KubeoceanError, NotFound
from kubeocean.inspect.kinds import Deployment
from kubeocean.inspect.pod_counts import NodeUse
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import Lease, Node
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.syncer.cleanup.diff import Difference

__all__ = [
    "NOT_REQUESTED",
    "FleetSnapshot",
    "MissingPart",
    "NotRead",
    "Part",
    "ServerSnapshot",
    "Snapshot",
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

    @property
    def refusal(self) -> str:
        """The reason why the part was not read; short if the user may not list the objects."""
        return "not allowed to list them" if self.forbidden else self.reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


Part: TypeAlias = T | NotRead
NOT_REQUESTED: Final = NotRead("", "it was not requested")


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
        return NotRead(what, str(error), isinstance(error, Forbidden))


async def read_part(what: str, reading: Awaitable[T]) -> T | NotRead:
    """Await the read of a list or answer; return it, or a NotRead, also if a kind is not served."""
    try:
        return await reading
    except ApiError as error:
        return NotRead(what, str(error), isinstance(error, Forbidden))


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

    version: Part[Json] = NOT_REQUESTED
    skew: Part[timedelta] = NOT_REQUESTED
    definitions: Part[Mapping[str, Json | None]] = NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A binding and its worker cluster; `message` says why `state` is not ANSWERED."""

    binding: ClusterBinding
    ids: Part[Ids] = NOT_REQUESTED
    state: WorkerState = WorkerState.NOT_ASKED
    message: str = ""
    access: Access | None = None
    server: ServerSnapshot = field(default_factory=ServerSnapshot)
    policies: Part[tuple[ResourceLeasingPolicy, ...]] = NOT_REQUESTED  # of the whole worker
    namespace: Part[bool] = NOT_REQUESTED  # whether the mount namespace exists
    missing: Part[tuple[str, ...]] = NOT_REQUESTED  # rights that the credential needs and lacks
    excess: Part[tuple[str, ...]] = NOT_REQUESTED  # rights that the credential has and must not
    exposed: Part[bool] = NOT_REQUESTED  # whether kubelets are sent the credential itself
    unenforced: Part[tuple[str, ...]] = NOT_REQUESTED  # limits that the worker does not enforce
    tls: Part[Mapping[str, bytes]] = NOT_REQUESTED  # certificates of the proxier, by Secret
    differences: Part[tuple[Difference, ...]] = NOT_REQUESTED  # in two comparisons
    left_over: Part[frozenset[str]] = NOT_REQUESTED  # UIDs of policies, in two reads
    unread: tuple[NotRead, ...] = ()  # reads that failed

    @property
    def name(self) -> str:
        return self.binding.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """The hub of a fleet in the computing cluster: its members and placements.

    `unseen` are the UIDs of placements on whose spec the hub had not reported in two reads.
    """

    definitions: Part[Mapping[str, Json | None]] = NOT_REQUESTED  # None: not installed
    elections: Part[Mapping[str, Lease]] = NOT_REQUESTED  # in the fleet's namespace, by name
    members: Part[tuple[MemberCluster, ...]] = NOT_REQUESTED
    internals: Part[Mapping[str, InternalMemberCluster]] = NOT_REQUESTED  # by member
    placements: Part[tuple[Placement, ...]] = NOT_REQUESTED  # of both scopes
    unseen: Part[frozenset[str]] = NOT_REQUESTED

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
    bindings: Part[tuple[ClusterBinding, ...]] = NOT_REQUESTED
    nodes: Part[tuple[Node, ...]] = NOT_REQUESTED  # virtual nodes
    usage: Part[Mapping[str, NodeUse]] = NOT_REQUESTED  # of virtual nodes with pods, by name
    heartbeats: Part[Mapping[str, Lease]] = NOT_REQUESTED  # by node
    elections: Part[Mapping[str, Lease]] = NOT_REQUESTED  # in the system namespace, by name
    deployments: Part[Mapping[str, Deployment]] = NOT_REQUESTED  # in the system namespace, by name
    program_pods: Part[tuple[Json, ...]] = NOT_REQUESTED  # of manager, syncers and proxiers
    accounts: Part[Mapping[str, tuple[str, ...] | None]] = NOT_REQUESTED  # rights they lack
    services: Part[Mapping[str, Json | None]] = NOT_REQUESTED  # for pods in workers, by name
    marked: Mapping[str, Part[tuple[Untyped, ...]]] = field(default_factory=dict)  # by kind
    left_over: Part[frozenset[str]] = NOT_REQUESTED  # UIDs of nodes and marked objects, twice read
    fleet: FleetSnapshot | None = None  # None: the cluster serves no kind of a fleet
    workers: Mapping[str, WorkerSnapshot] = field(default_factory=dict)  # by binding
    unread: tuple[NotRead, ...] = ()  # reads that failed

    @property
    def chosen(self) -> tuple[ClusterBinding, ...]:
        """The bindings that were asked for: the one named by `only`, or all."""
        return tuple(each for each in known(self.bindings, ()) if self.only in ("", each.name))
