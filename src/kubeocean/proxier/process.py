"""The process of a proxier: from its settings to a service that runs.

It is ready when it has a valid certificate, knows whose client certificates to believe, its caches
show both clusters, and every virtual node has its door. Several replicas do the same work side by
side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import ENV_POD_IP, ENV_POD_NAME
from kubeocean.api.ownership import Ids
from kubeocean.bound.constancy import Constancy, ConstantTransport, recorded_worker
from kubeocean.bound.identities import identity_of
from kubeocean.bound.rotation import Rotation, kubeconfig_namespaces
from kubeocean.bound.startup import open_client, run_process, trace
from kubeocean.bound.verbosity import Verbosity
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ConfigError
from kubeocean.proxier.authority import Authority
from kubeocean.proxier.badges import Badge
from kubeocean.proxier.believed import PublishedAuthority
from kubeocean.proxier.callers import Callers
from kubeocean.proxier.certificates import ProvidedCertificate, SignedCertificate
from kubeocean.proxier.desk import Desk
from kubeocean.proxier.doors import Doors
from kubeocean.proxier.figures import Figures
from kubeocean.proxier.front import Front
from kubeocean.proxier.identity import Identity
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.places import Places
from kubeocean.proxier.sessions import Sessions
from kubeocean.proxier.settings import Settings
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Runnable
from kubeocean.runtime.credentials import default_access
from kubeocean.runtime.election import unique_identity
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import HttpTransport

__all__ = ["Program", "run"]

_MARGIN_S: Final = 5.0  # after the sessions, for everything else to end

_log = get_logger(__name__)


async def run(settings: Settings, environ: Mapping[str, str] = os.environ) -> int:
    """Serve until a signal; the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return await Program(settings, environ, stack).prepare()

    with bound(binding=settings.cluster_binding_name):
        return await run_process("proxier", settings, prepare, log=_log)


class Program:
    """Everything that one process holds; `stack` gives it back at the end."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)
        self._figures = Figures(self._metrics)
        self._identity = Identity(figures=self._figures)
        self._stopping = asyncio.Event()
        self._listens = False

    async def prepare(self) -> Service:
        """Read what has to be read before anything can start.

        :raises KubeoceanError: it cannot be had, or makes no sense.
        """
        settings, domain = self._settings, self._settings.label_domain
        instance = self._environ.get(ENV_POD_NAME, "") or unique_identity()
        trace(self._stack, domain.proxier, instance=instance, environ=self._environ)
        source = default_access(settings.kubeconfig or None, environ=self._environ)
        computing = open_client(self._stack, HttpTransport(source), "computing")
        binding = await computing.get(CLUSTER_BINDINGS, settings.cluster_binding_name)
        reference = binding.spec.secret_ref
        namespaces = kubeconfig_namespaces(reference, settings.kubeconfig_namespaces, domain)
        access = SecretAccess(
            await computing.get(KUBECONFIG_SECRETS, reference.name, reference.namespace)
        )
        constancy = Constancy(access, lambda: self._recorded(binding, access))
        way = ConstantTransport(HttpTransport(constancy), constancy)
        worker = open_client(self._stack, way, "worker")
        self._rotation = Rotation(
            computing, access, reference, namespaces=namespaces, metrics=self._metrics
        )
        self._bindings: Informer[ClusterBinding] = Informer(
            computing, CLUSTER_BINDINGS, fields=f"metadata.name={binding.name}"
        )
        self._bindings.on_change(self._rotation.follow)
        self._bindings.on_change(Verbosity(domain).follow)
        self._places = await self._find_places(computing, worker, binding)
        kubelets = Kubelets(
            worker,
            Badge(worker, constancy, Key(self._mount(binding), domain.metrics)),
            port=settings.kubelet_port,
            authority=_file(settings.kubelet_certificate_authority),
        )
        self._stack.push_async_callback(kubelets.close)
        desk = self._desk(computing, worker, kubelets)
        self._front = Front(
            desk.answer, self._identity, host=settings.listen_address, figures=self._figures
        )
        self._doors = Doors(self._front, self._places.vnodes, domain=domain)
        self._trusts = self._trust(computing, binding)
        return self._service()

    # Life

    def _service(self) -> Service:
        settings = self._settings
        return Service(
            settings.label_domain.proxier,
            [
                Component("caches", self._work, self._ready),
                Component("front", self._serve, lambda: self._listens, stop=self._stopping.set),
            ],
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            health_address=settings.health_probe_bind_address,
            deadline_s=settings.drain_s + _MARGIN_S,
        )

    async def _work(self) -> None:
        follows: tuple[Runnable, ...] = (self._bindings, self._rotation)
        async with asyncio.TaskGroup() as group:
            for part in (*follows, *self._trusts, *self._places.parts):
                group.create_task(part.run())
            group.create_task(self._doors.controller.run())

    async def _serve(self) -> None:
        settings = self._settings
        async with self._front as front:
            await front.open(settings.listen_port)
            if settings.metrics_enabled and settings.prometheus_vnode_base_port:
                await front.open(
                    settings.prometheus_vnode_base_port,
                    host=settings.prometheus_vnode_address,
                    metrics_only=True,
                )
            self._listens = True
            await self._stopping.wait()
            await front.drain(settings.drain_s)

    def _ready(self) -> bool:
        return self._identity.ready and self._places.ready and self._doors.ready

    # Parts

    async def _find_places(
        self, computing: Client, worker: Client, binding: ClusterBinding
    ) -> Places:
        domain = self._settings.label_domain
        return Places(
            computing,
            worker,
            ids=Ids(binding.name, binding.spec.cluster_id, await identity_of(computing)),
            domain=domain,
            mount_namespace=self._mount(binding),
            metrics=self._metrics,
        )

    def _mount(self, binding: ClusterBinding) -> str:
        return binding.spec.mount_namespace or self._settings.label_domain.worker_namespace

    def _desk(self, computing: Client, worker: Client, kubelets: Kubelets) -> Desk:
        settings = self._settings
        return Desk(
            callers=Callers(computing),
            authority=Authority(computing),
            paces=Paces(),
            places=self._places,
            sessions=Sessions(worker, idle_s=settings.idle_s),
            pages=Pages(
                computing,
                self._places,
                kubelets,
                metrics=settings.metrics_enabled,
                namespace=settings.metrics_target_namespace,
            ),
            figures=self._figures,
        )

    def _trust(self, computing: Client, binding: ClusterBinding) -> tuple[Runnable, ...]:
        """What keeps our certificate, and the authority of others', true."""
        settings = self._settings
        certificate: Runnable
        secret = _secret(settings, binding)
        address = self._environ.get(ENV_POD_IP, "")
        if secret is not None:
            certificate = ProvidedCertificate(computing, secret, self._identity, address=address)
        else:
            certificate = SignedCertificate(
                computing,
                self._identity,
                binding=binding.name,
                cluster_id=binding.spec.cluster_id,
                address=address or settings.listen_address,
                pod=self._environ.get(ENV_POD_NAME, ""),
                domain=settings.label_domain,
            )
        authority = _file(settings.client_ca_file)
        if authority is None:
            return certificate, PublishedAuthority(computing, self._identity)
        self._identity.believe(authority)
        return (certificate,)

    def _recorded(self, binding: ClusterBinding, access: SecretAccess) -> str:
        """Which cluster the binding is for, as it says now; `binding` is how it was."""
        now = self._bindings.get(binding.key) or binding
        return recorded_worker(now, access, self._settings.label_domain)


def _secret(settings: Settings, binding: ClusterBinding) -> Key | None:
    """The Secret that somebody provides, if anybody does."""
    if settings.tls_secret_name:
        return Key(settings.tls_secret_namespace, settings.tls_secret_name)
    domain, said = settings.label_domain, binding.annotations
    name = said.get(domain.logs_proxy_secret_name, "")
    if not name:
        return None
    return Key(said.get(domain.logs_proxy_secret_namespace) or domain.system_namespace, name)


def _file(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=path) from error
