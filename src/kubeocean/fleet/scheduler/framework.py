"""Types of a scheduling cycle: the inputs of plugins and their results.

A plugin is prepared once per cycle and then called for each cluster. `pre_filter` returns the
plugin's filter for the cycle, `pre_score` its scorer; None if the plugin does not apply to the
policy. `post_batch` limits how many clusters may be picked before scores are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from kubeocean.api.fleet.snapshots import ClusterScore
from kubeocean.fleet.scheduler.bindings import BindingClasses, classify
from kubeocean.fleet.scheduler.model import (
    BindingView,
    MemberView,
    PolicyView,
)

__all__ = [
    "AlreadySelected",
    "Cycle",
    "Filter",
    "FilterPlugin",
    "PartialScore",
    "PostBatchPlugin",
    "Rejection",
    "Score",
    "ScorePlugin",
    "Scorer",
    "start_cycle",
]


@dataclass(frozen=True, slots=True)
class Cycle:
    """The inputs of one scheduling cycle: clusters sorted by name, and bindings by class."""

    policy: PolicyView
    clusters: tuple[MemberView, ...]
    bindings: BindingClasses
    now: datetime


def start_cycle(
    policy: PolicyView,
    clusters: Iterable[MemberView],
    bindings: Iterable[BindingView],
    now: datetime,
) -> Cycle:
    """Return the inputs of a cycle, clusters sorted by name; of equal names the first counts.

    Sorting makes every result independent of the order of the inputs.
    """
    by_name: dict[str, MemberView] = {}
    for cluster in clusters:
        by_name.setdefault(cluster.name, cluster)
    ordered = tuple(by_name[name] for name in sorted(by_name))
    return Cycle(policy, ordered, classify(policy, ordered, bindings), now)


class Rejection(NamedTuple):
    """The refusal of a cluster by a plugin.

    `reasons` are written to the status and contain nothing that changes with each heartbeat.
    `details` may change with heartbeats, and are part of explanations only.
    """

    plugin: str
    reasons: tuple[str, ...]
    details: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the text of the decision that reports this refusal."""
        return ", ".join(("ClusterUnschedulable", *self.reasons))


class AlreadySelected(NamedTuple):
    """Filter result for a cluster with a current binding: neither a candidate nor rejected."""

    plugin: str


class Score(NamedTuple):
    """The score of a cluster. Scores are compared part by part, never summed up."""

    spread: int = 0
    affinity: int = 0
    obsolete: int = 0  # 1 if an obsolete binding of the placement is on the cluster

    def plus(self, other: Score) -> Score:
        """Return the sum of two scores, part by part."""
        return Score(
            self.spread + other.spread,
            self.affinity + other.affinity,
            self.obsolete + other.obsolete,
        )

    @property
    def published(self) -> ClusterScore:
        """Return the score as decisions contain it: without the part for obsolete bindings."""
        return ClusterScore(affinity_score=self.affinity, priority_score=self.spread)


class PartialScore(NamedTuple):
    """The score that one plugin gives to a cluster, with notes on the reasons."""

    score: Score
    notes: tuple[str, ...] = ()


Filter = Callable[[MemberView], Rejection | AlreadySelected | None]
Scorer = Callable[[MemberView], PartialScore]


class FilterPlugin(NamedTuple):
    """A plugin at the points PreFilter and Filter."""

    name: str
    pre_filter: Callable[[Cycle], Filter | None]
    per_batch: bool = False  # whether the plugin's results change when a cluster is picked
    of_policy: bool = False  # whether the results depend on policy and cluster alone


class ScorePlugin(NamedTuple):
    """A plugin at the points PreScore and Score."""

    name: str
    pre_score: Callable[[Cycle], Scorer | None]
    per_batch: bool = False


class PostBatchPlugin(NamedTuple):
    """A plugin at the point PostBatch, which limits the size of a batch; None sets no limit."""

    name: str
    post_batch: Callable[[Cycle], int | None]
