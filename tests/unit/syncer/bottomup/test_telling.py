"""What the status of a policy says, and the events that follow from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.api import conditions as said
from kubeocean.api.policy import (
    Eviction,
    PolicySpec,
    PolicyStatus,
    ReclaimStatus,
    ResourceLeasingPolicy,
    TimeWindow,
)
from kubeocean.leasing.plans import Phase
from kubeocean.leasing.report import News, NodeReport
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.terms import Terms
from kubeocean.runtime.objects import Meta, find_condition
from kubeocean.syncer.bottomup.book import Entry, forced_since
from kubeocean.syncer.bottomup.telling import difference, happenings, own_status, with_news

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


def entry(of: ResourceLeasingPolicy, *, valid: bool = True, since: datetime | None = None) -> Entry:
    terms = Terms.of(of.spec, local=UTC) if valid else None
    return Entry(of, terms, "" if valid else "spec.x: is wrong", terms, since)


def reasons(before: PolicyStatus, after: PolicyStatus) -> list[str]:
    return [str(event.reason) for event in happenings(before, after)]


def going(node: str = "v", pods: int = 1) -> NodeReport:
    return NodeReport(node, Cause.WINDOW_CLOSED, Phase.EVICTING, NOON, NOON, NOON, pending=pods)


def test_a_policy_says_whether_it_lends_and_until_when() -> None:
    status = own_status(entry(policy(DAY), since=NOON), now=NOON)
    assert (status.phase, status.active_time_window) == ("Active", True)
    assert status.next_transition_time == "2026-11-16T18:00:00Z"
    assert (status.observed_generation, status.force_reclaim_time) == (2, "2026-11-16T12:00:00Z")
    assert own_status(entry(policy(DAY, status=status), since=NOON), now=NOON) == status
    closed = own_status(entry(policy(NIGHT, status=status)), now=NOON + timedelta(hours=1))
    assert (closed.phase, closed.last_applied_time) == ("Inactive", "2026-11-16T13:00:00Z")


def test_a_policy_that_makes_no_sense_says_why() -> None:
    status = own_status(entry(policy(), valid=False), now=NOON)
    valid = find_condition(status.conditions, said.VALID)
    assert (status.phase, status.active_time_window) == ("Failed", False)
    assert valid is not None
    assert "spec.x: is wrong" in valid.message
    assert reasons(PolicyStatus(), status) == ["Invalid"]
    assert reasons(status, status) == []
    lent = own_status(entry(policy()), now=NOON)
    assert reasons(lent, status) == ["Invalid"]
    assert reasons(status, lent) == []


def test_a_policy_that_goes_says_no_more_of_itself() -> None:
    before = own_status(entry(policy(DAY)), now=NOON)
    going_away = policy(DAY, status=before, deleting="2026-11-16T12:00:00Z")
    assert own_status(entry(going_away), now=NOON + timedelta(hours=12)) == before


def test_windows_that_open_and_close_are_told_once() -> None:
    opened = own_status(entry(policy(DAY)), now=NOON)
    closed = own_status(entry(policy(DAY, status=opened)), now=NOON + timedelta(hours=8))
    assert reasons(PolicyStatus(), opened) == []  # nobody saw it closed
    assert reasons(opened, closed) == ["WindowClosed"]
    assert reasons(closed, opened) == ["WindowOpened"]
    assert reasons(closed, closed) == []
    (event,) = happenings(opened, closed)
    assert event.message == "The policy is outside its time windows until 2026-11-17T08:00:00Z"


def test_a_reclaim_is_told_as_it_goes() -> None:
    idle = with_news(PolicyStatus(), News(), leased=1, generation=2, now=NOON)
    assert (idle.leased_nodes, idle.reclaim) == (1, None)
    first = with_news(idle, News((going(),)), leased=1, generation=2, now=NOON)
    assert reasons(idle, first) == ["ReclaimStarted"]
    held = NodeReport("v", Cause.WINDOW_CLOSED, Phase.EVICTING, NOON, NOON, NOON, 1, 1)
    blocked = with_news(first, News((held,)), leased=1, generation=2, now=NOON)
    assert reasons(first, blocked) == ["ReclaimBlocked"]
    assert reasons(blocked, blocked) == []
    evicted = (Eviction("a", "b", "v", "2026-11-16T12:00:00Z", "Due"),)
    done = with_news(blocked, News(evictions=evicted), leased=1, generation=2, now=NOON)
    assert reasons(blocked, done) == ["Reclaimed"]
    assert happenings(blocked, done)[0].message.startswith("Taken back; 1 pod had to go")
    stopped = with_news(blocked, News(lends=True), leased=1, generation=2, now=NOON)
    assert reasons(blocked, stopped) == ["ReclaimStopped"]
    assert reasons(idle, done) == ["ReclaimStarted", "Reclaimed"]


def test_as_long_as_not_all_nodes_are_known_nothing_is_said_of_them() -> None:
    before = PolicyStatus(reclaim=ReclaimStatus(start_time="2026-11-16T12:00:00Z", pending=3))
    after = with_news(before, None, leased=2, generation=2, now=NOON)
    assert after.reclaim == before.reclaim
    assert after.leased_nodes == 2


def test_a_difference_is_what_makes_the_one_the_other() -> None:
    before = {"a": 1, "b": {"c": 2, "d": [1]}, "e": {"f": 1}, "g": 1}
    after = {"a": 1, "b": {"c": 3}, "e": {"f": 1}, "h": {"i": 1}}
    assert difference(before, after) == {"b": {"c": 3, "d": None}, "g": None, "h": {"i": 1}}
    assert difference(after, after) == {}


def test_force_counts_from_when_it_was_switched_on() -> None:
    created, soon = datetime(2026, 1, 1, tzinfo=UTC), NOON + timedelta(milliseconds=1)
    gentle, forcing = policy(), policy(force=True)
    assert forced_since(gentle, None, now=NOON) is None
    assert forced_since(forcing, None, now=NOON) == created  # from the first day on
    switched = forced_since(forcing, entry(gentle), now=soon)
    assert switched == NOON + timedelta(seconds=1)
    later = NOON + timedelta(hours=1)
    assert forced_since(forcing, entry(forcing, since=switched), now=later) == switched


def test_force_that_was_switched_on_while_nobody_looked_counts_from_now() -> None:
    told = PolicyStatus(observed_generation=1)
    assert forced_since(policy(force=True, status=told), None, now=NOON) == NOON
    told = PolicyStatus(observed_generation=1, force_reclaim_time="2026-06-01T00:00:00Z")
    known = forced_since(policy(force=True, status=told), None, now=NOON)
    assert known == datetime(2026, 6, 1, tzinfo=UTC)
    broken = entry(policy(), valid=False)  # which never made sense to us
    assert forced_since(policy(force=True, status=told), broken, now=NOON) == known


def test_rules_begin_with_the_later_of_force_and_deletion() -> None:
    assert entry(policy()).candidate().rules_since is None
    assert entry(policy(), since=NOON).candidate().rules_since == NOON
    deleted = "2026-11-16T13:00:00Z"
    both = entry(policy(deleting=deleted), since=NOON).candidate()
    assert both.rules_since == NOON + timedelta(hours=1)


def test_a_policy_whose_binding_goes_says_so() -> None:
    lent = own_status(entry(policy(DAY)), now=NOON)
    status = own_status(entry(policy(DAY, status=lent)), now=NOON, ending=True)
    active = find_condition(status.conditions, said.ACTIVE)
    assert active is not None
    assert (active.status, active.reason) == ("False", "BindingDeleted")
    assert "ClusterBinding b" in active.message
    assert (status.phase, status.active_time_window) == ("Inactive", False)
    assert status.next_transition_time is None
    assert reasons(lent, status) == ["BindingDeleted"]
    assert reasons(status, status) == []
    again = own_status(entry(policy(DAY, status=status)), now=NOON)
    assert (again.phase, reasons(status, again)) == ("Active", ["WindowOpened"])
