"""Bindings of a placement: the classes they fall into and the changes that a cycle makes to them.

| class | binding |
|---|---|
| deleting | has a deletionTimestamp |
| unscheduled | was deselected by an earlier cycle; revived if its cluster is picked again |
| dangling | its cluster is gone or leaving |
| obsolete | was made under another policy snapshot |
| scheduled, bound | current: made under this policy snapshot, by state |

The first matching class counts. Current bindings are not withdrawn when their cluster stops
matching the policy, only when the cluster leaves, or when fewer clusters are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kubeocean.api.fleet.bindings import BindingState
from kubeocean.api.fleet.snapshots import ClusterDecision
from kubeocean.fleet.scheduler.model import (
    BindingView,
    MemberView,
    PolicyView,
)

__all__ = [
    "BindingChanges",
    "BindingClasses",
    "BindingPatch",
    "NewBinding",
    "UnscheduleCause",
    "Unscheduling",
    "classify",
    "removal_order",
    "settle",
    "unschedule",
]


@dataclass(frozen=True, slots=True)
class BindingClasses:
    """The bindings of a placement by class, each sorted by name."""

    deleting: tuple[BindingView, ...] = ()
    unscheduled: tuple[BindingView, ...] = ()
    dangling: tuple[BindingView, ...] = ()
    obsolete: tuple[BindingView, ...] = ()
    scheduled: tuple[BindingView, ...] = ()
    bound: tuple[BindingView, ...] = ()
    current_clusters: frozenset[str] = field(init=False)
    obsolete_clusters: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        current = frozenset(binding.target_cluster for binding in self.current)
        obsolete = frozenset(binding.target_cluster for binding in self.obsolete)
        object.__setattr__(self, "current_clusters", current)
        object.__setattr__(self, "obsolete_clusters", obsolete)

    @property
    def current(self) -> tuple[BindingView, ...]:
        """Return the scheduled and bound bindings, which refer to the current policy snapshot."""
        return self.scheduled + self.bound


def classify(
    policy: PolicyView, clusters: Iterable[MemberView], bindings: Iterable[BindingView]
) -> BindingClasses:
    """Return `bindings` by class: deleting, unscheduled, dangling, obsolete, scheduled, bound."""
    staying = {cluster.name for cluster in clusters if not cluster.deleting}
    classes: dict[str, list[BindingView]] = {}
    for binding in sorted(bindings, key=lambda binding: (binding.name, binding.uid)):
        classes.setdefault(_class_of(binding, policy.name, staying), []).append(binding)
    return BindingClasses(**{name: tuple(members) for name, members in classes.items()})


def _class_of(binding: BindingView, policy_snapshot: str, staying: set[str]) -> str:
    if binding.deleting:
        return "deleting"
    if binding.state == BindingState.UNSCHEDULED:
        return "unscheduled"
    if binding.target_cluster not in staying:
        return "dangling"
    if binding.policy_snapshot != policy_snapshot:
        return "obsolete"
    # An unknown state counts as scheduled, so that the cluster does not get a second binding.
    return "bound" if binding.state == BindingState.BOUND else "scheduled"


class UnscheduleCause(StrEnum):
    """Why a binding is marked Unscheduled."""

    DANGLING = "its cluster is gone or leaving"
    OBSOLETE = "the current policy does not pick its cluster"
    SURPLUS = "fewer clusters are wanted"


@dataclass(frozen=True, slots=True)
class NewBinding:
    """A binding to create, with an empty resourceSnapshotName."""

    target_cluster: str
    policy_snapshot: str
    decision: ClusterDecision
    state: str = BindingState.SCHEDULED


@dataclass(frozen=True, slots=True)
class BindingPatch:
    """An existing binding to patch so that it refers to the current policy snapshot.

    `binding` has the resourceVersion to patch. The annotation previous-binding-state is removed.
    """

    binding: BindingView
    policy_snapshot: str
    decision: ClusterDecision
    state: str


@dataclass(frozen=True, slots=True)
class Unscheduling:
    """A binding to mark Unscheduled, with its state kept in previous-binding-state."""

    binding: BindingView
    cause: UnscheduleCause

    @property
    def previous_state(self) -> str:
        """Return the value of the annotation previous-binding-state."""
        return _live_state(self.binding.state)


@dataclass(frozen=True, slots=True)
class BindingChanges:
    """Changes of bindings that a scheduling cycle makes; False if there is nothing to write."""

    to_create: tuple[NewBinding, ...] = ()
    to_patch: tuple[BindingPatch, ...] = ()
    to_unschedule: tuple[Unscheduling, ...] = ()
    to_release: tuple[BindingView, ...] = ()  # deleting: drop the finalizer scheduler-crb-cleanup

    def __bool__(self) -> bool:
        return bool(self.to_create or self.to_patch or self.to_unschedule or self.to_release)


def settle(
    classes: BindingClasses, policy: PolicyView, picked: Sequence[ClusterDecision]
) -> BindingChanges:
    """Return a binding for each picked cluster without a current one; unschedule unused ones.

    An obsolete or unscheduled binding of the cluster is patched rather than a new one created. Of
    several, an obsolete one is preferred, then one that was Bound, then the smallest name. Obsolete
    bindings of clusters that are not picked are marked Unscheduled.
    """
    wanted = {
        decision.cluster_name: decision
        for decision in picked
        if decision.cluster_name not in classes.current_clusters
    }
    reused = _reusable(classes, wanted)
    patches = [
        BindingPatch(binding, policy.name, wanted[binding.target_cluster], _revived_state(binding))
        for binding in classes.obsolete + classes.unscheduled
        if reused.get(binding.target_cluster) is binding
    ]
    creates = [
        NewBinding(cluster, policy.name, decision)
        for cluster, decision in wanted.items()
        if cluster not in reused
    ]
    unused = [
        binding for binding in classes.obsolete if reused.get(binding.target_cluster) is not binding
    ]
    return BindingChanges(
        to_create=tuple(creates),
        to_patch=tuple(patches),
        to_unschedule=unschedule(unused, UnscheduleCause.OBSOLETE),
    )


def _reusable(
    classes: BindingClasses, wanted: Mapping[str, ClusterDecision]
) -> dict[str, BindingView]:
    reused: dict[str, BindingView] = {}
    for group in (classes.obsolete, classes.unscheduled):
        for binding in sorted(
            group, key=lambda binding: _revived_state(binding) != BindingState.BOUND
        ):
            if binding.target_cluster in wanted:
                reused.setdefault(binding.target_cluster, binding)
    return reused


def _revived_state(binding: BindingView) -> str:
    """Return the new state of an obsolete or unscheduled binding whose cluster is picked again."""
    if binding.state == BindingState.UNSCHEDULED:
        return _live_state(binding.previous_state)
    return _live_state(binding.state)


def _live_state(state: str | None) -> str:
    """Return Bound if `state` is Bound; else Scheduled, which the rollout makes Bound."""
    return BindingState.BOUND if state == BindingState.BOUND else BindingState.SCHEDULED


def unschedule(bindings: Iterable[BindingView], cause: UnscheduleCause) -> tuple[Unscheduling, ...]:
    """Return the changes that mark each of `bindings` Unscheduled for `cause`."""
    return tuple(Unscheduling(binding, cause) for binding in bindings)


def removal_order(classes: BindingClasses) -> list[BindingView]:
    """Return the current bindings in the order in which a downscale removes them.

    Scheduled bindings come before bound ones, since they have no Works; then bindings without a
    score, then those with lower scores, then smaller cluster names.
    """
    return sorted(classes.scheduled, key=_worth) + sorted(classes.bound, key=_worth)


def _worth(binding: BindingView) -> tuple[bool, int, int, str, str]:
    score = binding.decision.cluster_score if binding.decision else None
    spread, affinity = (score.priority_score, score.affinity_score) if score else (0, 0)
    return score is not None, spread or 0, affinity or 0, binding.target_cluster, binding.name
