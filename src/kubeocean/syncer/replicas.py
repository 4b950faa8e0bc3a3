"""Replicas of the proxier, and which of them a virtual node points at.

Nodes are spread over all replicas that are ready: each node ranks the replicas by a hash of both
names and takes the first. So nobody has to remember who points where; a replica that goes moves the
nodes that pointed at it and no others, and one that comes takes its share from all alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from kubeocean.runtime.objects import Condition, Object, Resource

__all__ = ["PROXIER_PODS", "ProxierPod", "chosen_replica"]


class _ProxierStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = None


class ProxierPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A replica of the proxier, as far as virtual nodes point at it."""

    status: _ProxierStatus = msgspec.field(default_factory=_ProxierStatus)

    @property
    def address(self) -> str:
        """Where it runs; nothing if it does not."""
        return self.status.pod_ip if self.status.phase == "Running" else ""

    @property
    def ready(self) -> bool:
        """Whether it takes work, and goes on doing so."""
        said = self.status.conditions or ()
        return not self.deleting and any(c.type == "Ready" and c.status == "True" for c in said)


PROXIER_PODS: Final = Resource("", "v1", "pods", "Pod", True, ProxierPod)


def chosen_replica(replicas: Iterable[ProxierPod], vnode: str) -> str:
    """The address of the replica that a virtual node points at; none if none runs.

    While none is ready it is one that may become so, and a replica on its way out only if there is
    nothing else: somebody who answers no more is no worse than nobody.
    """
    running = [replica for replica in replicas if replica.address]

    def preference(replica: ProxierPod) -> tuple[bool, bool, bytes, str]:
        return not replica.ready, replica.deleting, _rank(replica.name, vnode), replica.address

    return min(running, key=preference).address if running else ""


def _rank(replica: str, vnode: str) -> bytes:
    """By name, not by address: a replica that comes back under its name gets its nodes back."""
    return hashlib.sha256(f"{replica}\0{vnode}".encode()).digest()
