"""The status of a policy, and the events that follow from a change of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.api import conditions
from kubeocean.api.policies import (
    Eviction,
    PolicySpec,
    PolicyStatus,
    ReclaimStatus,
    ResourceLeasingPolicy,
    TimeWindow,
)
from kubeocean.leasing.cached_policy import CachedPolicy
from kubeocean.leasing.decision import ReclaimCause
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.progress import NodeReport, PolicyProgress
from kubeocean.leasing.reclaim import ReclaimPhase
from kubeocean.runtime.objects import Meta, find_condition
from kubeocean.syncer.nodes.policy_status import events_of, own_status, with_progress

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY, NIGHT = TimeWindow("08:00", "17:59"), TimeWindow("20:00", "06:00")
CREATED = "2026-01-01T00:00:00Z"


def policy(
    *windows: TimeWindow,
    status: PolicyStatus | None = None,
    force: bool = False,
    deleting: str | None = None,
) -> ResourceLeasingPolicy:
    meta = Meta(name="p", generation=2, creation_timestamp=CREATED, deletion_timestamp=deleting)
    spec = PolicySpec(cluster="b", time_windows=windows, force_reclaim=force)
    return ResourceLeasingPolicy(metadata=meta, spec=spec, status=status or PolicyStatus())


def cached(
    of: ResourceLeasingPolicy, *, valid: bool = True, since: datetime | None = None
) -> CachedPolicy:
    parsed = ParsedPolicy.of(of.spec, local=UTC) if valid else None
    return CachedPolicy(of, parsed, "" if valid else "spec.x: is wrong", parsed, since)


def reasons(before: PolicyStatus, after: PolicyStatus) -> list[str]:
    return [str(event.reason) for event in events_of(before, after)]


def under_way(node: str = "v", pods: int = 1) -> NodeReport:
    return NodeReport(
        node, ReclaimCause.WINDOW_CLOSED, ReclaimPhase.EVICTING, NOON, NOON, NOON, pending=pods
    )


def test_a_status_has_whether_the_policy_lends_and_until_when() -> None:
    status = own_status(cached(policy(DAY), since=NOON), now=NOON)
    assert (status.phase, status.active_time_window) == ("Active", True)
    assert status.next_transition_time == "2026-11-16T18:00:00Z"
    assert (status.observed_generation, status.force_reclaim_time) == (2, "2026-11-16T12:00:00Z")
    assert own_status(cached(policy(DAY, status=status), since=NOON), now=NOON) == status
    closed = own_status(cached(policy(NIGHT, status=status)), now=NOON + timedelta(hours=1))
    assert (closed.phase, closed.last_applied_time) == ("Inactive", "2026-11-16T13:00:00Z")


def test_the_status_of_an_invalid_policy_has_the_problem() -> None:
    status = own_status(cached(policy(), valid=False), now=NOON)
    valid = find_condition(status.conditions, conditions.VALID)
    assert (status.phase, status.active_time_window) == ("Failed", False)
    assert valid is not None
    assert "spec.x: is wrong" in valid.message
    assert reasons(PolicyStatus(), status) == ["Invalid"]
    assert reasons(status, status) == []
    lent = own_status(cached(policy()), now=NOON)
    assert reasons(lent, status) == ["Invalid"]
    assert reasons(status, lent) == []


def test_the_status_of_a_deleted_policy_keeps_its_own_part() -> None:
    before = own_status(cached(policy(DAY)), now=NOON)
    deleted = policy(DAY, status=before, deleting="2026-11-16T12:00:00Z")
    assert own_status(cached(deleted), now=NOON + timedelta(hours=12)) == before


def test_a_window_that_opens_or_closes_is_one_event() -> None:
    opened = own_status(cached(policy(DAY)), now=NOON)
    closed = own_status(cached(policy(DAY, status=opened)), now=NOON + timedelta(hours=8))
    assert reasons(PolicyStatus(), opened) == []  # no status had it closed
    assert reasons(opened, closed) == ["WindowClosed"]
    assert reasons(closed, opened) == ["WindowOpened"]
    assert reasons(closed, closed) == []
    (event,) = events_of(opened, closed)
    assert event.message == "The policy is outside its time windows until 2026-11-17T08:00:00Z"


def test_the_steps_of_a_reclaim_are_events() -> None:
    idle = with_progress(PolicyStatus(), PolicyProgress(), leased=1, generation=2, now=NOON)
    assert (idle.leased_nodes, idle.reclaim) == (1, None)
    first = with_progress(idle, PolicyProgress((under_way(),)), leased=1, generation=2, now=NOON)
    assert reasons(idle, first) == ["ReclaimStarted"]
    held = NodeReport(
        "v", ReclaimCause.WINDOW_CLOSED, ReclaimPhase.EVICTING, NOON, NOON, NOON, 1, 1
    )
    blocked = with_progress(first, PolicyProgress((held,)), leased=1, generation=2, now=NOON)
    assert reasons(first, blocked) == ["ReclaimBlocked"]
    assert reasons(blocked, blocked) == []
    evicted = (Eviction("a", "b", "v", "2026-11-16T12:00:00Z", "Due"),)
    done = with_progress(
        blocked, PolicyProgress(evictions=evicted), leased=1, generation=2, now=NOON
    )
    assert reasons(blocked, done) == ["Reclaimed"]
    assert events_of(blocked, done)[0].message.endswith(
        "; evicted since 2026-11-16T12:00:00Z: 1 pod"
    )
    stopped = with_progress(blocked, PolicyProgress(lends=True), leased=1, generation=2, now=NOON)
    assert reasons(blocked, stopped) == ["ReclaimStopped"]
    assert reasons(idle, done) == ["ReclaimStarted", "Reclaimed"]


def test_the_status_of_reclaims_is_kept_until_all_nodes_are_known() -> None:
    before = PolicyStatus(reclaim=ReclaimStatus(start_time="2026-11-16T12:00:00Z", pending=3))
    after = with_progress(before, None, leased=2, generation=2, now=NOON)
    assert after.reclaim == before.reclaim
    assert after.leased_nodes == 2


def test_the_status_of_a_policy_has_that_its_binding_is_deleted() -> None:
    lent = own_status(cached(policy(DAY)), now=NOON)
    status = own_status(cached(policy(DAY, status=lent)), now=NOON, ending=True)
    active = find_condition(status.conditions, conditions.ACTIVE)
    assert active is not None
    assert (active.status, active.reason) == ("False", "BindingDeleted")
    assert "ClusterBinding b" in active.message
    assert (status.phase, status.active_time_window) == ("Inactive", False)
    assert status.next_transition_time is None
    assert reasons(lent, status) == ["BindingDeleted"]
    assert reasons(status, status) == []
    again = own_status(cached(policy(DAY, status=status)), now=NOON)
    assert (again.phase, reasons(status, again)) == ("Active", ["WindowOpened"])
