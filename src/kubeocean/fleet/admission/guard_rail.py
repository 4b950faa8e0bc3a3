"""Guard rail: which users may change the fleet's own objects. Pure.

| object | who may change it |
|---|---|
| CustomResourceDefinition of a fleet's group | administrators |
| Namespace `fleet-*` or `kube-*` | allowed users |
| MemberCluster with a fleet annotation: create, delete, spec without taints, status, finalizers, owners, fleet annotations | allowed users |
| the same: labels, taints, other annotations | every user; labels can be denied |
| the same: removal of the last fleet annotation | no user |
| MemberCluster without a fleet annotation: its status | allowed users |
| the same: first fleet annotation | no user |
| InternalMemberCluster, Work and networking objects in `fleet-member-NAME` | allowed users, and the identity of the member |
| all other objects in reserved namespaces, except events | allowed users |

*Administrators* are the groups `system:masters` and `kubeadm:cluster-admins`, and users that are
listed by name. *Allowed users* are administrators, service accounts, nodes, the scheduler, the
controller manager, and `aks-support`.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.fleet.clusters import CLUSTER_GROUP, MEMBER_CLUSTERS
from kubeocean.api.fleet.inventory import INVENTORY_GROUP
from kubeocean.api.fleet.names import PREFIX, SYSTEM_NAMESPACE, member_of_namespace
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.fleet.admission.reviews import ALLOWED, Decision, Operation, Request, denied
from kubeocean.runtime.objects import Json

__all__ = ["RESERVED_PREFIXES", "GuardRail", "is_reserved"]

RESERVED_PREFIXES: Final = ("fleet-", "kube-")
_FLEET_ANNOTATION: Final = "fleet.azure.com"
_ADMIN_GROUPS: Final = frozenset({"system:masters", "kubeadm:cluster-admins"})
_MASTERS: Final = "system:masters"
_SERVICE_ACCOUNTS: Final = "system:serviceaccounts"
_ALLOWED_GROUPS: Final = _ADMIN_GROUPS | {_SERVICE_ACCOUNTS, "system:nodes"}
_ALLOWED_USERS: Final = frozenset(
    {"system:kube-scheduler", "system:kube-controller-manager", "aks-support"}
)
_FLEET_GROUPS: Final = frozenset(
    {CLUSTER_GROUP, PLACEMENT_GROUP, NETWORKING_GROUP, INVENTORY_GROUP}
)
_MEMBER_KINDS: Final = frozenset(
    {
        (CLUSTER_GROUP, "InternalMemberCluster"),
        (PLACEMENT_GROUP, "Work"),
        (NETWORKING_GROUP, "EndpointSliceExport"),
        (NETWORKING_GROUP, "EndpointSliceImport"),
        (NETWORKING_GROUP, "InternalServiceExport"),
        (NETWORKING_GROUP, "InternalServiceImport"),
    }
)
_EVENTS: Final = frozenset({("", "Event"), ("events.k8s.io", "Event")})
_KUBEFLEET_LABELS: Final = "kubefleet.dev/"  # prefix of labels that service accounts may change
_MOST_GROUPS: Final = 10  # how many groups of a user a message lists
_LIVE_METADATA: Final = frozenset(
    {
        "labels",
        "annotations",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    }
)

_ADD_ANNOTATION: Final = (
    "no user is allowed to add a fleet pre-fixed annotation to an upstream member cluster"
)
_REMOVE_ANNOTATIONS: Final = (
    "no user is allowed to remove all fleet pre-fixed annotations from a fleet member cluster"
)
_LABELS: Final = "users are not allowed to modify labels through hub cluster directly"


def is_reserved(namespace: str) -> bool:
    """Whether a namespace belongs to the fleet or to Kubernetes, by the prefix of its name."""
    return namespace.startswith(RESERVED_PREFIXES)


@dataclass(frozen=True, slots=True)
class GuardRail:
    """Rules about which users may change the fleet's objects, with the settings of a hub.

    - `whitelisted`: users who count as administrators.
    - `deny_labels`: whether labels of fleet MemberClusters are denied to users.
    """

    whitelisted: frozenset[str] = frozenset()
    deny_labels: bool = False

    def decide(self, request: Request, identity_of: Callable[[str], str | None]) -> Decision:
        """Allow or deny a request to the API server.

        :param identity_of: returns the name in `spec.identity` of a MemberCluster, None if there is
            no such MemberCluster.
        :raises BadReview: an object in the request cannot be read.
        """
        group, kind = request.kind.group, request.kind.kind
        if request.operation is Operation.CONNECT:
            return ALLOWED
        if (group, kind) == ("apiextensions.k8s.io", "CustomResourceDefinition"):
            is_fleets = request.name.partition(".")[2] in _FLEET_GROUPS
            return ALLOWED if not is_fleets or self._is_admin(request) else _refusal(request)
        if (group, kind) == (CLUSTER_GROUP, MEMBER_CLUSTERS.kind):
            return self._member_cluster(request)
        if (group, kind) == ("", "Namespace"):
            return self._allowed_users(request) if is_reserved(request.name) else ALLOWED
        if (group, kind) in _MEMBER_KINDS:
            return self._member_object(request, identity_of)
        if (group, kind) in _EVENTS or not request.namespace:
            return ALLOWED
        return self._allowed_users(request)

    def _member_cluster(self, request: Request) -> Decision:
        if request.operation is Operation.UPDATE:
            old, new = request.old_document(), request.document()
            if _has_fleet_annotation(old):
                return self._fleet_member_cluster(request, old, new)
            if _has_fleet_annotation(new):
                return denied(_ADD_ANNOTATION)
            same_status = (old.get("status") or {}) == (new.get("status") or {})
            return ALLOWED if same_status else self._allowed_users(request)
        is_deletion = request.operation is Operation.DELETE
        content = request.old_document() if is_deletion else request.document()
        return self._allowed_users(request) if _has_fleet_annotation(content) else ALLOWED

    def _fleet_member_cluster(self, request: Request, old: Json, new: Json) -> Decision:
        if not _has_fleet_annotation(new):
            return denied(_REMOVE_ANNOTATIONS)
        if self.deny_labels and self._changes_denied_label(request, old, new):
            return denied(_LABELS)
        annotations = _strings(new, "annotations")
        keeps_annotations = all(
            annotations.get(key) == value
            for key, value in _strings(old, "annotations").items()
            if key.startswith(_FLEET_ANNOTATION)
        )
        if keeps_annotations and _guarded_part(old) == _guarded_part(new):
            return ALLOWED
        return self._allowed_users(request)

    def _changes_denied_label(self, request: Request, old: Json, new: Json) -> bool:
        groups = request.user_info.groups
        if _MASTERS in groups:
            return False
        exempt = (PREFIX, _KUBEFLEET_LABELS) if _SERVICE_ACCOUNTS in groups else (PREFIX,)
        before, after = _strings(old, "labels"), _strings(new, "labels")
        return any(
            before.get(key) != after.get(key) and not key.startswith(exempt)
            for key in before.keys() | after.keys()
        )

    def _member_object(
        self, request: Request, identity_of: Callable[[str], str | None]
    ) -> Decision:
        if not is_reserved(request.namespace):
            return ALLOWED
        member = member_of_namespace(request.namespace)
        decision = self._allowed_users(request)
        if decision.allowed or member is None:
            return decision
        identity = identity_of(member)
        if identity is None:
            return ALLOWED
        account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{identity}"
        return ALLOWED if request.user_info.username in (identity, account) else decision

    def _allowed_users(self, request: Request) -> Decision:
        user = request.user_info
        is_allowed = (
            self._is_admin(request)
            or user.username in _ALLOWED_USERS
            or not _ALLOWED_GROUPS.isdisjoint(user.groups)
        )
        return ALLOWED if is_allowed else _refusal(request)

    def _is_admin(self, request: Request) -> bool:
        user = request.user_info
        return user.username in self.whitelisted or not _ADMIN_GROUPS.isdisjoint(user.groups)


def _refusal(request: Request) -> Decision:
    user = request.user_info
    # Requests about a Namespace name it as their namespace, too.
    namespace = "" if request.kind.kind == "Namespace" else request.namespace
    return denied(
        f"user: '{user.username}' in '{_groups(user.groups)}' is not allowed to"
        f" {request.operation} resource {request.written_kind}/{request.sub_resource}:"
        f" {namespace}/{request.name}"
    )


def _groups(groups: tuple[str, ...]) -> str:
    if len(groups) > _MOST_GROUPS:
        return f"groups: [{', '.join(groups[:3])},......]"
    return f"groups: [{' '.join(groups)}]"


def _has_fleet_annotation(content: Json) -> bool:
    return any(key.startswith(_FLEET_ANNOTATION) for key in _strings(content, "annotations"))


def _strings(content: Json, field: str) -> Mapping[str, Any]:
    """Return the labels or annotations of an object; `field` is `labels` or `annotations`."""
    strings = _mapping(content.get("metadata")).get(field)
    return _mapping(strings)


def _guarded_part(content: Json) -> Json:
    """Return the fields of a fleet MemberCluster that only allowed users may change."""
    metadata = _mapping(content.get("metadata"))
    spec = _mapping(content.get("spec"))
    return {
        "metadata": {key: value for key, value in metadata.items() if key not in _LIVE_METADATA},
        "spec": {key: value for key, value in spec.items() if key != "taints"},
        "status": content.get("status") or {},
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
