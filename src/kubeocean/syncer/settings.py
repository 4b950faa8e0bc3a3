"""Settings of the syncer: its flags, and the addresses of the computing cluster among them.

Values are validated as far as possible without a cluster; an error names the flag and its value.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.validation import zone_names
from kubeocean.errors import ConfigError
from kubeocean.leasing.windows import zone_of
from kubeocean.process import flags
from kubeocean.process.settings import (
    ReplicaSettings,
    kubeconfig_namespaces_flag,
    management_kubeconfig_flag,
    worker_cache_bytes,
    worker_cache_limit_flag,
)
from kubeocean.runtime.clock import local_zone
from kubeocean.runtime.flags import boolean, duration, flag, integer, number
from kubeocean.runtime.selectors import check_subdomain
from kubeocean.syncer.pods.forge_context import CLUSTER_DOMAIN

__all__ = ["Address", "Given", "SyncerSettings"]

_SERVER_PORT: Final = 443
_WITH_PORT: Final = re.compile(r"([^:]*)(?::([^:]*))?")
_BRACKETED: Final = re.compile(r"\[([^\]]*)\](?::([^:]*))?")


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address or a DNS name, and a port where one is used."""

    host: str
    port: int = 0


def _server(written: str, flag: str) -> Address | None:
    """Parse the flag value HOST or HOST:PORT; an IPv6 address is in brackets before a port."""
    if not written:
        return None
    form = _BRACKETED.fullmatch(written) or _WITH_PORT.fullmatch(written)
    host, port = form.groups() if form else (written, None)  # bare IPv6
    number = _SERVER_PORT if port is None else flags.port(port, flag)
    return Address(_host(host, flag, written), number)


def _nameserver(written: str, flag: str) -> Address | None:
    return Address(_host(written, flag, written)) if written else None


def _host(host: str, flag: str, written: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        # An invalid IP address must not pass for a name.
        if not host.replace(".", "").isdigit() and ":" not in host:
            try:
                check_subdomain(host)
            except ConfigError:
                pass
            else:
                return host
    message = "must be an IP address or a lowercase DNS name"
    raise ConfigError(message, source=flag, value=written)


def _zone(written: str, flag: str) -> str:
    if written and written not in zone_names():
        message = "must be a name of the tz database, such as Europe/Berlin"
        raise ConfigError(message, source=flag, value=written)
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Addresses and DNS domain of the computing cluster, as flags set them for pods in workers."""

    cluster_domain: str = CLUSTER_DOMAIN
    server: Address | None = None  # None: the address of the Service
    dns: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerSettings(ReplicaSettings):
    """The flags of one syncer."""

    cluster_binding_name: str = flag(
        "cluster-binding-name",
        flags.name,
        "",
        "Name of the ClusterBinding whose worker cluster is lent.",
        required=True,
    )
    kubeconfig_namespaces: frozenset[str] = kubeconfig_namespaces_flag()
    sharding: bool = flag(
        "sharding",
        boolean,
        "false",
        "Share the nodes and pods among all replicas, by shards; one replica is elected "
        "for the work that cannot be sharded.",
    )
    leader_election_id: str = flag(
        "leader-election-id",
        flags.name,
        "",
        "Name of the Lease that replicas compete for (default: kubeocean-syncer-<binding>).",
    )
    virtual_client_qps: float = flag(
        "virtual-client-qps",
        number,
        "0",
        "Limit of requests per second to the computing cluster; 0 means no limit.",
    )
    virtual_client_burst: int = flag(
        "virtual-client-burst",
        integer,
        "0",
        "How many requests to the computing cluster may exceed the limit at once; 0 means 10.",
    )
    physical_client_qps: float = flag(
        "physical-client-qps",
        number,
        "0",
        "Limit of requests per second to the worker cluster; 0 means no limit.",
    )
    physical_client_burst: int = flag(
        "physical-client-burst",
        integer,
        "0",
        "How many requests to the worker cluster may exceed the limit at once; 0 means 10.",
    )
    worker_cache_limit: int | None = worker_cache_limit_flag()
    prometheus_vnode_base_port: int = flag(
        "prometheus-vnode-base-port",
        flags.port,
        str(group.VNODE_METRICS_PORT),
        "Port of the proxier that virtual nodes publish as the address of their metrics.",
    )
    proxier_namespace: str = flag(
        "proxier-namespace",
        flags.name,
        "",
        "Namespace in which the replicas of this binding's proxier run (default: "
        f"{group.ENV_PROXIER_NAMESPACE}, which the manager sets, or kubeocean-system).",
    )
    management_kubeconfig: str = management_kubeconfig_flag()
    remove_nodes_after_s: float = flag(
        "remove-unreachable-nodes-after",
        duration,
        "0",
        "Delete the virtual nodes of a worker that has not answered for this long, such as 24h; "
        "0 means never.",
    )
    secrets_by_namespace: bool = flag(
        "secrets-by-namespace",
        boolean,
        "false",
        "Read Secrets only in namespaces that the manager grants; the syncer requests them in the "
        "status of the binding. Without this flag, the account needs the right to list Secrets of "
        "all namespaces.",
    )
    status_extensions: bool = flag(
        "status-extensions",
        boolean,
        "true",
        "Add Kubeocean's own conditions and properties to the status of the fleet member for"
        " which this syncer acts; without them the status has KubeFleet's entries and no others.",
    )
    time_zone: str = flag(
        "time-zone",
        _zone,
        "",
        "Time zone of policies that set none, such as Europe/Berlin (default: $TZ, then "
        "/etc/localtime, then UTC).",
    )

    cluster_domain: str = flag(
        "cluster-domain",
        flags.name,
        CLUSTER_DOMAIN,
        "DNS domain of the computing cluster's Services.",
    )
    kubernetes_service_address: Address | None = flag(
        "kubernetes-service-address",
        _server,
        "",
        "HOST or HOST:PORT at which pods in the worker reach the computing cluster's API server "
        f"(default: the address of the load balancer of the Service {group.SERVER_SERVICE}).",
    )
    dns_service_address: Address | None = flag(
        "dns-service-address",
        _nameserver,
        "",
        "Address of the computing cluster's DNS for pods in the worker (default: the "
        f"address of the load balancer of the Service {group.DNS_SERVICE}).",
    )

    @property
    def election_name(self) -> str:
        """The name of the Lease that the replicas of this binding's syncer compete for."""
        binding, domain = self.cluster_binding_name, self.label_domain
        return self.leader_election_id or naming.syncer_election(binding, domain)

    @property
    def ring_name(self) -> str:
        """The name of the ring in which the replicas of this binding's syncer share the shards."""
        return naming.syncer_ring(self.cluster_binding_name, self.label_domain)

    @property
    def worker_cache_bytes(self) -> int:
        """Memory for objects of the worker cluster, in bytes."""
        return worker_cache_bytes(self.worker_cache_limit)

    @property
    def given(self) -> Given:
        """Addresses and DNS domain of the computing cluster, as set for pods in the worker."""
        return Given(
            cluster_domain=self.cluster_domain or CLUSTER_DOMAIN,
            server=self.kubernetes_service_address,
            dns=self.dns_service_address,
        )

    def zone(self, environ: Mapping[str, str] = os.environ) -> tzinfo:
        """Return the time zone of policies that set none.

        :raises ConfigError: the flag is not set, and the environment's zone is invalid.
        """
        return zone_of(self.time_zone, local=UTC) if self.time_zone else local_zone(environ)

    def namespace_of_proxiers(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the namespace of the binding's proxiers; "" if it is Kubeocean's own."""
        return self.proxier_namespace or environ.get(group.ENV_PROXIER_NAMESPACE, "")
