"""Objects whose shard cannot be computed: errors, log lines, and shared controllers."""

from __future__ import annotations

import logging

import pytest

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.objects import Key, Object
from kubeocean.sharding.placement import ShardComputation, Unplaced
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.selection import named
from kubeocean.sharding.shared_controllers import SharedControllers
from kubeocean.sharding.table import SlotEntry, empty_table
from support.background import running
from support.ring_env import SLOTS, config
from unit.sharding.mine import Blocks
from unit.sharding.test_shared_controllers import Nowhere

ONE, TWO = Key("n", "one"), Key("n", "two")


class Names:
    """Code of a user that has no shard for some names."""

    def __init__(self) -> None:
        self.missing = {"one"}

    def shard_of(self, obj: Object) -> int:
        if obj.name in self.missing:
            raise LookupError(f"no entry for {obj.name}")
        return len(obj.name)


async def test_an_object_without_a_shard_is_an_error_that_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names()
    placement = ShardComputation("pods", names.shard_of)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(Unplaced, match="of n/one: LookupError: no entry for one"):
                placement.shard_of(named(ONE))
        assert placement.find(named(ONE)) is None
        assert placement.find(named(TWO)) == 3
        assert caplog.text.count("Could not compute shard of object") == 1
        assert placement.failed.is_set()
        names.missing.clear()
        placement.log_placed({ONE})
        assert "again" not in caplog.text
        placement.log_placed(())
        assert caplog.text.count("Computed shard of object again") == 1
        assert placement.shard_of(named(ONE)) == 3


class Mute(Exception):
    """Error of a user's code that fails again when its text is computed."""

    def __str__(self) -> str:
        raise AttributeError("detail")


async def test_an_error_without_a_text_is_an_error_like_others() -> None:
    def fail(obj: Object) -> int:
        raise Mute

    placement = ShardComputation("pods", fail)
    assert placement.find(named(ONE)) is None
    with pytest.raises(Unplaced, match="of n/one: Mute"):
        placement.shard_of(named(ONE))


async def test_an_algorithm_that_fails_for_all_objects_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names()
    names.missing = {f"o{number}" for number in range(1000)}
    placement = ShardComputation("pods", names.shard_of)
    with caplog.at_level(logging.ERROR):
        for name in names.missing:
            assert placement.find(named(Key("n", name))) is None
    assert 1 < caplog.text.count("Could not compute") < 50


class Fickle(Blocks):
    """Algorithm that fails for some keys."""

    def __init__(self) -> None:
        self.missing = {"one"}

    def get_shard(self, key: str, total: int) -> int:
        if key in self.missing:
            raise KeyError(key)
        return super().get_shard(key, total)


async def test_shared_controllers_leave_a_key_alone_until_its_shard_can_be_computed() -> None:
    clock, algorithm, turns = VirtualClock(), Fickle(), []

    async def reconcile(key: str) -> Outcome:
        turns.append(key)
        return Done()

    ring = Ring(
        Client(Nowhere()), config("n", name="a"), algorithm=algorithm, clock=clock, environ={}
    )
    ring._holder.renewed(started=0.0, answered=0.0)
    owned = dict.fromkeys(range(SLOTS), SlotEntry(ring.id))
    ring._see(empty_table(ring.names.ring, SLOTS).changed(owned))
    ring.tenancy.serving |= owned.keys()
    sharing = SharedControllers(ring, clock=clock)
    controller: Controller[str] = Controller("shared", reconcile, clock=clock)
    sharing.share(controller, by=str, keys=lambda: ["one", "other"])
    sharing.start(range(SLOTS))
    await clock.advance(0)
    assert not sharing.owns("one")
    assert sharing.owns("other")
    assert sharing.unplaced() == 1
    assert sharing.resources(ring.shard_of("other")) == ["other"]
    assert sharing.loads().keys() == set()  # the first period is not reported, and nothing raised
    async with running(controller):
        await clock.advance(0)
        assert turns == ["other"]
        algorithm.missing.clear()
        assert sharing.unplaced() == 0
        await clock.advance(0)
        assert "one" in turns
