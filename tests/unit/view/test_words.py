"""Times and amounts, as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.runtime.quantity import Quantity
from kubeocean.view.model import Edge
from kubeocean.view.words import amount, edge, span
from seascapes import NOW


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (40, "40s"),
        (60, "1m"),
        (750, "12m30s"),
        (3600, "1h"),
        (3605, "1h"),
        (18_720, "5h12m"),
        (273_600, "3d4h"),
        (86_400 * 400, "400d"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("resource", "written", "text"),
    [
        ("cpu", "3500m", "3.5"),
        ("cpu", "4", "4"),
        ("cpu", "250m", "0.25"),
        ("cpu", "1234567m", "1234.6"),
        ("cpu", "100", "100"),
        ("cpu", "0", "0"),
        ("memory", "16Gi", "16Gi"),
        ("memory", "16351Mi", "16Gi"),
        ("memory", "1536Mi", "1.5Gi"),
        ("memory", "64M", "61Mi"),
        ("memory", "0", "0"),
        ("memory", "500", "500"),
        ("memory", "1023", "1023"),
        ("memory", "1Ki", "1Ki"),
        ("memory", "4Ei", "4096Pi"),
        ("pods", "110", "110"),
        ("nvidia.com/gpu", "8", "8"),
    ],
)
def test_an_amount_has_no_more_places_than_matter(resource: str, written: str, text: str) -> None:
    assert amount(resource, Quantity.parse(written)) == text


def test_what_nobody_knows_is_a_dash() -> None:
    assert amount("cpu", None) == "-"
    assert edge(None, NOW) == "-"


def test_an_edge_that_has_passed_is_overdue() -> None:
    before = NOW - timedelta(minutes=5)
    assert edge(Edge(before, before, "UTC", True), NOW) == "opens Mon 20:55 UTC, overdue"
