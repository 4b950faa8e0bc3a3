"""Balance: few slots move, and each moves to the right replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.sharding.balance import Policy, plan, weights_of


def even(*members: str) -> dict[str, float]:
    return dict.fromkeys(members, 1.0)


def moved(before: list[str], after: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a, b in zip(before, after, strict=True) if a != b]


def imbalance(
    owners: Sequence[str], members: Mapping[str, float], weights: Sequence[float] | None = None
) -> float:
    """Return by how much the fullest member exceeds its share, as a fraction of the share."""
    loads = dict.fromkeys(members, 0.0)
    for slot, owner in enumerate(owners):
        if owner in loads:
            loads[owner] += weights[slot] if weights else 1.0
    total, capacity = sum(loads.values()), sum(members.values())
    return max(load / members[each] for each, load in loads.items()) * capacity / total - 1


def test_the_first_replicas_get_neighbouring_slots_in_equal_parts() -> None:
    owners = plan([""] * 10, even("a", "b", "c"))
    assert owners == ["a"] * 4 + ["b"] * 3 + ["c"] * 3


def test_without_replicas_nothing_is_placed() -> None:
    assert plan(["x", "y"], {}, fixed={1}) == ["", "y"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 32])
def test_a_newcomer_moves_its_share_and_nothing_else(count: int) -> None:
    names = [f"r{number}" for number in range(count)]
    before = plan([""] * 1024, even(*names))
    after = plan(before, even(*names, "new"), newcomers=["new"])
    changed = moved(before, after)
    assert {to for _, to in changed} == {"new"}
    assert floor(1024 / (count + 1)) <= len(changed) <= ceil(1024 / (count + 1))
    sizes = Counter(after).values()
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [2, 3, 5, 10, 32])
def test_a_leaver_moves_only_its_own_slots(count: int) -> None:
    names = [f"r{number}" for number in range(count)]
    before = plan([""] * 1024, even(*names))
    after = plan(before, even(*names[1:]))
    assert {source for source, _ in moved(before, after)} == {"r0"}
    sizes = Counter(after).values()
    assert max(sizes) - min(sizes) <= 1


def test_a_replica_of_half_the_capacity_gets_half_as_much() -> None:
    owners = plan([""] * 100, {"a": 1.0, "b": 1.0, "canary": 0.5})
    assert Counter(owners) == {"a": 40, "b": 40, "canary": 20}


def test_a_small_imbalance_stays() -> None:
    before = ["a"] * 105 + ["b"] * 95
    assert plan(before, even("a", "b"), threshold=0.1) == before


def test_a_large_imbalance_is_halved_twice_over_and_no_more() -> None:
    before = ["a"] * 120 + ["b"] * 80
    after = plan(before, even("a", "b"), threshold=0.1)
    assert Counter(after) == {"a": 105, "b": 95}


def test_the_churn_budget_limits_what_moves_at_a_time() -> None:
    before = ["a"] * 200
    after = plan(before, even("a", "b"), threshold=0.1, churn=0.1)
    assert Counter(after) == {"a": 180, "b": 20}
    weights = [1.0] * 199 + [100.0]
    heavy = plan(before, even("a", "b"), weights=weights, threshold=0.1, churn=0.01)
    assert len(moved(before, heavy)) == 1, "one move is always allowed"


def test_a_budget_that_is_nearly_spent_takes_no_slot_that_is_too_large() -> None:
    weights = [10.0, 10.0, 10.0, 10.0]
    after = plan(["a"] * 4, even("a", "b"), weights=weights, threshold=0.1, churn=0.3)
    assert Counter(after) == {"a": 3, "b": 1}


def test_fixed_slots_stay_whatever_they_cost() -> None:
    after = plan(["a"] * 4, even("a", "b"), fixed={0, 1, 2}, threshold=0.1)
    assert after == ["a", "a", "a", "b"]
    kept = plan(["gone", "silent"], even("a"), fixed={1})
    assert kept == ["a", "silent"]


def test_fixed_slots_of_a_replica_that_is_not_balanced_are_in_no_share() -> None:
    before = ["silent"] * 10 + ["a"] * 6 + ["b"] * 4
    after = plan(before, even("a", "b"), fixed=range(10), threshold=0.1)
    assert Counter(after) == {"silent": 10, "a": 5, "b": 5}


def test_the_heaviest_slots_are_placed_first() -> None:
    owners = plan([""] * 5, even("a", "b"), weights=[1, 1, 1, 1, 4])
    assert sorted(Counter(owners).values()) == [1, 4]


def test_a_slot_heavier_than_a_share_sheds_its_neighbours() -> None:
    weights = [100.0] + [1.0] * 50
    before = ["a"] * 51
    after = plan(before, even("a", "b"), weights=weights, threshold=0.1)
    assert after[0] == "a" or len(moved(before, after)) == 1
    assert imbalance(after, even("a", "b"), weights) <= 100 / 75 - 1 + 1e-9


def test_weights_come_from_loads_and_a_slot_without_one_is_a_mean_one() -> None:
    assert weights_of({}, 3) is None
    assert weights_of({0: 0.0}, 3) is None
    assert weights_of({0: 1.0, 1: 3.0}, 3) == [1, 3, 2]
    assert weights_of({0: 0.2, 1: 0.4}, 3) == pytest.approx([0.2, 0.4, 0.3])


@pytest.mark.parametrize("busy", [1, 5, 20, 300])
def test_a_newcomer_gets_its_share_of_slots_also_while_few_of_them_carry_load(busy: int) -> None:
    loads = {slot: float(slot * 997 % 1024 < busy) for slot in range(1024)}
    weights = weights_of(loads, 1024)
    before = plan([""] * 1024, even("a", "b"), weights=weights)
    after = plan(before, even("a", "b", "new"), weights=weights, newcomers=["new"])
    changed = moved(before, after)
    assert {to for _, to in changed} == {"new"}
    assert len(changed) <= 1024 // 3 + 3, "the least, and one for each replica"
    assert all(abs(count - 1024 / 3) <= 3 for count in Counter(after).values())
    # Then all slots get load, and none has to move for it.
    later = weights_of(dict.fromkeys(range(1024), 1.0), 1024)
    assert plan(after, even("a", "b", "new"), weights=later, threshold=0.1) == after


def test_idle_slots_that_came_out_of_balance_are_evened_within_the_budget() -> None:
    weights = weights_of({slot: float(slot < 10) for slot in range(1000)}, 1000)
    owners = ["a"] * 5 + ["b"] * 5 + ["a"] * 800 + ["b"] * 190
    counts = []
    for _ in range(10):
        before, owners = (
            owners,
            plan(owners, even("a", "b"), weights=weights, threshold=0.1, churn=0.1),
        )
        assert owners[:10] == before[:10], "what costs something is in balance, and stays"
        assert len(moved(before, owners)) <= 99
        counts.append(Counter(owners)["a"])
    assert counts[-1] == counts[-2] <= 5 + 495 * 1.05 + 1


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Policy(threshold=0), "sharding.rebalanceThreshold"),
        (Policy(interval_s=0), "sharding.rebalanceInterval"),
        (Policy(churn=0), "sharding.churnBudget"),
        (Policy(churn=1.5), "sharding.churnBudget"),
        (Policy(settle_s=-1), "sharding.settlePeriod"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: Policy, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy.validate()
    assert caught.value.field == field
    Policy().validate()


worlds = st.tuples(
    st.lists(st.sampled_from(["", "a", "b", "c", "d", "gone"]), min_size=1, max_size=60),
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d", "e"]), st.sampled_from([0.5, 1.0, 2.0]), min_size=1
    ),
    st.randoms(use_true_random=False),
)


@given(worlds, st.booleans())
def test_every_slot_is_placed_and_planning_ends(world: object, weighted: bool) -> None:
    current, members, random = world
    weights = [random.choice([0.1, 1, 1, 5, 30]) for _ in current] if weighted else None
    rest = [member for member in members if member not in current]
    once = plan(current, members, weights=weights, newcomers=rest, threshold=0.1)
    assert set(once) <= set(members)
    for _ in range(5 * len(current)):
        again = plan(once, members, weights=weights, threshold=0.1)
        if again == once:
            break
        assert imbalance(again, members, weights) <= imbalance(once, members, weights) + 1e-9
        once = again
    else:
        pytest.fail("it never ended")


@given(st.integers(1, 8), st.integers(8, 80), st.lists(st.booleans(), max_size=12))
def test_through_joins_and_leaves_moves_are_the_fewest_and_all_have_the_same(
    start: int, slots: int, joins: list[bool]
) -> None:
    names = [f"r{number}" for number in range(start)]
    owners = plan([""] * slots, even(*names))
    for turn, join in enumerate(joins):
        before = owners
        if join or len(names) == 1:
            names.append(f"n{turn}")
            owners = plan(before, even(*names), newcomers=[names[-1]])
            least = floor(slots / len(names))
            assert len(moved(before, owners)) == least
        else:
            gone = names.pop(0)
            owners = plan(before, even(*names))
            assert len(moved(before, owners)) == before.count(gone)
        sizes = [owners.count(name) for name in names]
        assert max(sizes) - min(sizes) <= 1
