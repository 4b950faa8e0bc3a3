"""The process of a manager: from its settings to a program that runs until it is told to stop.

Replicas compete for a Lease, and only the one that leads looks after bindings; the others wait,
ready. A leader that loses its Lease ends with exit code 1 rather than wait for another turn, and
whatever it still tries on its way out is not sent: all its clients ask the election before each
write, those of workers as well. With `--sharding` all replicas look after their part of the
bindings, and the clients ask the ring.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Final

from kubeocean import __version__
from kubeocean.api.group import ENV_POD_NAMESPACE
from kubeocean.bound.workers import SecretAccess
from kubeocean.errors import ConfigError, KubeoceanError
from kubeocean.manager.app import Manager
from kubeocean.manager.pulses import to_worker
from kubeocean.manager.settings import Settings
from kubeocean.runtime import tracing
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Part
from kubeocean.runtime.credentials import AccessSource, InClusterAccess, default_access
from kubeocean.runtime.election import Election, LeadershipLost, unique_identity
from kubeocean.runtime.fencing import FencedTransport
from kubeocean.runtime.interrupts import SIGNALLED, cancelled_by_signals
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.requestcounts import CountedTransport
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import HttpTransport, Transport
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.sharing import Sharing
from kubeocean.sharding.vacancy import Vacancy

__all__ = ["Program", "run"]

_FAILED: Final = 1
_DEADLINE_S: Final = 20.0  # a kubelet kills after 30
_BURST: Final = 10

_log = get_logger(__name__)


async def run(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> int:
    """Look after bindings until told to stop; the exit code."""
    undo = settings.configure_logs()
    try:
        return await _run(settings, environ)
    finally:
        undo()


async def _run(settings: Settings, environ: Mapping[str, str]) -> int:
    signals: list[int] = []
    async with AsyncExitStack() as stack:
        try:
            with cancelled_by_signals(signals):
                service = Program(settings, environ, stack).prepare()
        except asyncio.CancelledError:
            if not signals:
                raise
            return SIGNALLED + signals[0]
        except KubeoceanError as error:
            _log.error("Could not start manager", error=str(error))
            return _FAILED
        return await service.run()


class Program:
    """Everything that one process holds; `stack` gives it back at the end."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)
        self._identity = unique_identity()
        self._election: Election | None = None
        self._vacancy: Vacancy | None = None
        self._sharing: Sharing | None = None

    def prepare(self) -> Service:
        """Put everything together; no cluster is asked yet.

        :raises KubeoceanError: something that is needed makes no sense.
        """
        settings, domain = self._settings, self._settings.label_domain
        self._trace()
        source = default_access(
            settings.kubeconfig or None,
            environ=self._environ,
            allow_exec=settings.allow_exec_plugins,
        )
        # No rate limit and no fence may hold up the election.
        if settings.sharding:
            self._sharing = self._member(self._client(self._counted(source)), source)
        elif settings.leader_elect:
            self._election = self._candidate(self._client(self._counted(source)), source)
        client = self._client(
            self._fenced(self._counted(source)),
            qps=settings.kube_client_qps,
            burst=settings.kube_client_burst,
        )
        self._manager = Manager(
            client,
            settings.templates(self._environ),
            connect=self._to_worker,
            instance=self._identity,
            domain=domain,
            deadline_s=settings.deletion_deadline_s,
            metrics=self._metrics,
        )
        parts: list[Part] = [Component("manager", self._work, self._ready)]
        if self._sharing is not None:
            self._manager.share(self._sharing)
            parts.append(self._sharing.ring)  # the last one ends first: it hands over
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
        if self._election is None:
            await self._manager.run()
            return
        # The election has told why it was lost; the service ends because we end.
        with suppress(LeadershipLost):
            await self._election.run(self._lead)

    async def _lead(self) -> None:
        assert self._vacancy is not None
        await self._vacancy.wait()
        await self._manager.run()

    def _ready(self) -> bool:
        """Who leads has full caches; who does not knows who does. Who waits for replicas that share
        is ready: a rollout ends them only then."""
        if self._vacancy is not None and self._vacancy.waits:
            return True
        election = self._election
        if election is None or election.is_leader:
            return self._manager.ready
        return election.holder not in ("", election.identity)

    # Parts

    def _client(self, transport: Transport, *, qps: float = 0.0, burst: int = 0) -> Client:
        # As for client-go: no rate means no limit, and a rate without a burst gets its default.
        rate, at_once = (qps if qps > 0 else None), (burst if burst > 0 else _BURST)
        client = Client(transport, cluster="computing", qps=rate, burst=at_once)
        self._stack.push_async_callback(client.close)
        return client

    def _to_worker(self, access: SecretAccess) -> Transport:
        # Not counted: series for every worker that ever was would never end.
        return self._fenced(to_worker(access))

    def _counted(self, source: AccessSource) -> Transport:
        return CountedTransport(HttpTransport(source), source, self._metrics)

    def _fenced(self, transport: Transport) -> Transport:
        asked = self._election or self._sharing
        return FencedTransport(transport, asked.check) if asked else transport

    def _member(self, control: Client, source: AccessSource) -> Sharing:
        config = self._settings.ring(self._election_namespace(source))
        ring = Ring(control, config, metrics=self._metrics, environ=self._environ)
        return Sharing(ring, prepared=lambda: self._manager.synced())

    def _candidate(self, control: Client, source: AccessSource) -> Election:
        settings, namespace = self._settings, self._election_namespace(source)
        self._vacancy = Vacancy(control, settings.ring(namespace))
        return Election(
            control,
            namespace=namespace,
            name=settings.election_name,
            identity=self._identity,
            lease_s=settings.lease_s,
            renew_s=settings.renew_s,
            retry_s=settings.retry_s,
            metrics=self._metrics,
        )

    def _election_namespace(self, source: AccessSource) -> str:
        said = self._settings.leader_election_namespace or self._environ.get(ENV_POD_NAMESPACE, "")
        if said:
            return said
        if isinstance(source, InClusterAccess):
            return source.current().namespace
        # A guess could differ from that of another replica, and then both would lead.
        raise ConfigError(
            f"is required outside of a pod, unless {ENV_POD_NAMESPACE} is set",
            source="--leader-election-namespace",
        )

    def _trace(self) -> None:
        finish = tracing.configure(
            self._settings.label_domain.manager,
            version=__version__,
            instance=self._identity,
            environ=self._environ,
        )
        self._stack.push_async_callback(asyncio.to_thread, finish)
