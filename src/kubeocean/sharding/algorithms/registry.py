"""Registry of the sharding algorithms by the names that users configure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.base import Algorithm
from kubeocean.sharding.algorithms.custom import load_custom
from kubeocean.sharding.algorithms.hash_based import ConsistentHash, Hash, Slots
from kubeocean.sharding.algorithms.ranges import Range, ShardRange

__all__ = ["algorithm"]


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
