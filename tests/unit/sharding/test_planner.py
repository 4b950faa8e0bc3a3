"""Planner: grants only free slots, asks owners to hand over others, and moves few slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kubeocean.errors import InvariantError
from kubeocean.sharding.algorithms import Custom, Hash
from kubeocean.sharding.balance import Policy
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.planner import Planner, PlanningResult, SlotMove
from kubeocean.sharding.table import SlotEntry, SlotState, empty_table
from kubeocean.sharding.table_operations import drain, freeze, move, pin, release
from kubeocean.sharding.timing import Timing

TIMING = Timing()
LEAVING, JOINING = MemberState.LEAVING, MemberState.JOINING


class Ring:
    """a planner, its table and its members, moved by hand."""

    def __init__(self, slots: int = 12, **settings: object) -> None:
        self.planner = Planner(timing=TIMING, **settings)
        self.table = empty_table("ring", slots)
        self.members: dict[str, MemberRecord] = {}
        self.now = 0.0
        self.last: PlanningResult | None = None

    def update_member(self, member: str, **fields: object) -> None:
        old = self.members.get(member) or MemberRecord(id=member, pulse="0", lease_s=15)
        pulse = str(int(old.pulse) + 1)
        self.members[member] = replace(old, pulse=pulse, **fields)

    def renew(self, *members: str) -> None:
        for member in members or list(self.members):
            self.update_member(member)

    def decide(self) -> PlanningResult:
        self.planner.observe(
            self.members.values(), started=self.now, now=self.now, table=self.table
        )
        self.last = self.planner.decide(self.table, self.now)
        if self.last.table is not None:
            self.table = self.last.table
        return self.last

    def wait(self, seconds: float, *silent: str, step: float = 1.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + step, until)
            self.renew(*(set(self.members) - set(silent)))
            self.decide()

    def acknowledge(self, member: str) -> None:
        drains = self.table.draining().items()
        self.update_member(member, acks={slot: e.epoch for slot, e in drains if e.owner == member})

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.table.next_owners))

    def states(self) -> Counter[SlotState]:
        return Counter(entry.state for entry in self.table.entries)


def ring_of(*members: str, slots: int = 12, **settings: object) -> Ring:
    ring = Ring(slots, **settings)
    for member in members:
        ring.update_member(member)
    ring.decide()
    return ring


def test_the_first_members_get_everything_at_once() -> None:
    ring = ring_of("a_1", "b_1", "c_1")
    assert ring.counts() == {"a_1": 4, "b_1": 4, "c_1": 4}
    assert ring.states() == {SlotState.OWNED: 12}
    assert ring.last is not None
    assert ring.last.moves[0] == SlotMove(0, "", "a_1", granted=True)
    assert ring.decide().table is None, "and then there is nothing to do"


def test_without_members_nothing_is_decided_and_a_look_is_asked_for() -> None:
    ring = Ring()
    decision = ring.decide()
    assert (decision.table, decision.evict, decision.moves) == (None, (), ())
    assert decision.look_at >= ring.now


def test_a_newcomer_gets_slots_only_when_their_owners_have_let_go() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("c_1")
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 8, SlotState.DRAINING: 4}
    assert ring.counts() == {"a_1": 4, "b_1": 4, "c_1": 4}
    assert ring.decide().table is None, "it waits"
    ring.acknowledge("a_1")
    decision = ring.decide()
    assert ring.states() == {SlotState.OWNED: 10, SlotState.DRAINING: 2}
    assert [each.granted for each in decision.moves] == [True, True]
    ring.acknowledge("b_1")
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 12}


def test_an_acknowledgement_of_another_drain_is_none() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("c_1")
    ring.decide()
    stale = {slot: entry.epoch - 1 for slot, entry in ring.table.draining().items()}
    ring.update_member("a_1", acks=stale)
    assert ring.decide().table is None


def test_slots_of_a_dead_member_go_to_others_after_the_patience_and_not_before() -> None:
    ring = ring_of("a_1", "b_1")
    ring.wait(15, "a_1")
    assert ring.counts() == {"a_1": 6, "b_1": 6}
    assert ring.planner.states(ring.now)["a_1"] is MemberState.UNHEALTHY
    ring.wait(0.5, "a_1")
    assert ring.counts() == {"b_1": 12}
    assert ring.states() == {SlotState.OWNED: 12}
    assert [record.id for record in ring.decide().evict] == ["a_1"]


def test_what_a_slot_costs_is_remembered_when_it_moves() -> None:
    ring = ring_of("a_1", "b_1")
    mine, theirs = min(ring.table.owned_by("a_1")), min(ring.table.owned_by("b_1"))
    ring.update_member("a_1", loads={mine: 5.0, theirs: 7.0})
    ring.decide()
    assert ring.planner.loads() == {mine: 5.0}, "loads of slots of other replicas are ignored"
    ring.update_member("a_1", released=True)
    ring.decide()
    ring.update_member("b_1", loads={theirs: 1.0})
    ring.decide()
    assert ring.planner.loads() == {mine: 5.0, theirs: 1.0}
    ring.update_member("b_1", loads={mine: 4.0, theirs: 1.0})
    ring.decide()
    assert ring.planner.loads() == {mine: 4.0, theirs: 1.0}


def test_a_member_that_died_is_shown_for_its_time() -> None:
    ring = Ring()
    ring.planner = Planner(timing=replace(TIMING, forget_s=60))
    ring.update_member("a_1")
    ring.update_member("b_1")
    ring.decide()
    ring.wait(20, "a_1")
    assert ring.counts() == {"b_1": 12}
    assert not ring.decide().evict
    assert ring.planner.states(ring.now)["a_1"] is MemberState.UNHEALTHY
    # It is looked for when its time is over, though nothing happens until then.
    ring.wait(30, "a_1")
    assert ring.decide().look_at <= 60
    ring.now = 61
    assert [record.id for record in ring.decide().evict] == ["a_1"]


def test_a_look_is_asked_for_when_a_silent_member_becomes_certain() -> None:
    ring = ring_of("a_1")
    assert ring.decide().look_at == 10
    ring.now = 12
    assert ring.decide().look_at == 15.5
    ring.now = 20
    ring.planner.observe([], started=None, now=20, table=ring.table)
    assert ring.planner.decide(ring.table, 20).look_at == 20, (
        "an empty observation is repeated at once"
    )


def test_a_look_is_asked_for_when_balancing_is_due_again() -> None:
    ring = ring_of("a", "b", policy=Policy(interval_s=5))
    ring.now = 1
    ring.renew()
    assert ring.decide().look_at == 5
    ring.now = 5
    ring.renew()
    assert ring.decide().look_at == 15, "nothing is left to balance"


def test_a_longer_promise_moves_the_look() -> None:
    ring = Ring()
    ring.update_member("a_1", lease_s=40)
    ring.decide()
    ring.now = 31
    assert ring.decide().look_at == 40.5


def test_a_member_whose_lease_was_deleted_by_hand_keeps_its_slots_for_its_time() -> None:
    ring = ring_of("a_1", "b_1")
    del ring.members["a_1"]
    ring.wait(16)
    assert ring.counts() == {"a_1": 6, "b_1": 6}
    ring.wait(1)
    assert ring.counts() == {"b_1": 12}


def test_an_planner_that_starts_afresh_gives_everybody_their_time_again() -> None:
    ring = ring_of("a_1", "b_1")
    ring.wait(15, "a_1")
    ring.planner = Planner(timing=TIMING)
    ring.wait(15, "a_1")
    assert ring.counts() == {"a_1": 6, "b_1": 6}
    ring.wait(2, "a_1")
    assert ring.counts() == {"b_1": 12}


def test_an_planner_that_has_not_looked_yet_touches_nothing() -> None:
    ring = ring_of("a_1", "b_1")
    assert Planner(timing=TIMING).decide(ring.table, 1000).table is None


def test_a_leaver_works_until_it_has_let_go_and_a_released_one_is_gone() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("a_1", state=LEAVING)
    ring.decide()
    assert ring.counts() == {"b_1": 12}
    assert ring.states() == {SlotState.OWNED: 6, SlotState.DRAINING: 6}
    ring.update_member("a_1", released=True)
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 12}


def test_the_last_replica_that_leaves_keeps_its_slots_until_another_joins() -> None:
    ring = ring_of("a_1")
    ring.update_member("a_1", state=LEAVING)
    assert ring.decide().table is None
    ring.update_member("a_1", released=True)
    assert ring.decide().table is None
    ring.update_member("b_1")
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 12}
    assert ring.counts() == {"b_1": 12}


def test_a_joining_member_gets_nothing_before_it_is_ready() -> None:
    ring = ring_of("a_1")
    ring.update_member("b_1", state=JOINING)
    assert ring.decide().table is None
    ring.update_member("b_1", state=MemberState.HEALTHY)
    ring.decide()
    assert ring.counts() == {"a_1": 6, "b_1": 6}


def test_a_target_that_dies_is_replaced_and_one_that_leaves_too() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("c_1")
    ring.decide()
    ring.update_member("c_1", released=True)
    ring.decide()
    assert ring.counts() == {"a_1": 6, "b_1": 6}
    assert ring.states() == {SlotState.OWNED: 12}, "what need not go stays"
    ring.update_member("a_1", state=LEAVING)
    ring.decide()
    ring.update_member("c_2")
    ring.update_member("b_1", state=LEAVING)
    ring.decide()
    assert ring.counts() == {"c_2": 12}


def test_a_slot_that_was_let_go_does_not_wait_for_a_silent_target() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("c_1")
    ring.decide()
    for _ in range(11):
        ring.now += 1
        ring.renew("a_1", "b_1")
        ring.decide()
    assert ring.counts()["c_1"] == 4, "it may yet come back"
    ring.acknowledge("a_1")
    ring.decide()
    assert ring.counts()["c_1"] == 2
    assert ring.table.owned_by("c_1") == frozenset()


def test_a_restart_adopts_the_slots_of_its_predecessor() -> None:
    ring = ring_of("a_1", "b_1")
    before = ring.table.next_owners
    ring.wait(3, "a_1")
    ring.update_member("a_2")
    ring.wait(10, "a_1")
    assert ring.table.next_owners == before, "nothing moves while the old one may live"
    ring.wait(4, "a_1")
    assert ring.table.next_owners == tuple(each.replace("a_1", "a_2") for each in before)


def test_a_rolling_update_moves_every_slot_once() -> None:
    count = 5
    ring = Ring(slots=64)
    for number in range(count):
        ring.update_member(f"old{number}_1", template="v1")
    ring.decide()
    moves = 0
    for number in range(count):
        ring.update_member(f"new{number}_1", template="v2")
        ring.wait(10)
        ring.update_member(f"old{number}_1", state=LEAVING)
        before = ring.table.next_owners
        ring.decide()
        moves += sum(a != b for a, b in zip(before, ring.table.next_owners, strict=True))
        ring.acknowledge(f"old{number}_1")
        ring.decide()
        ring.update_member(f"old{number}_1", released=True)
        ring.decide()
        del ring.members[f"old{number}_1"]
    ring.wait(100)
    assert moves == 64
    assert all(owner.startswith("new") for owner in ring.table.next_owners)
    assert max(ring.counts().values()) - min(ring.counts().values()) <= 1


def test_a_replica_of_another_version_gets_slots_when_none_leaves() -> None:
    ring = Ring()
    ring.update_member("a_1", template="v1")
    ring.decide()
    ring.update_member("b_1", template="v2")
    ring.wait(29)
    assert ring.counts() == {"a_1": 12}
    ring.wait(3)
    assert ring.counts() == {"a_1": 6, "b_1": 6}


def test_a_said_predecessor_is_adopted_by_name() -> None:
    ring = ring_of("a_1", "b_1", "c_1")
    mine = ring.table.owned_by("b_1")
    ring.update_member("z_9", predecessor="b")
    ring.decide()
    ring.update_member("b_1", state=LEAVING)
    ring.decide()
    assert {slot for slot, heir in enumerate(ring.table.next_owners) if heir == "z_9"} == mine


def test_each_of_two_newcomers_takes_over_the_slots_of_one_leaver() -> None:
    ring = Ring()
    for member in ("a_1", "b_1"):
        ring.update_member(member, template="v1")
    ring.decide()
    # Alternating owners: a share by number alone would not give all slots of one leaver to one
    # joiner.
    owners = {slot: SlotEntry("a_1" if slot % 2 else "b_1") for slot in range(12)}
    ring.table = ring.table.changed(owners)
    for member in ("c_1", "d_1"):
        ring.update_member(member, template="v2")
    for member in ("a_1", "b_1"):
        ring.update_member(member, state=LEAVING)
    ring.decide()
    next_owners = ring.table.next_owners
    assert {len(set(next_owners[0::2])), len(set(next_owners[1::2]))} == {1}
    assert set(next_owners) == {"c_1", "d_1"}


def test_loads_are_evened_out_in_their_time_and_within_the_budget() -> None:
    policy = Policy(threshold=0.1, interval_s=30, churn=0.2)
    ring = ring_of("a_1", "b_1", slots=100, policy=policy)
    ring.wait(1)
    loads = {slot: 3.0 if slot < 50 else 1.0 for slot in range(100)}
    mine = ring.table.owned_by("a_1")
    ring.update_member("a_1", loads={slot: loads[slot] for slot in mine})
    ring.update_member("b_1", loads={slot: loads[slot] for slot in set(loads) - mine})
    ring.wait(28)
    assert ring.counts() == {"a_1": 50, "b_1": 50}
    ring.wait(3)
    assert ring.counts() == {"a_1": 37, "b_1": 63}
    ring.wait(60)
    assert ring.counts() == {"a_1": 37, "b_1": 63}, "not while something is on its way"
    ring.acknowledge("a_1")
    ring.wait(60)
    assert ring.counts()["a_1"] == 35, "down to half of the threshold"
    ring.acknowledge("a_1")
    ring.wait(120)
    assert ring.counts()["a_1"] == 35


def test_who_does_not_let_go_in_time_is_evicted() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("b_1", state=LEAVING)
    ring.wait(60)
    assert ring.last is not None
    assert ring.last.evict == ()
    ring.wait(2)
    assert [record.id for record in ring.last.evict] == ["b_1"]
    assert ring.last.evict[0].pulse == ring.members["b_1"].pulse
    del ring.members["b_1"]
    ring.wait(17)
    assert ring.states() == {SlotState.OWNED: 12}


def test_a_frozen_table_moves_only_what_the_dead_leave() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = freeze(ring.table)
    ring.update_member("c_1")
    assert ring.decide().table is None
    ring.update_member("a_1", released=True)
    ring.decide()
    assert Counter(ring.table.next_owners)["b_1"] >= 6
    assert set(ring.table.next_owners) == {"b_1", "c_1"}


def test_a_drained_replica_gives_its_slots_away_and_gets_none() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = drain(ring.table, "a")
    ring.decide()
    assert ring.counts() == {"b_1": 12}


def test_a_pinned_slot_goes_where_it_is_pinned_and_stays() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = pin(ring.table, [0, 1, 2], "b")
    ring.decide()
    assert ring.table.next_owners[:3] == ("b_1",) * 3
    ring.update_member("c_1")
    ring.decide()
    assert ring.table.next_owners[:3] == ("b_1",) * 3
    ring.update_member("b_1", released=True)
    ring.decide()
    assert "b_1" not in ring.table.next_owners, (
        "no slot waits for a replica that released its Lease"
    )


def test_more_pinned_slots_than_a_fair_share_all_stay_pinned() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = pin(ring.table, range(8), "a")
    ring.decide()
    assert ring.table.next_owners[:8] == ("a_1",) * 8
    ring.acknowledge("b_1")
    ring.wait(120)
    assert ring.table.next_owners[:8] == ("a_1",) * 8
    assert ring.counts() == {"a_1": 8, "b_1": 4}


def test_a_move_by_hand_is_carried_out() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = move(ring.table, [0], "b_1")
    assert ring.decide().table is None
    ring.acknowledge("a_1")
    ring.decide()
    assert ring.table.entries[0].owner == "b_1"


def test_an_algorithm_that_computes_places_by_name() -> None:
    ring = ring_of("a_1", "b_1", slots=64, algorithm=Hash())
    before = ring.table.next_owners
    assert set(before) == {"a_1", "b_1"}
    ring.update_member("a_1", released=True)
    ring.update_member("a_2")
    ring.decide()
    assert ring.table.next_owners == tuple(each.replace("a_1", "a_2") for each in before)
    ring.table = pin(freeze(ring.table), [0], "b")
    ring.update_member("c_1")
    ring.decide()
    assert set(ring.table.next_owners) == {"a_2", "b_1"}
    ring.members.clear()
    ring.wait(20)
    assert ring.decide().table is None


def test_two_incarnations_at_once_are_told_apart() -> None:
    ring = ring_of("a_1", "a_2", slots=64, algorithm=Hash())
    assert set(ring.table.next_owners) == {"a_1", "a_2"}


class Careless:
    """Forgets the last shard."""

    name = "careless"
    sticky = False

    def get_shard(self, key: str, total: int) -> int:
        return 0

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        return []

    def rebalance(
        self, nodes: Sequence[str], total: int, **_: Mapping[str, object] | None
    ) -> dict[str, list[int]]:
        return {nodes[0]: list(range(total - 1))}

    def validate_shard(self, shard: int, key: str, total: int) -> bool:
        return True


def test_an_algorithm_that_forgets_a_slot_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="every slot"):
        ring_of("a_1", algorithm=Careless())


def test_the_word_of_an_owner_without_a_lease_is_not_asked() -> None:
    ring = ring_of("a_1")
    ring.table = ring.table.changed({0: SlotEntry("ghost_1", to="a_1")})
    ring.wait(15)
    assert ring.table.entries[0].owner == "ghost_1"
    ring.wait(3)
    assert ring.table.entries[0].owner == "a_1"


def test_what_is_taken_by_force_is_given_when_all_have_seen_it() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = release(ring.table, [0])
    ring.update_member("a_1", seen=ring.table.epoch)
    assert ring.decide().table is None
    ring.update_member("b_1", seen=ring.table.epoch)
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 12}


def test_who_has_lost_its_lease_is_waited_for_too() -> None:
    ring = ring_of("a_1", "b_1")
    ring.table = release(ring.table, ring.table.owned_by("a_1"))
    ring.update_member("b_1", seen=ring.table.epoch)
    del ring.members["a_1"]
    ring.wait(15)
    assert ring.states()[SlotState.UNOWNED] == 6
    ring.wait(2)
    assert ring.counts() == {"b_1": 12}


def test_a_lost_table_is_made_again_and_nothing_given_before_all_know() -> None:
    ring = ring_of("a_1", "b_1")
    ring.update_member("a_1", seen=7)
    ring.update_member("b_1", seen=1)
    ring.table = empty_table("ring", 12)
    ring.planner = Planner(timing=TIMING)
    first = ring.decide()
    assert first.table is None, "perhaps we only read an old one"
    assert first.look_at == ring.now + 10
    ring.wait(10)
    assert ring.table.epoch > 1_000_000
    assert ring.states() == {SlotState.UNOWNED: 12}
    assert ring.decide().table is None
    ring.update_member("a_1", seen=ring.table.epoch)
    ring.update_member("b_1", seen=ring.table.epoch)
    ring.decide()
    assert ring.states() == {SlotState.OWNED: 12}


def test_an_old_table_is_not_decided_upon() -> None:
    ring = ring_of("a_1")
    old = ring.table
    ring.table = ring.table.changed({0: SlotEntry("a_1")})
    ring.decide()
    ring.table = old
    ring.update_member("b_1")
    assert ring.decide().table is None


def test_custom_algorithms_may_be_sticky() -> None:
    class Sticky(Careless):
        sticky = True

    ring = ring_of("a_1", "b_1", algorithm=Custom(Sticky()))
    assert ring.counts() == {"a_1": 6, "b_1": 6}
