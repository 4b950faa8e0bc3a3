"""Algorithms: the four verbs, by every name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms import (
    Algorithm,
    ConsistentHash,
    Custom,
    Hash,
    Range,
    ShardRange,
    Slots,
    algorithm,
)

RANGES = (ShardRange("", "h", 0), ShardRange("h", "p", 1), ShardRange("p", "", 2))
MINE = "shardingmine"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).with_name("mine.py")
    spec = __import__("importlib.util").util.spec_from_file_location(MINE, here)
    module = __import__("importlib.util").util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, MINE, module)


makers: list[Callable[[], Algorithm]] = [
    lambda: algorithm("slots"),
    lambda: algorithm("hash"),
    lambda: algorithm("consistent-hash"),
    lambda: algorithm("consistent-hash", bound=None),
    lambda: algorithm("range", ranges=RANGES),
    lambda: algorithm("custom", custom=f"{MINE}:Blocks"),
]


@pytest.mark.parametrize("make", makers)
def test_every_shard_is_placed_once_and_every_node_answers_for_its_own(
    make: Callable[[], Algorithm],
) -> None:
    subject = make()
    nodes = ["node1", "node2", "node3"]
    answer = subject.rebalance(nodes, 10)
    assert set(answer) == set(nodes)
    assert sorted(shard for shards in answer.values() for shard in shards) == list(range(10))
    assert {node: subject.get_shard_for_node(node, 10) for node in nodes} == answer
    assert subject.get_shard_for_node("stranger", 10) == []
    shard = subject.get_shard("test-resource", 10)
    assert 0 <= shard < 10
    assert subject.get_shard("test-resource", 10) == shard
    assert subject.validate_shard(shard, "test-resource", 10)
    assert not subject.validate_shard((shard + 1) % 10, "test-resource", 10)
    assert subject.rebalance([], 4) == {}


@pytest.mark.parametrize("nodes", [["a", "b", "c"], ["x", "y", "z"], ["web-0", "web-1", "web-2"]])
def test_a_bounded_ring_leaves_no_node_of_three_without_a_shard_of_ten(nodes: list[str]) -> None:
    answer = ConsistentHash(virtual_nodes=150).rebalance(nodes, 10)
    assert min(map(len, answer.values())) >= 1
    assert max(map(len, answer.values())) <= 4


@pytest.mark.parametrize("subject", [Hash(), ConsistentHash(bound=None), Slots()])
def test_capacities_count(subject: Algorithm) -> None:
    answer = subject.rebalance(["big", "small"], 1000, capacities={"big": 3.0})
    assert 650 < len(answer["big"]) < 850


@pytest.mark.parametrize("subject", [Hash(), ConsistentHash(bound=None), Slots()])
def test_who_goes_moves_only_what_it_had(subject: Algorithm) -> None:
    before = subject.rebalance(["a", "b", "c"], 300)
    before = {node: list(shards) for node, shards in before.items()}
    after = subject.rebalance(["a", "b"], 300)
    assert set(before["a"]) <= set(after["a"])
    assert set(before["b"]) <= set(after["b"])


def test_slots_continue_from_what_they_are_told() -> None:
    answer = Slots().rebalance(
        ["a", "b"], 4, previous=dict.fromkeys(range(4), "a"), weights=dict.fromkeys(range(4), 1.0)
    )
    assert {node: len(shards) for node, shards in answer.items()} == {"a": 2, "b": 2}


def test_ranges_have_their_start_and_not_their_end() -> None:
    subject = Range(RANGES)
    assert [subject.get_shard(key, 3) for key in ("", "g", "h", "oz", "p", "zz")] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="less than 2"):
        subject.get_shard("z", 2)


@pytest.mark.parametrize(
    ("ranges", "field", "says"),
    [
        ((), "sharding.ranges", "at least one"),
        ((ShardRange("a", "", 0),), "sharding.ranges[0].start", "gap"),
        ((ShardRange("", "m", 0),), "sharding.ranges[0].end", "open-ended"),
        ((ShardRange("", "m", 0), ShardRange("k", "", 1)), "sharding.ranges[1].start", "overlaps"),
        ((ShardRange("", "m", 0), ShardRange("n", "", 1)), "sharding.ranges[1].start", "gap"),
        ((ShardRange("", "", 0), ShardRange("", "", 1)), "sharding.ranges[0].end", "after"),
        ((ShardRange("", "", -1),), "sharding.ranges[0].shard", "negative"),
    ],
)
def test_ranges_that_do_not_tile_are_refused_by_key(
    ranges: tuple[ShardRange, ...], field: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        algorithm("range", ranges=ranges)
    assert caught.value.field == field


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="slots, hash, consistent-hash, range, custom") as caught:
        algorithm("magic")
    assert caught.value.field == "sharding.algorithm"


class Numbers:
    """Algorithm that returns shards of other types of numbers."""

    def __init__(self, shard: object) -> None:
        self.shard = shard

    def get_shard(self, key: str, total: int) -> object:
        return self.shard

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        return {nodes[0]: list(range(total))}


class Indexed:
    """Number of another library, as NumPy has."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize(("returned", "shard"), [(True, 1), (Indexed(), 3), (7, 7)])
def test_the_shard_of_a_custom_algorithm_is_a_plain_number(returned: object, shard: int) -> None:
    answer = Custom(Numbers(returned)).get_shard("key", 8)
    assert (answer, type(answer)) == (shard, int)


@pytest.mark.parametrize("returned", [8, -1, 1.0, "1", None])
def test_any_other_shard_of_a_custom_algorithm_is_an_error(returned: object) -> None:
    with pytest.raises(ConfigError, match="must return a shard from 0 to 7 for the key 'key'"):
        Custom(Numbers(returned)).get_shard("key", 8)


def test_more_virtual_nodes_spread_shards_more_evenly() -> None:
    nodes = [f"node-{number}" for number in range(10)]

    def fullest(virtual_nodes: int) -> int:
        subject = algorithm("consistent-hash", virtual_nodes=virtual_nodes, bound=None)
        return max(map(len, subject.rebalance(nodes, 1000).values()))

    assert fullest(150) < 130 < 170 < fullest(1)


def test_a_ring_needs_virtual_nodes_and_a_bound_that_is_one() -> None:
    with pytest.raises(ConfigError, match=r"sharding\.virtualNodes"):
        algorithm("consistent-hash", virtual_nodes=0)
    with pytest.raises(ConfigError, match=r"sharding\.loadBound"):
        algorithm("consistent-hash", bound=-0.1)


@pytest.mark.parametrize("name", ["Blocks", "make", "ready"])
def test_a_custom_one_is_a_class_a_maker_or_a_thing(name: str) -> None:
    subject = algorithm("custom", custom=f"{MINE}:{name}")
    assert subject.name == "custom"
    assert not subject.sticky
    assert subject.rebalance(["a", "b"], 3) == {"a": [0, 2], "b": [1]}


def test_a_custom_one_gets_what_it_takes() -> None:
    subject = algorithm("custom", custom=f"{MINE}:Eager")
    assert subject.rebalance(["a"], 2) == {"a": [0, 1]}
    assert subject.get_shard_for_node("a", 2) == [1]
    assert subject.validate_shard(1, "key", 2)


def test_a_custom_one_may_answer_every_shard_from_the_first_to_the_last() -> None:
    subject = algorithm("custom", custom=f"{MINE}:Blocks")
    assert [subject.get_shard(key, 4) for key in ("four", "a", "three")] == [0, 1, 1]
    assert subject.get_shard("abc", 4) == 3


def test_shards_beyond_the_present_number_are_nobodys() -> None:
    subject = algorithm("custom", custom=f"{MINE}:Blocks")
    subject.rebalance(["a", "b"], 5)
    assert subject.get_shard_for_node("a", 5) == [0, 2, 4]
    assert subject.get_shard_for_node("a", 4) == [0, 2]


@pytest.mark.parametrize(
    "path", ["", "nowhere", "no.where:X", f"{MINE}:absent", f"{MINE}:nothing", f"{MINE}:Needy"]
)
def test_a_path_to_nothing_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithm("custom", custom=path)
    assert caught.value.field == "sharding.custom"


def test_a_custom_one_without_verbs_is_refused() -> None:
    with pytest.raises(ConfigError, match="get_shard"):
        Custom(object())


def test_wrong_answers_of_a_custom_one_are_not_believed() -> None:
    subject = algorithm("custom", custom=f"{MINE}:Wrong")
    with pytest.raises(ConfigError, match="must return a shard"):
        subject.get_shard("key", 4)
    with pytest.raises(ConfigError, match="exactly one node"):
        subject.rebalance(["a"], 2)
    with pytest.raises(ConfigError, match="nodes that do not exist"):
        subject.rebalance(["a"], 1)


def test_errors_and_nonsense_of_a_custom_one_are_told_in_one_line() -> None:
    subject = algorithm("custom", custom=f"{MINE}:Failing")
    for call, message in (
        (lambda: subject.get_shard("key", 4), r"get_shard failed: KeyError: 'key'"),
        (lambda: subject.rebalance(["a"], 1), r"rebalance failed: RuntimeError: one line or two"),
        (lambda: subject.rebalance(["a"], 2), r"must return a mapping"),
        (lambda: subject.rebalance(["a"], 3), r"must return a list of numbers"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            call()
        assert caught.value.field == "sharding.custom"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("huge", [1e9, 1e300, 1.7e308])
def test_a_ring_stays_small_whatever_capacity_a_replica_states(huge: float) -> None:
    subject = algorithm("consistent-hash", virtual_nodes=10_000)
    answer = subject.rebalance(["a", "b", "c"], 16, capacities={"a": huge, "b": huge})
    assert sorted(shard for shards in answer.values() for shard in shards) == list(range(16))
