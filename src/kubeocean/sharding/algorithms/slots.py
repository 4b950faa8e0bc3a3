"""Slots: keys by hash, shards wherever they are already, moved as little as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeocean.sharding.algorithms.base import ByHash, shards_by_node
from kubeocean.sharding.balance import plan, weights_of

__all__ = ["Slots"]


class Slots(ByHash):
    """The default. Without `previous`, it continues from its own last answer."""

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
