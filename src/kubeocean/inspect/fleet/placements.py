"""Placements of a fleet, as `kubeocean fleet placements` shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.fleet.conditions import APPLIED, AVAILABLE, DIFF_REPORTED, SCHEDULED
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.policies import PlacementType
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.steps import fresh
from kubeocean.inspect.fleet.progress import failed_object, placement_problem
from kubeocean.inspect.format import Cell, Line, Tone, ago, brief, table
from kubeocean.runtime.objects import Condition, find_condition

__all__ = [
    "PlacementView",
    "placement_lines",
    "placement_view",
    "placement_views",
    "wanted_clusters",
]

_LONGEST_PROBLEM: Final = 500  # characters, for people; JSON and YAML have all of it
_STEPS_OF_OBJECTS: Final = (APPLIED.name, AVAILABLE.name, DIFF_REPORTED.name)
_HEAD: Final = (
    "NAME", "SCOPE", "POLICY", "CLUSTERS", "SCHEDULED", "APPLIED", "AVAILABLE", "AGE", "PROBLEM"
)  # fmt: skip


class PlacementView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A placement of a fleet; counts are numbers of clusters.

    `selected` clusters are picked; `wanted` is absent where a policy takes all that match.
    `scheduled`, `applied` and `available` count reports on the present generation only. `problem`
    is the first condition that is not True; it is absent if the placement is complete.
    `failed_object` is the first object that is not applied or not available, with its cluster.
    """

    kind: str
    name: str
    namespace: str = ""
    policy: str = ""
    selected: int = msgspec.field(default=0)
    wanted: int | None = None
    scheduled: int = 0
    applied: int = 0
    available: int = 0
    objects: int = 0
    resource_index: str = ""
    created: str | None = None
    deleting_since: str | None = None
    problem: Condition | None = None
    failed_object: str = ""

    @property
    def title(self) -> str:
        """The placement as `NAMESPACE/NAME`, or the name of a ClusterResourcePlacement."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def placement_views(placements: Iterable[Placement]) -> list[PlacementView]:
    """Return the views of all placements by namespace and name, cluster-wide ones first."""
    views = map(placement_view, placements)
    return sorted(views, key=lambda view: (view.namespace, view.name))


def placement_view(placement: Placement) -> PlacementView:
    """Return the view of one placement."""
    status, policy = placement.status, placement.spec.policy
    entries = [entry for entry in status.placement_statuses if entry.cluster_name]
    picked = (find_condition(entry.conditions, SCHEDULED.name) for entry in entries)

    def count(step: str) -> int:
        generation = placement.metadata.generation
        reports = (fresh(entry.conditions, step, generation) for entry in entries)
        return sum(report is not None and report.status == "True" for report in reports)

    return PlacementView(
        kind=scope_of(placement.key).placements.kind,
        name=placement.name,
        namespace=placement.namespace,
        policy=policy.placement_type,
        selected=sum(each is not None and each.status == "True" for each in picked),
        wanted=wanted_clusters(placement),
        scheduled=count(SCHEDULED.name),
        applied=count(APPLIED.name),
        available=count(AVAILABLE.name),
        objects=len(status.selected_resources),
        resource_index=status.observed_resource_index,
        created=placement.metadata.creation_timestamp,
        deleting_since=placement.metadata.deletion_timestamp,
        problem=placement_problem(placement),
        failed_object=_failed_object(placement),
    )


def _failed_object(placement: Placement) -> str:
    """Return the first object that failed, with its cluster, if that is the placement's problem."""
    problem = placement_problem(placement)
    prefix = scope_of(placement.key).prefix
    if problem is None or problem.type.removeprefix(prefix) not in _STEPS_OF_OBJECTS:
        return ""
    for entry in placement.status.placement_statuses:
        if text := failed_object(entry):
            return f"{entry.cluster_name}: {text}"
    return ""


def placement_lines(views: Iterable[PlacementView], now: datetime) -> list[Line]:
    """Return a table of placements."""
    views = list(views)
    if not views:
        return [(Cell("There are no placements."),)]
    return table(_HEAD, [_row(view, now) for view in views])


def _row(view: PlacementView, now: datetime) -> list[Cell]:
    problem, tone = _problem(view)
    return [
        Cell(view.title),
        Cell("namespace" if view.namespace else "cluster"),
        Cell(view.policy),
        Cell(str(view.selected) if view.wanted is None else f"{view.selected} of {view.wanted}"),
        Cell(str(view.scheduled)),
        Cell(str(view.applied)),
        Cell(str(view.available)),
        Cell(ago(stored_instant(view.created), now) or "-"),
        Cell(brief(problem, _LONGEST_PROBLEM) or "-", tone),
    ]


def _problem(view: PlacementView) -> tuple[str, Tone]:
    if view.deleting_since is not None:
        return "it is being deleted", Tone.WARN
    if view.problem is None and not view.objects:
        return "its selectors match no object", Tone.WARN
    if view.problem is None:
        return "", Tone.GOOD
    text = view.problem.reason
    if view.problem.message:
        text += f": {view.problem.message}"
    if view.failed_object:
        text += f"; {view.failed_object}"
    return text, Tone.BAD if view.problem.status == "False" else Tone.WARN


def wanted_clusters(placement: Placement) -> int | None:
    """Return how many clusters a policy wants; None if it takes all that match."""
    policy = placement.spec.policy
    match policy.placement_type:
        case PlacementType.PICK_FIXED:
            return len(policy.cluster_names)
        case PlacementType.PICK_N:
            return policy.number_of_clusters
    return None
