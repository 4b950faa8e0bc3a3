"""Slot sets: decoding returns the encoded set, and the encoding is short."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.sharding.slots import MOST, decode_slots, encode_slots


@given(st.frozensets(st.integers(0, 1023)))
def test_slots_survive_text(slots: frozenset[int]) -> None:
    text = encode_slots(slots)
    assert decode_slots(text) == slots
    assert len(text) < 180


def test_runs_are_written_as_ranges_and_crowds_as_bitmaps() -> None:
    assert encode_slots([8, 2, 1, 0, 3]) == "0-3,8"
    assert encode_slots([]) == ""
    assert encode_slots(range(0, 1024, 2)).startswith("#")


@pytest.mark.parametrize("slots", [range(0, 1024, 2), range(1, 1024, 2), range(0, 64, 3), [7]])
def test_a_bitmap_is_decoded_to_the_slots_that_were_encoded(slots: Iterable[int]) -> None:
    assert decode_slots(encode_slots(slots)) == frozenset(slots)


def test_the_bits_of_a_bitmap_count_from_the_lowest_of_the_first_byte() -> None:
    assert decode_slots("#" + b64encode(bytes([0b1000_0001, 0, 0b10])).decode()) == {0, 7, 17}


def test_the_last_possible_slot_is_read_and_no_slot_beyond_it() -> None:
    last = bytes(MOST // 8 - 1) + b"\x80"
    assert decode_slots("#" + b64encode(last).decode()) == decode_slots(str(MOST - 1)) == {MOST - 1}
    for text in (str(MOST), "#" + b64encode(bytes(MOST // 8) + b"\x01").decode()):
        with pytest.raises(ConfigError, match="slots"):
            decode_slots(text)


def test_ranges_that_repeat_slots_without_end_are_refused() -> None:
    whole = f"0-{MOST - 1}"
    assert len(decode_slots(whole)) == MOST
    with pytest.raises(ConfigError, match="slots"):
        decode_slots(",".join([whole] * 20_000))


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "#!", "#abc", "0-99999999", "1,,x"])
def test_nonsense_is_no_set_of_slots(text: str) -> None:
    with pytest.raises(ConfigError, match="slots"):
        decode_slots(text)
