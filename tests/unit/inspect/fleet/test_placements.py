"""Placements as people and programs see them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    FailedPlacement,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
)
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.inspect.fleet import (
    PlacementView,
    placement_lines,
    placement_view,
    placement_views,
)
from kubeocean.inspect.format import plain
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Condition
from unit.fleet.placements.builders import APPLIED, NOW, REPORT_DIFF, a_placement, steps

TIME: datetime = instant_of(NOW)
PREFIX = "ClusterResourcePlacement"
OBJECT = ResourceIdentifier(version="v1", kind="ConfigMap", name="c", namespace="n")


def chain(*types: str, prefix: str = PREFIX, **options: Any) -> tuple[Condition, ...]:
    return tuple(
        msgspec.structs.replace(each, type=f"{prefix}{each.type}")
        for each in steps(*types, **options)
    )


def entry(name: str, *types: str, **options: Any) -> ClusterPlacementStatus:
    return ClusterPlacementStatus(name, conditions=steps(*types, **options))


def placed(conditions: tuple[Condition, ...], *entries: Any, **spec: Any) -> Placement:
    status = PlacementStatus((OBJECT,), conditions=conditions, placement_statuses=entries)
    placement = a_placement(status=status, **spec)
    created = msgspec.structs.replace(placement.metadata, creation_timestamp=NOW)
    return msgspec.structs.replace(placement, metadata=created)


def test_a_table_of_placements() -> None:
    done = placed(
        chain("Scheduled", *APPLIED),
        entry("a", "Scheduled", *APPLIED),
        entry("b", "Scheduled", *APPLIED),
    )
    late = placed(
        chain("Scheduled", *APPLIED[:4], last="False", prefix="ResourcePlacement"),
        entry("a", "Scheduled", *APPLIED),
        entry("b", "Scheduled", *APPLIED[:4], last="False"),
        namespace="team",
        policy=PlacementPolicy("PickN", number_of_clusters=3),
    )
    lines = placement_lines(placement_views([late, done]), TIME + timedelta(minutes=5))
    assert plain(lines).splitlines() == [
        "NAME       SCOPE       POLICY    CLUSTERS   SCHEDULED   APPLIED   AVAILABLE   AGE"
        "   PROBLEM",
        "app        cluster     PickAll   2          2           2         2           5m    -",
        "team/app   namespace   PickN     2 of 3     2           1         1           5m    r",
    ]


def test_the_problem_names_the_first_object_that_failed() -> None:
    failure = Condition("Applied", "False", "ManifestApplyFailed", 'namespaces "n" not found')
    failed = FailedPlacement(
        version="v1", kind="ConfigMap", name="c", namespace="n", condition=failure
    )
    cluster = ClusterPlacementStatus(
        "a", failed_placements=(failed,), conditions=steps("Scheduled", *APPLIED[:4], last="False")
    )
    placement = placed(chain("Scheduled", *APPLIED[:4], last="False"), cluster)
    text = 'a: ConfigMap n/c: Applied False (ManifestApplyFailed): namespaces "n" not found'
    view = placement_view(placement)
    assert view.failed_object == text
    assert plain(placement_lines([view], TIME)).endswith(f"   r; {text}\n")
    held = placed(chain("Scheduled", "RolloutStarted", last="False"), cluster)
    assert placement_view(held).failed_object == ""


def test_a_complete_placement_without_objects_is_no_success() -> None:
    done = placed(chain("Scheduled", *APPLIED), entry("a", "Scheduled", *APPLIED))
    empty = msgspec.structs.replace(done.status, selected_resources=())
    views = placement_views([msgspec.structs.replace(done, status=empty)])
    assert "its selectors match no object" in plain(placement_lines(views, TIME))
    assert "match no object" not in plain(placement_lines(placement_views([done]), TIME))


def test_no_placements() -> None:
    assert plain(placement_lines([], TIME)) == "There are no placements.\n"


def test_reports_on_an_older_generation_do_not_count() -> None:
    placement = placed(
        chain("Scheduled", *APPLIED), entry("a", "Scheduled", *APPLIED), generation=2
    )
    view = placement_view(placement)
    assert (view.selected, view.scheduled, view.applied, view.available) == (1, 0, 0, 0)
    assert view.problem is not None
    assert (view.problem.type, view.problem.status) == (f"{PREFIX}Scheduled", "Unknown")
    assert view.problem.message == "the hub has not reported on generation 2"


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        (placed(()), f"{PREFIX}Scheduled"),
        (placed(chain("Scheduled", last="False")), f"{PREFIX}Scheduled"),
        # A policy that picks no cluster ends with the first step.
        (placed(chain("Scheduled")), None),
        (placed(chain("Scheduled"), entry("a", "Scheduled")), f"{PREFIX}RolloutStarted"),
        (placed(chain("Scheduled", *APPLIED), entry("a", "Scheduled")), None),
    ],
)
def test_the_first_condition_that_is_not_true_is_the_problem(
    placement: Placement, problem: str | None
) -> None:
    found = placement_view(placement).problem
    assert (found.type if found is not None else None) == problem


@pytest.mark.parametrize(
    ("prefix", "namespace", "copied"),
    [
        (PREFIX, "", "StatusReportedBack"),
        ("ResourcePlacement", "team", "StatusReportedBack"),
        (PREFIX, "", "StatusSynced"),
    ],
)
def test_a_copy_of_a_status_that_could_not_be_written_is_the_problem(
    prefix: str, namespace: str, copied: str
) -> None:
    entries = (entry("a", "Scheduled", *APPLIED),)

    def view(*types: str, **options: Any) -> PlacementView:
        conditions = chain(*types, prefix=prefix, **options)
        return placement_view(placed(conditions, *entries, namespace=namespace))

    done = ("Scheduled", *APPLIED)
    failed = view(*done, copied, last="False")
    assert failed.problem is not None
    assert failed.problem.type == f"{prefix}{copied}"
    assert plain(placement_lines([failed], TIME)).splitlines()[1].split()[-1] == "r"
    assert view(*done, copied).problem is None

    # Placing comes first.
    late = view("Scheduled", *APPLIED[:-1], copied, last="False").problem
    assert late is not None
    assert late.type == f"{prefix}Available"


def test_a_copy_of_an_older_status_is_no_problem() -> None:
    conditions = (
        *chain("Scheduled", *APPLIED, generation=2),
        *chain("StatusReportedBack", last="False", generation=1),
    )
    placement = placed(conditions, entry("a", "Scheduled", *APPLIED, generation=2), generation=2)
    assert placement_view(placement).problem is None


def test_a_placement_that_only_reports_differences_need_not_be_available() -> None:
    types = ("Scheduled", *APPLIED[:3], "DiffReported")
    placement = placed(chain(*types), entry("a", *types))
    strategy = msgspec.structs.replace(placement.spec.strategy, apply_strategy=REPORT_DIFF)
    spec = msgspec.structs.replace(placement.spec, strategy=strategy)
    assert placement_view(msgspec.structs.replace(placement, spec=spec)).problem is None


def test_a_cluster_of_a_fixed_list_that_does_not_exist_is_not_selected() -> None:
    policy = PlacementPolicy("PickFixed", cluster_names=("a", "gone"))
    view = placement_view(
        placed(
            chain("Scheduled", last="False"),
            entry("a", "Scheduled"),
            entry("gone", "Scheduled", last="False"),
            policy=policy,
        )
    )
    assert (view.selected, view.wanted) == (1, 2)


def test_a_long_problem_is_cut_in_the_table_and_whole_for_programs() -> None:
    message = "\x1b[2J" + "x" * 32_000
    problem = Condition(f"{PREFIX}Scheduled", "False", "Reason", message, observed_generation=1)
    (view,) = placement_views([placed((problem,))])
    text = plain(placement_lines([view], TIME))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 800
    assert view.problem is not None
    assert view.problem.message == message
