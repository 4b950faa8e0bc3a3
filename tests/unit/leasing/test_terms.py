"""Policies read as a whole, and the rules by which they take back."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.policy import PolicySpec, ResourceLimit, TimeWindow, problems
from kubeocean.api.problems import blocking
from kubeocean.errors import ConfigError
from kubeocean.leasing.limits import Limit
from kubeocean.leasing.rules import ABANDON_S, DEADLINE_S, Cause, Rules, rules_of
from kubeocean.leasing.terms import Terms

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
    terms = Terms.of(spec, local=UTC)
    assert terms.calendar.zone == BERLIN
    assert terms.limits == (Limit("cpu", percent=50),)
    assert terms.selects("n1", {"gpu": "a10"})
    assert not terms.selects("n1", {})


@pytest.mark.parametrize("selector", [None, {}, {"nodeSelectorTerms": []}])
def test_a_policy_without_terms_lends_every_node(selector: dict[str, object] | None) -> None:
    terms = Terms.of(PolicySpec("blue", selector), local=BERLIN)
    assert terms.selects("n1", {})
    assert terms.calendar.zone is BERLIN


def test_a_policy_with_a_mistake_is_not_taken() -> None:
    spec = PolicySpec("blue", time_windows=(TimeWindow("20:00", "26:00"),))
    with pytest.raises(ConfigError, match="HH:MM") as error:
        Terms.of(spec, local=UTC)
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
def test_a_policy_is_taken_exactly_if_nothing_in_it_blocks(spec: PolicySpec) -> None:
    try:
        Terms.of(spec, local=UTC)
    except ConfigError:
        assert blocking(problems(spec))
    else:
        assert not blocking(problems(spec))


@given(specs, st.none() | st.sampled_from(Cause))
def test_rules_are_sane_whatever_a_policy_says(spec: PolicySpec, cause: Cause | None) -> None:
    rules = rules_of(spec, cause)
    assert rules.grace_s >= 0
    assert rules.deadline_s >= 0
    assert rules.cool_down_s >= 0
    assert rules.evictions_per_minute is None or rules.evictions_per_minute > 0
    must_end = cause in (Cause.BINDING_DELETED, Cause.NODE_GONE)
    assert rules.force == (spec.force_reclaim or must_end)
    assert (rules.abandon_s is not None) == must_end


def test_a_policy_takes_back_by_its_own_rules() -> None:
    spec = PolicySpec(
        force_reclaim=True,
        graceful_reclaim_period_seconds=60,
        force_reclaim_deadline_seconds=90,
        max_evictions_per_minute=5,
        cool_down_seconds=30,
    )
    own = Rules(force=True, grace_s=60, deadline_s=90, evictions_per_minute=5, cool_down_s=30)
    for cause in (None, Cause.WINDOW_CLOSED, Cause.POLICY_REMOVED, Cause.POLICY_NARROWED):
        assert rules_of(spec, cause) == own


def test_the_smallest_numbers_are_taken_as_they_are() -> None:
    spec = PolicySpec(force_reclaim_deadline_seconds=0, max_evictions_per_minute=1)
    assert rules_of(spec, None) == Rules(deadline_s=0, evictions_per_minute=1)


def test_a_deleted_binding_has_to_end() -> None:
    rules = rules_of(PolicySpec(graceful_reclaim_period_seconds=60), Cause.BINDING_DELETED)
    assert rules == Rules(force=True, grace_s=60, deadline_s=DEADLINE_S, abandon_s=ABANDON_S)


def test_a_node_that_is_gone_needs_no_grace() -> None:
    rules = rules_of(PolicySpec(graceful_reclaim_period_seconds=60), Cause.NODE_GONE)
    assert rules == Rules(force=True, grace_s=0, deadline_s=0, abandon_s=ABANDON_S)


def test_where_no_policy_is_known_nobody_is_forced() -> None:
    assert rules_of(None, Cause.POLICY_REMOVED) == Rules()
