"""Facts: what a doctor looks at, read once and all at about one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeocean.api import group
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import ResourceLeasingPolicy
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import Lease, Node
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.syncer.comparison import Finding as Difference

__all__ = ["Computing", "Server", "Ward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One API server: its version, as it says, and how far its clock is ahead of ours."""

    version: Json = field(default_factory=dict)
    skew: timedelta | None = None
    definitions: Mapping[str, Json | None] = field(default_factory=dict)  # of ours, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """The computing cluster. What could not be read is None, or not among the others.

    Where `only` names a binding, nobody wants to know of the others, as long as these are theirs.
    """

    now: datetime
    only: str = ""
    domain: Domain = field(default=group.DEFAULT)
    server: Server = field(default_factory=Server)
    bindings: tuple[ClusterBinding, ...] = ()
    nodes: tuple[Node, ...] = ()  # virtual ones
    heartbeats: Mapping[str, Lease] | None = None  # by node
    elections: Mapping[str, Lease] | None = None  # in our namespace, by name
    deployments: Mapping[str, Json] | None = None  # in our namespace, by name
    pods: tuple[Json, ...] = ()  # of our own programs
    accounts: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)  # rights they lack
    services: Mapping[str, Json | None] = field(default_factory=dict)  # the two that pods need
    marked: tuple[tuple[str, Untyped], ...] = ()  # objects with a mark of ours: kind, object

    @property
    def chosen(self) -> tuple[ClusterBinding, ...]:
        """The bindings that somebody wants to know of."""
        return tuple(each for each in self.bindings if self.only in ("", each.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ward:
    """One binding and its worker; `problem` is why the worker cannot be looked at."""

    binding: ClusterBinding
    ids: Ids
    access: Access | None = None
    problem: str = ""
    server: Server = field(default_factory=Server)
    missing: tuple[str, ...] = ()  # rights that are needed
    without: tuple[str, ...] = ()  # add-ons that are not granted
    excess: tuple[str, ...] = ()  # rights that nobody needs
    exposed: bool = False  # whether its own token is what kubelets are shown
    namespace: bool | None = None  # whether the mount namespace is there
    policies: tuple[ResourceLeasingPolicy, ...] | None = None
    tls: Mapping[str, bytes] = field(default_factory=dict)  # certificates of the proxier, by name
    differences: tuple[Difference, ...] = ()  # between both sides, seen twice
