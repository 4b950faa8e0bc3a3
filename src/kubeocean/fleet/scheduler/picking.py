"""Picks the best clusters for PickN, batch by batch.

KubeFleet picks a batch, writes its bindings and runs the whole cycle again, because each pick
changes the topology spread. Nothing else changes between batches, so the batches are simulated
here: filters and affinity run once, clusters are grouped by their domains and sorted once within a
group, and each pick compares the best cluster of each group. N picks among C clusters in G groups
cost O(C log C + N·G).

The best cluster has the largest score; of equal scores the larger name wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kubeocean.fleet.scheduler.framework import PartialScore, Rejection, Score
from kubeocean.fleet.scheduler.model import (
    MemberView,
)
from kubeocean.fleet.scheduler.spread import DomainCounts, Domains, SpreadRules

__all__ = ["PickCandidate", "Picks", "ScoredCluster", "pick"]


class PickCandidate(NamedTuple):
    """A cluster that passed the filters, with the parts of its score that no pick changes."""

    cluster: MemberView
    partial: PartialScore


class ScoredCluster(NamedTuple):
    """A candidate cluster with the score that it had in its batch."""

    score: Score
    name: str
    notes: tuple[str, ...] = ()


class Picks(NamedTuple):
    """The result of all batches; clusters not picked have the score or refusal of the last one."""

    picked: tuple[ScoredCluster, ...]  # in the order of the picks
    not_picked: tuple[ScoredCluster, ...]  # best first
    rejected: Mapping[str, Rejection]  # by topology spread


def pick(
    candidates: Iterable[PickCandidate],
    counted: Sequence[DomainCounts],
    wanted: int,
    batch_limit: int | None,
) -> Picks:
    """Pick `wanted` of `candidates`, or as many as the constraints allow."""
    rules = SpreadRules(counted)
    groups = _group(candidates, rules)
    limit = wanted if batch_limit is None else min(batch_limit, wanted)
    picked: list[ScoredCluster] = []
    while True:
        remaining = wanted - len(picked)
        batch = _pick_batch(groups, rules, min(limit, remaining))
        picked.extend(scored for scored, _ in batch)
        if len(batch) < limit or remaining <= limit:
            break
        for _, domains in batch:
            counted = [
                domain_counts.with_binding(domain)
                for domain_counts, domain in zip(counted, domains, strict=True)
            ]
        rules = SpreadRules(counted)
    not_picked, rejected = _rest(groups, rules)
    return Picks(tuple(picked), not_picked, rejected)


def _group(
    candidates: Iterable[PickCandidate], rules: SpreadRules
) -> dict[Domains, list[ScoredCluster]]:
    """Group the candidates by their domains; the best cluster of a group is its last."""
    groups: dict[Domains, list[ScoredCluster]] = {}
    for cluster, partial in candidates:
        scored = ScoredCluster(partial.score, cluster.name, partial.notes)
        groups.setdefault(rules.domains_of(cluster), []).append(scored)
    for group in groups.values():
        group.sort()
    return groups


def _pick_batch(
    groups: dict[Domains, list[ScoredCluster]], rules: SpreadRules, size: int
) -> list[tuple[ScoredCluster, Domains]]:
    """Remove the `size` best clusters from their groups."""
    open_groups = [
        (spread, domains, group)
        for domains, group in groups.items()
        if group and (spread := rules.score(domains)) is not None
    ]
    batch: list[tuple[ScoredCluster, Domains]] = []
    while open_groups and len(batch) < size:
        best = max(open_groups, key=lambda entry: (entry[0], entry[2][-1]))
        spread, domains, group = best
        batch.append((_with_spread(group.pop(), spread), domains))
        if not group:
            open_groups.remove(best)
            del groups[domains]
    return batch


def _with_spread(scored: ScoredCluster, spread: int) -> ScoredCluster:
    return scored._replace(score=scored.score._replace(spread=spread))


def _rest(
    groups: Mapping[Domains, list[ScoredCluster]], rules: SpreadRules
) -> tuple[tuple[ScoredCluster, ...], dict[str, Rejection]]:
    not_picked: list[ScoredCluster] = []
    rejected: dict[str, Rejection] = {}
    for domains, group in groups.items():
        rejection = rules.rejection(domains)
        if rejection is not None:
            rejected.update((scored.name, rejection) for scored in group)
        else:
            spread = rules.score(domains) or 0
            not_picked.extend(_with_spread(scored, spread) for scored in group)
    return tuple(sorted(not_picked, reverse=True)), rejected
