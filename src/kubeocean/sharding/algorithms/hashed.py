"""Hash: each shard at the node that draws highest for it.

Rendezvous hashing: every node draws a number for every shard, and the highest has it. Who comes or
goes moves only the shards that it wins or leaves. A node with twice the capacity wins twice as
often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kubeocean.sharding.algorithms.base import ByHash, shards_by_node
from kubeocean.sharding.hashing import HASHES, mixed

__all__ = ["Hash"]


class Hash(ByHash):
    """Knows nothing of what is where, nor of loads."""

    name = "hash"
    sticky = False

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        size = capacities or {}
        owners = [
            max(nodes, key=lambda node: (_draw(node, shard, size.get(node, 1.0)), node), default="")
            for shard in range(total)
        ]
        self._last = shards_by_node(owners, nodes)
        return self._last


def _draw(node: str, shard: int, capacity: float) -> float:
    chance = (mixed(f"{node}/{shard}") + 0.5) / HASHES
    return -capacity / math.log(chance) if chance < 1 else math.inf
