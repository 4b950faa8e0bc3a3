"""The log level of a process follows the annotation of its binding."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.process.log_level import LogLevel
from kubeocean.runtime import logs


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    logs.set_level("info")
    yield
    logging.getLogger().setLevel(before)


def binding(level: str | None) -> ClusterBinding:
    annotations = {DEFAULT.log_level: level} if level is not None else {}
    return msgspec.convert({"metadata": {"name": "b", "annotations": annotations}}, ClusterBinding)


def test_the_annotation_sets_the_level_until_it_is_removed() -> None:
    log_level = LogLevel(DEFAULT)
    for annotation, level in (("debug", "debug"), ("WARN", "warning"), (None, "info")):
        log_level.follow(None, binding(annotation))
        assert logs.get_level() == level


def test_an_unknown_level_restores_the_level_of_the_start() -> None:
    log_level = LogLevel(DEFAULT, usual="error")
    log_level.follow(None, binding("debug"))
    log_level.follow(None, binding("loud"))
    assert logs.get_level() == "error"


def test_a_binding_without_the_annotation_or_a_deleted_one_changes_nothing() -> None:
    log_level = LogLevel(DEFAULT, usual="error")
    log_level.follow(None, binding(None))
    log_level.follow(binding(None), None)
    assert logs.get_level() == "info"
