"""PlacementControllers: all controllers of placements, for the service of the hub.

| controller | reads | writes |
|---|---|---|
| snapshots | placements, selected objects | finalizers, policy and resource snapshots |
| scheduler | policy snapshots, MemberClusters | bindings, status of policy snapshots |
| rollout | resource snapshots, bindings | releases in bindings |
| works | bindings, Works, resource snapshots | Works, status of bindings |
| status | policy snapshots, bindings | status of placements |
| back report | Works, selected objects | status of selected objects, if a placement asks for it |

Each of them serves ClusterResourcePlacements and ResourcePlacements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kubeocean.api.fleet.clusters import InternalMemberCluster, MemberCluster
from kubeocean.fleet.back_report.controller import BackReports
from kubeocean.fleet.caches import HubCaches
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.rollout.controller import PlacementRollout
from kubeocean.fleet.scheduler.controller import Scheduler
from kubeocean.fleet.selection.reader import SelectionReader, SelectionSettings
from kubeocean.fleet.snapshots.contents import SnapshotContents
from kubeocean.fleet.snapshots.controller import Snapshots
from kubeocean.fleet.snapshots.plan import Delays
from kubeocean.fleet.status.controller import Statuses
from kubeocean.fleet.works.controller import Works
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import ServicePart
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key

__all__ = ["PlacementControllers", "PlacementSettings"]


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Settings of the controllers of placements."""

    selection: SelectionSettings = field(default_factory=SelectionSettings)
    delays: Delays = field(default_factory=Delays)


class PlacementControllers:
    """The controllers of placements and the caches that they share.

    `caches` has to run in every replica, `controllers` only in the leader; `parts` are both, in the
    order in which a service starts them. `members` and `internal_members`, if given, are informers
    that other controllers of the hub run. `extensions` are additional conditions of placements.
    """

    def __init__(
        self,
        client: Client,
        settings: PlacementSettings | None = None,
        *,
        members: Informer[MemberCluster] | None = None,
        internal_members: Informer[InternalMemberCluster] | None = None,
        extensions: Extensions = OURS,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        settings = settings or PlacementSettings()
        metrics = metrics or Metrics()
        options: dict[str, Any] = {"clock": clock, "metrics": metrics}
        self.cache = HubCaches(
            client, members=members, internal_members=internal_members, **options
        )
        contents = SnapshotContents(client)
        self.reader = SelectionReader(client, settings.selection, **options)
        self.snapshots = Snapshots(
            client, self.cache, self.reader, contents, delays=settings.delays, **options
        )
        self.scheduler = Scheduler(client, self.cache, **options)
        self.rollout = PlacementRollout(client, self.cache, **options)
        self.works = Works(client, self.cache, contents, **options)
        self.back_reports = BackReports(client, self.cache, self.reader, contents, **options)
        self.statuses = Statuses(
            client,
            self.cache,
            self.snapshots,
            contents,
            self.back_reports,
            extensions=extensions,
            **options,
        )

    @property
    def caches(self) -> tuple[ServicePart, ...]:
        """Return the informers of all objects that the controllers of placements read."""
        return (*self.cache.parts, *self.reader.parts)

    @property
    def controllers(self) -> tuple[Controller[Key], ...]:
        """Return the controllers of snapshots, scheduler, rollout, works, status, back report."""
        return (
            self.snapshots.controller,
            self.scheduler.controller,
            self.rollout.controller,
            self.works.controller,
            self.statuses.controller,
            self.back_reports.controller,
        )

    @property
    def parts(self) -> tuple[ServicePart, ...]:
        """Return all informers and controllers of placements, for a service to run."""
        return (*self.caches, *self.controllers)
