"""Range: assigns keys to shards by ranges of their sort order, which the user configures.

A range includes its start and excludes its end. All ranges together cover every key once: the first
starts and the last ends with "", and each starts where the one before it ends. So every key has a
shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.hash_based import Slots

__all__ = ["Range", "ShardRange", "check_ranges"]


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Range of keys from `start` up to, not including, `end`; "" means unbounded."""

    start: str
    end: str
    shard: int


class Range(Slots):
    """Algorithm `range`: maps keys to shards by configured ranges; shards are spread over nodes as
    `Slots` does."""

    name = "range"

    def __init__(self, ranges: Sequence[ShardRange]) -> None:
        super().__init__()
        check_ranges(ranges)
        self._starts = [each.start for each in ranges]
        self._shards = [each.shard for each in ranges]

    def get_shard(self, key: str, total: int) -> int:
        shard = self._shards[bisect_right(self._starts, key) - 1]
        if shard >= total:
            raise ConfigError(f"must be less than {total}", field="sharding.ranges", value=shard)
        return shard


def check_ranges(ranges: Sequence[ShardRange], *, field: str = "sharding.ranges") -> None:
    """Check that the ranges, in the order written, cover every key once.

    :raises ConfigError: ranges overlap, leave a gap or are empty; names the configuration key.
    """
    if not ranges:
        raise ConfigError("needs at least one range", field=field)
    before = ""
    for index, each in enumerate(ranges):
        here, last = f"{field}[{index}]", index == len(ranges) - 1
        if each.start != before:
            how = "overlaps the range before it" if each.start < before else "leaves a gap"
            message = f"{how}: must be {before!r}"
            raise ConfigError(message, field=f"{here}.start", value=each.start)
        if last and each.end:
            raise ConfigError(
                "must be empty: the last range is open-ended", field=f"{here}.end", value=each.end
            )
        if not last and each.end <= each.start:
            message = f"must be after its start {each.start!r}"
            raise ConfigError(message, field=f"{here}.end", value=each.end)
        if each.shard < 0:
            raise ConfigError("must not be negative", field=f"{here}.shard", value=each.shard)
        before = each.end
