"""Conditions: the chains of steps, and reasons that API servers accept."""

from __future__ import annotations

import re
import string
from enum import StrEnum

import pytest

from kubeocean.api.fleet import conditions

REASON = re.compile("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
STEPS = (conditions.SCHEDULED, *dict.fromkeys((*conditions.APPLY, *conditions.REPORT_DIFF)))


def enumerations(suffix: str) -> list[type[StrEnum]]:
    return [getattr(conditions, name) for name in conditions.__all__ if name.endswith(suffix)]


def test_chains_are_in_the_order_of_work() -> None:
    assert [step.name for step in conditions.APPLY] == [
        "RolloutStarted",
        "Overridden",
        "WorkSynchronized",
        "Applied",
        "Available",
    ]
    assert [step.name for step in conditions.REPORT_DIFF] == [
        "RolloutStarted",
        "Overridden",
        "WorkSynchronized",
        "DiffReported",
    ]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_reason_of_a_step_tells_its_status(step: conditions.Step) -> None:
    for words in (step.placement, step.cluster):
        written = [word for word in words if word]
        assert len(set(written)) == len(written)
        assert all(REASON.fullmatch(word) for word in written)


def test_only_the_decision_about_a_cluster_is_never_unknown() -> None:
    assert [step.name for step in STEPS if not all(step.placement)] == []
    assert [step.name for step in STEPS if not all(step.cluster)] == ["Scheduled"]


def test_reasons_are_words_that_servers_accept() -> None:
    groups = enumerations("Reason") + enumerations("Event") + enumerations("Condition")
    assert len(groups) > 15
    for group in groups:
        for word in group:
            assert REASON.fullmatch(word), word


def test_messages_name_their_facts() -> None:
    def facts(message: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(message) if name}

    assert facts(conditions.EvictionMessage.BLOCKED) == {"available", "total"}
    assert facts(conditions.DecisionMessage.PICKED_BY_SCORE) == {"cluster", "affinity", "spread"}
    assert conditions.EvictionMessage.ALLOWED.format(available=2, total=3) == (
        "Eviction is allowed by specified ClusterResourcePlacementDisruptionBudget,"
        " availablePlacements: 2, totalPlacements: 3"
    )
    problem = conditions.RunProblem.NO_SNAPSHOT.format(index=4, placement="crp-a")
    assert conditions.RunMessage.INVALID.format(problem=problem) == (
        "cannot continue the updateRun: failed to validate the updateRun: no resourceSnapshots"
        " with index `4` found for placement `crp-a`"
    )
