"""The page of features: every name exists, and so does every test."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from kubeocean.sharding import config

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "sharding-features.md"
ROW = re.compile(r"\| (\d+) \| ([^|]+) \| `([^`]+)` \| `([^`]+)::(\w+)` \|")
ROWS = [match.groups() for match in map(ROW.fullmatch, PAGE.read_text().splitlines()) if match]


def test_the_page_has_every_feature_of_the_design_document_once() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 103))
    assert len({feature for _, feature, *_ in ROWS}) == 102


@pytest.mark.parametrize("name", sorted({name for _, _, name, _, _ in ROWS}))
def test_a_name_on_the_page_exists(name: str) -> None:
    module, colon, path = name.partition(":")
    if colon:
        definition: object = importlib.import_module(f"kubeocean.sharding.{module}")
        *owners, last = path.split(".")
        for owner in owners:
            definition = getattr(definition, owner)
        assert hasattr(definition, last) or sets_attribute(definition, last)
    elif name.startswith("sharded_controller_"):
        source = (ROOT / "src/kubeocean/sharding/metrics.py").read_text()
        assert f'"{name}"' in source
    else:
        section, _, key = name.partition(".")
        fields = dataclasses.fields(config._SECTIONS[section])
        assert key in {each.metadata["key"].name for each in fields}


def sets_attribute(definition: object, name: str) -> bool:
    """Return whether the constructor of a class, or a dataclass, has an attribute."""
    fields = (
        {each.name for each in dataclasses.fields(definition)}
        if dataclasses.is_dataclass(definition)
        else set()
    )
    module = importlib.import_module(definition.__module__)
    assert module.__file__ is not None
    return name in fields or f"self.{name} = " in Path(module.__file__).read_text()


@pytest.mark.parametrize(("file", "name"), sorted({row[3:] for row in ROWS}))
def test_a_test_on_the_page_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text()
