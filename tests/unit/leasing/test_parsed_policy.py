"""Parsed policies, and the rules of a reclaim that follow from them."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.policies import PolicySpec, ResourceLimit, TimeWindow, problems
from kubeocean.api.validation import blocking
from kubeocean.errors import ConfigError
from kubeocean.leasing.decision import (
    ABANDON_S,
    DEADLINE_S,
    ReclaimCause,
    ReclaimRules,
    reclaim_rules_of,
)
from kubeocean.leasing.limits import Limit
from kubeocean.leasing.parsed_policy import ParsedPolicy

BERLIN = ZoneInfo("Europe/Berlin")


def test_a_policy_is_read_once() -> None:
    spec = PolicySpec(
        cluster="blue",
        node_selector={
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a10"]}]}
            ]
        },
        time_windows=(TimeWindow("20:00", "06:00"),),
        resource_limits=(ResourceLimit("cpu", percent=50),),
        time_zone="Europe/Berlin",
    )
    parsed = ParsedPolicy.of(spec, local=UTC)
    assert parsed.calendar.zone == BERLIN
    assert parsed.limits == (Limit("cpu", percent=50),)
    assert parsed.selects("n1", {"gpu": "a10"})
    assert not parsed.selects("n1", {})


@pytest.mark.parametrize("selector", [None, {}, {"nodeSelectorTerms": []}])
def test_a_policy_without_terms_lends_every_node(selector: dict[str, object] | None) -> None:
    parsed = ParsedPolicy.of(PolicySpec("blue", selector), local=BERLIN)
    assert parsed.selects("n1", {})
    assert parsed.calendar.zone is BERLIN


def test_a_policy_with_a_mistake_is_not_parsed() -> None:
    spec = PolicySpec("blue", time_windows=(TimeWindow("20:00", "26:00"),))
    with pytest.raises(ConfigError, match="HH:MM") as error:
        ParsedPolicy.of(spec, local=UTC)
    assert error.value.field == "spec.timeWindows[0].end"
    assert error.value.value == "26:00"


words = st.sampled_from(["", "08:00", "25:00", "Monday", "Mon", "cpu", "1", "-1", "x", "UTC"])
specs = st.builds(
    PolicySpec,
    cluster=st.sampled_from(["", "blue"]),
    time_windows=st.none()
    | st.lists(
        st.builds(
            TimeWindow,
            start=st.just("08:00") | words,
            end=st.just("09:00") | words,
            days=st.none() | st.tuples(words) | st.just(("friday",)),
        ),
        max_size=2,
    ).map(tuple),
    resource_limits=st.none()
    | st.tuples(
        st.builds(
            ResourceLimit,
            resource=words,
            quantity=st.none() | words | st.integers(-1, 3),
            percent=st.none() | st.integers(-1, 102),
        )
    ),
    force_reclaim=st.booleans(),
    graceful_reclaim_period_seconds=st.integers(-2, 100),
    time_zone=st.just("") | words,
    force_reclaim_deadline_seconds=st.none() | st.integers(-1, 5),
    max_evictions_per_minute=st.none() | st.integers(-1, 5),
    cool_down_seconds=st.integers(-1, 5),
)


@given(specs)
def test_a_policy_is_parsed_exactly_if_it_has_no_blocking_problem(spec: PolicySpec) -> None:
    try:
        ParsedPolicy.of(spec, local=UTC)
    except ConfigError:
        assert blocking(problems(spec))
    else:
        assert not blocking(problems(spec))


@given(specs, st.none() | st.sampled_from(ReclaimCause))
def test_rules_are_sane_whatever_a_policy_says(
    spec: PolicySpec, cause: ReclaimCause | None
) -> None:
    rules = reclaim_rules_of(spec, cause)
    assert rules.grace_s >= 0
    assert rules.deadline_s >= 0
    assert rules.cool_down_s >= 0
    assert rules.evictions_per_minute is None or rules.evictions_per_minute > 0
    must_end = cause in (ReclaimCause.BINDING_DELETED, ReclaimCause.NODE_GONE)
    forced = must_end or cause in (ReclaimCause.NODE_DELETING, ReclaimCause.NODE_REPLACED)
    assert rules.force == (spec.force_reclaim or forced)
    assert (rules.abandon_s is not None) == must_end


def test_the_rules_of_a_reclaim_are_those_of_the_policy() -> None:
    spec = PolicySpec(
        force_reclaim=True,
        graceful_reclaim_period_seconds=60,
        force_reclaim_deadline_seconds=90,
        max_evictions_per_minute=5,
        cool_down_seconds=30,
    )
    own = ReclaimRules(
        force=True, grace_s=60, deadline_s=90, evictions_per_minute=5, cool_down_s=30
    )
    for cause in (
        None,
        ReclaimCause.WINDOW_CLOSED,
        ReclaimCause.POLICY_REMOVED,
        ReclaimCause.POLICY_NARROWED,
    ):
        assert reclaim_rules_of(spec, cause) == own


def test_the_smallest_numbers_are_taken_as_they_are() -> None:
    spec = PolicySpec(force_reclaim_deadline_seconds=0, max_evictions_per_minute=1)
    assert reclaim_rules_of(spec, None) == ReclaimRules(deadline_s=0, evictions_per_minute=1)


def test_the_rules_of_a_deleted_binding_force_and_abandon() -> None:
    rules = reclaim_rules_of(
        PolicySpec(graceful_reclaim_period_seconds=60), ReclaimCause.BINDING_DELETED
    )
    assert rules == ReclaimRules(force=True, grace_s=60, deadline_s=DEADLINE_S, abandon_s=ABANDON_S)


def test_the_rules_of_a_node_that_is_gone_have_no_grace_period() -> None:
    rules = reclaim_rules_of(PolicySpec(graceful_reclaim_period_seconds=60), ReclaimCause.NODE_GONE)
    assert rules == ReclaimRules(force=True, grace_s=0, deadline_s=0, abandon_s=ABANDON_S)


def test_the_rules_of_an_unknown_policy_do_not_force() -> None:
    assert reclaim_rules_of(None, ReclaimCause.POLICY_REMOVED) == ReclaimRules()
