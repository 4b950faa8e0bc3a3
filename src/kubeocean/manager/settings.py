"""Settings of the manager: the flags of the earlier implementation, and new ones.

Values are checked as far as that needs no cluster; an error names the flag and its value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeocean.api import group, naming
from kubeocean.errors import ConfigError
from kubeocean.manager.deletion import DEADLINE_S
from kubeocean.process import flags
from kubeocean.process.settings import ReplicaSettings, management_kubeconfig_flag
from kubeocean.runtime.flags import boolean, duration, flag, integer, number

__all__ = ["ManagerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(ReplicaSettings):
    """Settings of one manager."""

    sharding: bool = flag(
        "sharding",
        boolean,
        "false",
        "Share the bindings among all replicas instead of electing one leader.",
    )
    leader_election_id: str = flag(
        "leader-election-id",
        flags.name,
        "",
        "Name of the Lease with which replicas elect a leader (default: kubeocean-manager-leader, "
        "with the first part of --label-domain).",
    )
    kube_client_qps: float = flag(
        "kube-client-qps",
        number,
        "0",
        "Requests per second to the computing cluster; 0 means no limit.",
    )
    kube_client_burst: int = flag(
        "kube-client-burst",
        integer,
        "0",
        "Requests that may exceed --kube-client-qps in a burst; 0 means 10.",
    )
    deletion_deadline_s: float = flag(
        "deletion-deadline",
        duration,
        f"{DEADLINE_S:g}s",
        "Time for which the deletion of a binding waits for a syncer to clean up while none leads;"
        " then the manager deletes the virtual nodes itself, and objects may be left in the"
        " worker.",
    )

    management_kubeconfig: str = management_kubeconfig_flag()

    def __post_init__(self) -> None:
        ReplicaSettings.__post_init__(self)  # with slots, super() refers to another class
        if self.deletion_deadline_s < 0:
            value = f"{self.deletion_deadline_s:g}s"
            raise ConfigError("must not be negative", source="--deletion-deadline", value=value)

    @property
    def election_name(self) -> str:
        """Name of the Lease with which replicas elect a leader."""
        return self.leader_election_id or naming.manager_election(self.label_domain)

    @property
    def ring_name(self) -> str:
        """Name of the ring of replicas that share the bindings."""
        return self.label_domain.manager

    @staticmethod
    def templates(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path]:
        """Return the directories of the syncers' and of the proxiers' templates."""
        return (
            Path(environ.get(group.ENV_SYNCER_TEMPLATES) or group.SYNCER_TEMPLATES),
            Path(environ.get(group.ENV_PROXIER_TEMPLATES) or group.PROXIER_TEMPLATES),
        )
