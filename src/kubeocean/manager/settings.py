"""Settings of the manager: the flags that it always had, and some of its own.

What can be checked without a cluster is checked here; an error names the flag and its value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeocean.api import group, naming
from kubeocean.bound import flags
from kubeocean.bound.settings import ReplicaSettings
from kubeocean.errors import ConfigError
from kubeocean.manager.endings import DEADLINE_S
from kubeocean.runtime.goflags import boolean, duration, flag, integer, number

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ReplicaSettings):
    """What one manager is told."""

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

    def __post_init__(self) -> None:
        ReplicaSettings.__post_init__(self)  # slots make a class that super() does not know
        if self.deletion_deadline_s < 0:
            value = f"{self.deletion_deadline_s:g}s"
            raise ConfigError("must not be negative", source="--deletion-deadline", value=value)

    @property
    def election_name(self) -> str:
        """The Lease that replicas compete for."""
        return self.leader_election_id or naming.manager_election(self.label_domain)

    @property
    def ring_name(self) -> str:
        """The ring of replicas that share the bindings."""
        return self.label_domain.manager

    @staticmethod
    def templates(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path]:
        """The directories with the templates of syncers and proxiers."""
        return (
            Path(environ.get(group.ENV_SYNCER_TEMPLATES) or group.SYNCER_TEMPLATES),
            Path(environ.get(group.ENV_PROXIER_TEMPLATES) or group.PROXIER_TEMPLATES),
        )
