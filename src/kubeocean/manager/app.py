"""Builds and runs the controllers of the manager.

Only the leader may run a Manager, or its clients must be fenced. Replicas that share the bindings
each reconcile their own shards, and watch all bindings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.manager.bindings import Bindings
from kubeocean.manager.deletion import DEADLINE_S
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.worker_probe import REVIEW_S, to_worker
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Transport
from kubeocean.sharding.shared_controllers import SharedControllers
from kubeocean.worker_access.credentials import SecretAccess

__all__ = ["EVENT_SOURCE", "Manager"]

EVENT_SOURCE: Final = "clusterbinding-controller"


class Manager:
    """Reconciles all ClusterBindings of a computing cluster.

    - `templates`: directories of the syncers' and of the proxiers' templates.
    - `management`: a client of the cluster in which syncers and proxiers run, if another.
    - `connect`: returns the transport to a worker.
    - `deadline_s`: time that a deleted binding waits while no syncer leads.
    - `review_s`: time after which sufficient permissions are reviewed again.
    """

    def __init__(
        self,
        computing: Client,
        templates: tuple[Path, Path],
        *,
        management: Client | None = None,
        connect: Callable[[SecretAccess], Transport] = to_worker,
        instance: str = "",
        domain: Domain = DEFAULT,
        deadline_s: float = DEADLINE_S,
        review_s: float = REVIEW_S,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        syncer, proxier = templates
        self._rollout = Rollout(
            management or computing,
            syncer_templates=syncer,
            proxier_templates=proxier,
            computing=computing if management is not None else None,
            domain=domain,
            clock=clock,
            metrics=metrics,
        )
        self._events = EventRecorder(
            computing, component=EVENT_SOURCE, instance=instance, clock=clock, metrics=metrics
        )
        self._bindings = Bindings(
            computing,
            self._rollout,
            self._events,
            connect,
            domain=domain,
            deadline_s=deadline_s,
            review_s=review_s,
            clock=clock,
            metrics=metrics,
        )

    def share(self, sharing: SharedControllers) -> None:
        """Reconcile only the bindings in this replica's shards; call before `run`."""
        bindings = self._bindings
        sharing.share(
            bindings.controller,
            by=lambda key: f"binding/{key.name}",
            keys=lambda: [binding.key for binding in bindings.informer.items()],
            release=self._release,
        )
        bindings.metrics.share(lambda: sharing.ring.election.is_leader)

    def _release(self, key: Key) -> None:
        binding = self._bindings.informer.get(key)
        if binding is not None:
            self._bindings.probes.drop(binding.uid)

    async def synced(self) -> None:
        """Return when all bindings were listed."""
        await self._bindings.informer.synced()

    @property
    def ready(self) -> bool:
        """Whether all bindings were listed."""
        return self._bindings.informer.has_synced

    def retry_failed(self) -> None:
        """Retry the bindings that failed during an outage of the computing cluster."""
        self._bindings.controller.retry_failed()

    async def run(self) -> None:
        """Reconcile bindings until cancelled."""
        bindings = self._bindings
        async with asyncio.TaskGroup() as group:
            for part in (self._events, self._rollout, bindings.probes, bindings.informer):
                group.create_task(part.run())
            await bindings.informer.synced()
            await self._rollout.synced()
            await bindings.controller.run()
