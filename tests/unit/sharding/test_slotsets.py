"""Slot sets: what is written is what is read, and it is short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.sharding.slotsets import decode_slots, encode_slots


@given(st.frozensets(st.integers(0, 1023)))
def test_slots_survive_text(slots: frozenset[int]) -> None:
    text = encode_slots(slots)
    assert decode_slots(text) == slots
    assert len(text) < 180


def test_runs_are_written_as_ranges_and_crowds_as_bitmaps() -> None:
    assert encode_slots([8, 2, 1, 0, 3]) == "0-3,8"
    assert encode_slots([]) == ""
    assert encode_slots(range(0, 1024, 2)).startswith("#")


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "#!", "#abc", "0-99999999", "1,,x"])
def test_nonsense_is_no_set_of_slots(text: str) -> None:
    with pytest.raises(ConfigError, match="slots"):
        decode_slots(text)
