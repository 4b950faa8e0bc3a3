"""Table: a value with epochs, and its text."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.sharding.balance import plan
from kubeocean.sharding.table import (
    HISTORY,
    Past,
    SlotEntry,
    SlotState,
    Table,
    empty_table,
    name_of,
)
from kubeocean.sharding.table_encoding import decode_table, encode_table


def table(*owners: str) -> Table:
    empty = empty_table("ring", len(owners))
    return empty.changed({slot: SlotEntry(owner) for slot, owner in enumerate(owners)})


def test_an_entry_says_where_its_slot_stands() -> None:
    assert SlotEntry().state is SlotState.UNOWNED
    assert SlotEntry("a", 1).state is SlotState.OWNED
    draining = SlotEntry("a", 2, "b")
    assert draining.state is SlotState.DRAINING
    assert draining.heir == "b"
    assert SlotEntry("a", 1).heir == "a"


def test_a_change_gives_the_changed_slots_the_new_epoch_and_only_those() -> None:
    before = table("a_1", "a_1", "b_1")
    after = before.changed({2: SlotEntry("b_1", to="a_1")})
    assert (before.epoch, after.epoch) == (1, 2)
    assert [entry.epoch for entry in after.entries] == [1, 1, 2]
    assert after.owned_by("b_1") == {2}
    assert after.draining() == {2: SlotEntry("b_1", 2, "a_1")}
    assert after.owners == {"a_1", "b_1"}
    assert after.next_owners == ("a_1", "a_1", "a_1")


def test_a_table_remembers_the_last_assignments_and_no_more() -> None:
    current = table("a", "a")
    assert current.history == ()
    for _ in range(HISTORY + 3):
        to = "b" if current.next_owners[0] == "a" else "a"
        current = current.changed({0: SlotEntry(to)})
    assert len(current.history) == HISTORY
    assert current.history[-1] == Past(current.epoch - 1, ("b", "a"))
    granted = table("a").changed({0: SlotEntry("a", to="b")})
    assert granted.changed({0: SlotEntry("b")}).history == granted.history


def test_a_member_is_meant_by_its_name_and_by_its_id() -> None:
    assert name_of("web-0_5f") == "web-0"
    assert name_of("web_0_5f") == "web_0"
    assert name_of("web-0") == "web-0"
    assert table("a").names_member({"web-0"}, "web-0_5f")
    assert table("a").names_member({"web-0_5f"}, "web-0_5f")
    assert not table("a").names_member({"web-0_5f"}, "web-0_60")


def test_a_ring_has_slots() -> None:
    assert empty_table("ring").slots == 1024
    with pytest.raises(ConfigError, match=r"sharding\.slots"):
        empty_table("ring", 0)


tables = st.builds(
    lambda slots, epoch, frozen, pins, drained, past: Table(
        "ring",
        epoch,
        tuple(SlotEntry(o, e, t if o and t != o else "") for o, e, t in slots),
        frozen,
        {slot: name for slot, name in pins.items() if slot < len(slots)},
        drained,
        tuple(Past(each, tuple(o for o, _, _ in slots)) for each in past),
    ),
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 9), st.sampled_from(["", "c"])),
        min_size=1,
        max_size=40,
    ),
    st.integers(9, 10**12),
    st.booleans(),
    st.dictionaries(st.integers(0, 39), st.sampled_from(["a", "b"])),
    st.frozensets(st.sampled_from(["x", "y"])),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(tables)
def test_a_table_survives_text(each: Table) -> None:
    assert decode_table(encode_table(each)) == each
    assert decode_table(encode_table(each).encode(), ring="ring") == each


def test_a_table_is_small_also_with_a_history_and_scattered_slots() -> None:
    random = Random(3)
    names = [
        f"sharded-controller-7d9f8b6c5d-{n:05}_{random.getrandbits(128):032x}" for n in range(10)
    ]
    current = table(*plan([""] * 1024, dict.fromkeys(names, 1.0)))
    for _ in range(300):
        change = {random.randrange(1024): SlotEntry(random.choice(names)) for _ in range(8)}
        current = current.changed(change)
    assert len(encode_table(current)) < 32_000
    settled = table(*(entry.owner for entry in current.entries))
    assert len(encode_table(settled)) < 3_500


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 2}, "table.version"),
        ({"ring": "other"}, "table.ring"),
        ({"slots": 0}, "table.slots"),
        ({"epoch": -1}, "table.epoch"),
        ({"members": ["a", ""]}, "table.members"),
        ({"slots": 4}, "table.groups"),
        ({"groups": [[0, -1, 9, "0-2"]]}, "table.groups[0]"),
        ({"groups": [[5, -1, 1, "0-2"]]}, "table.groups[0]"),
        ({"groups": [[0, 0, 1, "0-2"]]}, "table.groups[0]"),
        ({"groups": [[-1, 0, 1, "0-2"]]}, "table.groups[0]"),
        ({"groups": [[0, -1, 1, "0-3"]]}, "table.groups[0]"),
        ({"groups": [[0, -1, 1, "x"]]}, "table.groups[0]"),
        ({"groups": [[0, -1, 1, "0-2"], [0, -1, 0, "1"]]}, "table.groups[1]"),
        ({"pins": {"a": "7"}}, "table.pins"),
        ({"history": [{"epoch": 9, "owners": {}}]}, "table.history[0]"),
        ({"history": [{"epoch": 1, "owners": {"x": "0"}}]}, "table.history[0]"),
        ({"history": [{"epoch": 1, "owners": {"7": "0"}}]}, "table.history[0]"),
        ({"groups": 5}, "table"),
    ],
)
def test_a_text_that_is_no_table_is_refused_by_name(change: dict[str, object], field: str) -> None:
    good = json.loads(encode_table(table("a", "a", "a")))
    with pytest.raises(ConfigError) as caught:
        decode_table(json.dumps(good | change), ring="ring")
    assert caught.value.field == field
