"""Names, labels, annotations and finalizers of a fleet's objects.

All of them are KubeFleet's own, because objects that its agents wrote are adopted, and other tools
read these names. An object's name is a function of the identity that it represents, so that a
second attempt to create the object conflicts with the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from kubeocean.runtime.objects import Key

__all__ = [
    "ADMISSION_POLICIES",
    "ADMISSION_POLICY_BINDINGS",
    "AFTER_STAGE",
    "ANNOTATION_AGENT_VERSION",
    "ANNOTATION_AVAILABLE_WHEN",
    "ANNOTATION_CLUSTER_OVERRIDES_HASH",
    "ANNOTATION_DELETE_PROPAGATION",
    "ANNOTATION_ENVELOPED_OBJECTS",
    "ANNOTATION_ENVELOPE_CONFIG_MAP",
    "ANNOTATION_FINISHED_JOBS",
    "ANNOTATION_LAST_APPLIED",
    "ANNOTATION_NEXT_SNAPSHOT_DETECTED",
    "ANNOTATION_NUMBER_OF_CLUSTERS",
    "ANNOTATION_OVERRIDES_HASH",
    "ANNOTATION_PARENT_SNAPSHOT",
    "ANNOTATION_PLACEMENT_GENERATION",
    "ANNOTATION_PREVIOUS_STATE",
    "ANNOTATION_RESOURCE_HASH",
    "ANNOTATION_RESOURCE_SNAPSHOTS",
    "ANNOTATION_SPEC_HASH",
    "ANNOTATION_SUB_INDEX",
    "ANNOTATION_WORK_FINALIZER",
    "BEFORE_STAGE",
    "CERT_MANAGER_CERTIFICATE",
    "CLUSTER_MANAGER",
    "CORDON_TAINT_KEY",
    "CORDON_TAINT_VALUE",
    "DELETE_STAGE",
    "EXTENSION_PROPERTY_PREFIX",
    "FIELD_MANAGER",
    "FINALIZER_BINDING_SCHEDULER",
    "FINALIZER_MEMBER",
    "FINALIZER_OVERRIDE",
    "FINALIZER_PLACEMENT",
    "FINALIZER_PROFILE",
    "FINALIZER_RUN",
    "FINALIZER_SCHEDULER",
    "FINALIZER_WORK",
    "GUARD_RAIL_WEBHOOKS",
    "HUB_ACCOUNT",
    "LABEL_CLUSTER_MANAGER",
    "LABEL_ENVELOPE_NAME",
    "LABEL_ENVELOPE_NAMESPACE",
    "LABEL_ENVELOPE_TYPE",
    "LABEL_FLEET_RESOURCE",
    "LABEL_LATEST_APPROVAL",
    "LABEL_LATEST_SNAPSHOT",
    "LABEL_MEMBER_NAME",
    "LABEL_OVERRIDE_INDEX",
    "LABEL_PARENT_BINDING",
    "LABEL_PARENT_NAMESPACE",
    "LABEL_PARENT_OVERRIDE",
    "LABEL_PARENT_PLACEMENT",
    "LABEL_PARENT_SNAPSHOT_INDEX",
    "LABEL_POLICY_INDEX",
    "LABEL_RESOURCE_INDEX",
    "LABEL_TARGET_RUN",
    "LABEL_TARGET_STAGE",
    "LABEL_TASK_TYPE",
    "MEMBER_NAMESPACE_PREFIX",
    "MUTATING_WEBHOOKS",
    "PREFIX",
    "PROPERTY_CERTIFICATE_AUTHORITY",
    "PROPERTY_ENTRY_POINT",
    "PROPERTY_KUBERNETES_VERSION",
    "PROPERTY_NODE_COUNT",
    "RESOURCE_PROPERTY_PREFIX",
    "SERVICE_ACCOUNT_POLICY",
    "SYSTEM_NAMESPACE",
    "TRUE",
    "VALIDATING_WEBHOOKS",
    "VARIABLE_CLUSTER_LABEL",
    "VARIABLE_CLUSTER_NAME",
    "WEBHOOK_CERTIFICATES",
    "WEBHOOK_CERTIFICATE_DIRECTORY",
    "WEBHOOK_PORT",
    "WEBHOOK_SERVICE",
    "WORKLOAD_POLICY",
    "approval_request",
    "binding",
    "binding_suffix",
    "drain_eviction",
    "envelope_work",
    "member_namespace",
    "member_of_namespace",
    "member_role",
    "member_role_binding",
    "override_snapshot",
    "parse_index",
    "policy_binding",
    "policy_snapshot",
    "resource_snapshot",
    "resource_sub_snapshot",
    "sub_work",
    "work",
    "work_base",
]

PREFIX: Final = "kubernetes-fleet.io/"
TRUE: Final = "true"

# Labels of the hub's objects for a member

LABEL_MEMBER_NAME: Final = f"{PREFIX}member-name"  # label of a MemberCluster with its own name
LABEL_FLEET_RESOURCE: Final = f"{PREFIX}is-fleet-resource"  # of member namespaces
LABEL_CLUSTER_MANAGER: Final = "x-k8s.io/cluster-manager"  # of ClusterProfiles
CLUSTER_MANAGER: Final = "KubeFleet"  # value of that label, and name of the access provider

# Labels and annotations of snapshots; "CRP" also stands for a ResourcePlacement

LABEL_PARENT_PLACEMENT: Final = f"{PREFIX}parent-CRP"  # also of bindings and Works
LABEL_LATEST_SNAPSHOT: Final = f"{PREFIX}is-latest-snapshot"
LABEL_POLICY_INDEX: Final = f"{PREFIX}policy-index"
LABEL_RESOURCE_INDEX: Final = f"{PREFIX}resource-index"
LABEL_OVERRIDE_INDEX: Final = f"{PREFIX}override-index"
LABEL_PARENT_OVERRIDE: Final = f"{PREFIX}parent-resource-override"
ANNOTATION_PLACEMENT_GENERATION: Final = f"{PREFIX}CRP-generation"
ANNOTATION_NUMBER_OF_CLUSTERS: Final = f"{PREFIX}number-of-clusters"
ANNOTATION_RESOURCE_HASH: Final = f"{PREFIX}resource-hash"
ANNOTATION_RESOURCE_SNAPSHOTS: Final = f"{PREFIX}number-of-resource-snapshots"
ANNOTATION_ENVELOPED_OBJECTS: Final = f"{PREFIX}number-of-enveloped-object"
ANNOTATION_SUB_INDEX: Final = f"{PREFIX}subindex-of-resource-snapshot"
ANNOTATION_NEXT_SNAPSHOT_DETECTED: Final = (
    f"{PREFIX}next-resource-snapshot-candidate-detection-time"
)

# Annotation of bindings

ANNOTATION_PREVIOUS_STATE: Final = f"{PREFIX}previous-binding-state"

# Labels and annotations of Works

LABEL_PARENT_BINDING: Final = f"{PREFIX}parent-resource-binding"
LABEL_PARENT_SNAPSHOT_INDEX: Final = f"{PREFIX}parent-resource-snapshot-index"
LABEL_PARENT_NAMESPACE: Final = f"{PREFIX}parent-placement-namespace"
LABEL_ENVELOPE_TYPE: Final = f"{PREFIX}envelope-work"
LABEL_ENVELOPE_NAME: Final = f"{PREFIX}envelope-name"
LABEL_ENVELOPE_NAMESPACE: Final = f"{PREFIX}envelope-namespace"
ANNOTATION_PARENT_SNAPSHOT: Final = f"{PREFIX}parent-resource-snapshot-name"
ANNOTATION_CLUSTER_OVERRIDES_HASH: Final = f"{PREFIX}parent-cluster-resource-override-snapshot-hash"
ANNOTATION_OVERRIDES_HASH: Final = f"{PREFIX}parent-resource-override-snapshot-hash"

# Annotations of placed objects, and the field manager that writes them

ANNOTATION_SPEC_HASH: Final = f"{PREFIX}spec-hash"
ANNOTATION_LAST_APPLIED: Final = f"{PREFIX}last-applied-configuration"
ANNOTATION_ENVELOPE_CONFIG_MAP: Final = f"{PREFIX}envelope-configmap"
FIELD_MANAGER: Final = "work-api-agent"

# Labels of approval requests

LABEL_TARGET_RUN: Final = f"{PREFIX}targetUpdateRun"
LABEL_TARGET_STAGE: Final = f"{PREFIX}targetUpdatingStage"
LABEL_TASK_TYPE: Final = f"{PREFIX}taskType"
LABEL_LATEST_APPROVAL: Final = f"{PREFIX}isLatestUpdateRunApproval"
BEFORE_STAGE: Final = "beforeStage"
AFTER_STAGE: Final = "afterStage"
DELETE_STAGE: Final = f"{PREFIX}deleteStage"  # name of a run's last stage

# Finalizers

FINALIZER_MEMBER: Final = f"{PREFIX}membercluster-finalizer"
FINALIZER_PROFILE: Final = f"{PREFIX}cluster-profile-cleanup"  # of MemberClusters
FINALIZER_PLACEMENT: Final = f"{PREFIX}crp-cleanup"  # also of ResourcePlacements
FINALIZER_SCHEDULER: Final = f"{PREFIX}scheduler-cleanup"  # of placements
FINALIZER_BINDING_SCHEDULER: Final = f"{PREFIX}scheduler-crb-cleanup"
FINALIZER_WORK: Final = f"{PREFIX}work-cleanup"  # of bindings and Works
FINALIZER_OVERRIDE: Final = f"{PREFIX}override-cleanup"
FINALIZER_RUN: Final = f"{PREFIX}stagedupdaterun-finalizer"

# Properties of clusters from which the hub builds other objects

PROPERTY_NODE_COUNT: Final = f"{PREFIX}node-count"
PROPERTY_KUBERNETES_VERSION: Final = "k8s.io/k8s-version"
PROPERTY_ENTRY_POINT: Final = "k8s.io/cluster-entrypoint"
PROPERTY_CERTIFICATE_AUTHORITY: Final = "k8s.io/cluster-certificate-authority-data"
RESOURCE_PROPERTY_PREFIX: Final = "resources.kubernetes-fleet.io/"  # of `status.resourceUsage`

# Variables in the values of overrides; the second one goes on with a label's key and a brace

VARIABLE_CLUSTER_NAME: Final = "${MEMBER-CLUSTER-NAME}"
VARIABLE_CLUSTER_LABEL: Final = "${MEMBER-CLUSTER-LABEL-KEY-"

# Taint of a MemberCluster that is drained

CORDON_TAINT_KEY: Final = "cordon-key"
CORDON_TAINT_VALUE: Final = "cordon-value"

# Properties and annotations that KubeFleet does not have

EXTENSION_PROPERTY_PREFIX: Final = "kubeocean.io/"

ANNOTATION_AGENT_VERSION: Final = "kubeocean.io/agent-version"  # of InternalMemberClusters
ANNOTATION_WORK_FINALIZER: Final = "kubeocean.io/work-finalizer"  # of InternalMemberClusters
ANNOTATION_DELETE_PROPAGATION: Final = "kubeocean.io/delete-propagation"  # of Works
ANNOTATION_FINISHED_JOBS: Final = "kubeocean.io/finished-jobs"  # of AppliedWorks
ANNOTATION_AVAILABLE_WHEN: Final = "kubeocean.io/available-when"  # of objects to place

# Names

SYSTEM_NAMESPACE: Final = "fleet-system"
MEMBER_NAMESPACE_PREFIX: Final = "fleet-member-"

_BINDING_PLACEMENT: Final = 26  # characters of the placement's name in a binding's
_BINDING_CLUSTER: Final = 27
_BINDING_SUFFIX: Final = 8
_ENVELOPE_HASH: Final = 16
_LONGEST_NUMBER: Final = 18  # digits; any such number fits the 64 bits of an API field


def policy_binding(policy: str) -> str:
    """Return the name of a ValidatingAdmissionPolicyBinding."""
    return f"{policy}-binding"


MUTATING_WEBHOOKS: Final = "fleet-mutating-webhook-configuration"
VALIDATING_WEBHOOKS: Final = "fleet-validating-webhook-configuration"
GUARD_RAIL_WEBHOOKS: Final = "fleet-guard-rail-webhook-configuration"
WEBHOOK_CERTIFICATES: Final = "fleet-webhook-certificates"  # a Secret
WEBHOOK_CERTIFICATE_DIRECTORY: Final = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108
CERT_MANAGER_CERTIFICATE: Final = "fleet-webhook-server-cert"
WEBHOOK_SERVICE: Final = "fleetwebhook"
WEBHOOK_PORT: Final = 9443
HUB_ACCOUNT: Final = "fleet-hub"  # of the hub's ServiceAccount, roles and Deployment; ours
SERVICE_ACCOUNT_POLICY: Final = "deny-serviceaccounts-and-tokenrequests-in-reserved-namespaces"
WORKLOAD_POLICY: Final = "deny-pods-and-replicasets-outside-reserved-namespaces"
ADMISSION_POLICIES: Final = (SERVICE_ACCOUNT_POLICY, WORKLOAD_POLICY)
ADMISSION_POLICY_BINDINGS: Final = tuple(map(policy_binding, ADMISSION_POLICIES))


def member_namespace(member: str) -> str:
    """Return the namespace of the hub that belongs to a member."""
    return f"{MEMBER_NAMESPACE_PREFIX}{member}"


def member_of_namespace(namespace: str) -> str | None:
    """Return the member that a namespace of the hub belongs to; None if to no member."""
    member = namespace.removeprefix(MEMBER_NAMESPACE_PREFIX)
    return member if member and member != namespace else None


def member_role(member: str) -> str:
    """Return the name of the Role in a member's namespace."""
    return f"fleet-role-{member}"


def member_role_binding(member: str) -> str:
    """Return the name of the RoleBinding in a member's namespace."""
    return f"fleet-rolebinding-{member}"


def policy_snapshot(placement: str, index: int) -> str:
    """Return the name of a placement's policy snapshot."""
    return f"{placement}-{index}"


def resource_snapshot(placement: str, index: int) -> str:
    """Return the name of the master of a group of resource snapshots."""
    return f"{placement}-{index}-snapshot"


def resource_sub_snapshot(placement: str, index: int, sub_index: int) -> str:
    """Return the name of a further resource snapshot of a group; sub-indexes begin at 0."""
    return f"{placement}-{index}-{sub_index}"


def override_snapshot(override: str, index: int) -> str:
    """Return the name of an override's snapshot."""
    return f"{override}-{index}"


def binding(placement: str, cluster: str, suffix: str) -> str:
    """Return the name of a binding, of at most 63 characters."""
    parts = _cut(placement, _BINDING_PLACEMENT), _cut(cluster, _BINDING_CLUSTER), suffix
    return "-".join(parts)


def binding_suffix(placement_uid: str, cluster: str, deleting_uids: Iterable[str] = ()) -> str:
    """Return the suffix of a binding's name.

    `deleting_uids` are the UIDs of bindings of the same placement to the same cluster that are
    being deleted: their names are still taken.
    """
    identity = "\n".join((placement_uid, cluster, *sorted(deleting_uids)))
    return _sha256(identity)[:_BINDING_SUFFIX]


def work_base(placement: Key) -> str:
    """Return the prefix of the names of all Works of a placement."""
    if placement.namespace:
        return f"{placement.namespace}.{placement.name}"
    return placement.name


def work(placement: Key) -> str:
    """Return the name of the Work for the master of a group of resource snapshots."""
    return f"{work_base(placement)}-work"


def sub_work(placement: Key, sub_index: int) -> str:
    """Return the name of the Work for a further resource snapshot of a group."""
    return f"{work_base(placement)}-{sub_index}"


def envelope_work(work_name: str, envelope_type: str, envelope: Key) -> str:
    """Return the name of the Work for an envelope that the snapshot of `work_name` contains."""
    identity = f"{envelope_type}/{envelope.namespace}/{envelope.name}"
    return f"{work_name}-envelope-{_sha256(identity)[:_ENVELOPE_HASH]}"


def approval_request(run: str, stage: str, task_type: str) -> str:
    """Return the name of the approval request before or after a stage of an update run."""
    return f"{run}-{'before' if task_type == BEFORE_STAGE else 'after'}-{stage}"


def drain_eviction(placement: str, cluster: str, suffix: str) -> str:
    """Return the name of an eviction that drains a cluster."""
    return f"drain-eviction-{placement}-{cluster}-{suffix}"


def parse_index(texts: Mapping[str, str], key: str) -> int | None:
    """Return the whole number in the label or annotation `key`; None if absent or not a number."""
    value = texts.get(key, "")
    is_number = value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER
    return int(value) if is_number else None


def _cut(name: str, length: int) -> str:
    return name[:length].removesuffix(".")  # no DNS name has a dash after a dot


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
