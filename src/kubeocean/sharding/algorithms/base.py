"""The verbs of an algorithm: which shard a key is in, and which shards a node has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kubeocean.sharding.slots import SLOTS, slot_of

__all__ = ["Algorithm", "ByHash", "shards_by_node"]


class Algorithm(Protocol):
    """Mapping of keys to shards, and of shards to nodes.

    `sticky` algorithms leave the spreading to the balance of the table, which knows what is where
    and what it costs. Others compute it from the nodes alone, each time anew.
    """

    @property
    def name(self) -> str:
        """As in `sharding.algorithm`."""

    @property
    def sticky(self) -> bool:
        """Whether slots stay with their owner as far as possible."""

    def get_shard(self, key: str, total: int) -> int:
        """Return the shard of a key, 0 to `total` - 1; always the same."""

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        """Return the shards of a node, as of the last `rebalance`."""

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        """Return the shards of each node; each shard has one node, and no node is left out."""

    def validate_shard(self, shard: int, key: str, total: int = SLOTS) -> bool:
        """Return whether a key is in a shard."""


class ByHash:
    """Keys by hash, whatever the nodes are; the last spreading is remembered."""

    def __init__(self) -> None:
        self._last: dict[str, list[int]] = {}

    def get_shard(self, key: str, total: int) -> int:
        return slot_of(key, total)

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        return [shard for shard in self._last.get(node, []) if shard < total]

    def validate_shard(self, shard: int, key: str, total: int = SLOTS) -> bool:
        return self.get_shard(key, total) == shard


def shards_by_node(owners: Sequence[str], nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return the shards of each node, from the node of each shard."""
    answer: dict[str, list[int]] = {node: [] for node in nodes}
    for shard, node in enumerate(owners):
        if node:
            answer[node].append(shard)
    return answer
