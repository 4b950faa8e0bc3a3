"""Sharing of existing controllers: each replica reconciles only the keys of its shards, from caches
of all objects.

A `ShardedController` caches only the objects of its shards. `SharedControllers` is for a program
whose controllers already read from caches of all objects, so that a moved shard needs no further
reads:

    sharing = SharedControllers(ring)
    client = Client(FencedTransport(transport, sharing.check))
    …
    sharing.share(pods.controller, by=str, keys=pods.keys)
    sharing.alone(policies.controller)

A shared controller runs under the grant of its shard; an `alone` controller runs on the planner's
replica while that replica is elected; everything else needs a valid Lease. `check` verifies the
grant, the election or the Lease before each write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Reconcile
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.fencing import NotOurs, current_grant, under
from kubeocean.sharding.handover import Handled
from kubeocean.sharding.metrics import Loads, WorkMetrics
from kubeocean.sharding.ring import Ring, WakingClock
from kubeocean.sharding.slot_lifecycle import Ended, Running

__all__ = ["SharedControllers"]

K = TypeVar("K")
_REMEMBERED: Final = 1 << 16  # keys whose shard need not be computed again

_log = get_logger(__name__)

_ALONE: ContextVar[bool] = ContextVar("kubeocean_shard_alone", default=False)


def _nobody(key: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Shared:
    """Shared controller: its known keys, and the function that maps a key to a sharding key."""

    by: Callable[[Any], str]
    known: Callable[[], Iterable[Any]]
    enqueue: Callable[[Any], None]
    release: Callable[[Any], None] | None


class SharedControllers:
    """The controllers of one program whose keys are divided among the replicas of a ring; the
    controllers start after `prepared` has returned."""

    def __init__(
        self,
        ring: Ring,
        *,
        prepared: Callable[[], Awaitable[None]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.ring = ring
        self._prepared = prepared
        self._clock = clock or WakingClock()
        self._shared: list[_Shared] = []
        self._alone: list[Runnable] = []
        self._running = Running()
        self._fresh: set[int] = set()  # gained shards whose keys are not enqueued yet
        self._loads = Loads(self._clock, every_s=ring.config.node.health_check_interval_s)
        self._compute = lru_cache(_REMEMBERED)(ring.shard_of)
        self._unplaced: set[str] = set()  # sharding keys whose shard cannot be computed
        ring.add(self)

    # Registration of controllers

    def share(
        self,
        controller: Controller[K],
        *,
        by: Callable[[K], str],
        keys: Callable[[], Iterable[K]],
        besides: Callable[[K], bool] = _nobody,
        release: Callable[[K], None] | None = None,
    ) -> None:
        """Restrict a controller to the keys of this replica's shards.

        - `by`: returns the sharding key of a key, whose hash decides the shard; must never change.
        - `keys`: returns all known keys; those in a gained shard are enqueued.
        - `besides`: returns whether a key is reconciled in this replica whichever replica owns its
          shard.
        - `release`: called with each key of a lost shard, before another replica may get the shard:
          ends tasks that were started for the key and run on.
        """
        self._shared.append(_Shared(by, keys, controller.enqueue, release))
        figures = WorkMetrics(self.ring.metrics, self.ring.names.ring, controller.name)

        async def around(key: K, reconcile: Reconcile[K]) -> Outcome:
            began, ended = self._clock.monotonic(), False
            what = by(key)
            try:
                if not self.owns(what) and besides(key):
                    outcome = await reconcile(key)
                elif (given := await self._in_turn(what, key, reconcile)) is not None:
                    outcome = given
                else:
                    # The new owner of the shard reconciles its keys; this replica reconciles those
                    # of `besides` again.
                    outcome = After(0.0) if besides(key) else Done()
                ended = True
                return outcome
            finally:
                spent_s = self._clock.monotonic() - began
                if (slot := self._shard_of(what)) is not None:
                    self._loads.spent(slot, spent_s)
                figures.latency.observe(spent_s)
                (figures.processed if ended else figures.errors).inc()

        controller.share(lambda key: self.owns(by(key)) or besides(key), around)

    def alone(self, *parts: Runnable) -> None:
        """Run these controllers only on the planner's replica, so on one replica at a time."""
        self._alone.extend(parts)

    # Ownership

    def owns(self, what: str) -> bool:
        """Return whether this replica owns the shard of a sharding key; False if the algorithm
        fails, until it succeeds (see `placement`)."""
        slot = self._shard_of(what)
        return slot is not None and self.ring.owns(slot)

    def _shard_of(self, what: str) -> int | None:
        """Return the shard of a sharding key; None if it cannot be computed."""
        try:
            slot = self._compute(what)
        except Exception as error:  # whatever the algorithm of the user raises
            if what not in self._unplaced:
                self._unplaced.add(what)
                _log.error(
                    "Could not compute shard of key, skipped the key",
                    key=what,
                    error=error,
                )
            return None
        if what in self._unplaced:
            self._unplaced.discard(what)
            if slot in self.ring.serving:
                self.start([slot])  # the key was left out when the shard was gained
        return slot

    @asynccontextmanager
    async def turn(self, what: str) -> AsyncIterator[None]:
        """Run the block under the grant of a sharding key's shard; the loss of the shard cancels
        the block.

        :raises NotOurs: this replica does not own the shard, or lost it meanwhile.
        """
        slot = self._shard_of(what)
        if slot is None:
            raise NotOurs(f"the shard of {what} cannot be computed")
        if not self.ring.owns(slot):
            raise NotOurs(f"{what} is in shard {slot}, which this replica does not own")
        try:
            async with self._running.of(slot):
                with under(self.ring.grant(slot)):
                    yield
        except Ended as error:
            raise NotOurs(f"the shard of {what} moved to another replica: {error}") from error

    def check(self) -> None:
        """Check, before each write, that the running task may write: by election, grant or Lease.

        :raises KubeoceanError: the write must not be sent.
        """
        if _ALONE.get():
            self.ring.election.check()
        else:
            self.ring.check(current_grant())

    async def _in_turn(self, what: str, key: K, reconcile: Reconcile[K]) -> Outcome | None:
        """Reconcile a key under the grant of its shard and return the outcome; None if the shard
        was lost before or during the reconcile."""
        slot = self._shard_of(what)
        if slot is None or not self.ring.owns(slot):
            return None
        try:
            async with self._running.of(slot):
                with under(self.ring.grant(slot)):
                    return await reconcile(key)
        except Ended:
            return None

    # As a workload of the ring

    name = "shared controllers"
    hands_over = False

    async def prepare(self) -> None:
        if self._prepared is not None:
            await self._prepared()

    async def lead(self) -> None:
        token = _ALONE.set(True)
        try:
            async with asyncio.TaskGroup() as group:
                for part in self._alone:
                    group.create_task(part.run())
        finally:
            _ALONE.reset(token)

    async def warm(self, slots: Collection[int]) -> None:
        """Do nothing: the caches hold all objects."""

    def start(self, slots: Collection[int]) -> None:
        # Many slots are gained one by one in a moment: the keys are scanned once for all of them.
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._take_up)
        self._fresh.update(slots)

    def _take_up(self) -> None:
        fresh, self._fresh = self._fresh, set()
        for shared in self._shared:
            for key in shared.known():
                if self._shard_of(shared.by(key)) in fresh:
                    shared.enqueue(key)

    async def idle(self, slot: int) -> None:
        await self._running.idle(slot)

    def cancel(self, slots: Collection[int]) -> None:
        self._running.cancel(slots)

    def drop(self, slots: Collection[int]) -> None:
        self._loads.drop(slots)
        for shared in self._shared:
            if shared.release is not None:
                for key in shared.known():
                    if self._shard_of(shared.by(key)) in slots:
                        shared.release(key)

    def busy(self) -> Collection[int]:
        return self._running.slots()

    def resources(self, slot: int) -> list[str]:
        return [text for text in self._texts() if self._shard_of(text) == slot]

    def loads(self) -> Mapping[int, float]:
        counts: Counter[int] | None = None

        def count(slot: int) -> int:
            nonlocal counts
            if counts is None:  # only when a measurement is due
                shards = map(self._shard_of, self._texts())
                counts = Counter(shard for shard in shards if shard is not None)
            return counts[slot]

        return self._loads.measure(self.ring.tenancy.serving, count)

    def unplaced(self) -> int:
        """Return the number of sharding keys whose shard this replica cannot compute, after another
        attempt."""
        if self._unplaced:
            self._unplaced.intersection_update(self._texts())
            for what in list(self._unplaced):
                self._shard_of(what)
        return len(self._unplaced)

    def handled(self, slot: int) -> Handled:
        """Return an empty hand-over: reconciles are level-triggered, and their caches hold all
        objects."""
        return Handled()

    def inherit(self, slot: int, handled: Handled) -> None:
        """Do nothing: hand-overs of shared controllers are empty."""

    def _texts(self) -> Iterable[str]:
        return (shared.by(key) for shared in self._shared for key in shared.known())
