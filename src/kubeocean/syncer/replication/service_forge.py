"""Services of the computing cluster and their EndpointSlices, and how their copies are built.

The copy of a Service has no selector; its EndpointSlices are copies of the source's, so that
traffic reaches the same pods wherever they run. The copy has ports, session affinity and labels of
the source, and an address of the worker. Node ports, load balancers and annotations are not copied:
they configure programs of the computing cluster. Neither are the topology, nodes and references of
endpoints, which name objects that the worker does not have.

The cache keeps only those fields of a Service that pods or copies use; of an EndpointSlice it keeps
the metadata and the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped, merge_patch
from kubeocean.syncer.replication.copy_metadata import copied_labels, merged, recorded

__all__ = [
    "ENDPOINT_SLICES",
    "SERVICE_VIEWS",
    "ServiceContext",
    "ServicePortView",
    "ServiceView",
    "forge_service",
    "forge_slice",
    "must_be_replaced",
    "names",
    "replicated_slices",
    "service_changes",
    "slice_changes",
    "slice_name",
    "without_annotations",
]

_CLUSTER_IP: Final = "ClusterIP"
_EXTERNAL_NAME: Final = "ExternalName"
_HEADLESS: Final = "None"  # in the place of an address
_FQDN: Final = "FQDN"  # the address type of slices with DNS names, which no proxy routes
_ENDPOINT_FIELDS: Final = ("addresses", "conditions", "hostname")


class _ServicePart(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of the structs that are parts of a Service."""


class ServicePortView(_ServicePart, frozen=True, gc=False, rename="camel"):
    """A port of a Service, with the fields that pods or copies use."""

    port: int = 0
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None
    app_protocol: str | None = None


class _Spec(_ServicePart, frozen=True, gc=False, rename="camel"):
    type: str = _CLUSTER_IP
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    external_name: str = ""
    ports: tuple[ServicePortView, ...] | None = None
    session_affinity: str = "None"
    session_affinity_config: Json | None = None
    publish_not_ready_addresses: bool = False


class _Ingress(_ServicePart, frozen=True, gc=False, rename="camel"):
    ip: str = ""
    hostname: str = ""


class _LoadBalancer(_ServicePart, frozen=True, gc=False, rename="camel"):
    ingress: tuple[_Ingress, ...] | None = None


class _Status(_ServicePart, frozen=True, gc=False, rename="camel"):
    load_balancer: _LoadBalancer = msgspec.field(default_factory=_LoadBalancer)


class ServiceView(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Service, with the fields that pods or copies use."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def address(self) -> str:
        """The cluster IP of the Service; empty if it has none."""
        address = self.spec.cluster_ip
        return "" if address == _HEADLESS or self.spec.type == _EXTERNAL_NAME else address

    @property
    def ingress(self) -> tuple[str, ...]:
        """The addresses of the Service's load balancer, or its host names if it has no address."""
        ingress = self.status.load_balancer.ingress or ()
        addresses = tuple(each.ip for each in ingress if each.ip)
        return addresses or tuple(each.hostname for each in ingress if each.hostname)


SERVICE_VIEWS: Final = Resource("", "v1", "services", "Service", True, ServiceView)
ENDPOINT_SLICES: Final = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, Untyped
)


def without_annotations(service: ServiceView) -> ServiceView:
    """Return a Service without annotations, which are for other programs and may be large."""
    if service.metadata.annotations is None:
        return service
    metadata = msgspec.structs.replace(service.metadata, annotations=None)
    return msgspec.structs.replace(service, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Everything that the copies of a Service and of its slices are built from."""

    service: ServiceView  # the source
    name: str  # of the copy
    namespace: str  # of the copy
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def names(source: Key, ids: Ids) -> tuple[str, str]:
    """Return the first name of a Service's copy, and its name if a foreign object has the first."""
    identity = f"{ids.computing_id}/{ids.binding}"
    first = naming.physical_name(source.name, source.namespace)
    return first, naming.second_physical_name(source.name, source.namespace, uid=identity)


def slice_name(source: Key, context: ServiceContext) -> str:
    """Return the name of an EndpointSlice's copy; its second name if its Service's copy has one."""
    first, _ = names(context.service.key, context.ids)
    if context.name == first:
        return naming.physical_name(source.name, source.namespace)
    return names(source, context.ids)[1]


# Services


def forge_service(context: ServiceContext) -> Json:
    """Return the manifest of a new copy of a Service."""
    spec = _spec(context.service)
    if context.service.spec.cluster_ip == _HEADLESS:
        spec["clusterIP"] = _HEADLESS
    return {
        "apiVersion": SERVICE_VIEWS.api_version,
        "kind": SERVICE_VIEWS.kind,
        "metadata": _service_metadata(context),
        "spec": spec,
    }


def must_be_replaced(copy: ServiceView, context: ServiceContext) -> bool:
    """Whether the copy of a Service differs from its source in immutable fields."""
    return _immutable_fields(copy) != _immutable_fields(context.service)


def service_changes(copy: ServiceView, context: ServiceContext) -> Json:
    """Return the merge patch that gives a Service's copy its desired state; empty if it has it."""
    metadata = _metadata_changes(copy, _service_metadata(context), context.domain)
    present, expected = _spec(copy), _spec(context.service)
    spec = {
        key: expected.get(key)
        for key in present.keys() | expected.keys()
        if present.get(key) != expected.get(key)
    }
    return _changes(metadata, {"spec": spec} if spec else {})


def _service_metadata(context: ServiceContext) -> Json:
    labels = copied_labels(context.service, context.domain)
    return _metadata(context, context.service, context.name, labels)


def _immutable_fields(service: ServiceView) -> tuple[bool, bool]:
    return service.spec.type == _EXTERNAL_NAME, service.spec.cluster_ip == _HEADLESS


def _spec(service: ServiceView) -> Json:
    """Return the fields of a Service's spec that a source and its copy have in common."""
    spec = service.spec
    shared: Json = {
        "type": _EXTERNAL_NAME if spec.type == _EXTERNAL_NAME else _CLUSTER_IP,
        "ports": [_port(each) for each in map(msgspec.to_builtins, spec.ports or ())],
        "sessionAffinity": spec.session_affinity,
    }
    if spec.session_affinity_config:
        shared["sessionAffinityConfig"] = spec.session_affinity_config
    if spec.publish_not_ready_addresses:
        shared["publishNotReadyAddresses"] = True
    if spec.type == _EXTERNAL_NAME:
        shared["externalName"] = spec.external_name
    return shared


def _port(port: Json) -> Json:
    return {"protocol": "TCP", "targetPort": port["port"]} | port


# EndpointSlices


def replicated_slices(slices: list[Untyped]) -> list[Untyped]:
    """Return the EndpointSlices of a Service that are copied, by name."""
    usable = (each for each in slices if not each.deleting)
    routed = (each for each in usable if each.content().get("addressType") != _FQDN)
    return sorted(routed, key=lambda each: each.name)


def forge_slice(source: Untyped, context: ServiceContext, service_uid: str) -> Json:
    """Return the manifest of a new copy of an EndpointSlice, owned by its Service's copy."""
    metadata = _slice_metadata(context, source)
    content = source.content()
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": metadata | {"ownerReferences": [_owner(context, service_uid)]},
        "addressType": content.get("addressType", ""),
        **_endpoints(content),
    }


def slice_changes(
    copy: Untyped, source: Untyped, context: ServiceContext, service_uid: str
) -> Json:
    """Return the merge patch that gives a slice's copy its desired state; empty if it has it."""
    metadata = _metadata_changes(copy, _slice_metadata(context, source), context.domain)
    owners = [owner.uid for owner in copy.metadata.owner_references or ()]
    if owners != [service_uid]:
        metadata["ownerReferences"] = [_owner(context, service_uid)]
    present, expected = _endpoints(copy.content()), _endpoints(source.content())
    changed = {key: value for key, value in expected.items() if present[key] != value}
    return _changes(metadata, changed)


def _endpoints(content: Json) -> Json:
    endpoints = [
        {key: each[key] for key in _ENDPOINT_FIELDS if each.get(key) not in (None, {})}
        for each in content.get("endpoints") or ()
    ]
    return {"endpoints": endpoints, "ports": content.get("ports") or []}


def _slice_metadata(context: ServiceContext, source: Untyped) -> Json:
    labels = {
        group.LABEL_SERVICE_NAME: context.name,
        group.LABEL_SLICE_MANAGED_BY: context.domain.syncer,
    }
    return _metadata(context, source, slice_name(source.key, context), labels)


def _owner(context: ServiceContext, uid: str) -> Json:
    return {
        "apiVersion": SERVICE_VIEWS.api_version,
        "kind": SERVICE_VIEWS.kind,
        "name": context.name,
        "uid": uid,
    }


# Metadata of Services and EndpointSlices


def _metadata(context: ServiceContext, source: Object, name: str, labels: dict[str, str]) -> Json:
    """Return the metadata of a new copy of a Service or EndpointSlice."""
    domain = context.domain
    labels = labels | ownership_labels(context.ids, domain)
    annotations = {
        domain.virtual_namespace: source.namespace,
        domain.virtual_name: source.name,
        domain.virtual_uid: source.uid,
    }
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": labels,
        "annotations": recorded(labels, annotations, domain),
    }


def _metadata_changes(copy: Object, metadata: Json, domain: Domain) -> Json:
    labels, annotations = merged(copy, metadata["labels"], metadata["annotations"], domain)
    changed = {
        "labels": merge_patch(copy.labels, labels),
        "annotations": merge_patch(copy.annotations, annotations),
    }
    return {key: value for key, value in changed.items() if value}


def _changes(metadata: Json, rest: Json) -> Json:
    return ({"metadata": metadata} if metadata else {}) | rest
