"""Sharding algorithms: the mapping of keys to shards, and the spreading of shards over nodes.

slots             the default: sticky, balanced by load, least movement
hash              rendezvous hashing
consistent-hash   a ring with virtual nodes and bounded loads
range             keys by their order, in ranges that the user configures
custom            the user's own, by import path
"""

from kubeocean.sharding.algorithms.base import Algorithm
from kubeocean.sharding.algorithms.custom import Custom
from kubeocean.sharding.algorithms.hash_based import ConsistentHash, Hash, Slots
from kubeocean.sharding.algorithms.ranges import Range, ShardRange
from kubeocean.sharding.algorithms.registry import algorithm

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
