"""Selectors of slots in requests, and whether the answer proves that the server filtered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.runtime.objects import Key, Meta, Object, OwnerReference
from kubeocean.runtime.selectors import LabelSelector
from kubeocean.sharding.selection import (
    Everything,
    SlotLabel,
    echoes,
    named,
    owner_key,
    shard_selector,
    slot_requirement,
)
from kubeocean.sharding.slots import fnv1a, slot_of_uid

TOTAL = 64


@given(st.sets(st.integers(0, TOTAL - 1)), st.integers(0, TOTAL - 1))
def test_a_requirement_takes_the_slots_and_nothing_else(ours: set[int], slot: int) -> None:
    if not ours:
        return
    selector = LabelSelector.parse(slot_requirement("slot", ours, TOTAL))
    assert selector.matches({"slot": str(slot)}) == (slot in ours)
    assert not selector.matches({})


@given(st.sets(st.integers(0, TOTAL - 1), min_size=1), st.uuids())
def test_a_shard_selector_has_the_hashes_of_the_slots(ours: set[int], uid: object) -> None:
    selector = shard_selector(ours, TOTAL)
    ranges = [part.split("'")[1::2] for part in selector.split(" || ")]
    value = fnv1a(str(uid))
    inside = any(int(start, 16) <= value < int(end, 16) for start, end in ranges)
    assert inside == (slot_of_uid(str(uid), TOTAL) in ours)


def test_bounds_are_written_as_the_server_reads_them() -> None:
    assert shard_selector([0], 2) == (
        "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
    )
    assert shard_selector([1], 2).endswith("'0x10000000000000000')")
    assert shard_selector([0, 1], 2).count("shardRange") == 1


def test_only_the_echo_of_the_selector_proves_that_it_was_applied() -> None:
    selector = shard_selector([0], 2)
    assert echoes({"metadata": {"shardInfo": {"selector": selector}}}, selector)
    assert echoes({"metadata": {"shardInfo": {"selector": selector.replace(", ", ",")}}}, selector)
    for answer in ({}, {"metadata": {}}, {"metadata": {"shardInfo": {"selector": "other"}}}):
        assert not echoes(answer, selector)


def test_a_label_that_is_no_slot_is_none() -> None:
    chosen: SlotLabel[Object] = SlotLabel(None, 8, "slot")
    for label, slot in (("7", 7), ("8", None), ("-1", None), ("x", None), ("", None), ("٣", None)):
        assert chosen.slot(Object(metadata=Meta(labels={"slot": label}))) == slot
    assert chosen.slot(Object()) is None


def test_a_child_has_the_slot_of_its_controller() -> None:
    owner = OwnerReference(kind="Set", name="s", controller=True)
    child = Object(metadata=Meta(namespace="n", name="c", owner_references=(owner,)))
    assert owner_key(child, "Set") == Key("n", "s")
    assert owner_key(child, "Other") is None
    slots = {"n/s": 5, "n/c": 3}

    def slot_of(obj: Object) -> int:
        return slots[str(obj.key)]

    children: Everything[Object] = Everything(None, None, slot_of, kind="Set")
    assert children.slot(child) == 5
    assert children.slot(named(Key("n", "c"))) is None
    alone: Everything[Object] = Everything(None, None, slot_of)
    assert alone.slot(child) == 3
