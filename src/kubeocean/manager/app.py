"""The manager: all its parts, put together and run.

Whoever runs it leads: there must be one at a time, or each client has to see to it. Where replicas
share the bindings, each looks after its own, and knows of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.bound.workers import SecretAccess
from kubeocean.manager.bindings import Bindings
from kubeocean.manager.endings import DEADLINE_S
from kubeocean.manager.pulses import REVIEW_S, to_worker
from kubeocean.manager.rollout import Rollout
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Transport
from kubeocean.sharding.sharing import Sharing

__all__ = ["EVENT_SOURCE", "Manager"]

EVENT_SOURCE: Final = "clusterbinding-controller"


class Manager:
    """Looks after all bindings of a computing cluster.

    - `templates`: the directories of syncers and proxiers.
    - `connect`: gives the way to a worker.
    - `deadline_s`: how long a deleted binding waits while no syncer of it is at work.
    - `review_s`: how often a worker is asked again for rights that suffice.
    """

    def __init__(
        self,
        computing: Client,
        templates: tuple[Path, Path],
        *,
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
            computing,
            syncer_templates=syncer,
            proxier_templates=proxier,
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

    def share(self, sharing: Sharing) -> None:
        """Look after this replica's part of the bindings; before it runs."""
        bindings = self._bindings
        sharing.share(
            bindings.controller,
            by=lambda key: f"binding/{key.name}",
            keys=lambda: [each.key for each in bindings.informer.items()],
            let_go=self._let_go,
        )
        bindings.figures.share(lambda: sharing.ring.election.is_leader)

    def _let_go(self, binding: Key) -> None:
        found = self._bindings.informer.get(binding)
        if found is not None:
            self._bindings.pulses.drop(found.uid)

    async def synced(self) -> None:
        """Return when it knows of all bindings."""
        await self._bindings.informer.synced()

    @property
    def ready(self) -> bool:
        """Whether it knows of all bindings."""
        return self._bindings.informer.has_synced

    async def run(self) -> None:
        """Look after bindings until cancelled."""
        bindings = self._bindings
        async with asyncio.TaskGroup() as group:
            for part in (self._events, self._rollout, bindings.pulses, bindings.informer):
                group.create_task(part.run())
            await bindings.informer.synced()
            await self._rollout.synced()
            await bindings.controller.run()
