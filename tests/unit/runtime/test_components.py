"""Components: every kind of object that a service can run."""

from __future__ import annotations

import pytest

from kubeocean.errors import InvariantError
from kubeocean.runtime.components import Component, components_of


async def nothing() -> None:
    """Ends."""


class Plain:
    async def run(self) -> None:
        """Ends."""


class Full(Plain):
    name = "full"
    ready = False
    stopped = False

    async def stop(self) -> None:
        self.stopped = True


class Syncing(Plain):
    name = "pods"
    has_synced = False


class Asked(Plain):
    name = ""

    def __init__(self) -> None:
        self.answer = False

    def ready(self) -> bool:
        return self.answer


def test_a_pair_is_a_component_that_is_ready_and_is_cancelled() -> None:
    (component,) = components_of([("writer", nothing)])
    assert component == Component("writer", nothing)
    assert component.ready()
    assert component.stop is None


def test_an_object_with_run_is_a_component_named_after_its_class() -> None:
    (component,) = components_of([Plain()])
    assert (component.name, component.ready(), component.stop) == ("plain", True, None)


async def test_an_object_may_have_a_name_and_a_way_to_stop() -> None:
    full = Full()
    (component,) = components_of([full])
    assert component.name == "full"
    assert component.stop is not None
    await component.stop()
    assert full.stopped


def test_readiness_is_an_attribute_or_a_method_and_is_asked_anew() -> None:
    full, syncing, requested = Full(), Syncing(), Asked()
    components = components_of([full, syncing, requested])
    assert [component.ready() for component in components] == [False, False, False]
    full.ready = syncing.has_synced = requested.answer = True
    assert [component.ready() for component in components] == [True, True, True]


def test_components_of_one_name_are_numbered() -> None:
    ready = Component("own", nothing)
    names = [part.name for part in components_of([Plain(), Plain(), ready, Asked(), Plain()])]
    assert names == ["plain", "plain-2", "own", "asked", "plain-3"]


def test_what_cannot_be_run_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="no method"):
        components_of([object()])
