"""The computing cluster as its pods in the worker see it: API server, DNS and Services.

The addresses of the API server and of the DNS are those of the load balancers of two well-known
Services, unless flags set them. Changes are followed. A load balancer that has a host name is
resolved, periodically; a known address stays while it is among the results.

One cluster-wide watch covers all Services, pruned. A watch for each namespace with pods would cost
a connection and a watcher in the API server each, for hundreds of namespaces, and a new namespace
would have to be listed before its first pod can start; a pruned Service has a few hundred bytes,
and Services hardly ever change.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.api import group
from kubeocean.runtime.clock import within
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.forge_context import Endpoint, Privileges, ServiceEnv, ServicePort
from kubeocean.syncer.pods.pod_security import privileges_of
from kubeocean.syncer.replication.service_forge import (
    SERVICE_VIEWS,
    ServiceView,
    without_annotations,
)
from kubeocean.syncer.settings import Address, Given

__all__ = ["ClusterEndpoints", "MissingAddress", "Resolver", "resolve"]

Resolver: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]  # raises OSError

RESOLVE_EVERY_S: Final = 60.0
RESOLVE_RETRY_S: Final = 5.0

_KUBERNETES: Final = Key("default", "kubernetes")  # pods get the address of the API server instead
_SERVER_FLAG: Final = "--kubernetes-service-address"
_DNS_FLAG: Final = "--dns-service-address"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MissingAddress:
    """The reason, for an event, why an address that pods need is not known yet."""

    service: Key
    message: str


class ClusterEndpoints:
    """The computing cluster's addresses and Services for pods in one worker.

    `resolver` resolves host names.
    """

    def __init__(
        self, clusters: Clusters, given: Given | None = None, *, resolver: Resolver | None = None
    ) -> None:
        self.clusters = clusters
        self.given = given or Given()
        self.services_cache = Informer(
            clusters.computing,
            SERVICE_VIEWS,
            indexes={"namespace": lambda service: (service.namespace,)},
            prune=without_annotations,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self._resolver = resolver or resolve
        self._server = _ServiceAddress(group.SERVER_SERVICE, _SERVER_FLAG, self.given.server)
        self._dns = _ServiceAddress(group.DNS_SERVICE, _DNS_FLAG, self.given.dns)
        self._copy_address: Callable[[Key], str] = lambda service: ""
        self._handlers: list[Callable[[], None]] = []
        self._unresolved = asyncio.Event()
        if any(address.is_unresolved for address in self._addresses):
            self._unresolved.set()
        self.parts: tuple[Runnable, ...] = (self.services_cache, self)
        self.services_cache.on_change(self._service_changed)

    @property
    def _addresses(self) -> tuple[_ServiceAddress, _ServiceAddress]:
        return self._server, self._dns

    @property
    def synced(self) -> bool:
        """Whether all Services are cached; a pod created earlier would never get some variables."""
        return self.services_cache.has_synced

    @property
    def server(self) -> Endpoint | None:
        """The address of the computing cluster's API server."""
        server = self._server
        return Endpoint(server.address, server.port) if server.address else None

    @property
    def dns(self) -> str | None:
        """The address of the computing cluster's DNS server."""
        return self._dns.address or None

    @property
    def cluster_domain(self) -> str:
        return self.given.cluster_domain

    @property
    def privileges(self) -> Privileges:
        """The privileges on the worker's nodes that the binding allows pods to request."""
        return privileges_of(self.clusters.binding)

    def services(self, namespace: str) -> Sequence[ServiceEnv]:
        """Return the Services of a namespace that have an address, by name.

        A Service that is replicated into the worker has the address of its copy: its own address is
        not routed in the worker.
        """
        services = self.services_cache.by("namespace", namespace)
        return tuple(
            _service_env(service, self._copy_address(service.key))
            for service in sorted(services, key=lambda service: service.name)
            if service.address and service.key != _KUBERNETES
        )

    def lacking(self, *, dns: bool) -> MissingAddress | None:
        """Return why the API server's address, or with `dns` the DNS server's, is not known.

        None if all are known.
        """
        needed = self._addresses if dns else (self._server,)
        missing = (address.missing() for address in needed)
        return next((each for each in missing if each is not None), None)

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call the handler when an address has changed."""
        self._handlers.append(handler)

    def use_copies(self, address_of: Callable[[Key], str]) -> None:
        """Set the function that returns the address of a Service's copy, or an empty text."""
        self._copy_address = address_of

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        service = new or old
        assert service is not None
        for address in self._addresses:
            if address.is_of(service.key) and address.read(new):
                self._notify(address)
            if address.is_unresolved:
                self._unresolved.set()

    def _notify(self, changed: _ServiceAddress) -> None:
        _log.info(
            "Address of Service changed", service=str(changed.service), address=changed.address
        )
        for handler in self._handlers:
            handler()

    async def run(self) -> None:
        """Resolve host names until cancelled."""
        while True:
            self._unresolved.clear()
            named = [address for address in self._addresses if address.host_name]
            resolved = all([await self._resolve(address) for address in named])
            if not named:
                await self._unresolved.wait()
                continue
            pause_s = RESOLVE_EVERY_S if resolved else RESOLVE_RETRY_S
            try:
                await within(self.clusters.clock, pause_s, self._unresolved.wait)
            except TimeoutError:
                continue

    async def _resolve(self, address: _ServiceAddress) -> bool:
        name = address.host_name
        try:
            results = await self._resolver(name)
        except OSError as error:
            _log.warning(
                "Could not resolve host name of load balancer", name=name, error=str(error)
            )
            address.set_failed(name, str(error))
            return False
        if address.set_resolved(name, results):
            self._notify(address)
        return bool(results)


class _ServiceAddress:
    """The address of a well-known Service: given by a flag, or that of its load balancer.

    `host_name` is the name that has to be resolved, if any, and `address` the result.
    """

    def __init__(self, service: Key, flag: str, given: Address | None) -> None:
        self.service = service
        self.host_name = ""
        self.address = ""
        self.port = 0
        self._flag = flag
        self._given = given
        self._origin = flag if given else f"Service {service}"
        self._problem = f"{self._origin} does not exist"
        if given is not None:
            self._set(given.host, given.port)

    @property
    def is_unresolved(self) -> bool:
        return bool(self.host_name) and not self.address

    def is_of(self, service: Key) -> bool:
        """Whether the address is taken from this Service, and not given by a flag."""
        return self._given is None and service == self.service

    def missing(self) -> MissingAddress | None:
        if self.address:
            return None
        hint = "" if self._given else f"; or start the syncer with {self._flag}"
        return MissingAddress(self.service, f"{self._problem}{hint}")

    def read(self, service: ServiceView | None) -> bool:
        """Set the address from the Service; return whether the address or the port changed."""
        before = self.address, self.port
        if service is None:
            self._unset("does not exist")
        elif not service.ingress:
            self._unset("has no address in status.loadBalancer.ingress")
        elif not service.spec.ports:
            self._unset("has no port")
        else:
            self._set(service.ingress[0], service.spec.ports[0].port)
        return (self.address, self.port) != before

    def set_resolved(self, name: str, addresses: Sequence[str]) -> bool:
        """Set the address from the results for a host name; return whether it changed."""
        if name != self.host_name or self.address in addresses:
            return False  # the Service has changed meanwhile, or the address is still good
        if not addresses:
            self.set_failed(name, "it has no address")
            return False
        self.address = addresses[0]
        return True

    def set_failed(self, name: str, error: str) -> None:
        """Record that a host name cannot be resolved; a known address stays."""
        if name == self.host_name:
            self._problem = f"{self._origin} names {name}, which cannot be looked up: {error}"

    def _set(self, host: str, port: int) -> None:
        self.port = port
        if _is_address(host):
            self.host_name, self.address = "", host
        elif host != self.host_name:
            self.host_name, self.address = host, ""
            self._problem = f"{self._origin} names {host}, which was not looked up yet"

    def _unset(self, problem: str) -> None:
        self.host_name, self.address, self.port = "", "", 0
        self._problem = f"{self._origin} {problem}"


async def resolve(name: str) -> Sequence[str]:
    """Return the addresses of a host name, as this machine resolves it: IPv4 first, sorted.

    :raises OSError: the name cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # Python encodes names itself, and refuses some that servers store
        raise OSError(f"{name!r} is not a DNS name: {error}") from error
    addresses = {ipaddress.ip_address(str(entry[4][0])) for entry in entries}
    return [str(each) for each in sorted(addresses, key=lambda each: (each.version, int(each)))]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _service_env(service: ServiceView, address: str) -> ServiceEnv:
    ports = service.spec.ports or ()
    return ServiceEnv(
        service.name,
        address or service.address,
        tuple(ServicePort(each.port, each.name, each.protocol) for each in ports),
    )
