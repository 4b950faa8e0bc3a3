"""The next step for a MemberCluster: every row of the table."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.clusters import InternalMemberCluster, MemberCluster
from kubeocean.fleet.membership.forge import HubObjects, Role, RoleBinding
from kubeocean.fleet.membership.plan import (
    MembershipPlan,
    MembershipStep,
    name_problem,
    plan_member,
)
from kubeocean.runtime.kinds import Namespace
from kubeocean.runtime.objects import Meta, OwnerReference
from support.fleet_objects import NOW, agent, internal, member, namespace, owner

AGENTS = ("MemberAgent",)
WAIT = timedelta(minutes=15)


def plan(
    of: MemberCluster,
    space: Namespace | None = None,
    imc: InternalMemberCluster | None = None,
    *,
    now: datetime = NOW,
    agents: tuple[str, ...] = AGENTS,
) -> MembershipPlan:
    return plan_member(of, HubObjects(space, internal=imc), agents, WAIT, now)


LEAVING = member(deleted=NOW - timedelta(minutes=1))
EARLIER = (owner(uid="uid-of-an-earlier-one"),)


@pytest.mark.parametrize(
    ("of", "space", "imc", "step"),
    [
        (member(), None, None, MembershipStep.JOIN),
        (member(finalizers=()), None, None, MembershipStep.JOIN),
        (member(), namespace(), None, MembershipStep.JOIN),
        (member(), namespace(owners=()), None, MembershipStep.JOIN),  # adopted
        (member(), namespace(labelled=False), None, MembershipStep.JOIN),  # its label was removed
        (member(), namespace(owners=(), labelled=False), None, MembershipStep.REFUSE),
        (member(), namespace(owners=(owner(uid="x", kind="Team"),)), None, MembershipStep.REFUSE),
        (member(), namespace(owners=EARLIER), None, MembershipStep.AWAIT_NAMESPACE),
        (member(), namespace(owners=EARLIER, deleted=True), None, MembershipStep.AWAIT_NAMESPACE),
        (member(), namespace(deleted=True), None, MembershipStep.AWAIT_NAMESPACE),
        (member("a" * 51), None, None, MembershipStep.REFUSE),
        (member("a.b"), None, None, MembershipStep.REFUSE),
        (member(deleted=NOW, finalizers=()), namespace(), None, MembershipStep.NOTHING),
        (member(deleted=NOW, finalizers=("other",)), namespace(), None, MembershipStep.NOTHING),
        (LEAVING, None, None, MembershipStep.FINALIZE),
        (member("a" * 51, deleted=NOW), None, None, MembershipStep.FINALIZE),
        (LEAVING, namespace(owners=(), labelled=False), None, MembershipStep.FINALIZE),
        (LEAVING, namespace(owners=EARLIER), None, MembershipStep.FINALIZE),
        (LEAVING, namespace(deleted=True), internal(agent("False")), MembershipStep.AWAIT_REMOVAL),
        (LEAVING, namespace(), None, MembershipStep.REMOVE),
        (LEAVING, namespace(), internal(agent("False"), state="Leave"), MembershipStep.REMOVE),
        (LEAVING, namespace(), internal(agent("True")), MembershipStep.ASK_TO_LEAVE),
        (LEAVING, namespace(), internal(), MembershipStep.ASK_TO_LEAVE),
        (LEAVING, namespace(), internal(agent("True"), state="Leave"), MembershipStep.AWAIT_LEAVE),
        (
            LEAVING,
            namespace(),
            internal(agent("Unknown"), state="Leave"),
            MembershipStep.AWAIT_LEAVE,
        ),
        (LEAVING, namespace(), internal(state="Leave"), MembershipStep.AWAIT_LEAVE),
    ],
)
def test_first_row_that_fits(
    of: MemberCluster,
    space: Namespace | None,
    imc: InternalMemberCluster | None,
    step: MembershipStep,
) -> None:
    assert plan(of, space, imc).step is step


@pytest.mark.parametrize(
    ("controller", "step"),
    [
        (None, MembershipStep.JOIN),  # adopted
        (owner(), MembershipStep.JOIN),
        (
            owner(uid="uid-of-an-earlier-one"),
            MembershipStep.JOIN,
        ),  # the hub created it, and replaces the owner
        (owner(name="other"), MembershipStep.REFUSE),
        (owner(uid="x", kind="Team"), MembershipStep.REFUSE),
    ],
)
def test_a_part_that_another_controller_owns_is_refused(
    controller: OwnerReference | None, step: MembershipStep
) -> None:
    owners = () if controller is None else (controller,)
    metadata = Meta(name="fleet-role-a", namespace="fleet-member-a", owner_references=owners)
    for objects in (
        HubObjects(namespace(), role=Role(metadata=metadata)),
        HubObjects(namespace(), role_binding=RoleBinding(metadata=metadata)),
        HubObjects(namespace(), internal=InternalMemberCluster(metadata=metadata)),
    ):
        made = plan_member(member(), objects, AGENTS, WAIT, NOW)
        assert made.step is step
        refused = step is MembershipStep.REFUSE
        assert ("fleet-member-a/fleet-role-a belongs to" in made.message) == refused


def test_force_wait_counts_from_the_deletion() -> None:
    deleted = NOW - timedelta(minutes=10)
    leaving, imc = member(deleted=deleted), internal(agent("True"), state="Leave")
    early = plan(leaving, namespace(), imc)
    assert (early.step, early.again_in) == (MembershipStep.AWAIT_LEAVE, timedelta(minutes=5))
    late = plan(leaving, namespace(), imc, now=deleted + WAIT)
    assert late.step is MembershipStep.REMOVE
    assert "900 s" in late.message


def test_force_wait_does_not_end_before_the_agent_was_asked() -> None:
    leaving = member(deleted=NOW - timedelta(days=1))
    assert plan(leaving, namespace(), internal(agent("True"))).step is MembershipStep.ASK_TO_LEAVE


def test_all_expected_agents_must_have_left() -> None:
    both = ("MemberAgent", "MultiClusterServiceAgent")
    one = internal(agent("False"), state="Leave")
    assert plan(LEAVING, namespace(), one, agents=both).step is MembershipStep.AWAIT_LEAVE
    two = internal(agent("False"), agent("False", both[1]), state="Leave")
    assert plan(LEAVING, namespace(), two, agents=both).step is MembershipStep.REMOVE


def test_refusal_names_the_remedy() -> None:
    assert "shorter name" in plan(member("a" * 51)).message
    foreign = plan(member(), namespace(owners=(), labelled=False))
    assert foreign.message == (
        "the namespace fleet-member-a exists and does not belong to the fleet;"
        " delete it, or join with another name"
    )


@given(st.text("ab-.", min_size=1, max_size=63))
def test_a_name_is_accepted_exactly_if_its_namespace_can_exist(name: str) -> None:
    label = f"fleet-member-{name}"
    can_exist = len(label) <= 63 and "." not in label and label[13] != "-" and label[-1] != "-"
    assert (name_problem(name) == "") is can_exist
