"""The hub of a fleet: its controllers, and the process that runs them.

Replicas compete for a Lease; only the leader runs the controllers, and the others are ready
standbys. A leader that loses its Lease exits with code 1, and none of its later writes are sent.
The Lease is that of KubeFleet's hub agent, so that during a migration only one of the two programs
is active.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Final

from kubeocean.api.group import DEFAULT, ENV_POD_NAMESPACE, Domain
from kubeocean.fleet.admission.certificate_sources import CertificateDirectory, SharedCertificate
from kubeocean.fleet.admission.handlers import Handlers
from kubeocean.fleet.admission.registration import Registration
from kubeocean.fleet.admission.server import CertificateSource, WebhookServer
from kubeocean.fleet.admission.settings import WebhookSettings
from kubeocean.fleet.agentless.bindings import BindingMembers
from kubeocean.fleet.extensions import OURS, Extensions, chosen
from kubeocean.fleet.inventory.controller import ClusterProfiles
from kubeocean.fleet.membership.controller import (
    FORCE_WAIT,
    MEMBER_AGENTS,
    NETWORKING_AGENTS,
    MemberClusters,
)
from kubeocean.fleet.placement import PlacementControllers, PlacementSettings
from kubeocean.fleet.selection.reader import SelectionSettings
from kubeocean.fleet.selection.rules import ApiFilter, NamespaceFilter
from kubeocean.fleet.settings import HubSettings
from kubeocean.fleet.snapshots.plan import Delays
from kubeocean.process.replicas import Replica
from kubeocean.process.startup import run_process
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Component, ServicePart, components_of
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.server_tls import CertificateTls
from kubeocean.runtime.service import Service

__all__ = ["EVENT_SOURCE", "Hub", "HubProgram", "placement_settings", "run"]

EVENT_SOURCE: Final = "membercluster-controller"

_SERVICE: Final = "fleet-hub"
_DEADLINE_S: Final = 20.0  # a kubelet kills the process after 30

_log = get_logger(__name__)


class Hub:
    """Controllers of a fleet's members, inventory and placements, and further `parts` to run.

    - `placements`: settings of the controllers of placements; None for a hub without placements.
    - `threshold`: age of a heartbeat that counts as lost; None for three periods.
    - `force_wait`: time after which a member that does not leave is removed.
    - `networking`: whether members also run the networking agents.
    - `inventory`: whether members have ClusterProfiles.
    - `agentless`: whether bindings without the annotation are members, too.
    """

    def __init__(
        self,
        client: Client,
        *,
        placements: PlacementSettings | None = None,
        parts: Sequence[ServicePart] = (),
        extensions: Extensions = OURS,
        threshold: timedelta | None = None,
        force_wait: timedelta = FORCE_WAIT,
        networking: bool = False,
        inventory: bool = True,
        agentless: bool = False,
        domain: Domain = DEFAULT,
        instance: str = "",
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        self._events = EventRecorder(
            client, component=EVENT_SOURCE, instance=instance, clock=clock, metrics=metrics
        )
        self._members = MemberClusters(
            client,
            self._events,
            extensions=extensions,
            threshold=threshold,
            force_wait=force_wait,
            expected=NETWORKING_AGENTS if networking else MEMBER_AGENTS,
            clock=clock,
            metrics=metrics,
        )
        bindings = BindingMembers(
            client,
            self._members.caches.members,
            everyone=agentless,
            domain=domain,
            clock=clock,
            metrics=metrics,
        )
        own: list[ServicePart] = [self._events, self._members, bindings]
        if inventory:
            own.append(
                ClusterProfiles(
                    client,
                    self._members.caches.members,
                    extensions=extensions,
                    threshold=threshold,
                    clock=clock,
                    metrics=metrics,
                )
            )
        if placements is not None:
            controllers = PlacementControllers(
                client,
                placements,
                members=self._members.caches.members,
                internal_members=self._members.caches.internals,
                extensions=extensions,
                clock=clock,
                metrics=metrics,
            )
            own.extend(controllers.parts)
        self._components: tuple[Component, ...] = components_of((*own, *parts))

    @property
    def ready(self) -> bool:
        """Whether all controllers and parts of the hub are ready."""
        return all(component.ready() for component in self._components)

    async def synced(self) -> None:
        """Return when the caches of MemberClusters are filled."""
        await self._members.caches.synced()

    async def run(self) -> None:
        """Run all controllers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for component in self._components:
                group.create_task(_run(component), name=component.name)


async def _run(component: Component) -> None:
    await component.run()


async def run(
    settings: HubSettings,
    *,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run a hub until a signal arrives; return the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return HubProgram(settings, environ, stack).prepare()

    return await run_process("fleet hub", settings, prepare, log=_log)


def placement_settings(settings: HubSettings) -> PlacementSettings:
    """Return the settings of the controllers of placements.

    :raises ConfigError: a list of APIs cannot be read.
    """
    skipped = re.split(r"[;,]", settings.skipped_propagating_namespaces)
    selection = SelectionSettings(
        ApiFilter.parse(
            skipped=settings.skipped_propagating_apis, allowed=settings.allowed_propagating_apis
        ),
        NamespaceFilter(frozenset(name.strip() for name in skipped if name.strip())),
        hub_runs_workloads=bool(settings.enable_workload),
    )
    delays = Delays(
        collection=timedelta(seconds=settings.changes_collection_s),
        interval=timedelta(seconds=settings.snapshot_minimum_interval_s),
    )
    return PlacementSettings(selection, delays)


class HubProgram:
    """Builds the service of one hub process; `stack` closes its resources at the end."""

    def __init__(
        self,
        settings: HubSettings,
        environ: Mapping[str, str],
        stack: AsyncExitStack,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)

    def prepare(self) -> Service:
        """Build the service of the hub without sending a request.

        :raises KubeoceanError: a setting or a file is invalid.
        """
        settings = self._settings
        if ignored := list(settings.without_effect()):
            _log.warning("Ignored flags without effect", flags=ignored)
        if settings.enable_guard_rail and not settings.enable_webhook:
            _log.warning("Ignored --enable-guard-rail, which needs --enable-webhook")
        self._replica = Replica(
            settings,
            _SERVICE,
            self._stack,
            prepared=lambda: self._hub.synced(),
            metrics=self._metrics,
            environ=self._environ,
            cluster="hub",
        )
        client = self._replica.client(qps=settings.hub_api_qps, burst=settings.hub_api_burst)
        namespace = self._environ.get(ENV_POD_NAMESPACE) or settings.leader_election_namespace
        admission = settings.admission(namespace)
        webhooks = self._webhook_server(admission.webhooks)
        registration = Registration(
            client,
            admission,
            serves=lambda: webhooks is not None and webhooks.ready,
            metrics=self._metrics,
        )
        self._hub = Hub(
            client,
            placements=placement_settings(settings),
            parts=[registration],
            extensions=chosen(settings.status_extensions),
            threshold=settings.cluster_unhealthy_threshold,
            force_wait=timedelta(seconds=settings.force_delete_wait_s),
            networking=settings.networking_agents_enabled,
            inventory=settings.enable_cluster_inventory_apis,
            agentless=settings.agentless,
            domain=settings.label_domain,
            instance=self._replica.identity,
            metrics=self._metrics,
        )
        return Service(
            _SERVICE,
            [*(() if webhooks is None else (webhooks,)), Component("hub", self._work, self._ready)],
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            secure_metrics=settings.secure_metrics(self._replica.control),
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    def _webhook_server(self, settings: WebhookSettings | None) -> WebhookServer | None:
        """Return the webhook server, which runs in every replica; None if webhooks are off."""
        if settings is None:
            return None
        client, tls = self._replica.control, CertificateTls()
        source: CertificateSource
        if settings.certificate_directory:
            source = CertificateDirectory(Path(settings.certificate_directory), tls)
        else:
            source = SharedCertificate(client, settings.secret, tls)
        handlers = Handlers(
            client,
            guard_rail=settings.guard_rail,
            networking=settings.networking,
            metrics=self._metrics,
        )
        return WebhookServer(handlers, tls, source, address=settings.address, metrics=self._metrics)

    async def _work(self) -> None:
        await self._replica.run(self._hub.run)

    def _ready(self) -> bool:
        return self._replica.ready(self._hub.ready)
