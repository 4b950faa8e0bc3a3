"""Hashing: stable, even, and the same as an API server's where it has to be."""

from __future__ import annotations

import uuid
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.sharding.slots import (
    HASHES,
    fnv1a,
    hash_ranges,
    mixed,
    slot_of,
    slot_of_uid,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_fnv_gives_the_published_values(text: str, value: int) -> None:
    assert fnv1a(text) == value


def test_a_mixed_hash_never_changes() -> None:
    assert mixed("apps/Deployment/team-a/web") == 0x810EFE276516A421
    assert slot_of("apps/Deployment/team-a/web") == 0x810EFE276516A421 >> 54


def test_slots_of_uids_are_the_top_bits_of_their_hash() -> None:
    uid = "0f6c6b0e-1d5c-4b5e-9b0a-3f1f2b8f9b11"
    assert slot_of_uid(uid, 1024) == fnv1a(uid) >> 54
    assert slot_of_uid(uid, 1) == 0


def test_uids_spread_evenly_and_so_do_names_that_differ_at_the_end() -> None:
    random = Random(5)
    uids = [str(uuid.UUID(int=random.getrandbits(128), version=4)) for _ in range(32_000)]
    by_uid = Counter(slot_of_uid(uid, 16) for uid in uids)
    assert max(by_uid.values()) < 1.1 * 2000
    names = Counter(slot_of(f"team-{number:05}", 16) for number in range(32_000))
    assert max(names.values()) < 1.1 * 2000


def test_neighbouring_slots_are_one_range_and_all_are_everything() -> None:
    assert hash_ranges(range(1024)) == ((0, HASHES),)
    assert hash_ranges([0, 1, 3], 4) == ((0, HASHES // 2), (HASHES // 4 * 3, HASHES))
    assert hash_ranges([]) == ()


@given(st.text(max_size=40), st.integers(1, 5000))
def test_a_slot_is_the_range_of_its_hashes(text: str, slots: int) -> None:
    slot = slot_of_uid(text, slots)
    ((start, end),) = hash_ranges([slot], slots)
    assert start <= fnv1a(text) < end
