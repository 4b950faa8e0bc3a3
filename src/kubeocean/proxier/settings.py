"""Settings of the proxier, by flags."""

from __future__ import annotations

from dataclasses import dataclass

from kubeocean.api import group
from kubeocean.errors import ConfigError
from kubeocean.process import flags
from kubeocean.process.settings import (
    ProcessSettings,
    kubeconfig_namespaces_flag,
    management_kubeconfig_flag,
    worker_cache_bytes,
    worker_cache_limit_flag,
)
from kubeocean.runtime.flags import BindAddress, address, boolean, duration, flag, integer, text

__all__ = ["ProxierSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxierSettings(ProcessSettings):
    """The flags of `kubeocean proxier`."""

    cluster_binding_name: str = flag(
        "cluster-binding-name",
        flags.name,
        "",
        "Name of the ClusterBinding of the virtual nodes to serve.",
        required=True,
    )
    kubeconfig_namespaces: frozenset[str] = kubeconfig_namespaces_flag()
    management_kubeconfig: str = management_kubeconfig_flag()
    worker_cache_limit: int | None = worker_cache_limit_flag()
    listen_address: str = flag(
        "listen-address", text, "", "Address to listen on (default: every address of the machine)."
    )
    listen_port: int = flag(
        "listen-port",
        flags.any_port,
        str(group.KUBELET_PORT),
        "Port that serves all virtual nodes.",
    )
    tls_secret_name: str = flag(
        "tls-secret-name",
        flags.name,
        "",
        "Name of the Secret with the serving certificate (default: the one that the binding's "
        "annotation names, else the computing cluster signs a certificate).",
    )
    tls_secret_namespace: str = flag(
        "tls-secret-namespace", flags.name, "", "Namespace of the Secret of --tls-secret-name."
    )
    client_ca_file: str = flag(
        "client-ca-file",
        text,
        "",
        "File with the CA of client certificates (default: the CA that the computing cluster "
        "publishes).",
    )
    kubelet_certificate_authority: str = flag(
        "kubelet-certificate-authority",
        text,
        "",
        "File with the CA of the worker's kubelets (default: the CA of its API server).",
    )
    kubelet_port: int = flag(
        "kubelet-port",
        flags.any_port,
        str(group.KUBELET_PORT),
        "Port of the worker's kubelets.",
    )
    metrics_enabled: bool = flag(
        "metrics-enabled", boolean, "true", "Serve the metrics of virtual nodes."
    )
    metrics_collect_interval: int = flag(
        "metrics-collect-interval",
        integer,
        "60",
        "Has no effect: metrics are read from the kubelet when they are requested.",
    )
    metrics_target_namespace: str = flag(
        "metrics-target-namespace",
        flags.name,
        "",
        "Namespace of the worker to confine metrics to (default: the binding's mount namespace).",
    )
    prometheus_vnode_base_port: int = flag(
        "prometheus-vnode-base-port",
        flags.any_port,
        str(group.VNODE_METRICS_PORT),
        "Port that serves metrics of virtual nodes at /<node>/metrics, with the TLS and"
        " authentication of --listen-port; 0 disables it.",
    )
    prometheus_vnode_address: str = flag(
        "prometheus-vnode-address",
        text,
        "",
        "Address of --prometheus-vnode-base-port (default: that of --listen-address).",
    )
    metrics_bind_address: BindAddress | None = flag(
        "metrics-bind-address",
        address,
        "0",
        "Address of the proxier's own /metrics; 0 disables it.",
    )
    health_probe_bind_address: BindAddress | None = flag(
        "health-probe-bind-address",
        address,
        "0",
        "Address of /healthz and /readyz, without TLS; 0 disables them.",
    )
    idle_s: float = flag(
        "streaming-connection-idle-timeout",
        duration,
        "4h",
        "Time after which an idle session ends.",
    )
    drain_s: float = flag(
        "drain-timeout", duration, "25s", "Time that sessions have to end after SIGTERM."
    )

    def __post_init__(self) -> None:
        if bool(self.tls_secret_name) != bool(self.tls_secret_namespace):
            raise ConfigError(
                "must be given together with --tls-secret-namespace",
                source="--tls-secret-name",
                value=self.tls_secret_name,
            )

    @property
    def worker_cache_bytes(self) -> int:
        """Memory for objects of the worker cluster, in bytes."""
        return worker_cache_bytes(self.worker_cache_limit)
