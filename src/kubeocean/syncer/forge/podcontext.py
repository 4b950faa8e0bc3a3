"""What a physical pod is made from, besides the virtual one.

A `Context` holds all that the translation of a pod has to know of the two clusters: where it runs,
whose it is, what its copies are called, how the computing cluster's API server and DNS are reached
from the worker. Whoever fills it reads; the translation itself does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError, InvariantError

__all__ = [
    "CLUSTER_DOMAIN",
    "HTTPS",
    "Context",
    "Endpoint",
    "Names",
    "Privileges",
    "Refused",
    "ServiceEnv",
    "ServicePort",
    "Workload",
]

CLUSTER_DOMAIN: Final = "cluster.local"
HTTPS: Final = "https"  # what the port of default/kubernetes is called everywhere


class Refused(ConfigError):
    """A pod cannot run in the worker as it is; `field` is the path of what is in the way."""

    def __init__(self, field: str, message: str, *, value: object = None) -> None:
        self.reason = message
        super().__init__(message, field=field, value=value)


@dataclass(frozen=True, slots=True)
class Names:
    """Virtual name → physical name, for all that a pod refers to.

    A token is known by its volume and its place among the tokens of that volume. Secrets to pull
    images with may be missing: such a Secret does not exist, and the pod does without. Nothing else
    may: who fills this has looked at all `references`. `keys` are those of what gives containers
    their whole environment, by kind and virtual name.
    """

    config_maps: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[tuple[str, int], str] = field(default_factory=dict)
    keys: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def config_map(self, name: str) -> str:
        return _known("ConfigMap", self.config_maps.get(name), name)

    def secret(self, name: str) -> str:
        return _known("Secret", self.secrets.get(name), name)

    def claim(self, name: str) -> str:
        return _known("PersistentVolumeClaim", self.claims.get(name), name)

    def token(self, volume: str, index: int) -> str:
        return _known("token", self.tokens.get((volume, index)), f"{volume}[{index}]")


def _known(kind: str, physical: str | None, name: str) -> str:
    if physical is None:
        raise InvariantError("a pod refers to what has no name below", kind=kind, name=name)
    return physical


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the computing cluster's API server is reached from the worker; `host` is an address."""

    host: str
    port: int
    port_name: str = HTTPS


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service."""

    number: int
    name: str = ""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True)
class ServiceEnv:
    """A Service, as far as environment variables tell of it.

    One without an address (headless, or a mere alias) has none, or `None` as text.
    """

    name: str
    address: str
    ports: tuple[ServicePort, ...]


@dataclass(frozen=True, slots=True)
class Privileges:
    """What of the worker's nodes a virtual pod may ask for."""

    host_network: bool = True
    host_pid: bool = True
    host_ipc: bool = True
    host_path: bool = True
    privileged: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """What a pod is a part of: a kind in lower case and a name; a pod by itself has no name."""

    type: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that a physical pod is made from, besides the virtual one."""

    name: str  # of the physical pod
    namespace: str  # where it runs
    node: str  # the worker's
    vnode: str
    names: Names
    ownership: Mapping[str, str]  # labels that say whose it is
    direct_scheduling: bool = False
    priority_class: str = ""  # none means the domain's own
    server: Endpoint | None = None  # none: the worker's cannot be hidden
    dns: str | None = None  # an address; none: the pod asks whom its node asks
    cluster_domain: str = CLUSTER_DOMAIN
    services: Sequence[ServiceEnv] = ()  # of the pod's own virtual namespace
    workload: Workload | None = None  # none: what the pod itself says of its owner
    privileges: Privileges = field(default_factory=Privileges)
    domain: Domain = field(default=group.DEFAULT)
