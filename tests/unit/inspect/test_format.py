"""Tests of times, amounts, lists and tables for people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kubeocean.inspect.format import (
    Cell,
    Tone,
    age,
    amount,
    amounts,
    edge,
    few,
    line,
    moment,
    plain,
    span,
    table,
)
from kubeocean.inspect.status.model import Edge
from kubeocean.runtime.quantity import Quantity
from support.objects import NOW


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


def test_an_unknown_amount_or_edge_is_a_dash() -> None:
    assert amount("cpu", None) == "-"
    assert edge(None, NOW) == "-"


def test_an_edge_that_has_passed_is_overdue() -> None:
    before = NOW - timedelta(minutes=5)
    assert edge(Edge(before, before, "UTC", True), NOW) == "opens Mon 20:55 UTC, overdue"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (4, "4 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_an_age_has_the_largest_unit_of_which_there_are_two(seconds: int, text: str) -> None:
    then = NOW - timedelta(seconds=seconds)
    assert age(then, NOW) == f"{text} ago ({then:%Y-%m-%dT%H:%M:%SZ})"


def test_a_moment_is_shown_in_its_zone() -> None:
    assert moment(NOW) == "Mon 2026-11-16 21:00:00 UTC"
    assert moment(NOW, ZoneInfo("Asia/Tokyo")) == "Tue 2026-11-17 06:00:00 Asia/Tokyo"


@pytest.mark.parametrize(
    ("count", "options", "text"),
    [
        (0, {}, ""),
        (5, {}, "0, 1, 2, 3, 4"),
        (7, {}, "0, 1, 2, 3, 4 and 2 more"),
        (4, {"shown": 3}, "0, 1, 2 and 1 more"),
        (6, {"separator": "; "}, "0; 1; 2; 3; 4; and 1 more"),
    ],
)
def test_a_list_has_its_first_names_and_the_number_of_the_others(
    count: int, options: dict[str, Any], text: str
) -> None:
    assert few(map(str, range(count)), **options) == text


def test_amounts_have_cpu_and_memory_first_and_no_number_of_pods() -> None:
    quantities = {"pods": "1", "gpu": "2", "memory": "4Gi", "cpu": "500m"}
    parsed = {name: Quantity.parse(each) for name, each in quantities.items()}
    assert amounts(parsed) == "cpu 500m, memory 4Gi, gpu 2"
    assert amounts({}) == "nothing"


def test_control_characters_are_not_shown() -> None:
    shown = [line("a\x1b[31mb\nc\x07"), *table(["H"], [["x\ty"]])]
    assert plain(shown) == "a [31mb c\nH\nx y\n"


def test_a_tone_does_not_change_the_text() -> None:
    assert plain(table(["A", "B"], [[Cell("x", Tone.BAD), "y"]])) == "A   B\nx   y\n"
