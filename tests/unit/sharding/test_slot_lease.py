"""Slot leases: a replica acts on its own slots, and never after its right to them ends."""

from __future__ import annotations

import pytest

from kubeocean.sharding.slot_lease import SlotLeases
from kubeocean.sharding.table import SlotEntry, Table, empty_table
from kubeocean.sharding.timing import Timing

TIMING = Timing(lease_s=15, renew_s=10, retry_s=2, drain_s=30, cancel_s=5, handover_s=60)
ME = "me_1"


def owned(*owners: str) -> Table:
    table = empty_table("ring", len(owners))
    return table.changed({slot: SlotEntry(owner) for slot, owner in enumerate(owners)})


def holder(table: Table | None = None) -> SlotLeases:
    made = SlotLeases(ME, timing=TIMING, now=0)
    made.renewed(started=0, answered=0.1)
    if table is not None:
        made.see(table)
    return made


def test_without_a_renewal_or_a_table_nothing_is_allowed() -> None:
    fresh = SlotLeases(ME, now=0)
    fresh.see(owned(ME))
    assert not fresh.may_start(0, 0)
    assert not fresh.lapsed
    assert not holder().may_start(0, 1)
    assert holder().duties(1).warm == frozenset()


def test_it_acts_on_its_own_slots_only() -> None:
    mine = holder(owned(ME, "b"))
    assert mine.may_start(0, 1)
    assert mine.may_write(0, 1)
    assert mine.token(0) == 1
    assert not mine.may_start(1, 1)
    assert not mine.may_write(1, 1)
    assert mine.token(1) == 0
    assert mine.duties(1).active == {0}


def test_a_renewal_counts_from_its_start() -> None:
    mine = holder(owned(ME))
    assert mine.renewed(started=5, answered=9)
    assert mine.deadline == 15
    assert mine.may_write(0, 14.9)
    assert not mine.may_write(0, 15)


def test_a_gap_is_final() -> None:
    mine = holder(owned(ME))
    assert not mine.renewed(started=9.9, answered=10)
    assert mine.lapsed
    assert not mine.renewed(started=11, answered=11.1)
    assert not mine.may_write(0, 11.2)
    duties = mine.duties(11.2, busy=[0])
    assert (duties.active, duties.cancel, duties.lost) == (frozenset(), {0}, {0})
    assert mine.duties(11.3).lost == frozenset()
    assert mine.see(owned(ME).changed({0: SlotEntry(ME)}))
    assert not mine.may_start(0, 11.4)
    assert mine.duties(11.4).acks == {}


def test_a_question_that_comes_too_late_is_a_gap_too() -> None:
    mine = holder(owned(ME))
    assert not mine.may_start(0, 10)
    assert not mine.renewed(started=9, answered=9.5)


@pytest.mark.parametrize("started", [0, 9.9])
def test_a_first_answer_that_comes_too_late_does_not_count(started: float) -> None:
    # An earlier write may have been made though its answer was lost: we may have been seen, given
    # slots, and taken for dead.
    late = SlotLeases(ME, timing=TIMING, now=0)
    late.see(owned(ME))
    assert not late.renewed(started=started, answered=10)
    assert late.lapsed
    assert not late.may_write(0, 10)


def test_an_older_table_is_not_looked_at() -> None:
    before = owned(ME)
    after = before.changed({0: SlotEntry("b")})
    mine = holder(after)
    assert not mine.see(before)
    assert not mine.see(after)
    assert not mine.may_start(0, 1)
    assert mine.table == after


def test_a_draining_slot_takes_no_keys_and_is_acknowledged_when_nothing_runs() -> None:
    mine = holder(owned(ME, ME))
    mine.see(owned(ME, ME).changed({0: SlotEntry(ME, to="b")}))
    assert not mine.may_start(0, 1)
    assert mine.may_write(0, 1)
    assert mine.token(0) == 1, "the token is that of the grant"
    busy = mine.duties(1, busy=[0])
    assert (busy.active, busy.draining, busy.acks, busy.cancel) == ({1}, {0}, {}, frozenset())
    assert busy.wake_at == 10
    done = mine.duties(2)
    assert (done.active, done.draining, done.acks) == ({1}, frozenset(), {0: 2})
    assert not mine.may_write(0, 2)


def test_an_acknowledgement_is_said_until_it_is_heard_and_never_taken_back() -> None:
    draining = owned(ME).changed({0: SlotEntry(ME, to="b")})
    mine = holder(owned(ME))
    mine.see(draining)
    assert mine.duties(1).acks == {0: 2}
    assert not mine.see(owned(ME))
    retargeted = draining.changed({0: SlotEntry(ME, to="c")})
    mine.see(retargeted)
    assert mine.duties(2).acks == {0: 3}
    granted = retargeted.changed({0: SlotEntry("c")})
    mine.see(granted)
    assert mine.duties(3).acks == {}
    assert mine.duties(3).lost == frozenset(), "a slot handed over is not reported as lost"
    mine.see(granted.changed({0: SlotEntry(ME)}))
    assert mine.may_start(0, 4)
    assert mine.token(0) == 5


def test_a_drain_that_is_called_off_lets_work_go_on() -> None:
    draining = owned(ME).changed({0: SlotEntry(ME, to="b")})
    mine = holder(owned(ME))
    mine.see(draining)
    mine.duties(1, busy=[0])
    mine.see(draining.changed({0: SlotEntry(ME)}))
    assert mine.may_start(0, 2)
    assert mine.duties(2, busy=[0]).cancel == frozenset()


def test_a_slot_that_it_never_acted_on_is_acknowledged_at_once() -> None:
    mine = holder(owned("b").changed({0: SlotEntry(ME, to="c")}))
    assert not mine.may_write(0, 1)
    assert mine.duties(1).acks == {0: 2}
    assert mine.duties(1, busy=[0]).acks == {}, "something of an earlier grant still runs"


def test_what_does_not_end_is_cancelled_and_then_gives_the_replica_up() -> None:
    mine = holder(owned(ME))
    mine.see(owned(ME).changed({0: SlotEntry(ME, to="b")}))
    for now in range(2, 40, 2):
        assert mine.renewed(started=now, answered=now)
        duties = mine.duties(now, busy=[0])
        assert (duties.cancel == {0}) == (now >= 32)
        assert duties.give_up == (now >= 38)
        if 32 <= now < 37:
            assert duties.wake_at == min(37, mine.deadline)
    assert duties.acks == {}


def test_another_target_does_not_give_a_drain_more_time() -> None:
    mine = holder(owned(ME))
    draining = owned(ME).changed({0: SlotEntry(ME, to="b")})
    mine.see(draining)
    mine.duties(0, busy=[0])
    mine.see(draining.changed({0: SlotEntry(ME, to="c")}))
    for now in range(5, 31, 5):
        mine.renewed(started=now, answered=now)
    assert mine.duties(30, busy=[0]).cancel == {0}
    assert mine.duties(31).acks == {0: 3}


def test_what_is_taken_without_a_word_is_lost_and_cancelled() -> None:
    mine = holder(owned(ME, ME))
    mine.see(owned(ME, ME).changed({1: SlotEntry(ME, to="b")}))
    mine.see(owned(ME, ME).changed({}).changed({0: SlotEntry("b"), 1: SlotEntry("b")}))
    duties = mine.duties(1, busy=[0])
    assert (duties.lost, duties.cancel, duties.active) == ({0, 1}, {0}, frozenset())


def test_the_seen_epoch_is_reported_when_another_replica_may_wait_for_it() -> None:
    first = owned(ME, ME)
    mine = holder(first)
    assert [mine.may_write(slot, 1) for slot in (0, 1)] == [True, True]
    assert mine.duties(1).seen == 1, "the first table is acknowledged once"
    usual = first.changed({1: SlotEntry("b")})
    mine.see(usual)
    assert mine.duties(1).seen == 1, "no replica waits for this epoch"
    mine.see(first)
    assert mine.duties(1).seen == 2, "after an older table the newest seen epoch is reported"
    taken = usual.changed({0: SlotEntry()})
    mine.see(taken)
    assert mine.duties(1, busy=[0]).seen == 2, "not before the work has ended"
    assert mine.duties(1).seen == 3


def test_what_comes_is_warmed() -> None:
    mine = holder(owned("b").changed({0: SlotEntry("b", to=ME)}))
    assert mine.duties(1).warm == {0}
    assert not mine.may_start(0, 1)
    mine.lapse()
    assert mine.duties(1).warm == frozenset()
    assert mine.duties(1).wake_at == pytest.approx(float("inf"))
