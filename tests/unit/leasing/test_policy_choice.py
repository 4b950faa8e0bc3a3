"""The choice of the policy that decides about a node, for any policies in any order."""

from __future__ import annotations

import random
from datetime import UTC

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import PolicySpec
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.policy_choice import Candidate, Chosen, Reason, choose

unhurried = settings(deadline=None)

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"

HERE = ParsedPolicy.of(PolicySpec("here"), local=UTC)
ELSEWHERE = ParsedPolicy.of(PolicySpec("elsewhere"), local=UTC)

parsed = st.none() | st.sampled_from([HERE, ELSEWHERE])


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    names = draw(st.lists(st.text("abc", min_size=1, max_size=2), unique=True, max_size=6))
    return [
        Candidate(
            name,
            created=draw(st.sampled_from([OLD, NEW])),
            parsed=draw(parsed),
            problem="broken",
            last_valid=draw(parsed),
            deleting=draw(st.booleans()),
        )
        for name in names
    ]


def here(parsed: ParsedPolicy) -> bool:
    return parsed is HERE


@unhurried
@given(candidates(), st.integers())
def test_the_oldest_policy_that_applies_decides_and_the_others_have_a_reason(
    policies: list[Candidate], seed: int
) -> None:
    verdict = choose(policies, applies=here)
    random.Random(seed).shuffle(policies)
    assert choose(policies, applies=here) == verdict, "the order of the list decides nothing"

    able = [p for p in policies if not p.deleting and (p.parsed or p.last_valid) is HERE]
    names = [name for _, name in sorted((p.created, p.name) for p in able)]
    assert (verdict.chosen.name if verdict.chosen else None) == (names[0] if names else None)
    assert {each.name for each in verdict.passed_over} == {p.name for p in policies} - {*names[:1]}
    assert all(each.message for each in verdict.passed_over)
    for policy in policies:
        match verdict.reason_of(policy.name):
            case Reason.DELETING:
                assert policy.deleting
            case Reason.INVALID:
                assert policy.effective is None
            case Reason.NOT_SELECTED:
                assert policy.effective is ELSEWHERE
            case Reason.NOT_OLDEST:
                assert policy.name in names[1:]
            case None:
                assert names[0] == policy.name


def test_of_policies_of_the_same_age_the_first_by_name_decides() -> None:
    twins = [Candidate(name, OLD, HERE) for name in ("b", "a")]
    verdict = choose(twins, applies=here)
    assert verdict.chosen == Chosen("a", HERE)
    assert "policy a" in verdict.passed_over[0].message


def test_a_policy_that_was_made_invalid_decides_as_it_did_before() -> None:
    broken = Candidate("a", OLD, None, problem="no such day", last_valid=HERE)
    younger = Candidate("b", NEW, HERE)
    verdict = choose([broken, younger], applies=here)
    assert verdict.chosen == Chosen("a", HERE, problem="no such day")
    assert verdict.reason_of("b") is Reason.NOT_OLDEST


def test_a_policy_that_was_never_valid_is_passed_over() -> None:
    broken = Candidate("a", OLD, None, problem="no such day")
    verdict = choose([broken, Candidate("b", NEW, HERE)], applies=here)
    assert verdict.chosen == Chosen("b", HERE)
    assert verdict.passed_over[0].message == "no such day"


def test_the_last_valid_form_of_a_policy_counts_only_while_the_policy_is_invalid() -> None:
    moved = Candidate("a", OLD, ELSEWHERE, last_valid=HERE)
    verdict = choose([moved], applies=here)
    assert verdict.chosen is None
    assert verdict.reason_of("a") is Reason.NOT_SELECTED
    assert verdict.reason_of("b") is None


def test_a_node_is_frozen_if_its_policy_was_never_valid() -> None:
    unreadable = Candidate("a", OLD, None, problem="no such day")
    younger = Candidate("b", NEW, HERE)
    verdict = choose([unreadable, younger], applies=here, current="a")
    assert verdict.chosen is None
    assert verdict.frozen is not None and verdict.frozen.message == "no such day"
    assert verdict.reason_of("a") is Reason.INVALID
    assert verdict.reason_of("b") is Reason.NOT_OLDEST


def test_an_older_policy_decides_even_about_a_node_of_an_invalid_one() -> None:
    unreadable = Candidate("b", NEW, None, problem="no such day")
    verdict = choose([unreadable, Candidate("a", OLD, HERE)], applies=here, current="b")
    assert verdict.chosen == Chosen("a", HERE)
    assert verdict.frozen is None


def test_a_node_is_not_frozen_by_a_policy_that_is_being_deleted() -> None:
    going = Candidate("a", OLD, None, problem="no such day", deleting=True)
    verdict = choose([going], applies=here, current="a")
    assert (verdict.chosen, verdict.frozen) == (None, None)
    assert verdict.reason_of("a") is Reason.DELETING
