"""Envelopes: manifests for members that must not take effect on the hub."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.fleet.schema import V1BETA1, EmbeddedObject, field
from kubeocean.runtime.objects import Object, Resource

__all__ = ["CLUSTER_RESOURCE_ENVELOPES", "RESOURCE_ENVELOPES", "Envelope"]


class Envelope(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Manifests that are placed on members and do not take effect on the hub."""

    data: Annotated[
        dict[str, EmbeddedObject],
        field(
            "Manifests, each under a name of its own.",
            required=True,
            minProperties=1,
            maxProperties=50,
        ),
    ] = msgspec.field(default_factory=dict)


CLUSTER_RESOURCE_ENVELOPES: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceenvelopes",
    "ClusterResourceEnvelope",
    False,
    Envelope,
)
RESOURCE_ENVELOPES: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "resourceenvelopes", "ResourceEnvelope", True, Envelope
)
