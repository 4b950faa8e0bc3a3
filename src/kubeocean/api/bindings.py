"""Bindings: one worker cluster, bound to the computing cluster.

A `ClusterBinding` lives in the computing cluster, names the Secret with the worker's kubeconfig,
and selects the nodes of the worker that may be lent. The classes are views of stored objects, with
the fields that Kubeocean knows.

`problems` lists the mistakes in a binding, as far as the object itself shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.api.group import GROUP, VERSION
from kubeocean.api.validation import Problem, empty, misnamed, unreadable_selector
from kubeocean.runtime.objects import Condition, Json, Object, Resource

__all__ = [
    "CLUSTER_BINDINGS",
    "CLUSTER_ID",
    "CLUSTER_ID_LONGEST",
    "BindingPhase",
    "BindingSpec",
    "BindingStatus",
    "ClusterBinding",
    "PodPrivileges",
    "Privilege",
    "SecretReference",
    "WorkerTrust",
    "problems",
]

CLUSTER_ID: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
CLUSTER_ID_LONGEST: Final = 24
_CLUSTER_ID: Final = re.compile(CLUSTER_ID)


class BindingPhase(StrEnum):
    """Values of `status.phase` of a ClusterBinding."""

    PENDING = "Pending"
    READY = "Ready"
    FAILED = "Failed"


class SecretReference(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A Secret of the computing cluster."""

    name: str = ""
    namespace: str = ""


class Privilege(StrEnum):
    """Whether pods may have a privilege."""

    ALLOW = "Allow"
    DENY = "Deny"


class PodPrivileges(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Access of pods to the worker cluster's machines; each kind is allowed unless it is denied.

    Fields are texts, because an API server may hold values that no definition has checked.
    """

    host_network: str = Privilege.ALLOW
    host_pid: str = msgspec.field(default=Privilege.ALLOW, name="hostPID")
    host_ipc: str = msgspec.field(default=Privilege.ALLOW, name="hostIPC")
    host_path: str = Privilege.ALLOW
    privileged: str = Privilege.ALLOW

    @property
    def denied(self) -> tuple[str, ...]:
        """The denied fields, as users write them; a value that is not Allow denies."""
        fields = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        return tuple(shown for shown, field in fields if getattr(self, field) != Privilege.ALLOW)


class WorkerTrust(StrEnum):
    """Trust in the labels and annotations that a worker cluster puts on its nodes and pods."""

    KUBELET = "Kubelet"  # as far as Kubernetes lets a kubelet set them
    FULL = "Full"  # wholly


class BindingSpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Spec of a ClusterBinding."""

    cluster_id: str = msgspec.field(default="", name="clusterID")
    secret_ref: SecretReference = msgspec.field(default_factory=SecretReference)
    node_selector: Json | None = None  # read by `NodeSelector.from_document`; none means all nodes
    mount_namespace: str = ""
    service_namespaces: tuple[str, ...] | None = None
    disable_node_default_taint: bool = False
    pod_priority_class_name: str = ""
    running_daemonset_by_default: bool = False
    direct_scheduling: bool = False
    pod_privileges: PodPrivileges = msgspec.field(default_factory=PodPrivileges)
    worker_trust: str = WorkerTrust.KUBELET  # a text, as privileges are

    @property
    def trusts_fully(self) -> bool:
        """Whether the worker is trusted with more than a kubelet; an unknown word grants less."""
        return self.worker_trust == WorkerTrust.FULL


class BindingStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Status of a ClusterBinding."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    last_sync_time: str | None = None
    observed_generation: int = 0
    virtual_nodes: int = 0


class ClusterBinding(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A binding."""

    spec: BindingSpec = msgspec.field(default_factory=BindingSpec)
    status: BindingStatus = msgspec.field(default_factory=BindingStatus)


CLUSTER_BINDINGS: Final = Resource(
    GROUP, VERSION, "clusterbindings", "ClusterBinding", False, ClusterBinding
)


def problems(spec: BindingSpec) -> tuple[Problem, ...]:
    """Return all problems of a binding, in the order of the fields.

    Our definition of the kind refuses a clusterID that cannot be one and most selectors that no
    server would take. It takes the rest, as it always did; the binding then does not become Ready.
    """
    return tuple(_problems(spec))


def _problems(spec: BindingSpec) -> Iterator[Problem]:
    if not _CLUSTER_ID.fullmatch(spec.cluster_id) or len(spec.cluster_id) > CLUSTER_ID_LONGEST:
        reason = f"must be at most {CLUSTER_ID_LONGEST} lowercase letters, digits and inner dashes"
        yield Problem("spec.clusterID", spec.cluster_id, reason)
    for field, name, what in (
        ("spec.secretRef.name", spec.secret_ref.name, "a Secret with a kubeconfig"),
        ("spec.secretRef.namespace", spec.secret_ref.namespace, "the namespace of that Secret"),
        ("spec.mountNamespace", spec.mount_namespace, "a namespace of the worker cluster"),
    ):
        yield from misnamed(field, name, what)
    yield from unreadable_selector("spec.nodeSelector", spec.node_selector)
    for index, namespace in enumerate(spec.service_namespaces or ()):
        yield from empty(f"spec.serviceNamespaces[{index}]", namespace, "a namespace")
    if spec.pod_priority_class_name:
        what = "a PriorityClass of the worker cluster"
        yield from misnamed("spec.podPriorityClassName", spec.pod_priority_class_name, what)
    privileges = spec.pod_privileges
    for shown, field in zip(
        privileges.__struct_encode_fields__, privileges.__struct_fields__, strict=True
    ):
        if (value := getattr(privileges, field)) not in tuple(Privilege):
            reason = f"must be {' or '.join(Privilege)}, and is taken for {Privilege.DENY}"
            yield Problem(f"spec.podPrivileges.{shown}", value, reason, blocks=False)
    if spec.worker_trust not in tuple(WorkerTrust):
        message = f"must be {' or '.join(WorkerTrust)}, and is taken for {WorkerTrust.KUBELET}"
        yield Problem("spec.workerTrust", spec.worker_trust, message, blocks=False)
