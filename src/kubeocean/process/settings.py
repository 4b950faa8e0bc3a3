"""Settings that the processes share.

`ProcessSettings` are those of every process, `ReplicaSettings` those of a process with leader
election or sharding. Settings are checked here as far as no cluster is needed; an error names the
flag and its value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.process import flags
from kubeocean.runtime.cache_budget import memory_limit
from kubeocean.runtime.client import Client
from kubeocean.runtime.flags import BindAddress, address, boolean, duration, flag, text
from kubeocean.runtime.log_flags import ZapFlags
from kubeocean.runtime.metrics_access import (
    CertificateFiles,
    MetricsAccess,
    SecureMetrics,
    ServingCertificate,
)
from kubeocean.sharding.config import Config, NodeSection, ShardingSection, StateSection

__all__ = [
    "IN_CLUSTER",
    "ProcessSettings",
    "ReplicaSettings",
    "kubeconfig_namespaces_flag",
    "management_kubeconfig_flag",
    "worker_cache_bytes",
    "worker_cache_limit_flag",
]

IN_CLUSTER: Final = "in-cluster"
_WORKER_CACHE: Final = 512 << 20  # bytes, without a memory limit
_NODE_TIMEOUT_S: Final = 60.0  # the default of a ring


def kubeconfig_namespaces_flag() -> frozenset[str]:
    """Return the dataclass field of the flag `--kubeconfig-namespaces`, for processes of one
    binding."""
    return flag(
        "kubeconfig-namespaces",
        flags.namespaces,
        "",
        "Namespaces, separated by commas, in which the binding's Secret may be; * allows all "
        "(default: the one that the binding names at the start). The system namespace is always "
        "allowed.",
    )


def management_kubeconfig_flag() -> str:
    """Return the dataclass field of the flag `--management-kubeconfig`, for processes that may run
    in a management cluster.
    """
    return flag(
        "management-kubeconfig",
        text,
        "",
        "Kubeconfig of the management cluster, in which syncers and proxiers run, or "
        f"{IN_CLUSTER} for the pod's account (default: they run in the computing cluster).",
    )


def worker_cache_limit_flag() -> int | None:
    """Return the dataclass field of the flag `--worker-cache-limit`, for processes of one
    binding."""
    return flag(
        "worker-cache-limit",
        flags.memory,
        "",
        "Memory for objects of the worker cluster, such as 256Mi; further objects are not cached"
        " (default: a quarter of the container's memory limit, 512Mi without a limit).",
    )


def worker_cache_bytes(limit: int | None) -> int:
    """Return the bytes for objects of the worker cluster; `limit` is the flag's, if given."""
    if limit is not None:
        return limit
    container = memory_limit()
    return _WORKER_CACHE if container is None else container // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(ZapFlags):
    """The flags of every process."""

    kubeconfig: str = flag(
        "kubeconfig",
        text,
        "",
        "Kubeconfig of the computing cluster (default: $KUBECONFIG, then the pod's account).",
    )
    label_domain: Domain = flag(
        "label-domain",
        flags.domain,
        group.DEFAULT.name,
        "Domain of all labels, annotations, taints and finalizers.",
    )
    metrics_secure: bool = flag(
        "metrics-secure",
        boolean,
        "false",
        "Serve /metrics over HTTPS, to callers with a token that may GET the URL /metrics.",
    )
    metrics_cert_path: str = flag(
        "metrics-cert-path",
        text,
        "",
        "Directory of the certificate for --metrics-secure (default: a self-signed one).",
    )
    metrics_cert_name: str = flag(
        "metrics-cert-name", text, "tls.crt", "File of the certificate in --metrics-cert-path."
    )
    metrics_cert_key: str = flag(
        "metrics-cert-key", text, "tls.key", "File of the private key in --metrics-cert-path."
    )

    def secure_metrics(self, client: Client) -> SecureMetrics | None:
        """Return the certificate and the access checks for `--metrics-secure`; None without the
        flag.

        `client` sends the token and access reviews of callers.

        :raises ConfigError: the certificate cannot be read.
        """
        if not self.metrics_secure:
            return None
        files = None
        if self.metrics_cert_path:
            directory = Path(self.metrics_cert_path)
            files = CertificateFiles(
                directory / self.metrics_cert_name, directory / self.metrics_cert_key
            )
        return SecureMetrics(MetricsAccess(client), ServingCertificate(files))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings(ProcessSettings, ABC):
    """The flags of a process with leader election or sharding."""

    # Each process defines these two flags itself.
    sharding: bool
    leader_election_id: str

    allow_exec_plugins: bool = flag(
        "allow-exec-plugins",
        boolean,
        "false",
        "Run the credential plugin that the kubeconfig of the computing cluster names. "
        "A plugin in a binding's Secret is never run.",
    )
    metrics_bind_address: BindAddress | None = flag(
        "metrics-bind-address", address, ":8080", "Address of /metrics; 0 disables it."
    )
    health_probe_bind_address: BindAddress | None = flag(
        "health-probe-bind-address",
        address,
        ":8081",
        "Address of /healthz and /readyz; 0 disables them.",
    )
    leader_elect: bool = flag(
        "leader-elect", boolean, "true", "Work only while this replica is the elected leader."
    )
    leader_election_namespace: str = flag(
        "leader-election-namespace",
        flags.name,
        "",
        "Namespace of the leader election Lease (default: $POD_NAMESPACE, then the pod's own).",
    )
    lease_s: float = flag(
        "leader-election-lease-duration",
        duration,
        "15s",
        "Time after which other replicas replace a leader that does not renew its Lease.",
    )
    renew_s: float = flag(
        "leader-election-renew-deadline",
        duration,
        "10s",
        "Time after which a leader that cannot renew its Lease stops.",
    )
    retry_s: float = flag(
        "leader-election-retry-period",
        duration,
        "2s",
        "Time between two attempts to acquire or renew the Lease.",
    )

    def __post_init__(self) -> None:
        flags.check_timings(retry_s=self.retry_s, renew_s=self.renew_s, lease_s=self.lease_s)
        if self.sharding and not self.leader_elect:
            message = "needs an election: leave out --leader-elect=false"
            raise ConfigError(message, source="--sharding", value="true")

    @property
    @abstractmethod
    def election_name(self) -> str:
        """Name of the leader election Lease."""

    @property
    @abstractmethod
    def ring_name(self) -> str:
        """Name of the ring, the group of replicas that share the work with `--sharding`."""

    def ring(self, namespace: str) -> Config:
        """Return the configuration of the ring, the group of replicas that share the work.

        The ring's planner is elected on the Lease of a single leader, so that the first replicas
        with `--sharding` wait for the last leader without `--sharding`.
        """
        return Config(
            sharding=ShardingSection(
                ring=self.ring_name,
                namespace=namespace,
                domain=self.label_domain.sharding,
                election=self.election_name,
            ),
            node=NodeSection(node_timeout_s=max(_NODE_TIMEOUT_S, self.lease_s)),
            state=StateSection(lease_s=self.lease_s, renew_s=self.renew_s, retry_s=self.retry_s),
        )
