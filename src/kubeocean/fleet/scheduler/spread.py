"""Plugin TopologySpreadConstraints: keeps the bindings of a placement even over topology domains.

A domain is a value of the constraint's topology key among the labels of all clusters, eligible or
not. Its count is the number of clusters in it that have a current binding; the skew is the largest
count minus the smallest. One more binding changes the skew:

| domain | change |
|---|---|
| all counts are equal, or its count is the largest | +1 |
| its count is the smallest, and no other domain's is | −1 |
| any other | 0 |

The constraint is violated if the skew would then exceed maxSkew, even if it went down.
DoNotSchedule rejects the cluster; ScheduleAnyway scores −1000. Without a violation the score is
the change, negated. Scores of several constraints add up. A cluster without the label is in no
domain: it violates nothing and scores 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeocean.api.fleet.policies import TopologySpreadConstraint, UnsatisfiableAction
from kubeocean.fleet.scheduler.framework import (
    Cycle,
    Filter,
    PartialScore,
    Rejection,
    Score,
    Scorer,
)
from kubeocean.fleet.scheduler.model import (
    MemberView,
)
from kubeocean.fleet.scheduler.properties import quoted

__all__ = [
    "TOPOLOGY_SPREAD",
    "DomainCounts",
    "Domains",
    "SpreadRules",
    "count_domains",
    "post_batch",
    "pre_filter",
    "pre_score",
    "spread_rules",
]

TOPOLOGY_SPREAD: Final = "TopologySpreadConstraints"
VIOLATION_SCORE: Final = -1000

Domains = tuple[str | None, ...]  # of a cluster, one for each constraint; None: without the label


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """Numbers of current bindings in each topology domain of one constraint."""

    constraint: TopologySpreadConstraint
    counts: Mapping[str, int]

    def with_binding(self, domain: str | None) -> DomainCounts:
        """Return the counts after one more binding in `domain`."""
        if domain is None:
            return self
        return DomainCounts(self.constraint, {**self.counts, domain: self.counts[domain] + 1})


def count_domains(
    constraints: Iterable[TopologySpreadConstraint],
    clusters: Sequence[MemberView],
    current: Collection[str],
) -> tuple[DomainCounts, ...]:
    """Count for each constraint the clusters with a current binding in each domain."""
    return tuple(_count(constraint, clusters, current) for constraint in constraints)


def _count(
    constraint: TopologySpreadConstraint, clusters: Sequence[MemberView], current: Collection[str]
) -> DomainCounts:
    counts: dict[str, int] = {}
    for cluster in clusters:
        domain = cluster.labels.get(constraint.topology_key)
        if domain is not None:
            counts[domain] = counts.get(domain, 0) + (cluster.name in current)
    return DomainCounts(constraint, counts)


class SpreadRules:
    """Spread scores of topology domains at given counts; a domain without a score is full."""

    def __init__(self, counted: Sequence[DomainCounts]) -> None:
        self._constraints = tuple(domain_counts.constraint for domain_counts in counted)
        self._scores = tuple(_scores(domain_counts) for domain_counts in counted)

    def domains_of(self, cluster: MemberView) -> Domains:
        """Return the topology domain of `cluster` for each constraint."""
        labels = cluster.labels
        return tuple(labels.get(constraint.topology_key) for constraint in self._constraints)

    def score(self, domains: Domains) -> int | None:
        """Return the spread score of a cluster in `domains`; None if the cluster is rejected."""
        total = 0
        for domain, scores in zip(domains, self._scores, strict=True):
            if domain is None:
                continue
            score = scores[domain]
            if score is None:
                return None
            total += score
        return total

    def rejection(self, domains: Domains) -> Rejection | None:
        """Return the refusal of a cluster in `domains`; the first violated constraint counts."""
        for constraint, domain, scores in zip(
            self._constraints, domains, self._scores, strict=True
        ):
            if domain is not None and scores[domain] is None:
                key, max_skew = quoted(constraint.topology_key), constraint.max_skew
                reason = f"violates topology spread constraint {key} (max skew {max_skew})"
                detail = f"domain {quoted(domain)} has too many bindings already"
                return Rejection(TOPOLOGY_SPREAD, (reason,), (detail,))
        return None


def _scores(counted: DomainCounts) -> Mapping[str, int | None]:
    """Return the score of one more binding in each domain; None: DoNotSchedule is violated."""
    counts, constraint = list(counted.counts.values()), counted.constraint
    if not counts:
        return {}
    smallest, largest = min(counts), max(counts)
    single_smallest = counts.count(smallest) == 1
    violation = VIOLATION_SCORE if _is_preference(constraint) else None
    by_count: dict[int, int | None] = {}
    for count in set(counts):
        change = _skew_change(count, smallest, largest, single_smallest)
        violated = largest - smallest + change > constraint.max_skew
        by_count[count] = violation if violated else -change
    return {domain: by_count[count] for domain, count in counted.counts.items()}


def _skew_change(count: int, smallest: int, largest: int, single_smallest: bool) -> int:
    if count == largest:  # also if all counts are equal
        return 1
    return -1 if count == smallest and single_smallest else 0


def spread_rules(cycle: Cycle) -> SpreadRules:
    """Return the spread rules for the bindings with which the cycle begins."""
    current = cycle.bindings.current_clusters
    return SpreadRules(count_domains(cycle.policy.spread, cycle.clusters, current))


def post_batch(cycle: Cycle) -> int | None:
    """Limit a batch to one cluster, since each pick changes the counts; None if unconstrained."""
    return 1 if cycle.policy.spread else None


def _is_preference(constraint: TopologySpreadConstraint) -> bool:
    """Whether a violation only lowers the score (ScheduleAnyway) rather than reject a cluster."""
    return constraint.when_unsatisfiable == UnsatisfiableAction.SCHEDULE_ANYWAY


def pre_filter(cycle: Cycle) -> Filter | None:
    """Return the filter by DoNotSchedule constraints; None if the policy has no such constraint."""
    if all(_is_preference(constraint) for constraint in cycle.policy.spread):
        return None
    rules = spread_rules(cycle)
    return lambda cluster: rules.rejection(rules.domains_of(cluster))


def pre_score(cycle: Cycle) -> Scorer | None:
    """Return the scorer by all topology spread constraints; None if the policy has none."""
    if not cycle.policy.spread:
        return None
    rules = spread_rules(cycle)

    def score(cluster: MemberView) -> PartialScore:
        return PartialScore(Score(spread=rules.score(rules.domains_of(cluster)) or 0))

    return score
