"""Pods, as the syncer sees them: virtual ones above, physical ones below.

Both views hold what decisions are made from; the whole pod is in their bytes. A virtual pod is one
that is bound to a node of this binding. A physical pod is what runs for it in the worker, and says
in annotations whose it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.api.group import Domain
from kubeocean.leasing.tolerations import Toleration
from kubeocean.runtime.objects import Condition, Key, Object, Resource

__all__ = [
    "FINISHED",
    "PHYSICAL_PODS",
    "VIRTUAL_PODS",
    "PhysicalPod",
    "VirtualPod",
    "bound_pods",
    "virtual_key",
]

_SCHEDULED: Final = "PodScheduled"
FINISHED: Final = frozenset({"Succeeded", "Failed"})


class _VirtualSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    priority: int | None = None
    tolerations: tuple[Toleration, ...] | None = None


class _Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] | None = None


class VirtualPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod of the computing cluster that is bound to a virtual node."""

    spec: _VirtualSpec = msgspec.field(default_factory=_VirtualSpec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED


class _PhysicalSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class PhysicalPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod of the worker that some Kubeocean made."""

    spec: _PhysicalSpec = msgspec.field(default_factory=_PhysicalSpec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def is_untold(self) -> bool:
        """Whether nobody has said more of it than that the worker has a node for it.

        Which node that is was decided above; what its kubelet says of the pod follows.
        """
        told = self.status.conditions or ()
        found_node = all((c.type, c.status) == (_SCHEDULED, "True") for c in told)
        return self.status.phase == "Pending" and found_node and not self.deleting


VIRTUAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, VirtualPod)
PHYSICAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, PhysicalPod)


def bound_pods(domain: Domain) -> str:
    """The field selector of pods that are bound to some node; reservations of ports are not pods.

    By their namespace: whose label a pod has is for its owner to say.
    """
    return f"spec.nodeName!=,metadata.namespace!={domain.host_port_namespace}"


def virtual_key(pod: PhysicalPod, domain: Domain) -> Key:
    """The virtual pod that a physical one says it runs for; empty names if it does not say."""
    said = pod.annotations
    return Key(said.get(domain.virtual_pod_namespace, ""), said.get(domain.virtual_pod_name, ""))
