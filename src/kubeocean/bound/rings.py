"""Rings: how replicas of our own processes share their work, as the flags of an election say."""

from __future__ import annotations

from typing import Final

from kubeocean.api.group import Domain
from kubeocean.sharding.config import Config, NodeSection, ShardingSection, StateSection

__all__ = ["ring_config"]

_NODE_TIMEOUT_S: Final = 60.0  # as of every ring


def ring_config(
    name: str,
    *,
    namespace: str,
    election: str,
    domain: Domain,
    lease_s: float,
    renew_s: float,
    retry_s: float,
) -> Config:
    """A ring whose assigner is elected on the Lease that a single leader would have.

    So the first replicas that share wait for the last one that led alone.
    """
    return Config(
        sharding=ShardingSection(
            ring=name,
            namespace=namespace,
            domain=f"sharding.{domain.name}",
            election=election,
        ),
        node=NodeSection(node_timeout_s=max(_NODE_TIMEOUT_S, lease_s)),
        state=StateSection(lease_s=lease_s, renew_s=renew_s, retry_s=retry_s),
    )
