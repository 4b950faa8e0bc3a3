"""A slow model of the scheduler, written from the rules alone, to compare with.

The model shares no code with the scheduler but the views: values are fractions, labels are
compared one by one, the skew is measured by placing a binding and counting again, and each pick
runs every filter on every cluster anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction

from kubeocean.api.fleet.policies import PropertyRequirement, TopologySpreadConstraint
from kubeocean.fleet.scheduler import (
    BindingView,
    MemberView,
    PolicyView,
)
from unit.fleet.scheduler.builders import NOW

# The generated worlds use these texts for quantities; all others are unreadable.
VALUES = {
    "0": Fraction(0),
    "1": Fraction(1),
    "1500m": Fraction(3, 2),
    "2": Fraction(2),
    "3": Fraction(3),
    "1Ki": Fraction(1024),
    "-7": Fraction(-7),
}


@dataclass
class Expected:
    """The clusters of each kind of change, and the state of the policy."""

    create: list[str] = field(default_factory=list)
    patch: set[str] = field(default_factory=set)
    unschedule: set[str] = field(default_factory=set)
    fulfilled: bool | None = None
    selected: set[str] = field(default_factory=set)
    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # affinity, spread


class Reference:
    """The rules, applied to one world."""

    def __init__(
        self, policy: PolicyView, fleet: Iterable[MemberView], bindings: Iterable[BindingView]
    ) -> None:
        self.policy = policy
        self.fleet = {view.name: view for view in fleet}
        self.bindings = [item for item in bindings if not item.deleting]
        active = [item for item in self.bindings if item.state != "Unscheduled"]
        self.dangling = {item.target_cluster for item in active if self.has_left(item)}
        stay = [item for item in active if not self.has_left(item)]
        self.current = {
            item.target_cluster: item for item in stay if item.policy_snapshot == policy.name
        }
        self.obsolete = {
            item.target_cluster for item in stay if item.policy_snapshot != policy.name
        }
        self.unscheduled = {
            item.target_cluster for item in self.bindings if item.state == "Unscheduled"
        }

    def has_left(self, item: BindingView) -> bool:
        view = self.fleet.get(item.target_cluster)
        return view is None or view.deleting

    def expect(self) -> Expected:
        match self.policy.placement_type:
            case "PickAll":
                expected = self.expect_pick_all()
            case "PickN":
                expected = self.expect_pick_n(self.policy.number_of_clusters or 0)
            case _:
                expected = self.expect_pick_fixed()
        expected.unschedule |= self.dangling
        return expected

    # Modes.

    def expect_pick_all(self) -> Expected:
        passing = [
            name for name in sorted(self.fleet) if name not in self.current and self.passes(name)
        ]
        expected = self.place(passing)
        expected.fulfilled = True
        expected.selected = {*passing, *self.current}
        return expected

    def expect_pick_n(self, wanted: int) -> Expected:
        if wanted <= len(self.current):
            return self.expect_downscale(wanted)
        chosen: list[str] = []
        scores: dict[str, tuple[int, int]] = {}
        while len(self.current) + len(chosen) < wanted:
            holders = {*self.current, *chosen}
            ranking = sorted(
                (self.spread_score(name, holders), self.affinity(name), name in self.obsolete, name)
                for name in self.fleet
                if name not in holders and self.passes(name) and self.fits(name, holders)
            )
            if not ranking:
                break
            spread, affinity, _, best = ranking[-1]
            chosen.append(best)
            scores[best] = (affinity, spread)
        expected = self.place(chosen)
        expected.fulfilled = len(self.current) + len(chosen) == wanted
        expected.selected = {*self.current, *chosen}
        expected.scores = scores
        return expected

    def expect_downscale(self, wanted: int) -> Expected:
        remaining = dict(self.current)
        while len(remaining) > wanted:
            scheduled = [name for name, item in remaining.items() if item.state == "Scheduled"]
            pool = scheduled or list(remaining)
            del remaining[min(pool, key=self.worth)]
        removed = set(self.current) - set(remaining)
        return Expected(unschedule=removed | self.obsolete, fulfilled=True, selected=set(remaining))

    def worth(self, name: str) -> tuple[bool, int, int, str]:
        """Return the sort key of a downscale; bindings of PickFixed have no score."""
        decision = self.current[name].decision
        assert decision is not None
        score = decision.cluster_score
        if score is None:
            return False, 0, 0, name
        return True, score.priority_score, score.affinity_score, name

    def expect_pick_fixed(self) -> Expected:
        names = self.policy.cluster_names
        if not names:
            return Expected()
        valid = [name for name in names if name in self.fleet and self.is_eligible(name)]
        expected = self.place([name for name in valid if name not in self.current])
        expected.unschedule |= {name for name in self.current if name not in names}
        expected.fulfilled = len(valid) == len(names)
        expected.selected = set(valid)
        return expected

    def place(self, chosen: list[str]) -> Expected:
        reusable = self.obsolete | self.unscheduled
        return Expected(
            create=[name for name in chosen if name not in reusable],
            patch={name for name in chosen if name in reusable},
            unschedule=self.obsolete - set(chosen),
        )

    # Filters.

    def passes(self, name: str) -> bool:
        return (
            self.matches_required(name)
            and self.is_eligible(name)
            and self.has_namespace(name)
            and self.is_tolerated(name)
        )

    def is_eligible(self, name: str) -> bool:
        view = self.fleet[name]
        agent = view.agent
        if view.deleting or agent is None or agent.heartbeat is None:
            return False
        sick = agent.healthy != "True" and (
            agent.healthy_since is None or NOW - agent.healthy_since > timedelta(minutes=5)
        )
        return (
            NOW - agent.heartbeat <= timedelta(minutes=5)
            and agent.joined == "True"
            and agent.healthy is not None
            and not sick
        )

    def has_namespace(self, name: str) -> bool:
        view, namespace = self.fleet[name], self.policy.namespace
        if namespace == "" or not view.collects_namespaces:
            return True
        return view.namespaces is not None and namespace in view.namespaces

    def is_tolerated(self, name: str) -> bool:
        for taint in self.fleet[name].taints:
            for item in self.policy.tolerations:
                if item.effect not in ("", "NoSchedule"):
                    continue
                if item.operator == "Exists" and item.key in ("", taint.key):
                    break
                if item.operator == "Equal" and item.key == taint.key and item.value == taint.value:
                    break
            else:
                return False
        return True

    def matches_required(self, name: str) -> bool:
        terms = self.policy.required
        return not terms or any(
            self.selects(term.labels, name)
            and all(self.meets(requirement, name) for requirement in term.properties)
            for term in terms
        )

    def selects(self, selector: object, name: str) -> bool:
        if selector is None:
            return True
        # Generated selectors are plain labels, whose text is key=value,…
        text = str(selector)
        labels = self.fleet[name].labels
        pairs = [pair.split("=") for pair in text.split(",") if pair]
        return all(labels.get(key) == value for key, value in pairs)

    def meets(self, requirement: PropertyRequirement, name: str) -> bool:
        actual = VALUES.get(self.fleet[name].properties.get(requirement.name, ""))
        wanted = VALUES.get(requirement.values[0])
        if actual is None or wanted is None:
            return False
        return {
            "Gt": actual > wanted,
            "Ge": actual >= wanted,
            "Eq": actual == wanted,
            "Ne": actual != wanted,
            "Lt": actual < wanted,
            "Le": actual <= wanted,
        }[requirement.operator]

    # Scores.

    def affinity(self, name: str) -> int:
        total = 0
        for term in self.policy.preferred:
            if not self.selects(term.labels, name):
                continue
            if term.sorter is None:
                total += term.weight
                continue
            values = {
                other: VALUES[text]
                for other, view in self.fleet.items()
                if (text := view.properties.get(term.sorter.name)) in VALUES
            }
            if name not in values or len(set(values.values())) == 1:
                continue
            low, high = min(values.values()), max(values.values())
            share = (values[name] - low) / (high - low)
            if term.sorter.sort_order == "Ascending":
                share = 1 - share
            exact = share * term.weight
            total += int(math.copysign(math.floor(abs(exact) + Fraction(1, 2)), exact))
        return total

    def skews(
        self, constraint: TopologySpreadConstraint, name: str, holders: set[str]
    ) -> tuple[int, int]:
        """Return the skew after one more binding on the cluster, and by how much it changed."""
        before = self.count(constraint.topology_key, holders)
        after = self.count(constraint.topology_key, {*holders, name})
        if len(before) == 1:  # a lone domain counts as if it moved away from an even spread
            return 1, 1
        skew = max(after.values()) - min(after.values())
        return skew, skew - (max(before.values()) - min(before.values()))

    def count(self, key: str, holders: set[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for view in self.fleet.values():
            if key in view.labels:
                counts.setdefault(view.labels[key], 0)
                counts[view.labels[key]] += view.name in holders
        return counts

    def concerns(self, name: str) -> list[TopologySpreadConstraint]:
        labels = self.fleet[name].labels
        return [item for item in self.policy.spread if item.topology_key in labels]

    def fits(self, name: str, holders: set[str]) -> bool:
        return all(
            self.skews(item, name, holders)[0] <= item.max_skew
            for item in self.concerns(name)
            if item.when_unsatisfiable == "DoNotSchedule"
        )

    def spread_score(self, name: str, holders: set[str]) -> int:
        total = 0
        for item in self.concerns(name):
            skew, change = self.skews(item, name, holders)
            violated = skew > item.max_skew
            total += -1000 if violated else -change
        return total
