"""Surroundings: what a pod in the worker is told of the computing cluster that it belongs to.

Where the API server and the DNS are reached, which Services its namespace has, and what it may do
on the node. The two addresses are those of load balancers of well-known Services, unless flags say
them. They are followed as they change; one that is a name is looked up, now and then again, and an
answer that is still good is kept.

Services are watched in one piece, cluster-wide and pruned. A watch for each namespace with pods
would hold a connection and a watcher in the API server for each, hundreds of them, and a new
namespace would have to be listed before its first pod can start; a pruned Service is a few hundred
bytes, and Services hardly ever change.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.api import group
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.syncer.forge.podcontext import Endpoint, Privileges, ServiceEnv, ServicePort
from kubeocean.syncer.forge.podprivileges import privileges_of
from kubeocean.syncer.serviceviews import SERVICE_VIEWS, Service, lean
from kubeocean.syncer.settings import Address, Given
from kubeocean.syncer.world import World

__all__ = ["Lack", "Resolver", "Surroundings", "addresses_of"]

Resolver: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]  # raises OSError

LOOK_UP_EVERY_S: Final = 60.0
LOOK_UP_AGAIN_S: Final = 5.0  # after a failure

_KUBERNETES: Final = Key("default", "kubernetes")  # told of by the address of the API server
_SERVER_FLAG: Final = "--kubernetes-service-address"
_DNS_FLAG: Final = "--dns-service-address"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Lack:
    """Why pods cannot be told an address yet, in words for an event."""

    service: Key
    message: str


class Surroundings:
    """What one worker's pods are told; `resolve` gives the addresses of a name."""

    def __init__(
        self, world: World, given: Given | None = None, *, resolve: Resolver | None = None
    ) -> None:
        self.world = world
        self.given = given or Given()
        self.services_cache = Informer(
            world.computing,
            SERVICE_VIEWS,
            indexes={"namespace": lambda service: (service.namespace,)},
            prune=lean,
            clock=world.clock,
            metrics=world.metrics,
        )
        self._resolve = resolve or addresses_of
        self._server = _Place(group.SERVER_SERVICE, _SERVER_FLAG, self.given.server)
        self._dns = _Place(group.DNS_SERVICE, _DNS_FLAG, self.given.dns)
        self._stand_in: Callable[[Key], str] = lambda key: ""
        self._handlers: list[Callable[[], None]] = []
        self._unknown = asyncio.Event()  # a name waits to be looked up
        if any(place.unknown for place in self._places):
            self._unknown.set()
        self.parts: tuple[Runnable, ...] = (self.services_cache, self)
        self.services_cache.on_change(self._changed)

    @property
    def _places(self) -> tuple[_Place, _Place]:
        return self._server, self._dns

    # What pods are told

    @property
    def synced(self) -> bool:
        """Whether all Services are known; a pod that starts before misses some for ever."""
        return self.services_cache.has_synced

    @property
    def server(self) -> Endpoint | None:
        """The API server of the computing cluster."""
        place = self._server
        return Endpoint(place.address, place.port) if place.address else None

    @property
    def dns(self) -> str | None:
        """The DNS of the computing cluster."""
        return self._dns.address or None

    @property
    def cluster_domain(self) -> str:
        return self.given.cluster_domain

    @property
    def privileges(self) -> Privileges:
        """What pods may do on their node."""
        return privileges_of(self.world.binding)

    def services(self, namespace: str) -> Sequence[ServiceEnv]:
        """The Services of a namespace that have an address, by name.

        One that is mirrored into the worker is told by the address of its mirror: its own leads
        nowhere there.
        """
        found = self.services_cache.by("namespace", namespace)
        return tuple(
            _told(service, self._stand_in(service.key))
            for service in sorted(found, key=lambda service: service.name)
            if service.address and service.key != _KUBERNETES
        )

    def lacking(self, *, dns: bool) -> Lack | None:
        """What keeps a pod from being told where the API server is, and the DNS if it asks it."""
        needed = self._places if dns else (self._server,)
        return next((lack for place in needed if (lack := place.lack()) is not None), None)

    # Who is told

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call when an address has changed: pods that waited for it need wait no longer."""
        self._handlers.append(handler)

    def stand_in(self, address_of: Callable[[Key], str]) -> None:
        """Ask this for the address in the worker of a Service's mirror; empty if there is none."""
        self._stand_in = address_of

    # What changes

    def _changed(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        assert service is not None
        for place in self._places:
            if place.follows(service.key) and place.read(new):
                self._tell(place)
            if place.unknown:
                self._unknown.set()

    def _tell(self, place: _Place) -> None:
        _log.info("Address changed", service=str(place.service), address=place.address)
        for handler in self._handlers:
            handler()

    async def run(self) -> None:
        """Look up names, until cancelled."""
        while True:
            self._unknown.clear()
            names = [place for place in self._places if place.name]
            good = all([await self._look_up(place) for place in names])
            if not names:
                await self._unknown.wait()
                continue
            pause_s = LOOK_UP_EVERY_S if good else LOOK_UP_AGAIN_S
            try:
                await within(self.world.clock, pause_s, self._unknown.wait)
            except TimeoutError:
                continue

    async def _look_up(self, place: _Place) -> bool:
        name = place.name
        try:
            found = await self._resolve(name)
        except OSError as error:
            _log.warning("Could not look up name", name=name, error=str(error))
            place.failed(name, str(error))
            return False
        if place.found(name, found):
            self._tell(place)
        return bool(found)


class _Place:
    """One address: given by a flag, or that of a Service's load balancer.

    `name` is what has to be looked up, `address` what came of it.
    """

    def __init__(self, service: Key, flag: str, given: Address | None) -> None:
        self.service = service
        self.name = ""
        self.address = ""
        self.port = 0
        self._flag = flag
        self._given = given
        self._source = flag if given else f"Service {service}"
        self._why = f"{self._source} does not exist"
        if given is not None:
            self._take(given.host, given.port)

    @property
    def unknown(self) -> bool:
        return bool(self.name) and not self.address

    def follows(self, service: Key) -> bool:
        return self._given is None and service == self.service

    def lack(self) -> Lack | None:
        if self.address:
            return None
        hint = "" if self._given else f"; or start the syncer with {self._flag}"
        return Lack(self.service, f"{self._why}{hint}")

    def read(self, service: Service | None) -> bool:
        """Take what the Service says; whether the address or the port is another one now."""
        before = self.address, self.port
        if service is None:
            self._forget("does not exist")
        elif not service.ingress:
            self._forget("has no address in status.loadBalancer.ingress")
        elif not service.spec.ports:
            self._forget("has no port")
        else:
            self._take(service.ingress[0], service.spec.ports[0].port)
        return (self.address, self.port) != before

    def found(self, name: str, addresses: Sequence[str]) -> bool:
        """Take an answer for the name; whether the address is another one now."""
        if name != self.name or self.address in addresses:
            return False  # the Service changed meanwhile, or what we have is still good
        if not addresses:
            self.failed(name, "it has no address")
            return False
        self.address = addresses[0]
        return True

    def failed(self, name: str, error: str) -> None:
        """No answer: what was known of the name is kept."""
        if name == self.name:
            self._why = f"{self._source} names {name}, which cannot be looked up: {error}"

    def _take(self, host: str, port: int) -> None:
        self.port = port
        if _is_address(host):
            self.name, self.address = "", host
        elif host != self.name:
            self.name, self.address = host, ""
            self._why = f"{self._source} names {host}, which was not looked up yet"

    def _forget(self, why: str) -> None:
        self.name, self.address, self.port = "", "", 0
        self._why = f"{self._source} {why}"


async def addresses_of(name: str) -> Sequence[str]:
    """The addresses of a name, as this machine resolves it: IPv4 first, always in one order.

    :raises OSError: there is no answer.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = {ipaddress.ip_address(str(entry[4][0])) for entry in found}
    return [str(each) for each in sorted(addresses, key=lambda each: (each.version, int(each)))]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _told(service: Service, address: str) -> ServiceEnv:
    ports = service.spec.ports or ()
    return ServiceEnv(
        service.name,
        address or service.address,
        tuple(ServicePort(each.port, each.name, each.protocol) for each in ports),
    )
