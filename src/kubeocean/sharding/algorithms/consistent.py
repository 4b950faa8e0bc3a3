"""Consistent hash: nodes and shards on a ring, each shard at the next node.

A node stands on the ring at `virtual_nodes` places, in proportion to its capacity. With a `bound`,
nobody gets more than 1 + bound of its share: what is too much goes on to the next node that has
room. That bounds what plain rings leave to chance, for a little more movement.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.base import ByHash, shards_by_node
from kubeocean.sharding.hashing import mixed

__all__ = ["ConsistentHash"]


class ConsistentHash(ByHash):
    """A ring of hashes; `bound` None leaves loads to chance."""

    name = "consistent-hash"
    sticky = False

    def __init__(self, *, virtual_nodes: int = 150, bound: float | None = 0.1) -> None:
        if virtual_nodes < 1:
            raise ConfigError(
                "must be at least 1", field="sharding.virtualNodes", value=virtual_nodes
            )
        if bound is not None and bound < 0:
            raise ConfigError("must not be negative", field="sharding.loadBound", value=bound)
        super().__init__()
        self._virtual_nodes = virtual_nodes
        self._bound = bound

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        sizes = {node: (capacities or {}).get(node, 1.0) for node in nodes}
        ring = sorted(
            (mixed(f"{node}#{index}"), node)
            for node, size in sizes.items()
            for index in range(max(round(self._virtual_nodes * size), 1))
        )
        room = self._room(sizes, total)
        owners = [_next(ring, mixed(f"shard-{shard}"), room) for shard in range(total)]
        self._last = shards_by_node(owners, nodes)
        return self._last

    def _room(self, sizes: Mapping[str, float], total: int) -> dict[str, float]:
        if self._bound is None:
            return dict.fromkeys(sizes, math.inf)
        whole = sum(sizes.values())
        return {
            node: math.ceil((1 + self._bound) * total * size / whole)
            for node, size in sizes.items()
        }


def _next(ring: list[tuple[int, str]], place: int, room: dict[str, float]) -> str:
    start = bisect_right(ring, (place, ""))
    for step in range(len(ring)):
        node = ring[(start + step) % len(ring)][1]
        if room[node] > 0:
            room[node] -= 1
            return node
    return ""  # nobody on the ring
