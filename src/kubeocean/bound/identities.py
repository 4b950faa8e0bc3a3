"""What tells a cluster from every other."""

from __future__ import annotations

from kubeocean.api.group import SYSTEM_NAMESPACE
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES

__all__ = ["identity_of"]


async def identity_of(cluster: Client) -> str:
    """The UID of the namespace that each cluster has, and that lives as long as it does."""
    return (await cluster.get(NAMESPACES, SYSTEM_NAMESPACE)).uid
