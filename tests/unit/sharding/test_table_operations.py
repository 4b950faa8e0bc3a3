"""Operations on tables: changes by administrators follow the rules of the planner."""

from __future__ import annotations

import pytest

from kubeocean.errors import ConfigError
from kubeocean.sharding.table import SlotEntry, SlotState, Table, empty_table
from kubeocean.sharding.table_operations import (
    drain,
    freeze,
    move,
    pin,
    release,
    rollback,
    undrain,
    unpin,
)


def owned(*owners: str) -> Table:
    table = empty_table("ring", len(owners))
    return table.changed({slot: SlotEntry(owner) for slot, owner in enumerate(owners)})


def test_every_operation_is_a_new_epoch() -> None:
    table = owned("a_1", "b_1")
    for after in (
        freeze(table),
        drain(table, "a"),
        undrain(drain(table, "a"), "a"),
        pin(table, [0], "b"),
        unpin(table, [0]),
        move(table, [0], "b_1"),
        release(table, [0]),
    ):
        assert after.epoch > table.epoch


def test_freezing_and_thawing() -> None:
    assert freeze(owned("a")).frozen
    assert not freeze(freeze(owned("a")), on=False).frozen


def test_draining_is_remembered_until_it_is_taken_back() -> None:
    drained = drain(owned("a"), "a")
    assert drained.drained == {"a"}
    assert undrain(drained, "a").drained == frozenset()
    with pytest.raises(ConfigError, match="is not drained"):
        undrain(drained, "b")
    with pytest.raises(ConfigError, match="replica"):
        drain(drained, "")


def test_pins_are_by_slot() -> None:
    pinned = pin(owned("a", "a"), [0, 1], "b")
    assert pinned.pins == {0: "b", 1: "b"}
    assert unpin(pinned, [1]).pins == {0: "b"}


def test_a_move_asks_the_owner_and_leaves_slots_without_an_owner() -> None:
    table = owned("a_1", "", "b_1")
    after = move(table, [0, 1, 2], "b_1")
    assert [each.state for each in after.entries] == [
        SlotState.DRAINING,
        SlotState.UNOWNED,
        SlotState.OWNED,
    ]
    assert after.next_owners == ("b_1", "", "b_1")
    assert after.entries[2].epoch == table.entries[2].epoch
    back = move(after, [0], "a_1")
    assert back.entries[0] == SlotEntry("a_1", back.epoch)
    with pytest.raises(ConfigError, match="to"):
        move(table, [0], "")


@pytest.mark.parametrize("slots", [[], [-1], [3]])
def test_slots_that_there_are_not_are_refused(slots: list[int]) -> None:
    with pytest.raises(ConfigError, match="slots"):
        move(owned("a", "a", "a"), slots, "b")


def test_a_rollback_asks_for_what_was_as_far_as_it_lives() -> None:
    first = owned("a_1", "b_1", "gone_1")
    later = first.changed({slot: SlotEntry("c_1") for slot in range(3)})
    after = rollback(later, first.epoch, ["a_2", "b_1", "c_1"])
    assert after.frozen
    assert after.next_owners == ("a_2", "b_1", "c_1")
    assert [each.state for each in after.entries][:2] == [SlotState.DRAINING] * 2
    assert after.epoch == later.epoch + 1
    with pytest.raises(ConfigError, match=rf"known epochs: {first.epoch}"):
        rollback(later, 77, [])
    with pytest.raises(ConfigError, match="none"):
        rollback(first, 1, [])


def test_a_release_takes_without_asking() -> None:
    after = release(owned("a", "a"), [1])
    assert [each.state for each in after.entries] == [SlotState.OWNED, SlotState.UNOWNED]
    assert after.entries[1].epoch == after.epoch
