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
import signal
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import Final

from kubeocean import __version__
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding, problems
from kubeocean.api.group import ENV_POD_NAMESPACE
from kubeocean.api.reasons import BindingEvent
from kubeocean.bound.identities import identity_of
from kubeocean.bound.rotation import Rotation, kubeconfig_namespaces
from kubeocean.bound.verbosity import Verbosity
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ConfigError, KubeoceanError, NotFound
from kubeocean.runtime import tracing
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Part, Runnable
from kubeocean.runtime.credentials import AccessSource, InClusterAccess, default_access
from kubeocean.runtime.election import Election, LeadershipLost, unique_identity
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.events import reference as event_reference
from kubeocean.runtime.fencing import FencedTransport
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.requestcounts import CountedTransport
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import HttpTransport, Transport
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.sharing import Sharing
from kubeocean.sharding.vacancy import Vacancy
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.settings import Settings
from kubeocean.syncer.sharing import known, share
from kubeocean.syncer.world import World

__all__ = ["Program", "run"]

_FAILED: Final = 1
_SIGNALLED: Final = 128  # and the number of the signal
_DEADLINE_S: Final = 20.0  # a kubelet kills after 30
_BURST: Final = 10
_NAMED: Final = 5
_NEEDED: Final = ("spec.clusterID", "spec.secretRef")  # of a binding, before anything can start

_log = get_logger(__name__)


async def run(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> int:
    """Lend until told to stop; the exit code."""
    undo = settings.configure_logs()
    try:
        with bound(binding=settings.cluster_binding_name):
            async with AsyncExitStack() as stack:
                signals: list[int] = []
                try:
                    with _cancelling(signals):
                        service = await Program(settings, environ, stack).prepare()
                except asyncio.CancelledError:
                    if not signals:
                        raise
                    return _SIGNALLED + signals[0]
                except KubeoceanError as error:
                    _log.error("Could not start syncer", error=str(error))
                    return _FAILED
                return await service.run()
    finally:
        undo()


@contextmanager
def _cancelling(received: list[int]) -> Iterator[None]:
    """Let signals cancel this task, until the service takes care of them. In a container nobody
    else would: the kernel spares the first process."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(number: int) -> None:
        received.append(number)
        task.cancel()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


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
        self._identity = unique_identity()
        self._reach = Reach()
        self._everywhere: list[Runnable] = []  # what every replica runs, where all of them work
        self._election: Election | None = None
        self._vacancy: Vacancy | None = None
        self._sharing: Sharing | None = None

    async def prepare(self) -> Service:
        """Read what has to be read before anything can start.

        :raises KubeoceanError: it cannot be had, or makes no sense.
        """
        settings = self._settings
        self._trace()
        source = default_access(
            settings.kubeconfig or None,
            environ=self._environ,
            allow_exec=settings.allow_exec_plugins,
        )
        # For what no rate limit and no fence may hold up: the election, and what we start from.
        control = self._client(self._counted(source), "computing")
        if settings.sharding:
            self._sharing = self._member(control, source)
        elif settings.leader_elect:
            self._election = self._candidate(control, source)
        binding = await _binding(control, settings.cluster_binding_name)
        reference = binding.spec.secret_ref
        namespaces = kubeconfig_namespaces(
            reference, settings.kubeconfig_namespaces, settings.label_domain
        )
        secret = await control.get(KUBECONFIG_SECRETS, reference.name, reference.namespace)
        access = SecretAccess(secret)
        world = self._world(binding, await identity_of(control), source, access)
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
            metrics=self._metrics,
        )
        world.bindings.on_change(self._rotation.follow)
        world.bindings.on_change(Verbosity(settings.label_domain).follow)
        self.syncer = Syncer(world, settings.given)
        return Service(
            settings.label_domain.syncer,
            self._components(),
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    def _components(self) -> list[Part]:
        syncer = Component("syncer", self._work, self._ready)
        if self._sharing is None:
            return [syncer]
        self._everywhere = share(self.syncer, self._sharing)
        # The ring comes last, so that it ends first: parts are handed over while all still works.
        return [syncer, self._sharing.ring]

    # Life

    async def _work(self) -> None:
        if self._election is None:
            await self._lend()
            return
        # The election has told why it was lost; the service ends because we end.
        with suppress(LeadershipLost):
            await self._election.run(self._lead)

    async def _lead(self) -> None:
        assert self._vacancy is not None
        await self._vacancy.wait()
        await self._lend()

    async def _lend(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rotation.run())
            await self._rotation.informed()
            for part in self._everywhere or (self.syncer,):
                group.create_task(part.run())

    def _ready(self) -> bool:
        """Who leads has full caches; who does not knows who does. Who waits for replicas that share
        is ready: a rollout ends them only then."""
        if self._vacancy is not None and self._vacancy.waits:
            return True
        election = self._election
        if election is None or election.is_leader:
            return self.syncer.ready
        return election.holder not in ("", election.identity)

    # Parts

    def _world(
        self,
        binding: ClusterBinding,
        computing_id: str,
        source: AccessSource,
        access: SecretAccess,
    ) -> World:
        settings, metrics = self._settings, self._metrics
        domain = settings.label_domain
        computing = self._client(
            self._fenced(self._counted(source)),
            "computing",
            qps=settings.virtual_client_qps,
            burst=settings.virtual_client_burst,
        )
        # The fence is outside: a write that we keep back says nothing about the worker.
        worker = self._client(
            self._fenced(self._reach.wrap(self._counted(access))),
            "worker",
            qps=settings.physical_client_qps,
            burst=settings.physical_client_burst,
        )
        recorder = partial(
            EventRecorder, component=domain.syncer, instance=self._identity, metrics=metrics
        )
        return World(
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
            metrics_port=settings.prometheus_vnode_base_port,
            metrics=metrics,
        )

    def _client(
        self, transport: Transport, cluster: str, *, qps: float = 0.0, burst: int = 0
    ) -> Client:
        # As for client-go: no rate means no limit, and a rate without a burst gets its default.
        rate, at_once = (qps if qps > 0 else None), (burst if burst > 0 else _BURST)
        client = Client(transport, cluster=cluster, qps=rate, burst=at_once)
        self._stack.push_async_callback(client.close)
        return client

    def _counted(self, source: AccessSource) -> Transport:
        return CountedTransport(HttpTransport(source), source, self._metrics)

    def _fenced(self, transport: Transport) -> Transport:
        asked = self._election or self._sharing
        return FencedTransport(transport, asked.check) if asked else transport

    def _member(self, control: Client, source: AccessSource) -> Sharing:
        config = self._settings.ring(self._election_namespace(source))
        ring = Ring(control, config, metrics=self._metrics, environ=self._environ)
        return Sharing(ring, prepared=lambda: known(self.syncer.world))

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
            self._settings.label_domain.syncer,
            version=__version__,
            instance=self._identity,
            environ=self._environ,
        )
        self._stack.push_async_callback(asyncio.to_thread, finish)


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
