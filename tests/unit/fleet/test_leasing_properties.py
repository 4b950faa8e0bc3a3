"""Properties about leasing: quantities that selectors and sorters can use."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.policies import TimeWindow
from kubeocean.fleet.extensions import OURS, UPSTREAM
from kubeocean.fleet.properties.cluster import ClusterFacts
from kubeocean.fleet.properties.leasing import (
    NEVER_CLOSES_S,
    LeasedNode,
    LeasingFacts,
    leasing_properties,
)
from kubeocean.leasing.windows import Calendar, within
from kubeocean.runtime.quantity import ZERO, Quantity

TUESDAY = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
OPEN = "kubeocean.io/leasing/window-open"
CLOSES = "kubeocean.io/leasing/seconds-until-close"


def calendar(*spans: tuple[str, str]) -> Calendar:
    return Calendar.of(tuple(TimeWindow(start=a, end=b) for a, b in spans) or None, UTC)


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in texts.items()}


def node(**texts: str) -> LeasedNode:
    return LeasedNode(amounts(**texts), amounts(cpu="1500m"))


def test_amounts_are_summed_and_requests_subtracted() -> None:
    gpu = {"nvidia.com/gpu": Quantity.parse("2")}
    nodes = (node(cpu="8", memory="32Gi"), LeasedNode(amounts(cpu="1") | gpu, amounts(cpu="4")))
    found = leasing_properties(LeasingFacts(nodes, (calendar(),), TUESDAY))
    assert found == {
        "kubeocean.io/leasing/nodes": "2",
        OPEN: "1",
        CLOSES: str(NEVER_CLOSES_S),
        "kubeocean.io/resources/cpu/leased": "9",
        "kubeocean.io/resources/cpu/free": "3500m",
        "kubeocean.io/resources/memory/leased": "32Gi",
        "kubeocean.io/resources/memory/free": "32Gi",
        "kubeocean.io/resources/nvidia.com/gpu/leased": "2",
        "kubeocean.io/resources/nvidia.com/gpu/free": "2",
    }


def test_the_window_that_closes_first_counts() -> None:
    windows = (
        calendar(("11:00", "13:00")),
        calendar(("10:00", "12:30")),
        calendar(("20:00", "22:00")),
    )
    found = leasing_properties(LeasingFacts((), windows, TUESDAY))
    assert (found[OPEN], found[CLOSES]) == ("1", str(30 * 60))


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("00:00", 61_200),
        ("15:00", 7_200),
        ("15:59", 7_200),
        ("16:02", 6_900),
        ("17:30", 1_500),
        ("17:55", 240),
        ("17:59", 1),
    ],
)
def test_seconds_are_rounded_down_in_steps(clock: str, expected: int) -> None:
    """Not with each heartbeat: a changed property makes the scheduler work."""
    hour, minute = map(int, clock.split(":"))
    now = TUESDAY.replace(hour=hour, minute=minute, second=30)
    found = leasing_properties(LeasingFacts((), (calendar(("00:00", "17:59")),), now))
    assert found[CLOSES] == str(expected)


def test_a_closed_window_is_0() -> None:
    found = leasing_properties(LeasingFacts((), (calendar(("20:00", "22:00")),), TUESDAY))
    assert (found[OPEN], found[CLOSES]) == ("0", "0")


def test_a_member_that_lends_by_no_policy_has_none() -> None:
    assert leasing_properties(None) == {}
    assert leasing_properties(LeasingFacts((node(cpu="1"),), (), TUESDAY)) == {}


def test_only_extensions_report_leases() -> None:
    facts = ClusterFacts((), leasing=LeasingFacts((), (calendar(),), TUESDAY))
    assert OPEN in OURS.properties(facts)
    assert UPSTREAM.properties(facts) == {}


def test_a_resource_that_no_property_can_name_is_left_out() -> None:
    odd = LeasedNode({"a b": Quantity.parse("1"), "x//y": Quantity.parse("1")}, {})
    found = leasing_properties(LeasingFacts((odd,), (calendar(),), TUESDAY))
    assert not [name for name in found if "resources" in name]


@given(
    offers=st.lists(st.integers(0, 10**6), max_size=5),
    requests=st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    minute=st.integers(0, 7 * 24 * 60 - 1),
)
def test_all_values_are_quantities_and_free_is_within_leased(
    offers: list[int], requests: list[int], minute: int
) -> None:
    nodes = tuple(
        LeasedNode({"cpu": Quantity.parse(f"{offer}m")}, {"cpu": Quantity.parse(f"{request}m")})
        for offer, request in zip(offers, requests, strict=False)
    )
    now = datetime.fromtimestamp(TUESDAY.timestamp() + minute * 60, UTC)
    window = calendar(("08:00", "18:00"))
    found = leasing_properties(LeasingFacts(nodes, (window,), now))
    values = {name: Quantity.parse(text) for name, text in found.items()}
    free = values.get("kubeocean.io/resources/cpu/free", ZERO)
    assert ZERO <= free <= values.get("kubeocean.io/resources/cpu/leased", ZERO)
    assert (found[OPEN] == "1") == within(window, now) == (found[CLOSES] != "0")
