"""The process of a syncer: from its settings to a program that runs until it is told to stop.

Replicas compete for a Lease, and only the one that leads lends: it watches the binding's Secret,
fills its caches and starts the controllers. The others wait, ready. A leader that loses its Lease
ends with exit code 1 rather than wait for another turn: what it knows of its own writes, timers and
counts belongs to a reign that is over, and a fresh process costs a second. Whatever it still tries
on its way out is not sent: both clients ask the election before each write.

With `--sharding` all replicas lend, each its part (see `sharing`), and before each write the
clients ask the ring. The replica that is elected for what is not shared is elected on the same
Lease, so that the first to share waits for the last that led alone.

The worker need not answer, not even at the start: its caches fill when it does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding, problems
from kubeocean.api.reasons import BindingEvent
from kubeocean.bound.constancy import Constancy, ConstantTransport, recorded_worker
from kubeocean.bound.identities import identity_of
from kubeocean.bound.replicas import Replica
from kubeocean.bound.rotation import Rotation, kubeconfig_namespaces
from kubeocean.bound.startup import open_client, run_process
from kubeocean.bound.verbosity import Verbosity
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ConfigError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Part, Runnable
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.events import reference as event_reference
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.settings import Settings
from kubeocean.syncer.sharing import known, share
from kubeocean.syncer.world import World

__all__ = ["Program", "run"]

_DEADLINE_S: Final = 20.0  # a kubelet kills after 30
_NAMED: Final = 5
_NEEDED: Final = ("spec.clusterID", "spec.secretRef")  # of a binding, before anything can start

_log = get_logger(__name__)


async def run(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> int:
    """Lend until told to stop; the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return await Program(settings, environ, stack).prepare()

    with bound(binding=settings.cluster_binding_name):
        return await run_process("syncer", settings, prepare, log=_log)


class Program:
    """Everything that one process holds; `stack` gives it back at the end.

    `syncer` is there once it is prepared, and writes only while the program leads.
    """

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)
        self._reach = Reach()
        self._everywhere: list[Runnable] = []  # what every replica runs, where all of them work

    async def prepare(self) -> Service:
        """Read what has to be read before anything can start.

        :raises KubeoceanError: it cannot be had, or makes no sense.
        """
        settings, domain = self._settings, self._settings.label_domain
        self._replica = Replica(
            settings,
            domain.syncer,
            self._stack,
            prepared=lambda: known(self.syncer.world),
            metrics=self._metrics,
            environ=self._environ,
        )
        control = self._replica.control  # what we start from is not held up either
        binding = await _binding(control, settings.cluster_binding_name)
        reference = binding.spec.secret_ref
        namespaces = kubeconfig_namespaces(reference, settings.kubeconfig_namespaces, domain)
        secret = await control.get(KUBECONFIG_SECRETS, reference.name, reference.namespace)
        access = SecretAccess(secret)
        world = self._world(binding, await identity_of(control), access)
        self._rotation = Rotation(
            control,
            access,
            reference,
            namespaces=namespaces,
            refused=lambda named, said: world.events.emit(
                event_reference(CLUSTER_BINDINGS, named),
                "Warning",
                BindingEvent.KUBECONFIG_REFUSED,
                said,
            ),
            taken=self._reach.failed,
            metrics=self._metrics,
        )
        world.bindings.on_change(self._rotation.follow)
        world.bindings.on_change(Verbosity(domain).follow)
        self.syncer = Syncer(world, settings.given)
        return Service(
            domain.syncer,
            self._components(),
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    def _components(self) -> list[Part]:
        syncer = Component("syncer", self._work, self._ready)
        sharing = self._replica.sharing
        if sharing is None:
            return [syncer]
        self._everywhere = share(self.syncer, sharing)
        # The ring comes last, so that it ends first: parts are handed over while all still works.
        return [syncer, sharing.ring]

    # Life

    async def _work(self) -> None:
        await self._replica.run(self._lend)

    async def _lend(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rotation.run())
            await self._rotation.informed()
            for part in self._everywhere or (self.syncer,):
                group.create_task(part.run())

    def _ready(self) -> bool:
        return self._replica.ready(self.syncer.ready)

    # Parts

    def _world(self, binding: ClusterBinding, computing_id: str, access: SecretAccess) -> World:
        settings, metrics = self._settings, self._metrics
        domain = settings.label_domain
        computing = self._replica.client(
            qps=settings.virtual_client_qps, burst=settings.virtual_client_burst
        )
        constancy = Constancy(
            access, lambda: recorded_worker(world.binding or binding, access, domain)
        )
        constancy.on_change(self._reach.mistake)
        # The fence is outside: a write that we keep back says nothing about the worker.
        way = ConstantTransport(self._replica.counted(constancy), constancy)
        worker = open_client(
            self._stack,
            self._replica.fenced(self._reach.wrap(way)),
            "worker",
            qps=settings.physical_client_qps,
            burst=settings.physical_client_burst,
        )
        recorder = partial(
            EventRecorder, component=domain.syncer, instance=self._replica.identity, metrics=metrics
        )
        world = World(
            binding_name=binding.name,
            cluster_id=binding.spec.cluster_id,
            computing_id=computing_id,
            mount_namespace=binding.spec.mount_namespace,
            computing=computing,
            worker=worker,
            reach=self._reach,
            events=recorder(computing),
            worker_events=recorder(worker),
            domain=domain,
            zone=settings.zone(self._environ),
            worker_id=lambda: constancy.worker_id,
            metrics_port=settings.prometheus_vnode_base_port,
            metrics=metrics,
        )
        return world


async def _binding(client: Client, name: str) -> ClusterBinding:
    """The binding, with all that is needed to reach its worker."""
    try:
        binding = await client.get(CLUSTER_BINDINGS, name)
    except NotFound as error:
        raise ConfigError(await _why_not(client), source=f"ClusterBinding {name}") from error
    for problem in problems(binding.spec):
        if problem.field.startswith(_NEEDED):
            raise ConfigError(str(problem), source=f"ClusterBinding {name}")
    return binding


async def _why_not(client: Client) -> str:
    """Why there is no binding of some name, so that people know what to do."""
    try:
        there = [each.name for each in (await client.list(CLUSTER_BINDINGS)).items]
    except NotFound:
        return "this cluster does not know the kind: install its definition (kubeocean install)"
    named = ", ".join(there[:_NAMED]) or "none"
    return f"is not in this cluster, which has {named}{' and more' if there[_NAMED:] else ''}"
