"""Sharding algorithms: the mapping of keys to shards, and the spreading of shards over nodes.

slots             the default: sticky, balanced by load, least movement
hash              rendezvous hashing
consistent-hash   a ring with virtual nodes and bounded loads
range             keys by their order, in ranges that the user configures
custom            the user's own, by import path
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.base import Algorithm
from kubeocean.sharding.algorithms.custom import Custom, load_custom
from kubeocean.sharding.algorithms.hash_based import ConsistentHash, Hash, Slots
from kubeocean.sharding.algorithms.ranges import Range, ShardRange

__all__ = [
    "Algorithm",
    "ConsistentHash",
    "Custom",
    "Hash",
    "Range",
    "ShardRange",
    "Slots",
    "algorithm",
]


def algorithm(
    name: str,
    *,
    virtual_nodes: int = 150,
    bound: float | None = 0.1,
    ranges: Sequence[ShardRange] = (),
    custom: str = "",
) -> Algorithm:
    """Return the sharding algorithm of this name, constructed with the settings that concern it.

    :raises ConfigError: there is no such algorithm, or one of its settings is wrong.
    """
    makers: dict[str, Callable[[], Algorithm]] = {
        "slots": Slots,
        "hash": Hash,
        "consistent-hash": lambda: ConsistentHash(virtual_nodes=virtual_nodes, bound=bound),
        "range": lambda: Range(ranges),
        "custom": lambda: load_custom(custom),
    }
    if name not in makers:
        raise ConfigError(
            f"must be one of {', '.join(makers)}", field="sharding.algorithm", value=name
        )
    return makers[name]()
