"""Which changes of clusters start which cycles."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import ClusterToleration
from kubeocean.fleet.scheduler import (
    ClusterTerm,
    MemberView,
    PolicyView,
    Trigger,
    Verdicts,
    concerns,
    trigger,
)
from unit.fleet.scheduler.builders import (
    HEALTHY,
    NOW,
    Placement,
    cluster,
    having,
    labelled,
    pick_all,
    pick_fixed,
)
from unit.fleet.scheduler.worlds import (
    NAMES,
    pick_all_policies,
    pick_n_policies,
    requirements,
    views,
)

OLD = replace(
    cluster("c", {"a": "1"}, taints=[ClusterTaint("k", "v")], properties={"p": "1"}),
    capacity={"cpu": "1"},
    allocatable={"cpu": "1"},
    available={"cpu": "1"},
    namespaces={"shop": ""},
)
LATER = replace(HEALTHY, heartbeat=NOW)
SILENT = replace(HEALTHY, heartbeat=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (OLD, Trigger.NONE),
        (replace(OLD, agent=LATER), Trigger.NONE),
        (replace(OLD, labels={"a": "2"}), Trigger.CHANGED),
        (replace(OLD, labels={}), Trigger.CHANGED),
        (replace(OLD, taints=()), Trigger.CHANGED),
        (replace(OLD, taints=(ClusterTaint("k", "w"),)), Trigger.CHANGED),
        (replace(OLD, taints=(*OLD.taints, ClusterTaint("x"))), Trigger.NONE),
        (replace(OLD, properties={"p": "2"}), Trigger.CHANGED),
        (replace(OLD, properties={}), Trigger.CHANGED),
        (replace(OLD, properties={"p": "1", "q": "1"}), Trigger.CHANGED),
        (replace(OLD, namespaces={"shop": "work"}), Trigger.CHANGED),
        (replace(OLD, namespaces=None), Trigger.CHANGED),
        (replace(OLD, capacity={"cpu": "2"}), Trigger.CHANGED),
        (replace(OLD, allocatable={"cpu": "2"}), Trigger.CHANGED),
        (replace(OLD, available={"cpu": "2"}), Trigger.CHANGED),
        (replace(OLD, agent=SILENT), Trigger.NONE),
        (replace(OLD, agent=None), Trigger.NONE),
        (replace(OLD, deleting=True, labels={}), Trigger.NONE),
        (None, Trigger.GONE),
    ],
)
def test_a_change_of_a_healthy_cluster(new: MemberView | None, expected: Trigger) -> None:
    assert trigger(OLD, new, NOW) is expected


@pytest.mark.parametrize("agent", [SILENT, None, replace(HEALTHY, joined="False")])
def test_a_cluster_that_becomes_eligible_is_a_change(agent: object) -> None:
    assert trigger(replace(OLD, agent=agent), OLD, NOW) is Trigger.CHANGED


def test_a_new_cluster_is_no_change() -> None:
    assert trigger(None, OLD, NOW) is Trigger.NONE
    assert trigger(None, None, NOW) is Trigger.NONE


def test_the_end_of_a_leaving_cluster_concerns_everyone() -> None:
    assert trigger(replace(OLD, deleting=True), None, NOW) is Trigger.GONE


@pytest.mark.parametrize(
    ("change", "placement_type", "fulfilled", "expected"),
    [
        (Trigger.CHANGED, "PickAll", True, True),
        (Trigger.CHANGED, "", True, True),
        (Trigger.CHANGED, "PickFixed", True, True),
        (Trigger.CHANGED, "PickN", True, False),
        (Trigger.CHANGED, "PickN", False, True),
        (Trigger.GONE, "PickN", True, True),
        (Trigger.GONE, "PickAll", True, True),
        (Trigger.NONE, "PickAll", False, False),
        (Trigger.NONE, "PickN", False, False),
    ],
)
def test_which_placements_are_scheduled_again(
    change: Trigger, placement_type: str, fulfilled: bool, expected: bool
) -> None:
    assert concerns(change, placement_type, fulfilled=fulfilled) is expected


CPU = "resources.kubernetes-fleet.io/available-cpu"
BUSIER = replace(OLD, available={"cpu": "500m"})
TOLERANT = pick_all(tolerations=(ClusterToleration(operator="Exists"),))


@pytest.mark.parametrize(
    ("policy", "new", "expected"),
    [
        (TOLERANT, BUSIER, False),
        (replace(TOLERANT, required=(labelled(a="1"),)), BUSIER, False),
        (replace(TOLERANT, required=(having(CPU, "Ge", "1"),)), BUSIER, True),
        (replace(TOLERANT, required=(having(CPU, "Ge", "400m"),)), BUSIER, False),
        (replace(TOLERANT, required=(having(CPU, "Ge", "2"),)), BUSIER, False),
        (TOLERANT, replace(OLD, labels={}), True),
        (TOLERANT, replace(OLD, agent=None), True),
        (pick_all(), replace(OLD, taints=()), True),
        (TOLERANT, replace(OLD, taints=()), False),
        (pick_fixed("c"), BUSIER, False),
        (pick_fixed("c"), replace(OLD, agent=None), True),
        (pick_fixed("other"), replace(OLD, agent=None), False),
    ],
)
def test_a_policy_judges_a_changed_cluster_otherwise(
    policy: PolicyView, new: MemberView, expected: bool
) -> None:
    assert Verdicts(policy).differ(OLD, new, NOW) is expected


# Changes that are frequent enough for the property below to be tried on most examples
property_policies = st.one_of(
    st.builds(
        pick_all,
        required=st.builds(ClusterTerm, properties=st.tuples(requirements)).map(
            lambda term: (term,)
        ),
    ),
    pick_n_policies(st.integers(5, 9)),
    pick_all_policies,
)


@settings(deadline=None)
@given(
    property_policies,
    st.lists(st.sampled_from(NAMES), unique=True, min_size=2).flatmap(
        lambda names: st.tuples(*map(views, names))
    ),
    st.sampled_from(["properties", "namespaces", "taints"]),
    st.data(),
)
def test_a_change_that_is_judged_as_before_changes_no_decision(
    policy: PolicyView, fleet: tuple[MemberView, ...], field: str, data: st.DataObject
) -> None:
    old = replace(fleet[0], agent=HEALTHY, deleting=False)
    fleet, placement = (old, *fleet[1:]), Placement({})
    for _ in range(2):
        placement.cycle(policy, fleet)
        placement.roll_out()
    before = placement.cycle(policy, fleet)
    new = replace(old, **{field: getattr(data.draw(views(old.name)), field)})
    change = trigger(old, new, NOW)
    if not concerns(change, policy.placement_type, fulfilled=before.fulfilled):
        return
    if not Verdicts(policy).differ(old, new, NOW):
        after = placement.cycle(policy, (new, *fleet[1:]))
        assert after.changes == before.changes
        assert after.status == before.status
