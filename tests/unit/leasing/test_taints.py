"""Tolerations, rule by rule; the rules were compared with Kubernetes' own code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.leasing.taints import (
    FOREVER,
    NO_EXECUTE,
    NO_SCHEDULE,
    Toleration,
    tolerated_s,
    tolerates,
)
from kubeocean.runtime.kinds import Taint

TAINT = Taint("kubeocean.io/out-of-time-windows", "true", NO_EXECUTE)
KEY = TAINT.key


@pytest.mark.parametrize(
    ("toleration", "does"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect=NO_EXECUTE), True),
        (Toleration(operator="Exists", effect=NO_SCHEDULE), False),
        (Toleration(KEY, "Exists"), True),
        (Toleration(KEY, "Exists", value="ignored"), True),
        (Toleration("other", "Exists"), False),
        (Toleration(KEY, "Equal", "true"), True),
        (Toleration(KEY, "", "true"), True),
        (Toleration(KEY, "", "true", NO_EXECUTE), True),
        (Toleration(KEY, "", "true", NO_SCHEDULE), False),
        (Toleration(KEY, "Equal", "false"), False),
        (Toleration(KEY, "Equal"), False),
        (Toleration("", "Equal", "true"), True),  # API servers refuse it; Kubernetes would match it
        (Toleration(KEY, "Gt", "0"), False),
        (Toleration(KEY, "Lt", "9"), False),
        (Toleration(KEY, "exists"), False),
    ],
)
def test_a_toleration_is_about_a_taint_or_not(toleration: Toleration, does: bool) -> None:
    assert tolerates(toleration, TAINT) is does
    assert tolerated_s([toleration], TAINT) == (FOREVER if does else 0)


def test_the_first_toleration_that_matches_says_how_long() -> None:
    brief, long = Toleration(KEY, "Exists", toleration_seconds=5), Toleration(operator="Exists")
    assert tolerated_s([brief, long], TAINT) == 5
    assert tolerated_s([long, brief], TAINT) == FOREVER
    assert tolerated_s([Toleration("other", "Exists"), brief], TAINT) == 5


def test_without_tolerations_nothing_is_tolerated() -> None:
    assert tolerated_s([], TAINT) == 0


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_a_time_below_zero_is_none_at_all(seconds: int) -> None:
    toleration = Toleration(operator="Exists", toleration_seconds=seconds)
    assert tolerated_s([toleration], TAINT) == max(seconds, 0)
