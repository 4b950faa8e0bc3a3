"""Settings of the manager: the flags that it always had, and some of its own.

What can be checked without a cluster is checked here; an error names the flag and its value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.bound import flags
from kubeocean.bound.rings import ring_config
from kubeocean.errors import ConfigError
from kubeocean.manager.endings import DEADLINE_S
from kubeocean.runtime.addresses import BindAddress
from kubeocean.runtime.goflags import address, boolean, duration, flag, integer, number, text
from kubeocean.runtime.zapflags import ZapFlags
from kubeocean.sharding.config import Config

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ZapFlags):
    """What one manager is told."""

    kubeconfig: str = flag(
        "kubeconfig",
        text,
        "",
        "How to reach the computing cluster; without it $KUBECONFIG, then the pod's account.",
    )
    allow_exec_plugins: bool = flag(
        "allow-exec-plugins",
        boolean,
        "false",
        "Run the credential plugin that the kubeconfig of the computing cluster names. "
        "One that is named in a binding's Secret is never run.",
    )
    metrics_bind_address: BindAddress | None = flag(  # noqa: RUF009 - declares a field
        "metrics-bind-address", address, ":8080", "Where /metrics is served; 0: nowhere."
    )
    health_probe_bind_address: BindAddress | None = flag(  # noqa: RUF009 - declares a field
        "health-probe-bind-address",
        address,
        ":8081",
        "Where /healthz and /readyz are served; 0: nowhere.",
    )
    leader_elect: bool = flag(
        "leader-elect", boolean, "true", "Work only while elected among all replicas."
    )
    sharding: bool = flag(
        "sharding",
        boolean,
        "false",
        "Let all replicas work, each on its part of the bindings.",
    )
    leader_election_id: str = flag(
        "leader-election-id",
        flags.name,
        naming.manager_election(),
        "The Lease that replicas compete for.",
    )
    leader_election_namespace: str = flag(
        "leader-election-namespace",
        flags.name,
        "",
        "The namespace of that Lease; without it $POD_NAMESPACE, then the pod's own.",
    )
    lease_s: float = flag(
        "leader-election-lease-duration",
        duration,
        "15s",
        "How long others wait for a leader that is silent.",
    )
    renew_s: float = flag(
        "leader-election-renew-deadline",
        duration,
        "10s",
        "How long a leader that cannot renew its Lease goes on.",
    )
    retry_s: float = flag(
        "leader-election-retry-period",
        duration,
        "2s",
        "How long to wait between two looks at the Lease.",
    )
    kube_client_qps: float = flag(
        "kube-client-qps", number, "0", "Requests a second to the computing cluster; 0: any."
    )
    kube_client_burst: int = flag(
        "kube-client-burst", integer, "0", "How many of them at once; 0: 10."
    )
    deletion_deadline_s: float = flag(
        "deletion-deadline",
        duration,
        f"{DEADLINE_S:g}s",
        "How long a binding that is deleted waits while no syncer of it is at work.",
    )
    label_domain: Domain = flag(  # noqa: RUF009 - declares a field
        "label-domain",
        flags.domain,
        group.DEFAULT.name,
        "The domain of all labels, annotations, taints and finalizers.",
    )

    def __post_init__(self) -> None:
        flags.check_timings(retry_s=self.retry_s, renew_s=self.renew_s, lease_s=self.lease_s)
        if self.sharding and not self.leader_elect:
            said = "needs an election: leave out --leader-elect=false"
            raise ConfigError(said, source="--sharding", value="true")
        if self.deletion_deadline_s < 0:
            value = f"{self.deletion_deadline_s:g}s"
            raise ConfigError("must not be negative", source="--deletion-deadline", value=value)

    @property
    def election_name(self) -> str:
        """The Lease that replicas compete for."""
        return self.leader_election_id or naming.manager_election(self.label_domain)

    def ring(self, namespace: str) -> Config:
        """How replicas share the bindings."""
        return ring_config(
            self.label_domain.manager,
            namespace=namespace,
            election=self.election_name,
            domain=self.label_domain,
            lease_s=self.lease_s,
            renew_s=self.renew_s,
            retry_s=self.retry_s,
        )

    @staticmethod
    def templates(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path]:
        """The directories with the templates of syncers and proxiers."""
        return (
            Path(environ.get(group.ENV_SYNCER_TEMPLATES) or group.SYNCER_TEMPLATES),
            Path(environ.get(group.ENV_PROXIER_TEMPLATES) or group.PROXIER_TEMPLATES),
        )
