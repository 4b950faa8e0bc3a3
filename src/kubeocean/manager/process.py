"""The process of a manager: from its settings to a program that runs until it is told to stop.

Replicas compete for a Lease, and only the one that leads looks after bindings; the others wait,
ready. A leader that loses its Lease ends with exit code 1 rather than wait for another turn, and
whatever it still tries on its way out is not sent: all its clients ask the election before each
write, those of workers as well. With `--sharding` all replicas look after their part of the
bindings, and the clients ask the ring.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from kubeocean.bound.replicas import Replica
from kubeocean.bound.startup import run_process
from kubeocean.bound.workers import SecretAccess
from kubeocean.manager.app import Manager
from kubeocean.manager.pulses import to_worker
from kubeocean.manager.settings import Settings
from kubeocean.runtime.components import Component, Part
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import Transport

__all__ = ["Program", "run"]

_DEADLINE_S: Final = 20.0  # a kubelet kills after 30

_log = get_logger(__name__)


async def run(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> int:
    """Look after bindings until told to stop; the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return Program(settings, environ, stack).prepare()

    return await run_process("manager", settings, prepare, log=_log)


class Program:
    """Everything that one process holds; `stack` gives it back at the end."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)

    def prepare(self) -> Service:
        """Put everything together; no cluster is asked yet.

        :raises KubeoceanError: something that is needed makes no sense.
        """
        settings, domain = self._settings, self._settings.label_domain
        self._replica = Replica(
            settings,
            domain.manager,
            self._stack,
            prepared=lambda: self._manager.synced(),
            metrics=self._metrics,
            environ=self._environ,
        )
        client = self._replica.client(
            qps=settings.kube_client_qps, burst=settings.kube_client_burst
        )
        self._manager = Manager(
            client,
            settings.templates(self._environ),
            connect=self._to_worker,
            instance=self._replica.identity,
            domain=domain,
            deadline_s=settings.deletion_deadline_s,
            metrics=self._metrics,
        )
        parts: list[Part] = [Component("manager", self._work, self._ready)]
        sharing = self._replica.sharing
        if sharing is not None:
            self._manager.share(sharing)
            parts.append(sharing.ring)  # the last one ends first: it hands over
        return Service(
            domain.manager,
            parts,
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    # Life

    async def _work(self) -> None:
        await self._replica.run(self._manager.run)

    def _ready(self) -> bool:
        return self._replica.ready(self._manager.ready)

    # Parts

    def _to_worker(self, access: SecretAccess) -> Transport:
        # Not counted: series for every worker that ever was would never end.
        return self._replica.fenced(to_worker(access))
