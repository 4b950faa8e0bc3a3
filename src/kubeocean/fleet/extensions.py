"""Entries that Kubeocean adds to statuses whose entries KubeFleet has a closed set of.

`--status-extensions` chooses between `OURS` and `UPSTREAM` once, in the composition of a hub and of
a member. With `UPSTREAM` every status equals KubeFleet's entry by entry. No other module knows the
flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import AgentCondition, MemberCondition, MemberReason
from kubeocean.api.fleet.inventory import ClusterProperty
from kubeocean.fleet.applier.availability import Tracker, extended_tracker, kubefleet_tracker
from kubeocean.fleet.health import member_agent, member_health, recheck_after, stored_instant
from kubeocean.fleet.inventory.profile import profile_properties
from kubeocean.fleet.properties.cluster import ClusterFacts, extension_properties
from kubeocean.runtime.objects import Condition, find_condition

__all__ = ["OURS", "UPSTREAM", "Extensions", "chosen"]


class Extensions(Protocol):
    """Additional entries of the statuses of MemberClusters, ClusterProfiles and Works."""

    def health(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> Condition | None:
        """Return the condition Healthy of a member; None to leave the status as it is."""

    def health_changes_in(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> timedelta | None:
        """Return when Healthy changes without any event; None if it does not."""

    def join_problem(self, message: str) -> Condition | None:
        """Return the condition that reports what keeps the hub from admitting a member."""

    def properties(self, facts: ClusterFacts) -> Mapping[str, str]:
        """Return additional properties of a member."""

    def profile_properties(self, member: MemberCluster) -> tuple[ClusterProperty, ...]:
        """Return the properties of a member that its ClusterProfile lists."""

    def tracker(self, group: str, kind: str) -> Tracker | None:
        """Return how the availability of a kind is judged; None if it is not."""


class _Ours:
    """All additional entries."""

    def health(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> Condition | None:
        period = timedelta(seconds=member.spec.heartbeat_period_seconds)
        return member_health(member.status.agent_status, threshold, period, now)

    def health_changes_in(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> timedelta | None:
        agents = member.status.agent_status
        period = timedelta(seconds=member.spec.heartbeat_period_seconds)
        delays = [recheck_after(agents, threshold, now), _unhealthy_in(member, period, now)]
        return min((delay for delay in delays if delay is not None), default=None)

    def join_problem(self, message: str) -> Condition | None:
        return Condition(
            MemberCondition.READY_TO_JOIN, "False", MemberReason.NOT_READY_TO_JOIN, message
        )

    def properties(self, facts: ClusterFacts) -> Mapping[str, str]:
        return extension_properties(facts)

    def profile_properties(self, member: MemberCluster) -> tuple[ClusterProperty, ...]:
        return profile_properties(member)

    def tracker(self, group: str, kind: str) -> Tracker | None:
        return extended_tracker(group, kind)


class _Upstream:
    """No additional entries."""

    def health(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> Condition | None:
        return None

    def health_changes_in(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> timedelta | None:
        return None

    def join_problem(self, message: str) -> Condition | None:
        return None

    def properties(self, facts: ClusterFacts) -> Mapping[str, str]:
        return {}

    def profile_properties(self, member: MemberCluster) -> tuple[ClusterProperty, ...]:
        return ()

    def tracker(self, group: str, kind: str) -> Tracker | None:
        return kubefleet_tracker(group, kind)


OURS: Final[Extensions] = _Ours()
UPSTREAM: Final[Extensions] = _Upstream()


def chosen(status_extensions: bool) -> Extensions:
    """Return the extensions that `--status-extensions` asks for."""
    return OURS if status_extensions else UPSTREAM


def _unhealthy_in(member: MemberCluster, period: timedelta, now: datetime) -> timedelta | None:
    """Return when an agent has reported an unhealthy cluster for one period."""
    agent = member_agent(member.status.agent_status)
    healthy = None if agent is None else find_condition(agent.conditions, AgentCondition.HEALTHY)
    if healthy is None or healthy.status != "False":
        return None
    since = stored_instant(healthy.last_transition_time)
    if since is None or now - since >= period:
        return None
    return since + period - now
