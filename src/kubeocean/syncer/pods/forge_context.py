"""Inputs of the forge: everything that a physical pod is made from, besides its virtual pod.

A `Context` holds the facts of the two clusters that the forge needs: the pod's node, the labels of
its binding, the names of its copies, how the computing cluster's API server and DNS are reached
from the worker. The controller reads these; the forge itself is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError, InvariantError

__all__ = [
    "CLUSTER_DOMAIN",
    "HTTPS",
    "Context",
    "CopyNames",
    "Endpoint",
    "OwnerWorkload",
    "Privileges",
    "Refused",
    "ServiceEnv",
    "ServicePort",
]

CLUSTER_DOMAIN: Final = "cluster.local"
HTTPS: Final = "https"  # the name of the port of Service default/kubernetes in every cluster


class Refused(ConfigError):
    """Raised for a pod that cannot run in the worker because of the field at path `field`."""

    def __init__(self, field: str, message: str, *, value: object = None) -> None:
        self.reason = message
        super().__init__(message, field=field, value=value)


@dataclass(frozen=True, slots=True)
class CopyNames:
    """Virtual name → physical name of every object that a pod refers to, by kind.

    A token is identified by its volume and its index among the tokens of that volume. Only pull
    Secrets that do not exist are missing. `keys` are the keys of the ConfigMaps and Secrets in
    `envFrom`, by kind and virtual name.
    """

    by_kind: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tokens: Mapping[tuple[str, int], str] = field(default_factory=dict)
    keys: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    @property
    def config_maps(self) -> Mapping[str, str]:
        return self.by_kind.get("ConfigMap", {})

    @property
    def secrets(self) -> Mapping[str, str]:
        return self.by_kind.get("Secret", {})

    @property
    def claims(self) -> Mapping[str, str]:
        return self.by_kind.get("PersistentVolumeClaim", {})

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
        raise InvariantError("a pod refers to an object that has no copy", kind=kind, name=name)
    return physical


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address by which pods in the worker reach the computing cluster's API server."""

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
    """The fields of a Service from which environment variables are made.

    The address is empty for an ExternalName Service, and the text `None` for a headless one.
    """

    name: str
    address: str
    ports: tuple[ServicePort, ...]


@dataclass(frozen=True, slots=True)
class Privileges:
    """The privileges on the worker's nodes that a virtual pod may request."""

    host_network: bool = True
    host_pid: bool = True
    host_ipc: bool = True
    host_path: bool = True
    privileged: bool = True
    restricted: bool = False  # pods have to meet the restricted Pod Security Standard


@dataclass(frozen=True, slots=True)
class OwnerWorkload:
    """The workload of a pod; its kind is in lower case, its name is empty for a bare pod."""

    type: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that a physical pod is made from, besides its virtual pod."""

    name: str  # of the physical pod
    namespace: str  # of the physical pod
    node: str  # of the worker
    vnode: str
    names: CopyNames
    ownership_labels: Mapping[str, str]  # labels that identify the binding
    direct_scheduling: bool = False
    node_terms: Sequence[Mapping[str, Any]] = ()  # of the binding's node selector; none: any node
    priority_class: str = ""  # empty: the domain's own
    server: Endpoint | None = None  # None: the pod sees the worker's API server
    dns: str | None = None  # an address; None: the pod uses the DNS of its node
    cluster_domain: str = CLUSTER_DOMAIN
    services: Sequence[ServiceEnv] = ()  # of the pod's own virtual namespace
    workload: OwnerWorkload | None = None  # None: by the pod's first owner
    privileges: Privileges = field(default_factory=Privileges)
    domain: Domain = field(default=group.DEFAULT)
