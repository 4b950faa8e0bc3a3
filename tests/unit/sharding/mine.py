"""Algorithms of users, for the tests of import paths."""

from __future__ import annotations


class Blocks:
    """Algorithm with the two methods of the design document."""

    def get_shard(self, key: str, total: int) -> int:
        return len(key) % total

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        return {node: list(range(at, total, len(nodes))) for at, node in enumerate(nodes)}


class Eager(Blocks):
    """Takes every optional argument of an algorithm, and has every optional method."""

    def rebalance(self, nodes: list[str], total: int, **more: object) -> dict[str, list[int]]:
        assert set(more) == {"previous", "weights", "capacities"}
        return super().rebalance(nodes, total)

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        return [total - 1]

    def validate_shard(self, shard: int, key: str) -> bool:
        return shard == 1


class Wrong(Blocks):
    """An algorithm with a wrong result in every method."""

    def get_shard(self, key: str, total: int) -> int:
        return total

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        return {nodes[0]: [0, 0]} if total == 2 else {"stranger": [0]}


class Failing(Blocks):
    """Algorithm whose methods raise, or return values of other types."""

    def get_shard(self, key: str, total: int) -> int:
        raise KeyError(key)

    def rebalance(self, nodes: list[str], total: int) -> dict[str, list[int]]:
        if total == 1:
            raise RuntimeError("one line\nor two")
        return [] if total == 2 else {nodes[0]: 0}  # type: ignore[return-value, dict-item]


class Needy(Blocks):
    """Cannot be made without something."""

    def __init__(self, something: object) -> None:
        self.something = something


def make() -> Blocks:
    """Return an algorithm: a factory in place of a class."""
    return Blocks()


ready = Blocks()
nothing = 5
