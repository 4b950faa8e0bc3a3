"""How much a program logs follows its binding."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pytest

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.bound.verbosity import Verbosity
from kubeocean.runtime import logs


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    logs.set_level("info")
    yield
    logging.getLogger().setLevel(before)


def binding(asked: str | None) -> ClusterBinding:
    said = {DEFAULT.log_level: asked} if asked is not None else {}
    return msgspec.convert({"metadata": {"name": "b", "annotations": said}}, ClusterBinding)


def test_a_level_is_followed_and_given_back() -> None:
    verbosity = Verbosity(DEFAULT)
    for asked, then in (("debug", "debug"), ("WARN", "warning"), (None, "info")):
        verbosity.follow(None, binding(asked))
        assert logs.get_level() == then


def test_what_makes_no_sense_is_as_usual() -> None:
    verbosity = Verbosity(DEFAULT, usual="error")
    verbosity.follow(None, binding("debug"))
    verbosity.follow(None, binding("loud"))
    assert logs.get_level() == "error"


def test_nothing_is_changed_for_a_binding_that_asks_for_nothing_or_is_gone() -> None:
    verbosity = Verbosity(DEFAULT, usual="error")
    verbosity.follow(None, binding(None))
    verbosity.follow(binding(None), None)
    assert logs.get_level() == "info"
