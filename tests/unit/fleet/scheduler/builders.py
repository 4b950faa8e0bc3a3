"""Builders for clusters, policies and bindings, and a placement over several scheduling cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import PropertyRequirement, TopologySpreadConstraint
from kubeocean.api.fleet.snapshots import ClusterDecision, ClusterScore
from kubeocean.fleet.scheduler import (
    AgentView,
    BindingView,
    ClusterTerm,
    MemberView,
    PolicyView,
    Schedule,
    read_term_selector,
    schedule,
)

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
HEALTHY = AgentView(
    heartbeat=NOW - timedelta(seconds=10),
    joined="True",
    healthy="True",
    healthy_since=NOW - timedelta(hours=1),
)


def cluster(
    name: str,
    labels: Mapping[str, str] | None = None,
    *,
    taints: Iterable[ClusterTaint] = (),
    properties: Mapping[str, str] | None = None,
    agent: AgentView | None = HEALTHY,
    deleting: bool = False,
) -> MemberView:
    """Return a healthy cluster."""
    return MemberView(
        name,
        labels or {},
        tuple(taints),
        deleting,
        agent,
        properties=properties or {},
    )


def clusters(*names: str) -> list[MemberView]:
    """Return healthy clusters without labels."""
    return [cluster(name) for name in names]


def decided(
    name: str, selected: bool, reason: str, score: ClusterScore | None = None
) -> ClusterDecision:
    """Return a decision on a cluster."""
    return ClusterDecision(name, selected=selected, cluster_score=score, reason=reason)


def spread_over(
    key: str, max_skew: int = 1, when_unsatisfiable: str = "DoNotSchedule"
) -> TopologySpreadConstraint:
    """Return a constraint over the values of a label."""
    return TopologySpreadConstraint(
        max_skew=max_skew, topology_key=key, when_unsatisfiable=when_unsatisfiable
    )


def binding(
    target: str,
    state: str = "Bound",
    policy_snapshot: str = "p-0",
    *,
    affinity: int = 0,
    spread: int = 0,
    scored: bool = True,
    previous_state: str | None = None,
    deleting: bool = False,
    name: str | None = None,
) -> BindingView:
    """Return a binding under policy snapshot p-0."""
    score = ClusterScore(affinity, spread) if scored else None
    return BindingView(
        name or f"p-{target}",
        target,
        state,
        policy_snapshot,
        deleting,
        previous_state,
        decided(target, True, "picked earlier", score),
    )


def pick_all(**fields: object) -> PolicyView:
    """Return a PickAll policy."""
    return replace(PolicyView("p-0", generation=1, placement_generation=1), **fields)


def pick_n(wanted: int | None, **fields: object) -> PolicyView:
    """Return a PickN policy."""
    return pick_all(placement_type="PickN", number_of_clusters=wanted, **fields)


def pick_fixed(*names: str, **fields: object) -> PolicyView:
    """Return a PickFixed policy."""
    return pick_all(placement_type="PickFixed", cluster_names=names, **fields)


def labelled(**labels: str) -> ClusterTerm:
    """Return a required term for these labels."""
    return ClusterTerm(labels=read_term_selector({"matchLabels": labels}))


def having(name: str, operator: str, *values: str) -> ClusterTerm:
    """Return a required term for a property."""
    return ClusterTerm(properties=(PropertyRequirement(name, operator, values),))


def created(result: Schedule) -> list[str]:
    """Return the clusters of new bindings."""
    return [item.target_cluster for item in result.changes.to_create]


def patched(result: Schedule) -> list[str]:
    """Return the clusters of patched bindings."""
    return [item.binding.target_cluster for item in result.changes.to_patch]


def unscheduled(result: Schedule) -> list[str]:
    """Return the clusters of bindings to mark Unscheduled."""
    return [item.binding.target_cluster for item in result.changes.to_unschedule]


def selected(result: Schedule) -> list[str]:
    """Return the clusters with a positive decision."""
    assert result.status is not None
    return [item.cluster_name for item in result.status.target_clusters if item.selected]


def reasons(result: Schedule) -> dict[str, str]:
    """Return the texts of negative decisions."""
    assert result.status is not None
    decisions = result.status.target_clusters
    return {item.cluster_name: item.reason for item in decisions if not item.selected}


@dataclass
class Placement:
    """The bindings of a placement, as the controllers around the scheduler leave them."""

    bindings: dict[str, BindingView]
    made: int = 0

    def cycle(self, policy: PolicyView, fleet: Iterable[MemberView]) -> Schedule:
        """Run a cycle and write its changes."""
        result = schedule(policy, fleet, self.bindings.values(), NOW)
        self.write(result)
        return result

    def write(self, result: Schedule) -> None:
        """Write the changes of a cycle."""
        changes = result.changes
        for gone in changes.to_release:
            del self.bindings[gone.name]
        for mark in changes.to_unschedule:
            self.bindings[mark.binding.name] = replace(
                mark.binding, state="Unscheduled", previous_state=mark.previous_state
            )
        for patch in changes.to_patch:
            self.bindings[patch.binding.name] = replace(
                patch.binding,
                state=patch.state,
                policy_snapshot=patch.policy_snapshot,
                decision=patch.decision,
                previous_state=None,
            )
        for new in changes.to_create:
            self.made += 1
            name = f"b{self.made}-{new.target_cluster}"
            self.bindings[name] = BindingView(
                name, new.target_cluster, new.state, new.policy_snapshot, decision=new.decision
            )

    def roll_out(self) -> None:
        """Bind scheduled bindings and remove unscheduled ones."""
        for item in list(self.bindings.values()):
            if item.state == "Scheduled":
                self.bindings[item.name] = replace(item, state="Bound")
            elif item.state == "Unscheduled":
                del self.bindings[item.name]
