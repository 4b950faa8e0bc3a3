"""Settings that our processes have in common.

`ProcessSettings` are those of all of them, `ReplicaSettings` those of a process whose replicas
compete for a Lease, or share the work. What can be checked without a cluster is checked here; an
error names the flag and its value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.bound import flags
from kubeocean.errors import ConfigError
from kubeocean.runtime.addresses import BindAddress
from kubeocean.runtime.goflags import address, boolean, duration, flag, text
from kubeocean.runtime.zapflags import ZapFlags
from kubeocean.sharding.config import Config, NodeSection, ShardingSection, StateSection

__all__ = ["ProcessSettings", "ReplicaSettings", "kubeconfig_namespaces_flag"]

_NODE_TIMEOUT_S: Final = 60.0  # as of every ring


def kubeconfig_namespaces_flag() -> frozenset[str]:
    """A field for processes of one binding: where the Secret that it names may be."""
    return flag(
        "kubeconfig-namespaces",
        flags.namespaces,
        "",
        "Where the Secret that the binding names may be, with commas between namespaces; *: "
        "anywhere. Without it, where it is at the start. The system namespace is always allowed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(ZapFlags):
    """What every process is told."""

    kubeconfig: str = flag(
        "kubeconfig",
        text,
        "",
        "How to reach the computing cluster; without it $KUBECONFIG, then the pod's account.",
    )
    label_domain: Domain = flag(
        "label-domain",
        flags.domain,
        group.DEFAULT.name,
        "The domain of all labels, annotations, taints and finalizers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings(ProcessSettings, ABC):
    """What a process is told whose replicas lead or share."""

    sharding: bool  # each process says for itself what its replicas share…
    leader_election_id: str  # …and which Lease they compete for

    allow_exec_plugins: bool = flag(
        "allow-exec-plugins",
        boolean,
        "false",
        "Run the credential plugin that the kubeconfig of the computing cluster names. "
        "One that is named in a binding's Secret is never run.",
    )
    metrics_bind_address: BindAddress | None = flag(
        "metrics-bind-address", address, ":8080", "Where /metrics is served; 0: nowhere."
    )
    health_probe_bind_address: BindAddress | None = flag(
        "health-probe-bind-address",
        address,
        ":8081",
        "Where /healthz and /readyz are served; 0: nowhere.",
    )
    leader_elect: bool = flag(
        "leader-elect", boolean, "true", "Work only while elected among all replicas."
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

    def __post_init__(self) -> None:
        flags.check_timings(retry_s=self.retry_s, renew_s=self.renew_s, lease_s=self.lease_s)
        if self.sharding and not self.leader_elect:
            said = "needs an election: leave out --leader-elect=false"
            raise ConfigError(said, source="--sharding", value="true")

    @property
    @abstractmethod
    def election_name(self) -> str:
        """The Lease that replicas compete for."""

    @property
    @abstractmethod
    def ring_name(self) -> str:
        """The ring of replicas that share."""

    def ring(self, namespace: str) -> Config:
        """How replicas share the work.

        Their assigner is elected on the Lease that a single leader would have, so that the first
        replicas that share wait for the last one that led alone.
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
