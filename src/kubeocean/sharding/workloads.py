"""Protocols of a ring: the workload that works on its slots, and the notifier of gains and losses.

Each call concerns several slots at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

__all__ = ["ShardNotifier", "Workload"]


class Workload(Protocol):
    """Something that works on slots, such as a controller."""

    async def prepare(self) -> None:
        """Prepare for slots; called once, before the replica reports itself healthy."""

    async def lead(self) -> None:
        """Do the work that only the planner's replica does, until cancelled."""

    async def warm(self, slots: Collection[int]) -> None:
        """Fill the caches for these slots, which this replica may get."""

    def start(self, slots: Collection[int]) -> None:
        """Work on these slots; reconcile all of their keys once."""

    async def idle(self, slot: int) -> None:
        """Return when nothing runs in this slot."""

    def cancel(self, slots: Collection[int]) -> None:
        """Cancel the work in these slots."""

    def drop(self, slots: Collection[int]) -> None:
        """Forget these slots."""

    def busy(self) -> Collection[int]:
        """Return the slots in which work runs."""

    def resources(self, slot: int) -> Sequence[str]:
        """Return the known keys of a slot."""

    def loads(self) -> Mapping[int, float]:
        """Return the loads of the slots, in a unit that is the same for all replicas."""


class ShardNotifier:
    """Callbacks for gained and lost shards. Override the methods you need.

    `on_shard_lost` returns when the caller's work on the shard has ended: no other replica gets it
    before. `on_shard_gained` is awaited before the first key of the shard is worked on.
    """

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        """Handle a gained shard with these keys."""

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        """Handle the loss of a shard; no reconcile runs in it any more."""

    async def on_shard_reassigned(self, shard: int, old: str, new: str) -> None:
        """The shard of any replica went from one to another."""
