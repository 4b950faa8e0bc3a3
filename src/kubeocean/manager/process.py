"""The process of a manager: from its settings to a service that runs until a signal.

Replicas compete for a Lease; only the leader reconciles bindings, and the others are ready
standbys. A leader that loses its Lease exits with code 1. None of its later writes are sent: all
clients, those of workers too, check the election before each write. With `--sharding` each replica
reconciles the bindings in its shards, and the clients check the ring.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from kubeocean.manager.app import Manager
from kubeocean.manager.settings import ManagerSettings
from kubeocean.manager.worker_probe import to_worker
from kubeocean.process.replicas import Replica
from kubeocean.process.startup import run_process
from kubeocean.runtime.components import Component, ServicePart
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import Transport
from kubeocean.worker_access.credentials import SecretAccess

__all__ = ["ManagerProgram", "run"]

_DEADLINE_S: Final = 20.0  # a kubelet kills the process after 30

_log = get_logger(__name__)


async def run(settings: ManagerSettings, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the manager until a signal arrives; return the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return ManagerProgram(settings, environ, stack).prepare()

    return await run_process("manager", settings, prepare, log=_log)


class ManagerProgram:
    """The parts of one manager's process; `stack` closes them at the end."""

    def __init__(
        self, settings: ManagerSettings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)

    def prepare(self) -> Service:
        """Build the manager's service without sending a request.

        :raises KubeoceanError: a setting or a file is invalid.
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
            management=self._replica.management_client(settings.management_kubeconfig),
            connect=self._to_worker,
            instance=self._replica.identity,
            domain=domain,
            deadline_s=settings.deletion_deadline_s,
            metrics=self._metrics,
        )
        self._replica.on_recovery(self._manager.retry_failed)
        parts: list[ServicePart] = [Component("manager", self._work, self._ready)]
        sharing = self._replica.sharing
        if sharing is not None:
            self._manager.share(sharing)
            parts.append(
                sharing.ring
            )  # last, because parts stop in reverse order and the ring hands over
        return Service(
            domain.manager,
            parts,
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            secure_metrics=settings.secure_metrics(
                self._replica.reviewer(settings.management_kubeconfig)
            ),
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    async def _work(self) -> None:
        await self._replica.run(self._manager.run)

    def _ready(self) -> bool:
        return self._replica.ready(self._manager.ready)

    def _to_worker(self, access: SecretAccess) -> Transport:
        # Without metrics: each worker would add series that are never removed.
        return self._replica.fenced(self._replica.audited(to_worker(access), "worker"))
