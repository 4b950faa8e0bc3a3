"""Reasons: those of the contract, and words that events can have."""

from __future__ import annotations

from enum import StrEnum

import pytest

from kubeocean.api.conditions import (
    PHYSICAL_POD_LOST,
    BindingEvent,
    NodeEvent,
    PodEvent,
    PolicyEvent,
)


def test_reasons_are_those_of_the_contract() -> None:
    assert PHYSICAL_POD_LOST == "PhysicalPodLost"
    assert {"FailedCreatePod", "FailedSchedulingPod"} <= set(PodEvent)
    assert {
        *("Reconciling", "StatusUpdated", "Ready", "WaitingSyncerCleanup", "CleanupFailed"),
        *("ProxierCleanupFailed", "CertificateCleanupFailed", "CleanupInProgress", "Cleanup"),
        "Deleted",
    } <= set(BindingEvent)


@pytest.mark.parametrize("events", [BindingEvent, NodeEvent, PodEvent, PolicyEvent])
def test_a_reason_is_one_word(events: type[StrEnum]) -> None:
    for reason in events:
        assert reason.isalpha()
        assert reason[0].isupper()
        assert len(reason) <= 128
