"""Algorithms by hash: rendezvous hashing, consistent hashing, and slots.

`Hash` is rendezvous hashing: each pair of a node and a shard has a hash, and a shard belongs to the
node with the highest one. Adding or removing a node moves only the shards that this node gets or
had. A node with twice the capacity gets twice as many shards.

`ConsistentHash` places nodes and shards on a ring; each shard belongs to the next node. A node has
`virtual_nodes` positions, in proportion to its capacity. With a `bound`, no node gets more than 1 +
bound of its share: surplus shards go to the next node with free capacity, at the price of some more
moves.

`Slots` maps keys by hash, leaves shards with their present owners, and moves as few as possible.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.base import ByHash, shards_by_node
from kubeocean.sharding.balance import plan, weights_of
from kubeocean.sharding.slots import HASHES, mixed

__all__ = ["ConsistentHash", "Hash", "Slots"]

# Bounds of the ring of `ConsistentHash`: a replica may state any capacity.
_LARGEST: Final = 1e6
_MOST_POSITIONS: Final = 100_000


class Hash(ByHash):
    """Algorithm `hash`: rendezvous hashing; ignores the present owners and the loads."""

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


class ConsistentHash(ByHash):
    """Algorithm `consistent-hash`: nodes and shards on a ring of hashes; with `bound` None, the
    number of shards of a node is not limited."""

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
        sizes = {node: min((capacities or {}).get(node, 1.0), _LARGEST) for node in nodes}
        ring = sorted(
            (mixed(f"{node}#{index}"), node)
            for node, positions in self._positions(sizes).items()
            for index in range(positions)
        )
        room = self._room(sizes, total)
        owners = [_next(ring, mixed(f"shard-{shard}"), room) for shard in range(total)]
        self._last = shards_by_node(owners, nodes)
        return self._last

    def _positions(self, sizes: Mapping[str, float]) -> dict[str, int]:
        """Return the number of positions of each node on the ring: `virtual_nodes` for a capacity
        of 1, and fewer if the ring would be too large."""
        each = min(self._virtual_nodes, _MOST_POSITIONS / (sum(sizes.values()) or 1.0))
        return {node: max(round(each * size), 1) for node, size in sizes.items()}

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
    return ""  # no node on the ring


class Slots(ByHash):
    """Algorithm `slots`, the default: shards stay with their owners as far as the balance allows.
    Without `previous`, the owners are those of the last `rebalance`."""

    name = "slots"
    sticky = True

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        if previous is None:
            previous = {shard: node for node, shards in self._last.items() for shard in shards}
        known = set(previous.values())
        owners = plan(
            [previous.get(shard, "") for shard in range(total)],
            {node: (capacities or {}).get(node, 1.0) for node in nodes},
            weights=weights_of(weights or {}, total),
            newcomers=[node for node in nodes if node not in known],
        )
        self._last = shards_by_node(owners, nodes)
        return self._last
