"""Policies in the syncer's cache: last valid form, and since when they force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from kubeocean.api.policies import PolicySpec, PolicyStatus, ResourceLeasingPolicy, TimeWindow
from kubeocean.leasing.cached_policy import CachedPolicy, forced_since, read_policy
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.runtime.objects import Meta

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
CREATED = "2026-01-01T00:00:00Z"


def policy(
    *,
    status: PolicyStatus | None = None,
    force: bool = False,
    deleting: str | None = None,
) -> ResourceLeasingPolicy:
    meta = Meta(name="p", generation=2, creation_timestamp=CREATED, deletion_timestamp=deleting)
    spec = PolicySpec(cluster="b", force_reclaim=force)
    return ResourceLeasingPolicy(metadata=meta, spec=spec, status=status or PolicyStatus())


def cached(
    of: ResourceLeasingPolicy, *, valid: bool = True, since: datetime | None = None
) -> CachedPolicy:
    parsed = ParsedPolicy.of(of.spec, local=UTC) if valid else None
    return CachedPolicy(of, parsed, "" if valid else "spec.x: is wrong", parsed, since)


def test_force_counts_from_the_time_it_was_switched_on() -> None:
    created, soon = datetime(2026, 1, 1, tzinfo=UTC), NOON + timedelta(milliseconds=1)
    gentle, forcing = policy(), policy(force=True)
    assert forced_since(gentle, None, now=NOON) is None
    assert forced_since(forcing, None, now=NOON) == created  # from the first day on
    switched = forced_since(forcing, cached(gentle), now=soon)
    assert switched == NOON + timedelta(seconds=1)
    later = NOON + timedelta(hours=1)
    assert forced_since(forcing, cached(forcing, since=switched), now=later) == switched


def test_force_that_was_switched_on_while_no_syncer_ran_counts_from_now() -> None:
    status = PolicyStatus(observed_generation=1)
    assert forced_since(policy(force=True, status=status), None, now=NOON) == NOON
    status = PolicyStatus(observed_generation=1, force_reclaim_time="2026-06-01T00:00:00Z")
    known = forced_since(policy(force=True, status=status), None, now=NOON)
    assert known == datetime(2026, 6, 1, tzinfo=UTC)
    broken = cached(policy(), valid=False)  # never valid since the start
    assert forced_since(policy(force=True, status=status), broken, now=NOON) == known


def test_rules_begin_with_the_later_of_force_and_deletion() -> None:
    assert cached(policy()).candidate().rules_since is None
    assert cached(policy(), since=NOON).candidate().rules_since == NOON
    deleted = "2026-11-16T13:00:00Z"
    both = cached(policy(deleting=deleted), since=NOON).candidate()
    assert both.rules_since == NOON + timedelta(hours=1)


def test_an_invalid_policy_keeps_its_last_valid_form_and_the_time_of_its_force() -> None:
    valid = read_policy(policy(force=True), None, zone=UTC, now=NOON)
    assert (valid.parsed, valid.problem) == (valid.effective, "")
    spec = PolicySpec(cluster="b", time_windows=(TimeWindow("25:00", "26:00"),))
    broken = read_policy(
        msgspec.structs.replace(valid.policy, spec=spec), valid, zone=UTC, now=NOON
    )
    assert broken.parsed is None
    assert "timeWindows[0].start" in broken.problem
    assert broken.effective == valid.parsed
    assert broken.forced_since == valid.forced_since
    assert not broken.lends(NOON)


def test_a_policy_with_the_same_spec_is_not_parsed_again() -> None:
    valid = read_policy(policy(), None, zone=UTC, now=NOON)
    deleted = read_policy(policy(deleting=CREATED), valid, zone=UTC, now=NOON)
    assert deleted.parsed is valid.parsed
    assert deleted.policy.deleting
