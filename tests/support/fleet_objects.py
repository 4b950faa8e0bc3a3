"""MemberClusters and the hub's objects for them, for tests of pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    AgentType,
    InternalMemberCluster,
    InternalMemberClusterSpec,
    MemberCluster,
    MemberClusterSpec,
    MemberStatus,
    RbacSubject,
)
from kubeocean.api.fleet.names import (
    FINALIZER_MEMBER,
    LABEL_FLEET_RESOURCE,
    LABEL_MEMBER_NAME,
    TRUE,
    member_namespace,
)
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.kinds import Namespace
from kubeocean.runtime.objects import Condition, Meta, OwnerReference

__all__ = ["NOW", "UID", "agent", "internal", "member", "namespace", "owner"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UID = "uid-of-a"


def member(
    name: str = "a",
    *,
    uid: str = UID,
    generation: int = 1,
    deleted: datetime | None = None,
    finalizers: tuple[str, ...] = (FINALIZER_MEMBER,),
    labels: dict[str, str] | None = None,
    status: MemberStatus | None = None,
    **spec: Any,
) -> MemberCluster:
    """Return a MemberCluster that the hub has admitted."""
    metadata = Meta(
        name=name,
        uid=uid,
        resource_version="1",
        generation=generation,
        deletion_timestamp=text_of(deleted),
        labels={LABEL_MEMBER_NAME: name} if labels is None else labels,
        finalizers=finalizers,
    )
    identity = spec.pop("identity", RbacSubject("User", "agent"))
    return MemberCluster(
        metadata=metadata,
        spec=MemberClusterSpec(identity=identity, **spec),
        status=status or MemberStatus(),
    )


def owner(name: str = "a", uid: str = UID, kind: str = "MemberCluster") -> OwnerReference:
    """Return the reference to a controller."""
    return OwnerReference("cluster.kubernetes-fleet.io/v1beta1", kind, name, uid, True)


def namespace(
    name: str = "a",
    *,
    owners: tuple[OwnerReference, ...] | None = None,
    labelled: bool = True,
    deleted: bool = False,
) -> Namespace:
    """Return the namespace of a member."""
    metadata = Meta(
        name=member_namespace(name),
        uid="uid-of-namespace",
        resource_version="1",
        deletion_timestamp=text_of(NOW) if deleted else None,
        labels={LABEL_FLEET_RESOURCE: TRUE} if labelled else None,
        owner_references=(owner(name),) if owners is None else owners,
    )
    return Namespace(metadata=metadata)


def agent(joined: str = "True", type_: str = AgentType.MEMBER) -> AgentStatus:
    """Return the report of an agent whose condition Joined has this status."""
    return AgentStatus(type_, (Condition("Joined", joined, "Tested"),), text_of(NOW))


def internal(
    *agents: AgentStatus,
    state: str = "Join",
    heartbeat_s: int = 60,
    generation: int = 1,
    uid: str = "uid-of-internal",
    status: MemberStatus | None = None,
) -> InternalMemberCluster:
    """Return the InternalMemberCluster of member `a` with the reports of these agents."""
    metadata = Meta(
        name="a",
        namespace=member_namespace("a"),
        uid=uid,
        resource_version="1",
        generation=generation,
        owner_references=(owner(),),
    )
    return InternalMemberCluster(
        metadata=metadata,
        spec=InternalMemberClusterSpec(state, heartbeat_s),
        status=status or MemberStatus(agent_status=agents),
    )
