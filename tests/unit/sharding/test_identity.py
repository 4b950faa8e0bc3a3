"""Identity of a ring: which settings replicas must share, and the error of one that differs."""

from __future__ import annotations

import pytest

from kubeocean.sharding.algorithms.custom import as_algorithm
from kubeocean.sharding.config import read_config
from kubeocean.sharding.identity import (
    SettingDifference,
    differences,
    filter_field,
    identity_of,
    merged,
    other_controllers,
    program_difference,
    refusal,
    ring_keeper,
)
from kubeocean.sharding.members import MemberRecord


def identity(**sharding: object) -> dict[str, str]:
    config = read_config({"sharding": sharding})
    return identity_of(config, config.algorithm())


RANGES = [{"end": "m", "shard": 0}, {"start": "m", "shard": 1}]


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        ({}, {"slots": 64}, "sharding.slots"),
        ({}, {"algorithm": "hash"}, "sharding.algorithm"),
        ({}, {"domain": "other.example"}, "sharding.domain"),
        ({}, {"election": "other"}, "sharding.election"),
        (
            {"algorithm": "consistent-hash"},
            {"algorithm": "consistent-hash", "virtualNodes": 10},
            "sharding.virtualNodes",
        ),
        (
            {"algorithm": "range", "ranges": [{"shard": 0}]},
            {"algorithm": "range", "ranges": RANGES},
            "sharding.ranges",
        ),
        (
            {"algorithm": "custom", "custom": "unit.sharding.mine:Blocks"},
            {"algorithm": "custom", "custom": "unit.sharding.mine:Eager"},
            "sharding.custom",
        ),
    ],
)
def test_a_setting_that_decides_ownership_is_a_difference(
    one: dict[str, object], other: dict[str, object], field: str
) -> None:
    assert differences(identity(**one), identity(**one)) == []
    for ours, theirs in ((one, other), (other, one)):
        assert [each.field for each in differences(identity(**ours), identity(**theirs))] == [field]


@pytest.mark.parametrize(
    "other",
    [
        {"rebalanceThreshold": 0.5},
        {"drainDeadline": "10s"},
        {"churnBudget": 0.5},
        {"filter": "label"},
    ],
)
def test_periods_and_limits_are_no_difference(other: dict[str, object]) -> None:
    assert differences(identity(), identity(**other)) == []


def test_a_setting_of_one_side_only_is_no_difference() -> None:
    assert differences({"a": "1"}, {"b": "2"}) == []


class Mine:
    def __init__(self, identity: str) -> None:
        self.identity = identity

    def get_shard(self, key: str, total: int) -> int:
        return 0

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        return {nodes[0]: list(range(total))}


def test_an_algorithm_object_is_told_apart_by_its_class_and_its_settings() -> None:
    config = read_config({})
    one, two = (identity_of(config, as_algorithm(Mine(text))) for text in ("x=1", "x=2"))
    (difference,) = differences(one, two)
    assert difference.field == "sharding.custom"
    assert difference.ours.endswith(":Mine x=1")


def test_the_refusal_names_the_field_the_values_the_replicas_and_the_remedy() -> None:
    differing = [
        SettingDifference("sharding.slots", "8", "4"),
        SettingDifference("sharding.domain", "b", "a"),
    ]
    assert str(refusal("r", differing, ["b_1", "a_1", "c_1", "d_1"])) == (
        "sharding.slots: replicas a_1, b_1, c_1 and 1 more of ring r have '4'; sharding.domain: "
        "'a', here 'b'; use the same configuration, or stop them and run `kubeocean shards "
        "switch` (got '8')"
    )
    assert "ring r last ran with '4'" in str(refusal("r", differing[:1], []))


def controllers(*names: str) -> dict[str, str]:
    return {"sharding.slots": "4", **{filter_field(name): "label" for name in names}}


def test_two_programs_in_one_ring_have_no_controller_in_common() -> None:
    assert other_controllers(controllers("a", "b"), controllers("b", "c")) is None
    assert other_controllers(controllers("a"), controllers()) is None
    assert other_controllers(controllers(), controllers("a")) is None
    difference = other_controllers(controllers("pods"), controllers("b", "a"))
    assert difference == SettingDifference("controllers", "pods", "a, b")
    message = str(refusal("r", [difference], ["a_1"]))
    assert message.startswith("controllers: replicas a_1 of ring r have 'a, b'; give each program")
    assert "sharding.ring" in message
    assert message.endswith("(got 'pods')")


def test_controllers_of_the_program_that_used_the_ring_before_are_forgotten() -> None:
    added = merged(controllers("a", "b"), {**controllers("a", "c"), "x": "1"})
    assert added == {**controllers("a", "b", "c"), "x": "1"}
    assert merged(controllers("b"), {**controllers("a"), "x": "1"}) == {
        **controllers("b"),
        "x": "1",
    }


def member(id_: str, *names: str, joined: int = 0) -> MemberRecord:
    return MemberRecord(id=id_, pulse="1", controllers=names, joined=joined, uid=f"uid-{id_}")


def keepers(recorded: dict[str, str], *replicas: MemberRecord) -> list[str]:
    """Return the replicas that stay in the ring."""
    return [each.id for each in replicas if ring_keeper(each, replicas, recorded) is None]


def test_of_two_programs_the_one_that_the_ring_has_recorded_keeps_it() -> None:
    old, new = member("old", "pods", joined=2), member("new", "nodes", joined=1)
    assert keepers(controllers("pods"), old, new) == ["old"]
    assert ring_keeper(new, [old], controllers("pods")) == old
    assert program_difference(new, old, {}) == SettingDifference("controllers", "nodes", "pods")
    # A replica that publishes no controllers has those of the ring.
    assert keepers(controllers("pods"), member("older", joined=3), new) == ["older"]
    assert keepers({}, member("older", joined=3), new) == ["older", "new"]


@pytest.mark.parametrize("recorded", [{}, {"sharding.filter of old": "label"}])
def test_of_programs_that_start_together_the_first_keeps_the_ring_with_all_replicas(
    recorded: dict[str, str],
) -> None:
    replicas = [
        member("a", "pods", joined=2),
        member("b", "nodes", joined=1),
        member("c", "pods", joined=3),
        member("d", "nodes", joined=4),
        member("e", "claims", joined=5),
    ]
    assert keepers(recorded, *replicas) == ["b", "d"]
    # If the first one has ended, those that are left agree again.
    assert keepers(recorded, *replicas[2:]) == ["c"]


def test_replicas_of_one_program_keep_the_ring_together() -> None:
    one, other = member("a", "pods", "new"), member("b", "pods", "old")
    assert keepers(controllers("earlier"), one, other) == ["a", "b"]
    # Two versions, each of which has a controller in common with a third.
    first, last = member("a", "first"), member("b", "last")
    assert keepers(controllers("first", "last"), first, last) == ["a", "b"]
