"""ClusterBindings: one worker cluster, bound to the computing cluster.

A `ClusterBinding` is an object of the computing cluster. It names the Secret with the worker's
kubeconfig, and selects the nodes of the worker that may be lent. The classes are views of stored
objects, with the fields that Kubeocean reads.

`problems` lists the mistakes in a binding that can be seen without reading other objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

import msgspec

from kubeocean.api.group import GROUP, VERSION
from kubeocean.api.validation import Problem, empty, misnamed, unreadable_selector
from kubeocean.runtime.objects import Condition, Json, Object, Resource

__all__ = [
    "CLUSTER_BINDINGS",
    "CLUSTER_ID",
    "CLUSTER_ID_LONGEST",
    "SECRET_NAMESPACES_MOST",
    "BindingPhase",
    "BindingSpec",
    "BindingStatus",
    "ClusterBinding",
    "PodPrivileges",
    "PodSecurityLevel",
    "Privilege",
    "RefusedNamespace",
    "SecretNamespaces",
    "SecretReference",
    "WorkerTrust",
    "network_of",
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
    """Namespace and name of the Secret with a worker's kubeconfig."""

    name: str = ""
    namespace: str = ""


class Privilege(StrEnum):
    """Values of the fields of `spec.podPrivileges`: whether pods may have a privilege."""

    ALLOW = "Allow"
    DENY = "Deny"


class PodSecurityLevel(StrEnum):
    """A level of Kubernetes' Pod Security Standards."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


class PodPrivileges(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Access of pods to the worker cluster's machines; each kind is allowed unless it is denied.

    The level `baseline` denies all five kinds, `restricted` more than these. Fields are strings,
    because stored objects may have values that no CustomResourceDefinition has checked.
    """

    host_network: str = Privilege.ALLOW
    host_pid: str = msgspec.field(default=Privilege.ALLOW, name="hostPID")
    host_ipc: str = msgspec.field(default=Privilege.ALLOW, name="hostIPC")
    host_path: str = Privilege.ALLOW
    privileged: str = Privilege.ALLOW
    level: str = PodSecurityLevel.PRIVILEGED

    @property
    def effective_level(self) -> PodSecurityLevel:
        """The Pod Security level; an unknown value counts as the strictest one."""
        known = self.level in tuple(PodSecurityLevel)
        return PodSecurityLevel(self.level) if known else PodSecurityLevel.RESTRICTED

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """Names (as in the API) and values of the five fields that allow or deny an access."""
        fields = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        return tuple((shown, getattr(self, field)) for shown, field in fields if field != "level")

    @property
    def denied(self) -> tuple[str, ...]:
        """Names of the denied kinds of access: fields other than Allow; all, below the level
        Privileged.
        """
        at_all = self.effective_level is PodSecurityLevel.PRIVILEGED
        return tuple(
            shown for shown, value in self.settings if not (at_all and value == Privilege.ALLOW)
        )


class WorkerTrust(StrEnum):
    """Trust in the labels and annotations that a worker cluster puts on its nodes and pods."""

    KUBELET = "Kubelet"  # in those that Kubernetes lets a kubelet set
    FULL = "Full"  # in all of them


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
    worker_trust: str = WorkerTrust.KUBELET  # a string, as privileges are
    worker_cidrs: tuple[str, ...] | None = msgspec.field(default=None, name="workerCIDRs")

    @property
    def trusts_fully(self) -> bool:
        """Whether `workerTrust` is Full: all labels and annotations of the worker are trusted."""
        return self.worker_trust == WorkerTrust.FULL


SECRET_NAMESPACES_MOST: Final = 1000  # in which the syncer of one binding reads Secrets


class RefusedNamespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace in which the manager does not let a syncer read Secrets, with the reason."""

    namespace: str = ""
    reason: str = ""


class SecretNamespaces(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The namespaces in which the syncer of a binding needs Secrets, and may read them.

    The syncer writes `requested`; the manager writes the others.
    """

    requested: tuple[str, ...] | None = None
    granted: tuple[str, ...] | None = None
    refused: tuple[RefusedNamespace, ...] | None = None


class BindingStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Status of a ClusterBinding."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    last_sync_time: str | None = None
    observed_generation: int = 0
    virtual_nodes: int = 0
    credential_expiration_time: str | None = None
    secret_namespaces: SecretNamespaces = msgspec.field(default_factory=SecretNamespaces)


class ClusterBinding(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A ClusterBinding: binds one worker cluster to the computing cluster."""

    spec: BindingSpec = msgspec.field(default_factory=BindingSpec)
    status: BindingStatus = msgspec.field(default_factory=BindingStatus)


CLUSTER_BINDINGS: Final = Resource(
    GROUP, VERSION, "clusterbindings", "ClusterBinding", False, ClusterBinding
)


def network_of(cidr: str) -> IPv4Network | IPv6Network | None:
    """Parse a network in CIDR notation; None if the text is invalid."""
    try:
        return ip_network(cidr, strict=False)
    except ValueError:
        return None


def problems(spec: BindingSpec) -> tuple[Problem, ...]:
    """Return all problems of a ClusterBinding's spec, in the order of the fields.

    The CustomResourceDefinition refuses an invalid clusterID and most invalid selectors. Bindings
    with other problems are accepted, as in earlier versions, but do not become Ready.
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
    for shown, value in spec.pod_privileges.settings:
        if value not in tuple(Privilege):
            reason = f"must be {' or '.join(Privilege)}, and is taken for {Privilege.DENY}"
            yield Problem(f"spec.podPrivileges.{shown}", value, reason, blocks=False)
    if (level := spec.pod_privileges.level) not in tuple(PodSecurityLevel):
        known, strictest = ", ".join(PodSecurityLevel), PodSecurityLevel.RESTRICTED
        message = f"must be one of {known}, and is taken for {strictest}"
        yield Problem("spec.podPrivileges.level", level, message, blocks=False)
    for index, cidr in enumerate(spec.worker_cidrs or ()):
        if network_of(cidr) is None:
            message = "must be a network such as 10.0.0.0/8 or fd00::/8; addresses in it are hidden"
            yield Problem(f"spec.workerCIDRs[{index}]", cidr, message, blocks=False)
    if spec.worker_trust not in tuple(WorkerTrust):
        message = f"must be {' or '.join(WorkerTrust)}, and is taken for {WorkerTrust.KUBELET}"
        yield Problem("spec.workerTrust", spec.worker_trust, message, blocks=False)
