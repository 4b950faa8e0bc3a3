"""Conditions, properties and trackers that Kubeocean adds to KubeFleet's statuses.

`--status-extensions` chooses between `OURS` and `UPSTREAM` once, when a hub or a member is
composed. With `UPSTREAM` every status equals KubeFleet's entry by entry. No other module reads the
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
from kubeocean.fleet.applier.health_checks import GroupKind, HealthChecks
from kubeocean.fleet.health import member_agent, member_health, recheck_after, stored_instant
from kubeocean.fleet.inventory.profile import profile_properties
from kubeocean.fleet.properties.cluster import ClusterFacts, extension_properties
from kubeocean.runtime.objects import Condition, find_condition

__all__ = ["OURS", "UPSTREAM", "Extensions", "chosen"]


class Extensions(Protocol):
    """Entries that are added to statuses of MemberClusters, ClusterProfiles, Works, placements."""

    def health(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> Condition | None:
        """Return the condition Healthy of a MemberCluster; None to leave the status as it is."""

    def health_changes_in(
        self, member: MemberCluster, threshold: timedelta, now: datetime
    ) -> timedelta | None:
        """Return the time until the condition Healthy changes without an event; None if never."""

    def join_problem(self, message: str) -> Condition | None:
        """Return the condition that reports why a member cannot join; None to report nothing."""

    def properties(self, facts: ClusterFacts) -> Mapping[str, str]:
        """Return the properties that are added to KubeFleet's properties of a member."""

    def profile_properties(self, member: MemberCluster) -> tuple[ClusterProperty, ...]:
        """Return the properties of a member that its ClusterProfile lists."""

    def tracker(self, group: str, kind: str) -> Tracker | None:
        """Return the availability tracker of a kind; None if the kind is not trackable."""

    def report_back(self, condition: Condition | None) -> tuple[Condition, ...]:
        """Return the condition of a placement about statuses written onto the hub's objects."""

    def health_checks(self, by_kind: Mapping[GroupKind, str]) -> HealthChecks | None:
        """Return the health checks of objects and of kinds; None to evaluate none."""


class _Ours:
    """Extensions of Kubeocean: all additional entries."""

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

    def report_back(self, condition: Condition | None) -> tuple[Condition, ...]:
        return () if condition is None else (condition,)

    def health_checks(self, by_kind: Mapping[GroupKind, str]) -> HealthChecks | None:
        return HealthChecks(by_kind)


class _Upstream:
    """Extensions that add nothing: every status equals KubeFleet's."""

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

    def report_back(self, condition: Condition | None) -> tuple[Condition, ...]:
        return ()

    def health_checks(self, by_kind: Mapping[GroupKind, str]) -> HealthChecks | None:
        return None


OURS: Final[Extensions] = _Ours()
UPSTREAM: Final[Extensions] = _Upstream()


def chosen(status_extensions: bool) -> Extensions:
    """Return the extensions that the value of `--status-extensions` selects."""
    return OURS if status_extensions else UPSTREAM


def _unhealthy_in(member: MemberCluster, period: timedelta, now: datetime) -> timedelta | None:
    """Return the time until the agent has reported Healthy=False for one heartbeat period.

    None if that time has passed, or Healthy is not False.
    """
    agent = member_agent(member.status.agent_status)
    healthy = None if agent is None else find_condition(agent.conditions, AgentCondition.HEALTHY)
    if healthy is None or healthy.status != "False":
        return None
    since = stored_instant(healthy.last_transition_time)
    if since is None or now - since >= period:
        return None
    return since + period - now
