"""The process of a proxier: from its settings to a running service.

The proxier is ready when it has a valid certificate and the CA of client certificates, its caches
are filled from both clusters, and each virtual node has its port. Replicas do the same work side by
side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import ENV_POD_IP, ENV_POD_NAME
from kubeocean.api.ownership import Ids
from kubeocean.errors import ConfigError
from kubeocean.process.log_level import LogLevel
from kubeocean.process.startup import (
    MANAGEMENT,
    management_access,
    open_client,
    run_process,
    trace,
)
from kubeocean.proxier.authentication import Authenticator
from kubeocean.proxier.authorization import Authorizer
from kubeocean.proxier.certificates import ProvidedCertificate, SignedCertificate
from kubeocean.proxier.connection_limits import RateLimits
from kubeocean.proxier.handler import RequestHandler
from kubeocean.proxier.kubelet_client import KubeletClient
from kubeocean.proxier.kubelet_credentials import KubeletCredential
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.proxier.node_pages import NodePages
from kubeocean.proxier.node_ports import NodePortController
from kubeocean.proxier.pod_lookup import PodLookup
from kubeocean.proxier.server import KubeletServer
from kubeocean.proxier.server_tls import PublishedClientCa, ServerTls
from kubeocean.proxier.sessions import Sessions
from kubeocean.proxier.settings import ProxierSettings
from kubeocean.runtime.answer_budget import AnswerBudget
from kubeocean.runtime.audit import AuditTransport
from kubeocean.runtime.cache_budget import CacheBudget
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component, Runnable
from kubeocean.runtime.credentials import AccessSource, default_access
from kubeocean.runtime.election import unique_identity
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS_WITH_DATA
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import HttpTransport, Transport
from kubeocean.runtime.transport_layers import CountedTransport
from kubeocean.worker_access.client import INCOMPLETE_ANSWERS, LARGEST_ANSWER
from kubeocean.worker_access.credentials import SecretAccess
from kubeocean.worker_access.identity import (
    IdentityCheckedTransport,
    WorkerIdentity,
    identity_of,
    recorded_worker,
)
from kubeocean.worker_access.rotation import Rotation, kubeconfig_namespaces

__all__ = ["ProxierProgram", "run"]

_SHUTDOWN_S: Final = 5.0  # for everything else, after the sessions have ended

_log = get_logger(__name__)


async def run(settings: ProxierSettings, environ: Mapping[str, str] = os.environ) -> int:
    """Serve as a proxier until a signal, and return the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return await ProxierProgram(settings, environ, stack).prepare()

    with bound(binding=settings.cluster_binding_name):
        return await run_process("proxier", settings, prepare, log=_log)


class ProxierProgram:
    """The parts of one proxier's process; `stack` closes them at the end."""

    def __init__(
        self, settings: ProxierSettings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)
        self._proxier_metrics = ProxierMetrics(self._metrics)
        self._tls = ServerTls(metrics=self._proxier_metrics)
        self._stopping = asyncio.Event()
        self._listening = False

    async def prepare(self) -> Service:
        """Read the binding and its Secret, and assemble the service.

        :raises KubeoceanError: the binding or its Secret cannot be read, or is not valid.
        """
        settings, domain = self._settings, self._settings.label_domain
        instance = self._environ.get(ENV_POD_NAME, "") or unique_identity()
        trace(self._stack, domain.proxier, instance=instance, environ=self._environ)
        source = default_access(settings.kubeconfig or None, environ=self._environ)
        actor = f"{domain.proxier}/{instance}"
        answers = AnswerBudget(INCOMPLETE_ANSWERS)  # of the worker

        def observed(access: AccessSource, cluster: str, largest: int | None = None) -> Transport:
            transport = HttpTransport(access, largest=largest, answers=answers if largest else None)
            counted = CountedTransport(transport, access, self._metrics, cluster=cluster)
            return AuditTransport(counted, cluster=cluster, actor=actor)

        computing = open_client(self._stack, observed(source, "computing"), "computing")
        binding = await computing.get(CLUSTER_BINDINGS, settings.cluster_binding_name)
        reference = binding.spec.secret_ref
        namespaces = kubeconfig_namespaces(reference, settings.kubeconfig_namespaces, domain)
        access = SecretAccess(
            await computing.get(SECRETS_WITH_DATA, reference.name, reference.namespace)
        )
        identity = WorkerIdentity(access, lambda: self._recorded_worker(binding, access))
        checked = IdentityCheckedTransport(observed(identity, "worker", LARGEST_ANSWER), identity)
        worker = open_client(
            self._stack,
            checked,
            "worker",
            cache_budget=CacheBudget(settings.worker_cache_bytes),
            answer_budget=answers,
        )
        self._rotation = Rotation(
            computing, access, reference, namespaces=namespaces, metrics=self._metrics
        )
        self._bindings: Informer[ClusterBinding] = Informer(
            computing, CLUSTER_BINDINGS, fields=f"metadata.name={binding.name}"
        )
        self._bindings.on_change(self._rotation.follow)
        self._bindings.on_change(LogLevel(domain).follow)
        mount_namespace = binding.spec.mount_namespace or domain.worker_namespace
        self._pod_lookup = PodLookup(
            computing,
            worker,
            ids=Ids(binding.name, binding.spec.cluster_id, await identity_of(computing)),
            domain=domain,
            mount_namespace=mount_namespace,
            metrics=self._metrics,
        )
        kubelets = KubeletClient(
            worker,
            KubeletCredential(worker, identity, Key(mount_namespace, domain.metrics)),
            port=settings.kubelet_port,
            authority=_content(settings.kubelet_certificate_authority),
        )
        self._stack.push_async_callback(kubelets.close)
        handler = self._handler(computing, worker, kubelets)
        self._server = KubeletServer(
            handler.handle,
            self._tls,
            host=settings.listen_address,
            metrics=self._proxier_metrics,
        )
        self._node_ports = NodePortController(self._server, self._pod_lookup.vnodes, domain=domain)
        self._certificates = self._certificate_sources(computing, binding)
        reviewer = computing  # of callers that read metrics
        if settings.management_kubeconfig:
            management = management_access(settings.management_kubeconfig, self._environ)
            reviewer = open_client(self._stack, observed(management, MANAGEMENT), MANAGEMENT)
        return self._service(reviewer)

    def _service(self, reviewer: Client) -> Service:
        settings = self._settings
        return Service(
            settings.label_domain.proxier,
            [
                Component("caches", self._follow, self._ready),
                Component("server", self._serve, lambda: self._listening, stop=self._stopping.set),
            ],
            metrics=self._metrics,
            metrics_address=settings.metrics_bind_address,
            secure_metrics=settings.secure_metrics(reviewer),
            health_address=settings.health_probe_bind_address,
            deadline_s=settings.drain_s + _SHUTDOWN_S,
        )

    async def _follow(self) -> None:
        """Keep caches, credentials, certificates and ports up to date until cancelled."""
        access: tuple[Runnable, ...] = (self._bindings, self._rotation)
        async with asyncio.TaskGroup() as group:
            for each in (*access, *self._certificates, *self._pod_lookup.informers):
                group.create_task(each.run())
            group.create_task(self._node_ports.controller.run())

    async def _serve(self) -> None:
        settings = self._settings
        async with self._server as server:
            await server.open_port(settings.listen_port)
            if settings.metrics_enabled and settings.prometheus_vnode_base_port:
                await server.open_port(
                    settings.prometheus_vnode_base_port,
                    host=settings.prometheus_vnode_address,
                    metrics_only=True,
                )
            self._listening = True
            await self._stopping.wait()
            await server.drain(settings.drain_s)

    def _ready(self) -> bool:
        return self._tls.ready and self._pod_lookup.ready and self._node_ports.ready

    def _handler(
        self, computing: Client, worker: Client, kubelets: KubeletClient
    ) -> RequestHandler:
        settings = self._settings
        return RequestHandler(
            authenticator=Authenticator(computing),
            authorizer=Authorizer(computing),
            rate_limits=RateLimits(),
            pod_lookup=self._pod_lookup,
            sessions=Sessions(worker, idle_s=settings.idle_s),
            pages=NodePages(
                computing,
                self._pod_lookup,
                kubelets,
                metrics=settings.metrics_enabled,
                namespace=settings.metrics_target_namespace,
            ),
            metrics=self._proxier_metrics,
        )

    def _certificate_sources(
        self, computing: Client, binding: ClusterBinding
    ) -> tuple[Runnable, ...]:
        """Return the sources of the serving certificate and of the CA of client certificates."""
        settings = self._settings
        certificate: Runnable
        secret = _tls_secret(settings, binding)
        address = self._environ.get(ENV_POD_IP, "")
        if secret is not None:
            certificate = ProvidedCertificate(computing, secret, self._tls, address=address)
        else:
            certificate = SignedCertificate(
                computing,
                self._tls,
                binding=binding.name,
                cluster_id=binding.spec.cluster_id,
                address=address or settings.listen_address,
                pod=self._environ.get(ENV_POD_NAME, ""),
                domain=settings.label_domain,
            )
        client_ca = _content(settings.client_ca_file)
        if client_ca is None:
            return certificate, PublishedClientCa(computing, self._tls)
        self._tls.trust_clients(client_ca)
        return (certificate,)

    def _recorded_worker(self, binding: ClusterBinding, access: SecretAccess) -> str:
        """Return the identity of the worker that the binding records.

        Read from the cached binding; from `binding`, read at the start, while the cache has none.
        """
        cached = self._bindings.get(binding.key) or binding
        return recorded_worker(cached, access, self._settings.label_domain)


def _tls_secret(settings: ProxierSettings, binding: ClusterBinding) -> Key | None:
    """Return the Secret with the serving certificate, if a flag or the binding names one."""
    if settings.tls_secret_name:
        return Key(settings.tls_secret_namespace, settings.tls_secret_name)
    domain, annotations = settings.label_domain, binding.annotations
    name = annotations.get(domain.logs_proxy_secret_name, "")
    if not name:
        return None
    namespace = annotations.get(domain.logs_proxy_secret_namespace) or domain.system_namespace
    return Key(namespace, name)


def _content(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=path) from error
