"""Plugins ClusterEligibility and TaintToleration: the clusters that take new placements.

A cluster is eligible while its member agent sends heartbeats, has joined and is healthy. The policy
must tolerate each taint; unlike tolerations of pods, an `Equal` without a key tolerates nothing,
since the API refuses it. Both rules concern new decisions: a cluster that becomes ineligible keeps
its bindings. The texts contain no ages, so that two cycles over the same clusters give equal texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import ClusterToleration, TolerationOperator
from kubeocean.fleet.scheduler.model import MemberView

__all__ = [
    "HEARTBEAT_TIMEOUT",
    "UNHEALTHY_TIMEOUT",
    "first_untolerated",
    "ineligibility",
    "tolerates",
]

# The two limits are constants of KubeFleet's scheduler and not its cluster-unhealthy-threshold.
HEARTBEAT_TIMEOUT: Final = timedelta(minutes=5)
UNHEALTHY_TIMEOUT: Final = timedelta(minutes=5)


def ineligibility(cluster: MemberView, now: datetime) -> str | None:
    """Return the first reason why `cluster` takes no new placements; None if it is eligible."""
    if cluster.deleting:
        return "cluster is leaving the fleet"
    agent = cluster.agent
    if agent is None:
        return "member agent has not reported yet"
    if _passed(agent.heartbeat, HEARTBEAT_TIMEOUT, now):
        return "last heartbeat of the member agent is older than 5 minutes"
    if agent.joined != "True":
        return "member agent has not joined"
    if agent.healthy is None:
        return "member agent does not report its health"
    if agent.healthy != "True" and _passed(agent.healthy_since, UNHEALTHY_TIMEOUT, now):
        return "member agent has been unhealthy for more than 5 minutes"
    return None


def _passed(since: datetime | None, timeout: timedelta, now: datetime) -> bool:
    """Whether more than `timeout` has passed since `since`; None is infinitely long ago."""
    return since is None or now - since > timeout


def first_untolerated(
    cluster: MemberView, tolerations: Iterable[ClusterToleration]
) -> ClusterTaint | None:
    """Return the first taint of `cluster` that no toleration matches; None if there is none."""
    matchers = tuple(tolerations)
    for taint in cluster.taints:
        if not any(tolerates(toleration, taint) for toleration in matchers):
            return taint
    return None


def tolerates(toleration: ClusterToleration, taint: ClusterTaint) -> bool:
    """Whether `toleration` matches `taint`; an unknown operator matches no taint."""
    if toleration.effect not in ("", taint.effect):
        return False
    match toleration.operator:
        case TolerationOperator.EXISTS:
            return toleration.key in ("", taint.key)
        case TolerationOperator.EQUAL | "":
            return (toleration.key, toleration.value) == (taint.key, taint.value)
        case _:
            return False
