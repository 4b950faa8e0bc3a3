"""Settings of the proxier: the flags that it always had, and some of its own."""

from __future__ import annotations

from dataclasses import dataclass

from kubeocean.api import group
from kubeocean.bound import flags
from kubeocean.bound.settings import ProcessSettings, kubeconfig_namespaces_flag
from kubeocean.errors import ConfigError
from kubeocean.runtime.addresses import BindAddress
from kubeocean.runtime.goflags import address, boolean, duration, flag, integer, text

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ProcessSettings):
    """What one proxier is told."""

    cluster_binding_name: str = flag(
        "cluster-binding-name",
        flags.name,
        "",
        "The ClusterBinding whose virtual nodes are served.",
        required=True,
    )
    kubeconfig_namespaces: frozenset[str] = kubeconfig_namespaces_flag()
    listen_address: str = flag(
        "listen-address", text, "", "The address to listen on; without it, all of them."
    )
    listen_port: int = flag(
        "listen-port", flags.any_port, str(group.KUBELET_PORT), "The port for all virtual nodes."
    )
    tls_secret_name: str = flag(
        "tls-secret-name",
        flags.name,
        "",
        "The Secret with the certificate; without it the binding's annotation names it, else the "
        "computing cluster signs one.",
    )
    tls_secret_namespace: str = flag(
        "tls-secret-namespace", flags.name, "", "The namespace of that Secret."
    )
    client_ca_file: str = flag(
        "client-ca-file",
        text,
        "",
        "The authority of client certificates; without it, the one that the computing cluster "
        "publishes.",
    )
    kubelet_certificate_authority: str = flag(
        "kubelet-certificate-authority",
        text,
        "",
        "The authority of the worker's kubelets; without it, that of its API server.",
    )
    kubelet_port: int = flag(
        "kubelet-port",
        flags.any_port,
        str(group.KUBELET_PORT),
        "The port of the worker's kubelets.",
    )
    metrics_enabled: bool = flag(
        "metrics-enabled", boolean, "true", "Serve the metrics of virtual nodes."
    )
    metrics_collect_interval: int = flag(
        "metrics-collect-interval",
        integer,
        "60",
        "Has no effect: metrics are read from the kubelet when they are asked for.",
    )
    metrics_target_namespace: str = flag(
        "metrics-target-namespace",
        flags.name,
        "",
        "Show only metrics of this namespace of the worker; without it, the binding's own.",
    )
    prometheus_vnode_base_port: int = flag(
        "prometheus-vnode-base-port",
        flags.any_port,
        str(group.VNODE_METRICS_PORT),
        "The port of /<node>/metrics, with the same TLS and authentication; 0: none.",
    )
    prometheus_vnode_address: str = flag(
        "prometheus-vnode-address",
        text,
        "",
        "The address of that port; without it, that of --listen-address.",
    )
    metrics_bind_address: BindAddress | None = flag(
        "metrics-bind-address", address, "0", "Where our own /metrics is served; 0: nowhere."
    )
    health_probe_bind_address: BindAddress | None = flag(
        "health-probe-bind-address",
        address,
        "0",
        "Where /healthz and /readyz are served without TLS; 0: nowhere.",
    )
    idle_s: float = flag(
        "streaming-connection-idle-timeout",
        duration,
        "4h",
        "How long a session may be silent.",
    )
    drain_s: float = flag(
        "drain-timeout", duration, "25s", "How long sessions may go on after SIGTERM."
    )

    def __post_init__(self) -> None:
        if bool(self.tls_secret_name) != bool(self.tls_secret_namespace):
            raise ConfigError(
                "must be given together with --tls-secret-namespace",
                source="--tls-secret-name",
                value=self.tls_secret_name,
            )
