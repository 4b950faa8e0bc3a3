"""Kinds: the built-in resources that the program reads, with the fields that it reads.

A field is here because some decision depends on it. Each field costs bytes for every cached object.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.objects import Condition, Object, Resource, Untyped

__all__ = [
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "ConfigMap",
    "Container",
    "ContainerResources",
    "Event",
    "Lease",
    "LeaseSpec",
    "Namespace",
    "NamespaceStatus",
    "Node",
    "NodeAddress",
    "NodeSpec",
    "NodeStatus",
    "ObjectReference",
    "Pod",
    "PodCondition",
    "PodSpec",
    "PodStatus",
    "Taint",
]


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of the structs that are parts of an object."""


class ContainerResources(_Part, frozen=True, gc=False, rename="camel"):
    """Resource requests and limits of a container, as written."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(_Part, frozen=True, gc=False, rename="camel"):
    """Container of a pod, with the fields that resource accounting needs."""

    name: str = ""
    resources: ContainerResources | None = None
    restart_policy: str | None = None


class PodSpec(_Part, frozen=True, gc=False, rename="camel"):
    """Spec of a pod."""

    node_name: str = ""
    service_account_name: str = ""
    priority: int | None = None
    host_network: bool = False
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: ContainerResources | None = None


class PodCondition(_Part, frozen=True, gc=False, rename="camel"):
    """Condition of a pod, without times and messages, which decide nothing."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(_Part, frozen=True, gc=False, rename="camel"):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")  # not camel case in Kubernetes either
    conditions: tuple[PodCondition, ...] | None = None


class Pod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(_Part, frozen=True, gc=False, rename="camel"):
    """Taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(_Part, frozen=True, gc=False, rename="camel"):
    """Spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeAddress(_Part, frozen=True, gc=False, rename="camel"):
    """Address of a node."""

    type: str = ""
    address: str = ""


class NodeStatus(_Part, frozen=True, gc=False, rename="camel"):
    """Status of a node."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[Condition, ...] | None = None
    addresses: tuple[NodeAddress, ...] | None = None


class Node(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class LeaseSpec(_Part, frozen=True, gc=False, rename="camel"):
    """Spec of a Lease: its holder, its times and its duration."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Lease: holder, times and duration, for heartbeats and elections."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class ObjectReference(_Part, frozen=True, gc=False, rename="camel"):
    """Reference to an object of any kind."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class Event(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Event about an object."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""


class NamespaceStatus(_Part, frozen=True, gc=False, rename="camel"):
    """Status of a namespace."""

    phase: str = ""


class Namespace(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A namespace."""

    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """ConfigMap: configuration as text."""

    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    immutable: bool | None = None


PODS: Final = Resource("", "v1", "pods", "Pod", True, Pod)
NODES: Final = Resource("", "v1", "nodes", "Node", False, Node)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", False, Namespace)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
EVENTS: Final = Resource("", "v1", "events", "Event", True, Event)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)

# Only the metadata of these resources is decoded; `keep_raw` keeps the rest.
SECRETS: Final = Resource("", "v1", "secrets", "Secret", True, Untyped)
SERVICES: Final = Resource("", "v1", "services", "Service", True, Untyped)
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Untyped)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    Untyped,
)
