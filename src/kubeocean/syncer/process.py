"""The process of a syncer: builds a service from the settings, which runs until it is stopped.

Replicas compete for a Lease, and only the leader works: it watches the binding's Secret, fills its
caches and starts the controllers. The other replicas are ready standbys. A leader that loses its
Lease exits with code 1 instead of waiting to be elected again: its pending writes, timers and
counts are outdated, and a new process costs a second. Writes that it attempts while it stops are
not sent: both clients check the election before each write.

With `--sharding` all replicas work, each on its shards (see `sharding`), and the clients check the
ring before each write. The replica that does what cannot be sharded is elected on the same Lease,
so that the first sharded replica waits for the last leader that worked alone.

The worker need not answer, not even at the start: its caches sync when it does.

A process may run companions: parts of other packages that need the clients and caches of a syncer.
They run on the replica that does what cannot be sharded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding, problems
from kubeocean.api.conditions import BindingEvent
from kubeocean.errors import ConfigError, NotFound
from kubeocean.process.log_level import LogLevel
from kubeocean.process.replicas import Replica
from kubeocean.process.startup import open_client, run_process
from kubeocean.runtime.access import Access
from kubeocean.runtime.answer_budget import AnswerBudget
from kubeocean.runtime.cache_budget import CacheBudget
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Runnable, ServicePart
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.events import reference as event_reference
from kubeocean.runtime.kinds import SECRETS_WITH_DATA
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.settings import SyncerSettings
from kubeocean.syncer.sharding import share, until_synced
from kubeocean.syncer.worker_health import WorkerHealth
from kubeocean.worker_access.client import INCOMPLETE_ANSWERS, LARGEST_ANSWER
from kubeocean.worker_access.credentials import SecretAccess
from kubeocean.worker_access.identity import (
    IdentityCheckedTransport,
    WorkerIdentity,
    identity_of,
    recorded_worker,
)
from kubeocean.worker_access.rotation import Rotation, kubeconfig_namespaces

__all__ = ["CompanionContext", "NewCompanion", "SyncerProgram", "run"]

_DEADLINE_S: Final = 20.0  # a kubelet kills the process after 30
_LISTED: Final = 5
_REQUIRED: Final = ("spec.clusterID", "spec.secretRef")  # without them no syncer can start

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionContext:
    """The parts of a syncer that a companion may use.

    - `worker`: a client of the worker, fenced as the syncer's own. Its answers say nothing about
      the health of the worker: a companion may ask for more than the credential is allowed.
    - `worker_access`: returns the present access to the worker.
    """

    settings: SyncerSettings
    syncer: Syncer
    worker: Client
    worker_access: Callable[[], Access]
    instance: str
    metrics: Metrics


# A companion's `run` must not raise: the error would end the syncer.
NewCompanion: TypeAlias = Callable[[CompanionContext], Runnable]


async def run(
    settings: SyncerSettings,
    *,
    environ: Mapping[str, str] = os.environ,
    companions: Sequence[NewCompanion] = (),
) -> int:
    """Run a syncer until it is stopped; return the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return await SyncerProgram(settings, environ, stack, companions).prepare()

    with bound(binding=settings.cluster_binding_name):
        return await run_process("syncer", settings, prepare, log=_log)


class SyncerProgram:
    """The clients, the replica and the syncer of one process; `stack` closes them at the end.

    `syncer` is set by `prepare`, and writes only while the process leads.
    """

    def __init__(
        self,
        settings: SyncerSettings,
        environ: Mapping[str, str],
        stack: AsyncExitStack,
        companions: Sequence[NewCompanion] = (),
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._new_companions = companions
        self._metrics = Metrics(process=True)
        self._worker_health = WorkerHealth()
        self._worker_budget = CacheBudget(settings.worker_cache_bytes)
        self._answers = AnswerBudget(INCOMPLETE_ANSWERS)
        self._everywhere: list[Runnable] = []  # parts that every replica runs, with sharding

    async def prepare(self) -> Service:
        """Read the binding and the kubeconfig of its worker, and wire the syncer.

        :raises KubeoceanError: the binding or its Secret cannot be read, or is invalid.
        """
        settings, domain = self._settings, self._settings.label_domain
        self._replica = Replica(
            settings,
            domain.syncer,
            self._stack,
            prepared=lambda: until_synced(self.syncer.clusters),
            metrics=self._metrics,
            environ=self._environ,
        )
        control = self._replica.control  # without rate limit: the start is not delayed
        binding = await _binding(control, settings.cluster_binding_name)
        reference = binding.spec.secret_ref
        namespaces = kubeconfig_namespaces(reference, settings.kubeconfig_namespaces, domain)
        secret = await control.get(SECRETS_WITH_DATA, reference.name, reference.namespace)
        access = SecretAccess(secret)
        clusters = self._clusters(binding, await identity_of(control), access)
        self._rotation = Rotation(
            control,
            access,
            reference,
            namespaces=namespaces,
            refused=lambda binding, message: clusters.events.emit(
                event_reference(CLUSTER_BINDINGS, binding),
                "Warning",
                BindingEvent.KUBECONFIG_REFUSED,
                message,
            ),
            taken=self._worker_health.failed,
            metrics=self._metrics,
        )
        clusters.bindings.on_change(self._rotation.follow)
        clusters.bindings.on_change(LogLevel(domain).follow)
        self.syncer = Syncer(clusters, settings.given)
        self._companions = self._prepare_companions()
        self._replica.on_recovery(self.syncer.retry_failed)
        return Service(
            domain.syncer,
            self._components(),
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            secure_metrics=settings.secure_metrics(
                self._replica.reviewer(settings.management_kubeconfig)
            ),
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    def _components(self) -> list[ServicePart]:
        syncer = Component("syncer", self._work, self._ready)
        sharing = self._replica.sharing
        if sharing is None:
            return [syncer]
        self._everywhere = share(self.syncer, sharing, *self._companions)
        # The ring comes last, so that it stops first: shards are handed over while all else runs.
        return [syncer, sharing.ring]

    # Running

    async def _work(self) -> None:
        await self._replica.run(self._run_syncer)

    async def _run_syncer(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rotation.run())
            await self._rotation.informed()
            for part in self._everywhere or (self.syncer, *self._companions):
                group.create_task(part.run())

    def _ready(self) -> bool:
        return self._replica.ready(self.syncer.ready)

    # Clients and caches

    def _prepare_companions(self) -> list[Runnable]:
        if not self._new_companions:
            return []
        identity, settings = self._worker_identity, self._settings
        observed = self._replica.observed(
            identity, "member", largest=LARGEST_ANSWER, answers=self._answers
        )
        transport = IdentityCheckedTransport(observed, identity)
        worker = open_client(
            self._stack,
            self._replica.fenced(transport),
            "member",
            qps=settings.physical_client_qps,
            burst=settings.physical_client_burst,
            cache_budget=self._worker_budget,
            answer_budget=self._answers,
        )
        context = CompanionContext(
            settings=settings,
            syncer=self.syncer,
            worker=worker,
            worker_access=identity.current,
            instance=self._replica.identity,
            metrics=self._metrics,
        )
        return [new(context) for new in self._new_companions]

    def _clusters(
        self, binding: ClusterBinding, computing_id: str, access: SecretAccess
    ) -> Clusters:
        settings, metrics = self._settings, self._metrics
        domain = settings.label_domain
        computing = self._replica.client(
            qps=settings.virtual_client_qps, burst=settings.virtual_client_burst
        )
        self._worker_identity = identity = WorkerIdentity(
            access, lambda: recorded_worker(clusters.binding or binding, access, domain)
        )
        identity.on_change(self._worker_health.mistake)
        # The fence is outside: a write that is not sent says nothing about the worker.
        observed = self._replica.observed(
            identity, "worker", largest=LARGEST_ANSWER, answers=self._answers
        )
        transport = IdentityCheckedTransport(observed, identity)
        worker = open_client(
            self._stack,
            self._replica.fenced(self._worker_health.wrap(transport)),
            "worker",
            qps=settings.physical_client_qps,
            burst=settings.physical_client_burst,
            cache_budget=self._worker_budget,
            answer_budget=self._answers,
        )
        recorder = partial(
            EventRecorder, component=domain.syncer, instance=self._replica.identity, metrics=metrics
        )
        clusters = Clusters(
            binding_name=binding.name,
            cluster_id=binding.spec.cluster_id,
            computing_id=computing_id,
            mount_namespace=binding.spec.mount_namespace,
            computing=computing,
            worker=worker,
            worker_health=self._worker_health,
            events=recorder(computing),
            worker_events=recorder(worker),
            domain=domain,
            zone=settings.zone(self._environ),
            worker_id=lambda: identity.worker_id,
            metrics_port=settings.prometheus_vnode_base_port,
            proxier_namespace=settings.namespace_of_proxiers(self._environ),
            management=self._replica.management_client(settings.management_kubeconfig),
            remove_nodes_after_s=settings.remove_nodes_after_s,
            secrets_by_namespace=settings.secrets_by_namespace,
            metrics=metrics,
        )
        return clusters


async def _binding(client: Client, name: str) -> ClusterBinding:
    """Read the binding, and check the fields that are needed to reach its worker.

    :raises ConfigError: the binding does not exist, or such a field is not valid.
    """
    try:
        binding = await client.get(CLUSTER_BINDINGS, name)
    except NotFound as error:
        raise ConfigError(await _why_missing(client), source=f"ClusterBinding {name}") from error
    for problem in problems(binding.spec):
        if problem.field.startswith(_REQUIRED):
            raise ConfigError(str(problem), source=f"ClusterBinding {name}")
    return binding


async def _why_missing(client: Client) -> str:
    """Return why a binding was not found, and the names of the bindings that exist."""
    try:
        names = [binding.name for binding in (await client.list(CLUSTER_BINDINGS)).items]
    except NotFound:
        return "this cluster does not have the kind: install its definition (kubeocean install)"
    listed = ", ".join(names[:_LISTED]) or "none"
    more = " and more" if names[_LISTED:] else ""
    return f"is not in this cluster, which has {listed}{more}"
