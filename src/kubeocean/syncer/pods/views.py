"""Views of pods: virtual pods in the computing cluster, physical pods in the worker cluster.

A view holds the fields that decisions are made from; the whole pod is in its raw bytes. A virtual
pod is bound to a virtual node of this binding. A physical pod runs for a virtual pod in the worker,
and has annotations that name the virtual pod.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.api.group import Domain
from kubeocean.leasing.taints import Toleration
from kubeocean.runtime.objects import Condition, Key, Object, Resource

__all__ = [
    "FINISHED",
    "PHYSICAL_PODS",
    "VIRTUAL_PODS",
    "PhysicalPod",
    "VirtualPod",
    "bound_pods",
    "has_no_news",
    "virtual_key",
]

_SCHEDULED: Final = "PodScheduled"
FINISHED: Final = frozenset({"Succeeded", "Failed"})


class _VirtualSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    priority: int | None = None
    tolerations: tuple[Toleration, ...] | None = None
    termination_grace_period_seconds: int | None = None


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
    """A pod of the worker cluster that Kubeocean created, for this or another binding."""

    spec: _PhysicalSpec = msgspec.field(default_factory=_PhysicalSpec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def has_only_scheduled(self) -> bool:
        """Whether the pod is pending and its only condition, if any, is PodScheduled=True.

        The node was chosen in the computing cluster; its kubelet has yet to report a status.
        """
        conditions = self.status.conditions or ()
        scheduled = all((c.type, c.status) == (_SCHEDULED, "True") for c in conditions)
        return self.status.phase == "Pending" and scheduled and not self.deleting


class _RawStatus(msgspec.Struct, frozen=True, gc=False):
    status: msgspec.Raw = msgspec.Raw()


_raw_status: Final = msgspec.json.Decoder(_RawStatus).decode


def has_no_news(old: PhysicalPod, new: PhysicalPod) -> bool:
    """Whether a version of a physical pod has the status, labels and annotations of the last one.

    So has the version that a request to delete the pod makes: only its deletionTimestamp is new.
    """
    was, is_ = old.metadata, new.metadata
    return (
        (was.uid, was.labels, was.annotations) == (is_.uid, is_.labels, is_.annotations)
        and (old.spec, old.status) == (new.spec, new.status)
        and bytes(_raw_status(old.raw).status) == bytes(_raw_status(new.raw).status)
    )


VIRTUAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, VirtualPod)
PHYSICAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, PhysicalPod)


def bound_pods(domain: Domain) -> str:
    """Return the field selector of bound pods, without reservations of host ports.

    Reservations are excluded by their namespace: a label can be set by the owner of any pod.
    """
    return f"spec.nodeName!=,metadata.namespace!={domain.host_port_namespace}"


def virtual_key(pod: PhysicalPod, domain: Domain) -> Key:
    """Return the virtual pod that a physical pod's annotations name; empty names if none."""
    annotations = pod.annotations
    return Key(
        annotations.get(domain.virtual_pod_namespace, ""),
        annotations.get(domain.virtual_pod_name, ""),
    )
