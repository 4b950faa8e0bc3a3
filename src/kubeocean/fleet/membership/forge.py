"""The hub's objects for one member: Namespace, Role, RoleBinding and InternalMemberCluster. Pure.

The MemberCluster is the controller of all four, so that they are garbage-collected if its
finalizers are removed by hand. The Role allows a member everything in its own namespace and nothing
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.clusters import (
    CLUSTER_GROUP,
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    InternalMemberCluster,
    MemberCluster,
    MembershipState,
    RbacSubject,
)
from kubeocean.api.fleet.conditions import MemberEvent
from kubeocean.api.fleet.names import (
    FINALIZER_MEMBER,
    LABEL_FLEET_RESOURCE,
    LABEL_MEMBER_NAME,
    TRUE,
    member_namespace,
    member_role,
    member_role_binding,
)
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.runtime.kinds import NAMESPACES, Namespace
from kubeocean.runtime.objects import Json, Object, Resource, controller_of

__all__ = [
    "ROLES",
    "ROLE_BINDINGS",
    "HubObjects",
    "ObjectWrite",
    "PolicyRule",
    "Role",
    "RoleBinding",
    "RoleReference",
    "is_controlled_by",
    "member_metadata",
    "object_writes",
]

_RBAC: Final = "rbac.authorization.k8s.io"


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of structs that are fields of Roles and RoleBindings."""


class PolicyRule(_Part, frozen=True):
    """A rule of a Role."""

    api_groups: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    verbs: tuple[str, ...] | None = None
    resource_names: tuple[str, ...] | None = None


class Role(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Role of `rbac.authorization.k8s.io`."""

    rules: tuple[PolicyRule, ...] | None = None


class RoleReference(_Part, frozen=True):
    """The reference of a RoleBinding to the Role that it grants."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class RoleBinding(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A RoleBinding of `rbac.authorization.k8s.io`."""

    role_ref: RoleReference = RoleReference()
    subjects: tuple[RbacSubject, ...] | None = None


ROLES: Final = Resource(_RBAC, "v1", "roles", "Role", True, Role)
ROLE_BINDINGS: Final = Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True, RoleBinding)

_RULES: Final = (
    PolicyRule((CLUSTER_GROUP, PLACEMENT_GROUP, NETWORKING_GROUP), ("*",), ("*",)),
    PolicyRule(("",), ("events",), ("get", "list", "update", "patch", "watch", "create")),
)


@dataclass(frozen=True, slots=True)
class HubObjects:
    """The hub's objects for one member; None for an object that does not exist."""

    namespace: Namespace | None = None
    role: Role | None = None
    role_binding: RoleBinding | None = None
    internal: InternalMemberCluster | None = None


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """An object to create or to apply; `replaced` is the object to delete before the create."""

    resource: Resource[Any]
    body: Json
    event: MemberEvent
    create: bool
    replaced: Object | None = None


def is_controlled_by(obj: Object, member: MemberCluster) -> bool:
    """Whether the MemberCluster is the object's controlling owner."""
    owner = controller_of(obj)
    return owner is not None and owner.uid == member.uid


def member_metadata(member: MemberCluster) -> Json:
    """Return the metadata that a MemberCluster lacks: the hub's finalizer, its name as a label."""
    missing: Json = {}
    finalizers = member.metadata.finalizers or ()
    if FINALIZER_MEMBER not in finalizers:
        missing["finalizers"] = [*finalizers, FINALIZER_MEMBER]
    if member.labels.get(LABEL_MEMBER_NAME) != member.name:
        missing["labels"] = {LABEL_MEMBER_NAME: member.name}
    return missing


def object_writes(member: MemberCluster, objects: HubObjects) -> list[ObjectWrite]:
    """Return the writes, in order, after which a MemberCluster has all its objects on the hub."""
    writes = (
        _namespace(member, objects.namespace),
        _role(member, objects.role),
        _role_binding(member, objects.role_binding),
        _internal(member, objects.internal),
    )
    return [write for write in writes if write is not None]


def _namespace(member: MemberCluster, existing: Namespace | None) -> ObjectWrite | None:
    labels = {LABEL_FLEET_RESOURCE: TRUE}
    body = _owned(member, NAMESPACES, member_namespace(member.name), existing, labels=labels)
    if existing is None:
        return ObjectWrite(NAMESPACES, body, MemberEvent.NAMESPACE_CREATED, True)
    is_labelled = existing.labels.get(LABEL_FLEET_RESOURCE) == TRUE
    if is_labelled and is_controlled_by(existing, member):
        return None
    return ObjectWrite(NAMESPACES, body, MemberEvent.NAMESPACE_PATCHED, False)


def _role(member: MemberCluster, existing: Role | None) -> ObjectWrite | None:
    body = _owned(member, ROLES, member_role(member.name), existing) | {
        "rules": [_without_nulls(rule) for rule in _RULES]
    }
    if existing is None:
        return ObjectWrite(ROLES, body, MemberEvent.ROLE_CREATED, True)
    if existing.rules == _RULES and is_controlled_by(existing, member):
        return None
    return ObjectWrite(ROLES, body, MemberEvent.ROLE_UPDATED, False)


def _role_binding(member: MemberCluster, existing: RoleBinding | None) -> ObjectWrite | None:
    name = member_role_binding(member.name)
    reference = RoleReference(_RBAC, "Role", member_role(member.name))
    subject = _subject(member.spec.identity)
    content = {
        "roleRef": msgspec.to_builtins(reference),
        "subjects": [{key: text for key, text in msgspec.to_builtins(subject).items() if text}],
    }
    if existing is None or existing.role_ref != reference:
        body = _owned(member, ROLE_BINDINGS, name, None) | content
        event = MemberEvent.ROLE_BINDING_CREATED
        # The reference to a role is immutable.
        return ObjectWrite(ROLE_BINDINGS, body, event, True, replaced=existing)
    if existing.subjects == (subject,) and is_controlled_by(existing, member):
        return None
    body = _owned(member, ROLE_BINDINGS, name, existing) | content
    return ObjectWrite(ROLE_BINDINGS, body, MemberEvent.ROLE_BINDING_UPDATED, False)


def _internal(member: MemberCluster, existing: InternalMemberCluster | None) -> ObjectWrite | None:
    period = member.spec.heartbeat_period_seconds
    spec = {"state": str(MembershipState.JOIN), "heartbeatPeriodSeconds": period}
    resource = INTERNAL_MEMBER_CLUSTERS
    body = _owned(member, resource, member.name, existing) | {"spec": spec}
    if existing is None:
        return ObjectWrite(resource, body, MemberEvent.INTERNAL_CREATED, True)
    wanted = existing.spec.state == MembershipState.JOIN
    if (
        wanted
        and existing.spec.heartbeat_period_seconds == period
        and is_controlled_by(existing, member)
    ):
        return None
    return ObjectWrite(resource, body, MemberEvent.INTERNAL_UPDATED, False)


def _subject(identity: RbacSubject) -> RbacSubject:
    """Return the identity with the API group that the API server would fill in."""
    if identity.kind in ("User", "Group") and not identity.api_group:
        return msgspec.structs.replace(identity, api_group=_RBAC)
    return identity


def _owned(
    member: MemberCluster,
    resource: Resource[Any],
    name: str,
    existing: Object | None,
    *,
    labels: dict[str, str] | None = None,
) -> Json:
    metadata: Json = {
        "name": name,
        "ownerReferences": [
            {
                "apiVersion": MEMBER_CLUSTERS.api_version,
                "kind": MEMBER_CLUSTERS.kind,
                "name": member.name,
                "uid": member.uid,
                "controller": True,
            }
        ],
    }
    if resource.namespaced:
        metadata["namespace"] = member_namespace(member.name)
    if labels:
        metadata["labels"] = labels
    if existing is not None:
        metadata["uid"] = existing.uid  # an apply must not create an object
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _without_nulls(rule: PolicyRule) -> Json:
    fields: Json = msgspec.to_builtins(rule)
    return {name: value for name, value in fields.items() if value is not None}
