"""Which changes of clusters start which cycles."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.fleet.scheduler import (
    MemberView,
    Trigger,
    concerns,
    trigger,
)
from unit.fleet.scheduler.builders import HEALTHY, NOW, cluster

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
