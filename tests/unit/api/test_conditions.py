"""Conditions: the types and reasons of the contract, with sentences for people."""

from __future__ import annotations

import re
import string

import pytest

from kubeocean.api import conditions
from kubeocean.api.conditions import ConditionTemplate

ALL = [each for each in vars(conditions).values() if isinstance(each, ConditionTemplate)]


def facts_of(verdict: ConditionTemplate) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(verdict.sentence) if name}


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (conditions.POLICY_VALID, "Valid True ValidationPassed"),
        (conditions.POLICY_INVALID, "Valid False ValidationError"),
        (conditions.POLICY_NOT_ACTIVATED, "Active False ValidationError"),
        (conditions.POLICY_ACTIVE, "Active True ActiveTimeWindow"),
        (conditions.POLICY_INACTIVE, "Active False InactiveTimeWindow"),
        (conditions.BINDING_INITIALIZING, "Ready False Initializing"),
        (conditions.BINDING_INVALID, "Ready False ValidationFailed"),
        (conditions.BINDING_DISCONNECTED, "Ready False ConnectivityFailed"),
        (conditions.BINDING_PROXIER_FAILED, "Ready False ProxierFailed"),
        (conditions.BINDING_SYNCER_FAILED, "Ready False SyncerFailed"),
        (conditions.BINDING_READY, "Ready True ValidationPassed"),
        (conditions.CONNECTION_FAILED, "Connected False ConnectivityFailed"),
        (conditions.CONNECTION_PASSED, "Connected True ConnectivityPassed"),
        (conditions.SYNCER_CREATED, "SyncerReady True SyncerCreated"),
        (conditions.PROXIER_CREATED, "ProxierReady True ProxierCreated"),
    ],
)
def test_types_and_reasons_are_those_of_the_contract(verdict: ConditionTemplate, text: str) -> None:
    assert f"{verdict.type} {verdict.status} {verdict.reason}" == text


def test_a_verdict_becomes_a_condition() -> None:
    condition = conditions.POLICY_INVALID.condition(generation=7, problems="spec.x: is wrong")
    assert condition.message == "Policy validation failed: spec.x: is wrong"
    assert (condition.type, condition.status, condition.reason) == (
        "Valid",
        "False",
        "ValidationError",
    )
    assert condition.observed_generation == 7
    assert condition.last_transition_time is None


def test_a_sentence_that_no_server_would_take_is_cut() -> None:
    message = conditions.POLICY_INVALID.condition(problems="x" * 100_000).message
    assert len(message) == 32_768
    assert message.endswith("x…")


def test_a_fact_with_braces_is_a_fact() -> None:
    message = conditions.BINDING_INVALID.condition(problems="got {'a': {}}").message
    assert message.endswith("got {'a': {}}")


@pytest.mark.parametrize("verdict", ALL, ids=lambda each: f"{each.type}-{each.reason}")
def test_every_verdict_is_a_condition_that_a_server_takes(verdict: ConditionTemplate) -> None:
    condition = verdict.condition(**dict.fromkeys(facts_of(verdict), "x"))
    assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", condition.reason)
    assert condition.message
    assert "{" not in condition.message


def test_nothing_is_said_in_two_ways() -> None:
    reasons = [(each.type, each.status, each.reason) for each in ALL]
    assert len(reasons) == len(set(reasons)) >= 40
