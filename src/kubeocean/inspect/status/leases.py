"""Views of policies, for status and top.

Whether a policy that names its zone is open, and until when, follows from its spec. The zone of a
policy without one is known to its syncer alone, so the policy's status is shown. If a policy could
not be read, only its nodes are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from kubeocean.api.conditions import RECLAIMING
from kubeocean.api.policies import (
    DAYS,
    PolicyPhase,
    PolicyStatus,
    ResourceLeasingPolicy,
    ResourceLimit,
    TimeWindow,
)
from kubeocean.errors import ConfigError
from kubeocean.inspect.status.model import (
    Edge,
    LeaseState,
    LeaseView,
    NodeState,
    NodeView,
    ReclaimView,
)
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import find_condition

__all__ = ["lease_view", "unseen_leases"]

# A syncer acts at an edge by itself; this allows for a busy syncer and for clocks that differ.
_LATE: Final = timedelta(seconds=60)


def lease_view(
    policy: ResourceLeasingPolicy, nodes: Iterable[NodeView], now: datetime
) -> LeaseView:
    """Return the view of a policy that was read."""
    spec, status = policy.spec, policy.status
    state, edge, message = _state(policy, now)
    transition = instant_of(status.next_transition_time)
    return LeaseView(
        policy=policy.name,
        state=LeaseState.DELETING if policy.deleting else state,
        zone=spec.time_zone,
        windows=tuple(_window(each) for each in spec.time_windows or ()),
        limits=tuple(_limit(each) for each in spec.resource_limits or ()),
        next_edge=None if policy.deleting else edge,
        overdue=not policy.deleting and transition is not None and transition + _LATE < now,
        nodes=sum(node.policy == policy.name for node in nodes),
        force_reclaim=spec.force_reclaim,
        reclaim=_reclaim(status),
        message=message,
    )


def _state(policy: ResourceLeasingPolicy, now: datetime) -> tuple[LeaseState, Edge | None, str]:
    spec, status = policy.spec, policy.status
    try:
        parsed = ParsedPolicy.of(spec, local=UTC)
    except ConfigError as error:
        return LeaseState.INVALID, None, str(error)
    if spec.time_zone or not spec.time_windows:
        open_ = within(parsed.calendar, now)
        edge = _edge(
            next_edge(parsed.calendar, now), spec.time_zone, opens=not open_, parsed=parsed
        )
        return (LeaseState.OPEN if open_ else LeaseState.CLOSED), edge, ""
    if status.phase not in (PolicyPhase.ACTIVE, PolicyPhase.INACTIVE):
        return LeaseState.UNKNOWN, None, "no syncer has reported on it yet"
    open_ = status.active_time_window
    edge = _edge(instant_of(status.next_transition_time), "UTC", opens=not open_)
    return (LeaseState.OPEN if open_ else LeaseState.CLOSED), edge, ""


def _edge(
    at: datetime | None, zone: str, *, opens: bool, parsed: ParsedPolicy | None = None
) -> Edge | None:
    if at is None:
        return None
    local = at.astimezone(parsed.calendar.zone) if parsed is not None else at
    return Edge(at, local, zone, opens)


def _reclaim(status: PolicyStatus) -> ReclaimView | None:
    """Return the view of a policy's reclaim that is under way; None if there is none."""
    reclaim = status.reclaim
    if reclaim is None or reclaim.start_time is None or reclaim.completion_time is not None:
        return None
    condition = find_condition(status.conditions, RECLAIMING)
    return ReclaimView(
        reason=condition.reason if condition is not None else reclaim.cause,
        message=condition.message if condition is not None else "",
        since=instant_of(reclaim.start_time),
        evicts_from=instant_of(reclaim.eviction_time),
        deadline=instant_of(reclaim.deadline_time),
        nodes=reclaim.pending_nodes,
        pods=reclaim.pending,
        evicted=reclaim.evicted,
        blocked=reclaim.blocked,
    )


def unseen_leases(nodes: Iterable[NodeView], seen: Iterable[LeaseView]) -> Iterator[LeaseView]:
    """Yield views of policies that nodes name and that were not read."""
    known = {lease.policy for lease in seen}
    lent = sorted(
        (node for node in nodes if node.policy and node.policy not in known),
        key=lambda node: node.policy,
    )
    for policy, group in groupby(lent, key=lambda node: node.policy):
        several = list(group)
        closed = all(node.state is NodeState.CLOSED for node in several)
        yield LeaseView(
            policy=policy,
            state=LeaseState.CLOSED if closed else LeaseState.OPEN,
            seen=False,
            nodes=len(several),
        )


# Windows and limits, in the notation of `kubeocean join`


def _window(window: TimeWindow) -> str:
    days = ",".join(_runs([day.lower() for day in window.days or ()]))
    return f"{window.start}-{window.end} {days}".rstrip()


def _runs(days: list[str]) -> Iterator[str]:
    """Yield days of the week in order, with consecutive days as a span: `Mon-Fri`."""
    numbers = sorted({DAYS.index(day) for day in days if day in DAYS})
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [DAYS[number][:3].capitalize() for _, number in group]
        yield run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _limit(limit: ResourceLimit) -> str:
    share = f"{limit.percent}%" if limit.percent is not None else ""
    amount = str(limit.quantity) if limit.quantity is not None else ""
    return f"{limit.resource}={'/'.join(filter(None, (amount, share)))}"
