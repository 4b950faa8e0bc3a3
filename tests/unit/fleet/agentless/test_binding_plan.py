"""The decision about a binding: which MemberCluster it gets, keeps or loses."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.bindings import BindingStatus, ClusterBinding
from kubeocean.api.conditions import is_in_fleet
from kubeocean.api.fleet.clusters import (
    AgentStatus,
    MemberCluster,
    MemberClusterSpec,
    MemberStatus,
    RbacSubject,
)
from kubeocean.api.group import DEFAULT
from kubeocean.fleet.agentless.member import is_member
from kubeocean.fleet.agentless.plan import (
    BindingPlan,
    BindingStep,
    identity_of_user,
    member_spec,
    plan_binding,
)
from kubeocean.runtime.objects import Condition, Meta, OwnerReference, set_condition

USER = "system:serviceaccount:kubeocean-system:kubeocean-syncer"
ACCOUNT = RbacSubject("ServiceAccount", "kubeocean-syncer", namespace="kubeocean-system")
NOW = "2026-11-17T12:00:00Z"


def binding(
    wish: str | None = "member",
    *,
    name: str = "berlin",
    identity: str = USER,
    deleting: bool = False,
    reason: str = "",
    **annotations: str,
) -> ClusterBinding:
    texts = {f"kubeocean.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    if wish is not None:
        texts[DEFAULT.fleet] = wish
    if identity:
        texts[DEFAULT.fleet_identity] = identity
    conditions = (Condition("FleetMember", "Unknown", reason),) if reason else ()
    return ClusterBinding(
        metadata=Meta(
            name,
            uid="binding-uid",
            generation=3,
            annotations=texts,
            deletion_timestamp=NOW if deleting else None,
        ),
        status=BindingStatus(conditions=conditions),
    )


def member(
    *,
    owner: str = "binding-uid",
    deleting: bool = False,
    identity: RbacSubject = ACCOUNT,
    period: int = 60,
    conditions: tuple[Condition, ...] = (),
    agent: tuple[Condition, ...] = (),
) -> MemberCluster:
    owners = (OwnerReference("v1", "ClusterBinding", "berlin", owner, controller=True),)
    return MemberCluster(
        metadata=Meta(
            "berlin",
            uid="member-uid",
            owner_references=owners if owner else None,
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=MemberClusterSpec(identity=identity, heartbeat_period_seconds=period),
        status=MemberStatus(
            conditions=conditions,
            agent_status=(AgentStatus("MemberAgent", conditions=agent),) if agent else (),
        ),
    )


def outcome(plan: BindingPlan) -> tuple[BindingStep, str]:
    return plan.step, plan.condition.reason if plan.condition is not None else ""


JOINED = (Condition("Joined", "True", "MemberClusterJoined"),)


@pytest.mark.parametrize(
    ("bound", "existing", "expected"),
    [
        (binding(), None, (BindingStep.CREATE, "Joining")),
        (binding(identity=""), None, (BindingStep.NOTHING, "AwaitingSyncer")),
        (binding(), member(), (BindingStep.NOTHING, "Joining")),
        (binding(), member(conditions=JOINED), (BindingStep.NOTHING, "Joined")),
        (binding(), member(identity=RbacSubject("User", "x")), (BindingStep.UPDATE, "Joining")),
        (binding(fleet_heartbeat_seconds="5"), member(), (BindingStep.UPDATE, "Joining")),
        (binding(fleet_heartbeat_seconds="5"), member(period=5), (BindingStep.NOTHING, "Joining")),
        (
            binding(fleet_heartbeat_seconds="soon"),
            member(period=7),
            (BindingStep.NOTHING, "Joining"),
        ),
        (binding(), member(owner=""), (BindingStep.NOTHING, "Refused")),
        (binding(), member(owner="another"), (BindingStep.NOTHING, "Refused")),
        (binding(name="a" * 51), None, (BindingStep.NOTHING, "Refused")),
        (binding(None), None, (BindingStep.NOTHING, "")),
        (binding(None), member(owner=""), (BindingStep.NOTHING, "")),
        (binding(None), member(), (BindingStep.DELETE, "Leaving")),
        (binding("left"), member(), (BindingStep.DELETE, "Leaving")),
        (binding(None), member(deleting=True), (BindingStep.NOTHING, "Leaving")),
        (binding(None, reason="Leaving"), None, (BindingStep.NOTHING, "Left")),
        (binding(deleting=True), member(), (BindingStep.DELETE, "Leaving")),
        (binding(deleting=True), None, (BindingStep.NOTHING, "")),
        # A user deleted the MemberCluster, or the binding has left and joins again.
        (binding(reason="Joined"), member(deleting=True), (BindingStep.MARK_LEFT, "")),
        (binding(reason="Leaving"), member(deleting=True), (BindingStep.NOTHING, "")),
    ],
)
def test_each_state_has_one_step(
    bound: ClusterBinding, existing: MemberCluster | None, expected: tuple[BindingStep, str]
) -> None:
    assert outcome(plan_binding(bound, existing)) == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (binding(None), BindingStep.ANNOTATE),
        (binding("none"), BindingStep.NOTHING),
        (binding("left"), BindingStep.NOTHING),
        (binding(None, deleting=True), BindingStep.NOTHING),
    ],
)
def test_where_all_bindings_are_members_an_annotation_still_decides(
    bound: ClusterBinding, expected: BindingStep
) -> None:
    assert plan_binding(bound, None, everyone=True).step is expected


def test_the_condition_names_what_the_member_waits_for() -> None:
    failed = Condition("Joined", "Unknown", "InternalMemberClusterFailedToJoin", "no right")
    by_agent = plan_binding(binding(), member(agent=(failed,))).condition
    assert by_agent is not None
    assert by_agent.message == "The worker joins the fleet: no right"
    refused = (Condition("ReadyToJoin", "False", "MemberClusterNotReadyToJoin", "foreign"),)
    by_hub = plan_binding(binding(), member(conditions=refused, agent=(failed,))).condition
    assert by_hub is not None
    assert by_hub.message == "The worker joins the fleet: foreign"
    assert by_hub.observed_generation == 3


def test_users_become_subjects_of_rbac() -> None:
    assert identity_of_user(USER) == ACCOUNT
    assert identity_of_user("admin").kind == "User"
    assert identity_of_user("system:serviceaccount:half").kind == "User"
    spec = member_spec(binding(fleet_heartbeat_seconds="900"))
    assert spec["heartbeatPeriodSeconds"] == 600
    assert spec["identity"] == {
        "kind": "ServiceAccount",
        "name": "kubeocean-syncer",
        "namespace": "kubeocean-system",
    }


@given(
    wishes=st.lists(st.sampled_from(["member", "left", "", None]), min_size=1, max_size=6),
    deletes=st.lists(st.booleans(), min_size=6, max_size=6),
    everyone=st.booleans(),
)
def test_repeated_steps_end_in_what_the_annotation_asks_for(
    wishes: list[str | None], deletes: list[bool], everyone: bool
) -> None:
    """Users change the annotation and delete the member; each deletion ends in the end."""
    bound, existing = binding(None), None
    for wish, delete in zip(wishes, deletes, strict=False):
        annotations = dict(bound.annotations)
        annotations.pop(DEFAULT.fleet, None)
        if wish is not None:
            annotations[DEFAULT.fleet] = wish
        bound = _annotated(bound, annotations)
        if delete and existing is not None:
            existing = member(deleting=True)
        for _ in range(6):
            bound, existing = _apply(bound, existing, everyone=everyone)
            # The syncer plays the member for as long as it exists.
            assert existing is None or is_member(bound)
    for _ in range(6):
        existing = None if existing is not None and existing.deleting else existing
        bound, existing = _apply(bound, existing, everyone=everyone)
    assert (existing is not None) == (bound.annotations.get(DEFAULT.fleet) == "member")
    assert is_in_fleet(bound.status.conditions) == (existing is not None)
    assert plan_binding(bound, existing, everyone=everyone).step is BindingStep.NOTHING


def _apply(
    bound: ClusterBinding, existing: MemberCluster | None, *, everyone: bool
) -> tuple[ClusterBinding, MemberCluster | None]:
    plan = plan_binding(bound, existing, everyone=everyone)
    if plan.condition is not None:
        merged = set_condition(bound.status.conditions, plan.condition, now=NOW)
        bound = msgspec.structs.replace(bound, status=BindingStatus(conditions=merged))
    match plan.step:
        case BindingStep.ANNOTATE:
            bound = _annotated(bound, {**bound.annotations, DEFAULT.fleet: "member"})
        case BindingStep.MARK_LEFT:
            bound = _annotated(bound, {**bound.annotations, DEFAULT.fleet: "left"})
        case BindingStep.CREATE:
            existing = member()
        case BindingStep.DELETE:
            existing = member(deleting=True)
        case BindingStep.UPDATE | BindingStep.NOTHING:
            pass
    return bound, existing


def _annotated(bound: ClusterBinding, annotations: dict[str, str]) -> ClusterBinding:
    metadata = msgspec.structs.replace(bound.metadata, annotations=annotations)
    return msgspec.structs.replace(bound, metadata=metadata)
