"""Placement algorithms of other systems, for comparison: keys map to replicas without a table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from kubeocean.sharding.slots import HASHES, mixed

__all__ = ["OTHERS", "Place"]

Place = Callable[[Sequence[int], Sequence[str]], list[str]]  # hashes of keys, replicas: owners


def modulo(keys: Sequence[int], replicas: Sequence[str]) -> list[str]:
    ordered = sorted(replicas)
    return [ordered[key % len(ordered)] for key in keys]


def ring(tokens: int) -> Place:
    def place(keys: Sequence[int], replicas: Sequence[str]) -> list[str]:
        stands = sorted((mixed(f"{each}{at}"), each) for each in replicas for at in range(tokens))
        hashes, owners = [stand[0] for stand in stands], [stand[1] for stand in stands]
        return [owners[bisect_right(hashes, key) % len(owners)] for key in keys]

    return place


def rendezvous(keys: Sequence[int], replicas: Sequence[str]) -> list[str]:
    seeds = [(mixed(each) | 1, each) for each in replicas]
    return [max((_mix(key ^ seed), each) for seed, each in seeds)[1] for key in keys]


def _mix(value: int) -> int:
    """Return the value after the last steps of splitmix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % HASHES
    value = (value ^ value >> 27) * 0x94D049BB133111EB % HASHES
    return value ^ value >> 31


OTHERS: dict[str, Place] = {
    "modulo": modulo,
    "ring of 100 tokens": ring(100),
    "ring of 150 tokens": ring(150),
    "ring of 1000 tokens": ring(1000),
    "rendezvous": rendezvous,
}
