"""Interface of sharding algorithms: the shard of a key, and the shards of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kubeocean.sharding.slots import SLOTS, slot_of

__all__ = ["Algorithm", "ByHash", "shards_by_node"]


class Algorithm(Protocol):
    """Mapping of keys to shards, and of shards to nodes, which are replicas.

    With a `sticky` algorithm the planner spreads shards by the present owners and the measured
    loads of the table. Other algorithms compute the owners from the nodes alone, each time anew.
    """

    @property
    def name(self) -> str:
        """Name of the algorithm, as in the configuration key `sharding.algorithm`."""

    @property
    def sticky(self) -> bool:
        """Whether slots stay with their owner as far as possible."""

    def get_shard(self, key: str, total: int) -> int:
        """Return the shard of a key, 0 to `total` - 1; a key always has the same shard."""

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        """Return the shards that the last `rebalance` gave to a node (a replica)."""

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        """Return the shards of each node (replica); every shard has exactly one node, and every
        node has an entry."""

    def validate_shard(self, shard: int, key: str, total: int = SLOTS) -> bool:
        """Return whether a key belongs to a shard."""


class ByHash:
    """Base of algorithms that map keys to shards by hash; remembers the result of the last
    `rebalance`."""

    def __init__(self) -> None:
        self._last: dict[str, list[int]] = {}

    def get_shard(self, key: str, total: int) -> int:
        return slot_of(key, total)

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        return [shard for shard in self._last.get(node, []) if shard < total]

    def validate_shard(self, shard: int, key: str, total: int = SLOTS) -> bool:
        return self.get_shard(key, total) == shard


def shards_by_node(owners: Sequence[str], nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return the shards of each node (replica), given the node of each shard."""
    answer: dict[str, list[int]] = {node: [] for node in nodes}
    for shard, node in enumerate(owners):
        if node:
            answer[node].append(shard)
    return answer
