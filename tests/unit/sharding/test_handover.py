"""Hand-over pages: the next owner reads the stored state unchanged, in pages of bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.sharding.handover import (
    Handled,
    SlotHandover,
    _Batches,
    decode_pages,
    encode_pages,
)

KEYS = st.text(alphabet="abc/-.", min_size=1, max_size=20)
HANDLED = st.builds(Handled, st.dictionaries(KEYS, st.uuids().map(str), min_size=1), st.just("7"))
HANDOVERS = st.dictionaries(
    st.integers(0, 1023),
    st.builds(
        SlotHandover,
        st.integers(1, 1 << 40),
        st.dictionaries(st.sampled_from(["pods", "jobs"]), HANDLED, min_size=1),
    ),
    min_size=1,
)


@given(HANDOVERS)
def test_pages_hold_what_was_handed_over(handovers: dict[int, SlotHandover]) -> None:
    assert decode_pages(encode_pages(handovers)) == handovers


def test_a_slot_with_many_objects_takes_several_pages_of_bounded_size() -> None:
    uids = {f"namespace-{n % 7}/name-of-an-object-{n}": f"{n:036d}" for n in range(40_000)}
    handovers = {5: SlotHandover(3, {"pods": Handled(uids, "9")}), 6: SlotHandover(3, {})}
    pages = encode_pages(handovers)
    sizes = [sum(map(len, page.values())) for page in pages]
    assert len(pages) > 1
    assert max(sizes) < 1 << 20
    assert decode_pages(pages) == {5: handovers[5]}


def test_of_two_hand_overs_of_a_slot_the_newer_one_counts() -> None:
    old = encode_pages({5: SlotHandover(3, {"pods": Handled({"n/a": "1"})})})
    new = encode_pages({5: SlotHandover(8, {"pods": Handled({"n/b": "2"})})})
    assert decode_pages([*new, *old])[5].controllers["pods"].uids == {"n/b": "2"}


def test_entries_that_no_replica_wrote_are_ignored() -> None:
    assert decode_pages([{"5.0": "{", "x": "{}", "5.1": "[]", "six": "5"}]) == {}


async def test_slots_whose_callers_were_all_cancelled_can_be_submitted_again() -> None:
    started, answered = asyncio.Event(), asyncio.Event()

    async def send(batch: Mapping[int, None]) -> Mapping[int, int]:
        started.set()
        await answered.wait()
        return {slot: slot * 10 for slot in batch}

    batches = _Batches[None, int](send)
    sender, other = (asyncio.create_task(batches.submit(slot, None)) for slot in (1, 2))
    await started.wait()
    # A replica that loses its membership cancels all its tasks; the sender's request ends last
    other.cancel()
    await asyncio.wait([other])
    sender.cancel()
    await asyncio.wait([sender])
    answered.set()
    assert await asyncio.gather(*(batches.submit(slot, None) for slot in (1, 2))) == [10, 20]


async def test_a_slot_is_sent_again_if_only_the_sender_of_its_batch_was_cancelled() -> None:
    started, answered = asyncio.Event(), asyncio.Event()
    sent: list[set[int]] = []

    async def send(batch: Mapping[int, None]) -> Mapping[int, int]:
        sent.append(set(batch))
        started.set()
        await answered.wait()
        return {slot: slot * 10 for slot in batch}

    batches = _Batches[None, int](send)
    sender, other = (asyncio.create_task(batches.submit(slot, None)) for slot in (1, 2))
    await started.wait()
    sender.cancel()
    await asyncio.wait([sender])
    answered.set()
    assert await other == 20
    assert sent == [{1, 2}, {2}]
