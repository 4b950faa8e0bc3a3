"""Plugin ClusterAffinity: required terms reject clusters, preferred terms give them scores.

A required term matches if its label selector and all of its property requirements match; one
matching term is enough. A term that is invalid matches no cluster, and so does a requirement on a
property that the cluster does not report or whose value is not a quantity. KubeFleet fails the
whole cycle in these cases; here one bad value affects one cluster.

The score is the sum over the preferred terms whose label selector matches: the weight, or with a
property sorter the share of the weight that the cluster's value earns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kubeocean.fleet.scheduler.framework import (
    Cycle,
    Filter,
    PartialScore,
    Rejection,
    Score,
    Scorer,
)
from kubeocean.fleet.scheduler.model import (
    ClusterTerm,
    InvalidSelector,
    MemberView,
    PreferredTerm,
    TermSelector,
)
from kubeocean.fleet.scheduler.properties import (
    Gap,
    PropertyComparison,
    Ranking,
    compile_requirement,
    compile_sorter,
    cut,
    quoted,
)
from kubeocean.runtime.selectors import LabelSelector

__all__ = ["CLUSTER_AFFINITY", "pre_filter", "pre_score"]

CLUSTER_AFFINITY: Final = "ClusterAffinity"
_NO_MATCH: Final = "cluster matches none of the required affinity terms"
_LONGEST_PROBLEM: Final = 200
_MOST_REASONS: Final = 4  # limit on reasons in a status, for policies with many invalid terms


class _Mismatch(NamedTuple):
    """Why an affinity term does not match a cluster; `lasting`: stable enough for a status."""

    text: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class _RequiredTerm:
    """A required affinity term, validated once for all clusters; `problem` if it is invalid."""

    labels: LabelSelector | None
    comparisons: tuple[PropertyComparison, ...]
    problem: str | None

    def mismatch(self, cluster: MemberView) -> _Mismatch | None:
        """Return why `cluster` does not match the term; None if it matches."""
        if self.problem is not None:
            return _Mismatch(f"is invalid: {self.problem}", lasting=True)
        if not _selects(self.labels, cluster):
            return _Mismatch("label selector does not match")
        for comparison in self.comparisons:
            name, actual = quoted(comparison.property.name), comparison.property.read(cluster)
            if isinstance(actual, Gap):
                lasting = actual is Gap.UNREADABLE
                return _Mismatch(f"property {name} {actual.value}", lasting)
            if not comparison.holds(actual):
                wanted = f"{comparison.operator} {comparison.expected}"
                return _Mismatch(f"property {name} is {actual}, not {wanted}")
        return None


def pre_filter(cycle: Cycle) -> Filter | None:
    """Return the filter by required terms; None if the policy has none."""
    terms = tuple(_compile_required(term) for term in cycle.policy.required)
    if not terms:
        return None

    def check(cluster: MemberView) -> Rejection | None:
        details, reasons = [], [_NO_MATCH]
        for number, term in enumerate(terms, 1):
            mismatch = term.mismatch(cluster)
            if mismatch is None:
                return None
            details.append(f"term {number}: {mismatch.text}")
            if mismatch.lasting:
                reasons.append(details[-1])
        return Rejection(CLUSTER_AFFINITY, tuple(reasons[:_MOST_REASONS]), tuple(details))

    return check


def _compile_required(term: ClusterTerm) -> _RequiredTerm:
    labels, problem = _read_labels(term.labels)
    compiled = [compile_requirement(requirement) for requirement in term.properties]
    problems = [problem, *(result for result in compiled if isinstance(result, str))]
    return _RequiredTerm(
        labels,
        tuple(result for result in compiled if isinstance(result, PropertyComparison)),
        next((problem for problem in problems if problem is not None), None),
    )


@dataclass(frozen=True, slots=True)
class _Preference:
    """A preferred affinity term, validated once for all clusters; `problem` if it is invalid."""

    weight: int
    labels: LabelSelector | None
    ranking: Ranking | None
    problem: str | None

    def earn(self, cluster: MemberView) -> tuple[int, str]:
        """Return the part of the term's weight that `cluster` earns, and the reason."""
        if self.problem is not None:
            return 0, f"invalid: {self.problem}"
        if not _selects(self.labels, cluster):
            return 0, "label selector does not match"
        if self.ranking is None:
            return self.weight, "matches"
        name, actual = quoted(self.ranking.property.name), self.ranking.property.read(cluster)
        if isinstance(actual, Gap):
            return 0, f"property {name} {actual.value}"
        return self.ranking.share(self.weight, actual), f"property {name} is {actual}"


def pre_score(cycle: Cycle) -> Scorer | None:
    """Return the scorer by preferred terms; None if the policy has none.

    The range of a property sorter is taken over all clusters, eligible or not.
    """
    preferences = tuple(_compile_preferred(term, cycle) for term in cycle.policy.preferred)
    if not preferences:
        return None

    def score(cluster: MemberView) -> PartialScore:
        total, notes = 0, []
        for number, preference in enumerate(preferences, 1):
            earned, why = preference.earn(cluster)
            total += earned
            notes.append(f"preferred term {number}: {earned} of {preference.weight} ({why})")
        return PartialScore(Score(affinity=total), tuple(notes))

    return score


def _compile_preferred(term: PreferredTerm, cycle: Cycle) -> _Preference:
    labels, problem = _read_labels(term.labels)
    if term.sorter is None:
        return _Preference(term.weight, labels, None, problem)
    ranking = compile_sorter(term.sorter, cycle.clusters)
    if isinstance(ranking, str):
        return _Preference(term.weight, labels, None, problem or ranking)
    return _Preference(term.weight, labels, ranking, problem)


def _read_labels(selector: TermSelector) -> tuple[LabelSelector | None, str | None]:
    """Return the label selector of an affinity term, or its problem."""
    if isinstance(selector, InvalidSelector):
        return None, f"label selector: {cut(selector.problem, _LONGEST_PROBLEM)}"
    return selector, None


def _selects(labels: LabelSelector | None, cluster: MemberView) -> bool:
    return labels is None or labels.matches(cluster.labels)
