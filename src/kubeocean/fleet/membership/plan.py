"""The next step for a MemberCluster. Pure; the first row that fits applies.

    MemberCluster                    namespace                InternalMemberCluster  step
    deleting without our finalizer                                                   NOTHING
    deleting                         absent or foreign                               FINALIZE
    deleting                         terminating                                     AWAIT_REMOVAL
    deleting                         ours                     absent, all agents     REMOVE
                                                              left, or Leave and the
                                                              force wait has passed
    deleting                         ours                     Join                   ASK_TO_LEAVE
    deleting                         ours                     Leave                  AWAIT_LEAVE
    live, no namespace can have its name                                             REFUSE
    live                             foreign                                         REFUSE
    live                             of a dead MemberCluster  or terminating         AWAIT_NAMESPACE
    live                             ours, with a part that another controller owns  REFUSE
    live                             absent or ours                                  JOIN

The parts are the Role, the RoleBinding and the InternalMemberCluster. A namespace is foreign if it
lacks the fleet's label or has another controlling owner. Foreign namespaces are neither written nor
deleted. A namespace of an earlier MemberCluster of that name is left to the garbage collector: the
cache may be older than the MemberCluster that controls it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    AgentStatus,
    MemberCluster,
    MembershipState,
)
from kubeocean.api.fleet.conditions import AgentCondition
from kubeocean.api.fleet.names import (
    FINALIZER_MEMBER,
    LABEL_FLEET_RESOURCE,
    MEMBER_NAMESPACE_PREFIX,
    TRUE,
    member_namespace,
)
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.membership.forge import ROLE_BINDINGS, ROLES, HubObjects
from kubeocean.runtime.kinds import Namespace
from kubeocean.runtime.objects import Object, controller_of, find_condition

__all__ = [
    "LONGEST_MEMBER_NAME",
    "MembershipPlan",
    "MembershipStep",
    "agents_have_joined",
    "agents_have_left",
    "name_problem",
    "plan_member",
]

LONGEST_MEMBER_NAME: Final = 63 - len(MEMBER_NAMESPACE_PREFIX)
_OWNER_KIND: Final = MEMBER_CLUSTERS.kind
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class MembershipStep(Enum):
    """The action that the hub takes for a MemberCluster."""

    NOTHING = auto()
    REFUSE = auto()
    AWAIT_NAMESPACE = auto()
    JOIN = auto()
    ASK_TO_LEAVE = auto()
    AWAIT_LEAVE = auto()
    REMOVE = auto()
    AWAIT_REMOVAL = auto()
    FINALIZE = auto()


@dataclass(frozen=True, slots=True)
class MembershipPlan:
    """The next step for a MemberCluster, a message, and when to plan again without an event."""

    step: MembershipStep
    message: str = ""
    again_in: timedelta | None = None


def plan_member(
    member: MemberCluster,
    objects: HubObjects,
    expected: Collection[str],
    force_wait: timedelta,
    now: datetime,
) -> MembershipPlan:
    """Return the next step for a MemberCluster; `expected` are the types of a member's agents."""
    if member.deleting:
        return _plan_leave(member, objects, expected, force_wait, now)
    if problem := name_problem(member.name):
        return MembershipPlan(MembershipStep.REFUSE, problem)
    return _plan_join(member, objects)


def name_problem(name: str) -> str:
    """Return why no Namespace can exist for a member of that name; empty if one can."""
    if len(name) > LONGEST_MEMBER_NAME:
        return (
            f"the name has {len(name)} characters and may have {LONGEST_MEMBER_NAME}: the namespace"
            f" {MEMBER_NAMESPACE_PREFIX}NAME would be too long; join with a shorter name"
        )
    if not _LABEL.fullmatch(name):
        return (
            f"the namespace {member_namespace(name)} cannot exist; join with a name of lowercase"
            " letters, digits and dashes"
        )
    return ""


def _plan_join(member: MemberCluster, objects: HubObjects) -> MembershipPlan:
    namespace = objects.namespace
    if namespace is None:
        return MembershipPlan(MembershipStep.JOIN)
    if _belonged_to_earlier(namespace, member):
        message = (
            f"the namespace {namespace.name} belongs to an earlier MemberCluster of this name;"
            " waiting until it is deleted"
        )
        return MembershipPlan(MembershipStep.AWAIT_NAMESPACE, message)
    if _is_foreign(namespace, member):
        message = (
            f"the namespace {namespace.name} exists and does not belong to the fleet;"
            " delete it, or join with another name"
        )
        return MembershipPlan(MembershipStep.REFUSE, message)
    if namespace.deleting:
        message = f"the namespace {namespace.name} is being deleted; waiting to create it anew"
        return MembershipPlan(MembershipStep.AWAIT_NAMESPACE, message)
    if problem := _foreign_part(member, objects):
        return MembershipPlan(MembershipStep.REFUSE, problem)
    return MembershipPlan(MembershipStep.JOIN)


def _foreign_part(member: MemberCluster, objects: HubObjects) -> str:
    """Return which object of the member another controller owns; empty if none.

    An object of an earlier MemberCluster of this name is the hub's own.
    """
    parts: tuple[tuple[str, Object | None], ...] = (
        (ROLES.kind, objects.role),
        (ROLE_BINDINGS.kind, objects.role_binding),
        (INTERNAL_MEMBER_CLUSTERS.kind, objects.internal),
    )
    for kind, part in parts:
        owner = controller_of(part) if part is not None else None
        if part is None or owner is None or (owner.kind, owner.name) == (_OWNER_KIND, member.name):
            continue
        return (
            f"the {kind} {part.namespace}/{part.name} belongs to the {owner.kind} {owner.name}, not"
            " to the fleet; delete it, or join with another name"
        )
    return ""


def _plan_leave(
    member: MemberCluster,
    objects: HubObjects,
    expected: Collection[str],
    force_wait: timedelta,
    now: datetime,
) -> MembershipPlan:
    namespace, internal = objects.namespace, objects.internal
    if FINALIZER_MEMBER not in (member.metadata.finalizers or ()):
        return MembershipPlan(MembershipStep.NOTHING)
    if (
        namespace is None
        or _is_foreign(namespace, member)
        or _belonged_to_earlier(namespace, member)
    ):
        return MembershipPlan(MembershipStep.FINALIZE)
    if namespace.deleting:
        return MembershipPlan(
            MembershipStep.AWAIT_REMOVAL, f"waiting until namespace {namespace.name} is deleted"
        )
    if internal is None or agents_have_left(internal.status.agent_status, expected):
        return MembershipPlan(MembershipStep.REMOVE)
    if internal.spec.state != MembershipState.LEAVE:
        return MembershipPlan(MembershipStep.ASK_TO_LEAVE)
    since = stored_instant(member.metadata.deletion_timestamp) or now
    left = since + force_wait - now
    if left <= timedelta():
        message = f"the agents have not left within {force_wait.total_seconds():g} s"
        return MembershipPlan(MembershipStep.REMOVE, message)
    return MembershipPlan(MembershipStep.AWAIT_LEAVE, again_in=left)


def agents_have_left(agents: Collection[AgentStatus], expected: Collection[str]) -> bool:
    """Whether every expected agent reports that it has left."""
    return _all_report(agents, expected, "False")


def agents_have_joined(agents: Collection[AgentStatus], expected: Collection[str]) -> bool:
    """Whether every expected agent reports that it has joined."""
    return _all_report(agents, expected, "True")


def _all_report(agents: Collection[AgentStatus], expected: Collection[str], status: str) -> bool:
    reports = {
        agent.type: find_condition(agent.conditions, AgentCondition.JOINED) for agent in agents
    }
    joined = [reports.get(type_) for type_ in expected]
    return all(condition is not None and condition.status == status for condition in joined)


def _is_foreign(namespace: Namespace, member: MemberCluster) -> bool:
    if namespace.labels.get(LABEL_FLEET_RESOURCE) != TRUE:
        owner = controller_of(namespace)
        return owner is None or owner.uid != member.uid  # the fleet's label may have been removed
    owner = controller_of(namespace)
    return owner is not None and owner.uid != member.uid


def _belonged_to_earlier(namespace: Namespace, member: MemberCluster) -> bool:
    owner = controller_of(namespace)
    return (
        owner is not None
        and owner.kind == _OWNER_KIND
        and owner.name == member.name
        and owner.uid != member.uid
    )
