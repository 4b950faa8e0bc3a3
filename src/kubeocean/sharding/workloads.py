"""Workloads: what a ring asks of those who work on its slots.

A `Workload` does the work and lets go of it; a `ShardNotifier` is told. All of them are asked about
many slots at a time, and answer for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

__all__ = ["ShardNotifier", "Workload"]


class Workload(Protocol):
    """Something that works on slots, such as a controller."""

    async def prepare(self) -> None:
        """Get ready for slots; called once, before the replica says that it is healthy."""

    async def lead(self) -> None:
        """What only the assigner's replica does, until cancelled."""

    async def warm(self, slots: Collection[int]) -> None:
        """Bring in what is needed for these slots; they may not become ours after all."""

    def start(self, slots: Collection[int]) -> None:
        """Work on these slots: take up everything in them once."""

    async def idle(self, slot: int) -> None:
        """Return when nothing runs in this slot."""

    def cancel(self, slots: Collection[int]) -> None:
        """Cancel what runs in these slots."""

    def drop(self, slots: Collection[int]) -> None:
        """Forget these slots."""

    def busy(self) -> Collection[int]:
        """The slots in which something runs."""

    def resources(self, slot: int) -> Sequence[str]:
        """The keys of a slot, as far as they are known."""

    def loads(self) -> Mapping[int, float]:
        """What the slots cost, in whatever unit, the same for all replicas."""


class ShardNotifier:
    """Told of shards that come and go. Override what matters.

    `on_shard_lost` returns when the layer above has let go of the shard: nobody else gets it
    before. `on_shard_gained` is awaited before the first key of the shard is worked on.
    """

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        """The shard is ours, with these keys."""

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        """The shard goes to somebody else; no reconcile runs in it any more."""

    async def on_shard_reassigned(self, shard: int, old: str, new: str) -> None:
        """The shard of any replica went from one to another."""
