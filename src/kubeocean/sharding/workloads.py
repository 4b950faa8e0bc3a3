"""Protocols of a ring: a workload works on its slots, a notifier is called for gains and losses.

A call of a workload may concern several slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kubeocean.sharding.handover import Handled

__all__ = ["ShardNotifier", "Workload"]


class Workload(Protocol):
    """Interface between a ring and the code that works on its slots, such as a controller.

    `hands_over` is True if the next owner of a slot must know which objects were handled in it.
    """

    @property
    def name(self) -> str: ...

    @property
    def hands_over(self) -> bool: ...

    async def prepare(self) -> None:
        """Prepare to work on slots; called once, before the replica reports itself healthy."""

    async def lead(self) -> None:
        """Do the work that only the planner's replica does, until cancelled."""

    async def warm(self, slots: Collection[int]) -> None:
        """Fill the caches for these slots, which this replica may get."""

    def start(self, slots: Collection[int]) -> None:
        """Start to work on these slots; reconcile all of their keys once."""

    async def idle(self, slot: int) -> None:
        """Return when no work runs in this slot, and no work is left that only this replica can
        finish."""

    def cancel(self, slots: Collection[int]) -> None:
        """Cancel the work in these slots."""

    def drop(self, slots: Collection[int]) -> None:
        """Remove the caches and records of these slots, which this replica lost."""

    def busy(self) -> Collection[int]:
        """Return the slots in which work runs."""

    def resources(self, slot: int) -> Sequence[str]:
        """Return the known keys of a slot."""

    def loads(self) -> Mapping[int, float]:
        """Return the loads of the slots, in a unit that is the same for all replicas."""

    def unplaced(self) -> int:
        """Return the number of objects whose slot this replica cannot compute."""

    def handled(self, slot: int) -> Handled:
        """Return the objects that were handled in a slot; called when no work runs in the slot."""

    def inherit(self, slot: int, handled: Handled) -> None:
        """Record the objects that the previous owner of a slot handled; called before `start`."""


class ShardNotifier:
    """Callbacks for gained and lost shards. Override the methods you need.

    The ring awaits `on_shard_gained` before the first key of the shard is worked on, and
    `on_shard_lost` before another replica gets the shard. A call of `on_shard_lost` that does not
    return within `sharding.drainDeadline` is cancelled. Errors are logged; a call of
    `on_shard_gained` that raises is repeated.
    """

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        """Handle a gained shard; `resources` are the keys of all objects in it."""

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        """Handle a lost shard; `resources` are the keys of all objects in it, and no handler and
        no reconcile runs on any of them."""

    async def on_shard_reassigned(self, shard: int, old: str, new: str) -> None:
        """Handle the move of a shard of any replica; `old` and `new` are IDs of replicas."""
