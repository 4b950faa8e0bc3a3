"""Benchmarks run rarely: their modules can be imported, and their arguments give their sizes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bench.__main__ import FULL, SMALL, arguments, requested_size

MODULES = sorted(path.stem for path in Path(__file__).parents[2].joinpath("bench").glob("[!_]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_benchmarks_can_be_imported(name: str) -> None:
    importlib.import_module(f"bench.{name}")


@pytest.mark.parametrize(
    ("words", "size"), [("", FULL), ("fleet --small", SMALL)], ids=["full", "small"]
)
def test_without_numbers_the_size_is_full_or_small(
    words: str, size: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    assert requested_size(arguments()) == size


def test_given_numbers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "lending --small --nodes 7 --members 30 --idle 500"
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    size = requested_size(arguments())
    assert (size.nodes, size.idle_s, size.pods) == (7, 500, SMALL.pods)
    # A fleet at rest is measured no longer than it has to be.
    assert (size.fleet.members, size.fleet.idle_s) == (30, SMALL.fleet.idle_s)


def test_a_subject_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "sailing"])
    with pytest.raises(SystemExit):
        arguments()
    assert "there is no subject sailing; choose from runtime, lending" in capsys.readouterr().err
