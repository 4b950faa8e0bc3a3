"""Work, AppliedWork and envelopes: manifests for members, and the objects that agents applied."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kubeocean.api.fleet.placements import PLACEMENT_GROUP, PatchDetail
from kubeocean.api.fleet.schema import (
    V1BETA1,
    AnyValue,
    Conditions,
    EmbeddedObject,
    Part,
    Time,
    field,
)
from kubeocean.api.fleet.strategies import ApplyStrategy, ReportBackStrategy
from kubeocean.runtime.objects import Object, Resource

__all__ = [
    "APPLIED_WORKS",
    "CLUSTER_RESOURCE_ENVELOPES",
    "RESOURCE_ENVELOPES",
    "WORKS",
    "AppliedResource",
    "AppliedWork",
    "AppliedWorkSpec",
    "AppliedWorkStatus",
    "BackReportedStatus",
    "DiffDetails",
    "DriftDetails",
    "Envelope",
    "ManifestCondition",
    "Work",
    "WorkResourceIdentifier",
    "WorkSpec",
    "WorkStatus",
    "WorkloadTemplate",
]


class WorkloadTemplate(Part, frozen=True):
    """Manifests of a Work."""

    manifests: Annotated[tuple[EmbeddedObject, ...], field("Objects to write.")] = ()


class WorkSpec(Part, frozen=True):
    """Manifests for the member, and how to write them."""

    workload: Annotated[WorkloadTemplate, field("Manifests for the member.")] = WorkloadTemplate()
    apply_strategy: Annotated[ApplyStrategy, field("How objects are written.")] = ApplyStrategy()
    report_back_strategy: Annotated[
        ReportBackStrategy,
        field(
            "Whether and where the status of the objects is reported.",
            unchecked=True,
            only=(V1BETA1,),
        ),
    ] = ReportBackStrategy()


class WorkResourceIdentifier(Part, frozen=True):
    """Identifies a manifest, and the object of it as far as it could be read."""

    ordinal: Annotated[int, field("Position in the list of manifests.", required=True)] = 0
    group: Annotated[str, field("API group of the object; empty for the core group.")] = ""
    version: Annotated[str, field("API version of the object.")] = ""
    kind: Annotated[str, field("Kind of the object.")] = ""
    resource: Annotated[str, field("Resource of the kind, such as configmaps.")] = ""
    namespace: Annotated[str, field("Namespace of the object, if it has one.")] = ""
    name: Annotated[str, field("Name of the object.")] = ""


class DriftDetails(Part, frozen=True):
    """Changes that were made to a placed object in the member."""

    observation_time: Annotated[
        Time | None, field("Time of the last observation.", required=True)
    ] = None
    observed_in_member_cluster_generation: Annotated[
        int, field("Generation of the object in the member.", required=True)
    ] = 0
    first_drifted_observed_time: Annotated[
        Time | None, field("Time of the first observation.", required=True)
    ] = None
    observed_drifts: Annotated[tuple[PatchDetail, ...], field("Fields that differ.")] = ()


class DiffDetails(Part, frozen=True):
    """Differences between an object in the member and its manifest."""

    observation_time: Annotated[
        Time | None, field("Time of the last observation.", required=True)
    ] = None
    observed_in_member_cluster_generation: Annotated[
        int | None, field("Generation of the object in the member; absent if there is none.")
    ] = None
    first_diffed_observed_time: Annotated[
        Time | None, field("Time of the first observation.", required=True)
    ] = None
    observed_diffs: Annotated[tuple[PatchDetail, ...], field("Fields that differ.")] = ()


class BackReportedStatus(Part, frozen=True):
    """Status of a placed object in the member, reported back to the hub."""

    observed_status: Annotated[
        AnyValue, field("apiVersion, kind and status of the object.", type="object")
    ] = None
    observation_time: Annotated[Time | None, field("Time of the observation.", required=True)] = (
        None
    )


class ManifestCondition(Part, frozen=True):
    """State of one manifest of a Work in the member."""

    identifier: Annotated[WorkResourceIdentifier, field("The manifest.", required=True)] = (
        WorkResourceIdentifier()
    )
    conditions: Annotated[
        Conditions, field("Applied and Available, or DiffReported.", required=True)
    ] = ()
    drift_details: Annotated[DriftDetails | None, field("Changes of the object in the member.")] = (
        None
    )
    diff_details: Annotated[
        DiffDetails | None, field("Differences of an object that is not written.")
    ] = None
    back_reported_status: Annotated[
        BackReportedStatus | None, field("Status of the object in the member.")
    ] = None


class WorkStatus(Part, frozen=True):
    """Status of a Work: the state of its manifests in the member."""

    conditions: Annotated[
        Conditions,
        field("The same conditions, over all manifests.", required=True),
    ] = ()
    manifest_conditions: Annotated[
        tuple[ManifestCondition, ...], field("State of each manifest.")
    ] = ()


class Work(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Manifests that the member of this namespace writes in its cluster."""

    spec: Annotated[WorkSpec, field("Manifests for the member.")] = WorkSpec()
    status: Annotated[WorkStatus, field("State of the manifests.")] = WorkStatus()


class AppliedWorkSpec(Part, frozen=True):
    """Work on the hub that an AppliedWork belongs to."""

    work_name: Annotated[str, field("Name of the Work.", required=True)] = ""
    work_namespace: Annotated[str, field("Namespace of the Work.", required=True)] = ""


class AppliedResource(WorkResourceIdentifier, frozen=True):
    """Object in the member that was written for a Work."""

    uid: Annotated[str, field("UID of the object.")] = ""


class AppliedWorkStatus(Part, frozen=True):
    """Status of an AppliedWork: the objects in the member that were written for a Work."""

    applied_resources: Annotated[tuple[AppliedResource, ...], field("The objects.")] = ()


class AppliedWork(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Owner, in the member cluster, of all objects that were written for a Work."""

    spec: Annotated[AppliedWorkSpec, field("Work on the hub.", required=True)] = AppliedWorkSpec()
    status: Annotated[AppliedWorkStatus, field("Objects that were written.")] = AppliedWorkStatus()


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


WORKS: Final = Resource(PLACEMENT_GROUP, V1BETA1, "works", "Work", True, Work)
APPLIED_WORKS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "appliedworks", "AppliedWork", False, AppliedWork
)
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
