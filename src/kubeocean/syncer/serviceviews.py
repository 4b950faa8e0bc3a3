"""Services of the computing cluster and their endpoints, as the syncer sees them.

Of a Service no more is kept than what pods are told of it and what a mirror shows; of an
EndpointSlice the metadata, and the rest in its bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.objects import Json, Object, Resource, Untyped

__all__ = [
    "ENDPOINT_SLICES",
    "EXTERNAL_NAME",
    "HEADLESS",
    "SERVICE_VIEWS",
    "Service",
    "ServicePortView",
    "lean",
]

HEADLESS: Final = "None"  # what stands in the place of an address
EXTERNAL_NAME: Final = "ExternalName"


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A piece of a Service."""


class ServicePortView(_Part, frozen=True, gc=False, rename="camel"):
    """A port."""

    port: int = 0
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None
    app_protocol: str | None = None


class _Spec(_Part, frozen=True, gc=False, rename="camel"):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    external_name: str = ""
    ports: tuple[ServicePortView, ...] | None = None
    session_affinity: str = "None"
    session_affinity_config: Json | None = None
    publish_not_ready_addresses: bool = False


class _Ingress(_Part, frozen=True, gc=False, rename="camel"):
    ip: str = ""
    hostname: str = ""


class _LoadBalancer(_Part, frozen=True, gc=False, rename="camel"):
    ingress: tuple[_Ingress, ...] | None = None


class _Status(_Part, frozen=True, gc=False, rename="camel"):
    load_balancer: _LoadBalancer = msgspec.field(default_factory=_LoadBalancer)


class Service(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Service."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def address(self) -> str:
        """Its own, which the cluster routes; empty where there is none."""
        own = self.spec.cluster_ip
        return "" if own == HEADLESS or self.spec.type == EXTERNAL_NAME else own

    @property
    def ingress(self) -> tuple[str, ...]:
        """Where its load balancer is reached: addresses first, then names."""
        found = self.status.load_balancer.ingress or ()
        addresses = tuple(each.ip for each in found if each.ip)
        return addresses or tuple(each.hostname for each in found if each.hostname)


SERVICE_VIEWS: Final = Resource("", "v1", "services", "Service", True, Service)
ENDPOINT_SLICES: Final = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, Untyped
)


def lean(service: Service) -> Service:
    """Without annotations, which are for programs that are not ours, and may be large."""
    if service.metadata.annotations is None:
        return service
    metadata = msgspec.structs.replace(service.metadata, annotations=None)
    return msgspec.structs.replace(service, metadata=metadata)
