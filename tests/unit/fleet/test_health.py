"""Health: the hub's condition of a member at each second after a heartbeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.clusters import AgentStatus, AgentType
from kubeocean.fleet.health import (
    control_plane_health,
    member_health,
    recheck_after,
    unhealthy_threshold,
)
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
THRESHOLD = timedelta(minutes=3)
PERIOD = timedelta(seconds=60)


def agent(
    healthy: str | None = "True",
    *,
    age: float | None = 10,
    since: float = 0,
    heartbeat: str | None = None,
    kind: str = AgentType.MEMBER,
) -> AgentStatus:
    """Return an agent whose last heartbeat and last change of health are so many seconds old."""
    conditions = [Condition("Joined", "True")]
    if healthy is not None:
        changed = text_of(NOW - timedelta(seconds=since))
        conditions.append(Condition("Healthy", healthy, last_transition_time=changed))
    if heartbeat is None and age is not None:
        heartbeat = text_of(NOW - seconds(age))
    return AgentStatus(kind, tuple(conditions), heartbeat)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def concluded(health: Condition | None) -> tuple[str, str] | None:
    return health and (health.status, health.reason)


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([], ("Unknown", "MemberAgentReportedNoStatus")),
        (
            [agent(kind=AgentType.SERVICE_EXPORT_IMPORT)],
            ("Unknown", "MemberAgentReportedNoStatus"),
        ),
        ([agent(None)], ("Unknown", "MemberAgentReportedNoHealthInfo")),
        ([agent(None, age=3600)], ("Unknown", "MemberAgentReportedNoHealthInfo")),
        ([agent(age=181)], ("False", "MemberAgentHeartbeatLost")),
        ([agent("False", age=181)], ("False", "MemberAgentHeartbeatLost")),
        ([agent("Unknown", age=181)], ("False", "MemberAgentHeartbeatLost")),
        ([agent(age=None)], ("False", "MemberAgentHeartbeatLost")),
        ([agent(heartbeat="yesterday")], ("False", "MemberAgentHeartbeatLost")),
        ([agent("Unknown")], ("Unknown", "MemberAgentReportedNoHealthInfo")),
        ([agent("False")], ("False", "MemberClusterAPIServerUnhealthy")),
        ([agent("True")], ("True", "MemberClusterAPIServerHealthy")),
        ([agent("True", age=180)], ("True", "MemberClusterAPIServerHealthy")),
        ([agent("True", age=-5)], ("True", "MemberClusterAPIServerHealthy")),
    ],
)
def test_the_first_answer_counts(agents: list[AgentStatus], expected: tuple[str, str]) -> None:
    assert concluded(control_plane_health(agents, THRESHOLD, NOW)) == expected


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([], None),
        ([agent(None)], None),
        ([agent(age=181)], ("Unknown", "HeartbeatLost")),
        ([agent("True")], ("True", "MemberClusterHealthy")),
        ([agent("False", since=59)], None),
        ([agent("False", since=60)], ("False", "MemberClusterUnhealthy")),
        ([agent("Unknown")], None),
    ],
)
def test_a_member_is_unhealthy_after_a_period(
    agents: list[AgentStatus], expected: tuple[str, str] | None
) -> None:
    assert concluded(member_health(agents, THRESHOLD, PERIOD, NOW)) == expected


def test_the_threshold_is_configured_or_three_periods() -> None:
    assert unhealthy_threshold(THRESHOLD, 15) == THRESHOLD
    assert unhealthy_threshold(None, 15) == seconds(45)
    assert unhealthy_threshold(None, None) == seconds(180)


@given(st.integers(-600, 600))
def test_a_conclusion_holds_until_the_recheck(age: int) -> None:
    agents = [agent(age=age)]
    wait = recheck_after(agents, THRESHOLD, NOW)
    before = concluded(control_plane_health(agents, THRESHOLD, NOW))
    if wait is None:
        assert before == ("False", "MemberAgentHeartbeatLost")
        return
    assert before == ("True", "MemberClusterAPIServerHealthy")
    almost = control_plane_health(agents, THRESHOLD, NOW + wait - timedelta(milliseconds=1))
    assert concluded(almost) == before
    then = control_plane_health(agents, THRESHOLD, NOW + wait)
    assert concluded(then) == ("False", "MemberAgentHeartbeatLost")


def test_an_agent_without_heartbeat_is_not_waited_for() -> None:
    assert recheck_after([], THRESHOLD, NOW) is None
    assert recheck_after([agent(age=None)], THRESHOLD, NOW) is None
