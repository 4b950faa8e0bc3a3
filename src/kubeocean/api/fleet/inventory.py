"""ClusterProfile: SIG-Multicluster's inventory of clusters, which other tools read."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kubeocean.api.fleet.schema import V1ALPHA1, AnyValue, Bytes, Conditions, Part, Time, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Object, Resource

__all__ = [
    "CLUSTER_PROFILES",
    "INVENTORY_GROUP",
    "AccessProvider",
    "ClusterAccess",
    "ClusterManager",
    "ClusterProfile",
    "ClusterProfileSpec",
    "ClusterProfileStatus",
    "ClusterProperty",
    "ClusterVersion",
    "Extension",
]

INVENTORY_GROUP: Final = "multicluster.x-k8s.io"


class ClusterManager(Part, frozen=True):
    """System that manages a cluster."""

    name: Annotated[str, field("Name of the system.", required=True)] = ""


class ClusterProfileSpec(Part, frozen=True):
    """Name of the cluster that a ClusterProfile describes, and the system that manages it."""

    display_name: Annotated[str, field("Name of the cluster for people.")] = ""
    cluster_manager: Annotated[
        ClusterManager,
        field(
            "System that manages the cluster and writes this profile.",
            rule("self == oldSelf", "ClusterManager is immutable"),
            required=True,
        ),
    ] = ClusterManager()


class ClusterVersion(Part, frozen=True):
    """Version of Kubernetes in a cluster."""

    kubernetes: Annotated[str, field("Version of Kubernetes.")] = ""


class ClusterProperty(Part, frozen=True):
    """Property of a cluster."""

    name: Annotated[
        str, field("Name of the property.", required=True, minLength=1, maxLength=253)
    ] = ""
    value: Annotated[
        str, field("Value of the property.", required=True, minLength=1, maxLength=1024)
    ] = ""
    last_observed_time: Annotated[Time | None, field("Time of the observation.")] = None


class Extension(Part, frozen=True):
    """Additional information about the access to a cluster, for clients that know its name."""

    name: Annotated[str, field("Name of the extension.", required=True)] = ""
    extension: Annotated[AnyValue, field("Content of the extension.", required=True)] = None


class ClusterAccess(Part, frozen=True):
    """Address and certificate authority of a cluster's API server, as in a kubeconfig."""

    server: Annotated[str, field("URL of the API server.", required=True)] = ""
    tls_server_name: Annotated[str, field("Name in the server's certificate.")] = msgspec.field(
        default="", name="tls-server-name"
    )
    insecure_skip_tls_verify: Annotated[bool, field("Do not verify the server's certificate.")] = (
        msgspec.field(default=False, name="insecure-skip-tls-verify")
    )
    certificate_authority: Annotated[str, field("File with the certificate authority.")] = (
        msgspec.field(default="", name="certificate-authority")
    )
    certificate_authority_data: Annotated[
        Bytes, field("The certificate authority, PEM encoded.")
    ] = msgspec.field(default="", name="certificate-authority-data")
    proxy_url: Annotated[str, field("URL of a proxy to use.")] = msgspec.field(
        default="", name="proxy-url"
    )
    disable_compression: Annotated[bool, field("Ask for answers without compression.")] = (
        msgspec.field(default=False, name="disable-compression")
    )
    extensions: Annotated[tuple[Extension, ...], field("Further information for clients.")] = ()


class AccessProvider(Part, frozen=True):
    """Source of credentials for a cluster."""

    name: Annotated[str, field("Name of the provider.", required=True)] = ""
    cluster: Annotated[ClusterAccess | None, field("How to reach the cluster.")] = None


class ClusterProfileStatus(Part, frozen=True):
    """Observed state of a cluster."""

    conditions: Annotated[Conditions, field("ControlPlaneHealthy.")] = ()
    version: Annotated[ClusterVersion, field("Versions of the cluster.")] = ClusterVersion()
    properties: Annotated[tuple[ClusterProperty, ...], field("Properties of the cluster.")] = ()
    access_providers: Annotated[
        tuple[AccessProvider, ...],
        field(
            "Ways to access the cluster.",
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()


class ClusterProfile(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Entry of a cluster in the inventory of the hub."""

    spec: Annotated[ClusterProfileSpec, field("The cluster.", required=True)] = ClusterProfileSpec()
    status: Annotated[ClusterProfileStatus, field("Observed state.")] = ClusterProfileStatus()


CLUSTER_PROFILES: Final = Resource(
    INVENTORY_GROUP, V1ALPHA1, "clusterprofiles", "ClusterProfile", True, ClusterProfile
)
