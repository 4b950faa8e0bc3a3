"""The decision about one binding: create, change or delete its MemberCluster. Pure.

    annotation of the binding     MemberCluster        step
    member                        none                 create, once the syncer has an identity
    member                        ours                 change its identity and heartbeat
    member                        ours, being deleted  a user deleted it: annotate `left`; if the
                                                       binding asked for it, wait and create anew
    member                        not ours             refuse, and write nothing but the condition
    anything else, or deleting    ours                 delete
    anything else, or deleting    none                 nothing

A MemberCluster is ours if the binding is its controller. Its name is that of the binding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kubeocean.api import conditions
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.conditions import ConditionTemplate
from kubeocean.api.fleet.clusters import MemberCluster, RbacSubject
from kubeocean.api.fleet.conditions import AgentCondition, AgentReason, MemberCondition
from kubeocean.api.group import DEFAULT, FLEET_MEMBER, Domain
from kubeocean.fleet.health import member_agent
from kubeocean.fleet.membership.plan import name_problem
from kubeocean.runtime.objects import Condition, Json, controller_of, find_condition

__all__ = [
    "BindingPlan",
    "Step",
    "identity_of_user",
    "is_member_of",
    "member_spec",
    "plan_binding",
]

_RBAC: Final = "rbac.authorization.k8s.io"
_ACCOUNT: Final = "system:serviceaccount:"
_SHORTEST_S: Final = 1
_LONGEST_S: Final = 600


class Step(Enum):
    """Action of the hub for one ClusterBinding, after the binding's condition is written."""

    NOTHING = auto()
    ANNOTATE = auto()  # the binding as a member, because all bindings are
    CREATE = auto()
    UPDATE = auto()  # identity and heartbeat of the MemberCluster
    DELETE = auto()
    MARK_LEFT = auto()  # annotate the binding, because a user deleted its MemberCluster


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """Next step for a ClusterBinding, and its condition `FleetMember`; None: do not write it."""

    step: Step
    condition: Condition | None = None


def is_member_of(member: MemberCluster | None, binding: ClusterBinding) -> bool:
    """Whether a MemberCluster was created for this binding."""
    owner = controller_of(member) if member is not None else None
    return owner is not None and owner.uid == binding.uid


def identity_of_user(user: str) -> RbacSubject:
    """Return the RBAC subject of a user name that an API server has authenticated."""
    namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
    if user.startswith(_ACCOUNT) and namespace and name:
        return RbacSubject("ServiceAccount", name, namespace=namespace)
    return RbacSubject("User", user, _RBAC)


def member_spec(binding: ClusterBinding, domain: Domain = DEFAULT) -> Json:
    """Return the fields of a MemberCluster's spec that the binding's annotations decide."""
    identity = identity_of_user(binding.annotations.get(domain.fleet_identity, ""))
    fields = {
        "kind": identity.kind,
        "name": identity.name,
        "apiGroup": identity.api_group,
        "namespace": identity.namespace,
    }
    spec: Json = {"identity": {key: text for key, text in fields.items() if text}}
    heartbeat = binding.annotations.get(domain.fleet_heartbeat, "")
    if heartbeat.isascii() and heartbeat.isdigit() and len(heartbeat) <= len(str(_LONGEST_S)):
        spec["heartbeatPeriodSeconds"] = min(max(int(heartbeat), _SHORTEST_S), _LONGEST_S)
    return spec


def plan_binding(
    binding: ClusterBinding,
    member: MemberCluster | None,
    *,
    everyone: bool = False,
    domain: Domain = DEFAULT,
) -> BindingPlan:
    """Return the next step for a ClusterBinding.

    With `everyone`, a binding without the annotation is a member, too.
    """
    ours = member if is_member_of(member, binding) else None
    wish = binding.annotations.get(domain.fleet)
    if binding.deleting or wish != FLEET_MEMBER:
        if wish is None and everyone and not binding.deleting:
            return BindingPlan(Step.ANNOTATE)
        return _plan_leave(binding, ours)
    if ours is not None and ours.deleting:
        before = find_condition(binding.status.conditions, conditions.FLEET_MEMBERSHIP)
        is_leaving = before is not None and before.reason == conditions.FLEET_LEAVING.reason
        # The annotation comes first: with the condition alone, the member would join again.
        return BindingPlan(Step.NOTHING if is_leaving else Step.MARK_LEFT)
    if problem := name_problem(binding.name):
        return _refusal(binding, problem)
    if member is not None and ours is None:
        problem = f"the MemberCluster {member.name} exists and does not belong to this binding"
        return _refusal(binding, f"{problem}; delete it first: kubeocean fleet leave {member.name}")
    if not binding.annotations.get(domain.fleet_identity):
        annotation = domain.fleet_identity
        waiting = _condition(binding, conditions.FLEET_AWAITS_SYNCER, annotation=annotation)
        return BindingPlan(Step.NOTHING, waiting)
    if ours is None:
        return BindingPlan(Step.CREATE, _condition(binding, conditions.FLEET_JOINING, waits=""))
    step = Step.NOTHING if _is_up_to_date(ours, binding, domain) else Step.UPDATE
    return BindingPlan(step, _progress(binding, ours))


def _plan_leave(binding: ClusterBinding, ours: MemberCluster | None) -> BindingPlan:
    if ours is not None:
        step = Step.NOTHING if ours.deleting else Step.DELETE
        return BindingPlan(step, _condition(binding, conditions.FLEET_LEAVING))
    if find_condition(binding.status.conditions, conditions.FLEET_MEMBERSHIP) is None:
        return BindingPlan(Step.NOTHING)
    return BindingPlan(Step.NOTHING, _condition(binding, conditions.FLEET_HAS_LEFT))


def _refusal(binding: ClusterBinding, problem: str) -> BindingPlan:
    return BindingPlan(Step.NOTHING, _condition(binding, conditions.FLEET_REFUSED, problem=problem))


def _progress(binding: ClusterBinding, member: MemberCluster) -> Condition:
    joined = find_condition(member.status.conditions, MemberCondition.JOINED)
    if joined is not None and joined.status == "True":
        return _condition(binding, conditions.FLEET_JOINED)
    problem = _problem(member)
    waits = f": {problem}" if problem else ""
    return _condition(binding, conditions.FLEET_JOINING, waits=waits)


def _problem(member: MemberCluster) -> str:
    """Return why a member has not joined, from the conditions of its hub and its agent."""
    ready = find_condition(member.status.conditions, MemberCondition.READY_TO_JOIN)
    if ready is not None and ready.status != "True":
        return ready.message
    agent = member_agent(member.status.agent_status)
    joined = find_condition(agent.conditions, AgentCondition.JOINED) if agent else None
    if joined is not None and joined.reason == AgentReason.FAILED_TO_JOIN:
        return joined.message
    return ""


def _is_up_to_date(member: MemberCluster, binding: ClusterBinding, domain: Domain) -> bool:
    wanted = member_spec(binding, domain)
    identity = identity_of_user(binding.annotations.get(domain.fleet_identity, ""))
    period = member.spec.heartbeat_period_seconds
    return member.spec.identity == identity and wanted.get("heartbeatPeriodSeconds") in (
        None,
        period,
    )


def _condition(
    binding: ClusterBinding, template: ConditionTemplate, **variables: object
) -> Condition:
    return template.condition(generation=binding.metadata.generation, **variables)
