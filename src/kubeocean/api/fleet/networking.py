"""Kinds of fleet networking, which other programs implement.

The hub's admission protects objects of these kinds, so that API servers need their definitions;
Kubeocean does not read them.
"""

from __future__ import annotations

from typing import Annotated, Final

from kubeocean.api.fleet.schema import V1ALPHA1, AnyValue, field
from kubeocean.runtime.objects import Object, Resource

__all__ = [
    "ENDPOINT_SLICE_EXPORTS",
    "INTERNAL_SERVICE_EXPORTS",
    "INTERNAL_SERVICE_IMPORTS",
    "NETWORKING_GROUP",
    "NetworkingObject",
]

NETWORKING_GROUP: Final = "networking.fleet.azure.com"


class NetworkingObject(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Object of fleet networking."""

    spec: Annotated[AnyValue, field("Desired state.", type="object")] = None
    status: Annotated[AnyValue, field("Observed state.", type="object")] = None


ENDPOINT_SLICE_EXPORTS: Final = Resource(
    NETWORKING_GROUP,
    V1ALPHA1,
    "endpointsliceexports",
    "EndpointSliceExport",
    True,
    NetworkingObject,
)
INTERNAL_SERVICE_EXPORTS: Final = Resource(
    NETWORKING_GROUP,
    V1ALPHA1,
    "internalserviceexports",
    "InternalServiceExport",
    True,
    NetworkingObject,
)
INTERNAL_SERVICE_IMPORTS: Final = Resource(
    NETWORKING_GROUP,
    V1ALPHA1,
    "internalserviceimports",
    "InternalServiceImport",
    True,
    NetworkingObject,
)
