"""Work queue: decides which key is reconciled next.

- Fair: keys of one priority are handed out in the order in which they were added.
- Stingy: a key that is added many times before being handed out is handed out once.
- Exclusive: a key that is handed out is not handed out again before `done`; a key that was added in
  between then waits again, once.
- Prompt: of several delays for one key the shortest counts, and an immediate `add` ends a delay. So
  a delay is a promise to reconcile *by then*, not at that time.
- Patient: `retry` doubles a key's delay from 5 ms to 5 minutes until `forget`.
- Higher priorities go first, always; a key has the highest priority with which it was added.

Any number of producers and consumers, one event loop. Delays pass while `run` runs, which is one
timer for all of them. Memory is bounded by the keys that wait, are delayed, are handed out, or have
failed and are not forgotten.

Metrics have client-go's names, with the label `name`, which is unique within a `Metrics`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import weakref
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from kubeocean.errors import InvariantError, KubeoceanError
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.metrics import Metrics

__all__ = ["QueueClosed", "WorkQueue"]

K = TypeVar("K", bound=Hashable)

_BUCKETS: Final = tuple(10.0**e for e in range(-8, 4))  # client-go's: 10 ns to 1000 s
_DOUBLINGS: Final = 64  # beyond any limit; keeps 2**n a small number
_STALE: Final = 64  # so many dead timers are not worth a rebuild


class QueueClosed(KubeoceanError):
    """Raised when the queue hands out no more keys."""


class WorkQueue(Generic[K]):
    """Queue of keys to reconcile, with delays, backoff and priorities.

    A key is in at most one of `_ready`, `_processing` (and then perhaps in `_again`), and besides
    in `_delayed` only if not in `_ready` or `_again`: a key that is due at once needs no delay.
    """

    def __init__(
        self,
        name: str = "",
        *,
        base_s: float = 0.005,
        max_s: float = 300.0,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.name = name
        self._base_s = base_s
        self._max_s = max_s
        self._clock = clock or RealClock()
        self._now = self._clock.monotonic
        self._open = True
        self._ready: dict[K, int] = {}  # key -> priority; the same keys as in all _lines
        self._lines: dict[int, OrderedDict[K, float]] = {0: OrderedDict()}  # -> key -> added at
        self._order = [0]  # the keys of _lines, negated, ascending: highest priority first
        self._processing: dict[K, tuple[float, int]] = {}  # key -> handed out at, priority
        self._again: dict[K, tuple[float, int]] = {}  # added while processing: added at, priority
        self._delayed: dict[K, tuple[float, int]] = {}  # key -> due at, priority
        self._timers: list[tuple[float, int, K]] = []  # heap; entries may be dead, see _due
        self._ticket = itertools.count()
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._sooner = asyncio.Event()  # a timer is due earlier than before
        self._idle = asyncio.Event()  # no key waits, and no key is handed out
        self._measure(metrics or Metrics())

    def __len__(self) -> int:
        """Number of keys that are ready now."""
        return len(self._ready)

    def add(self, key: K, *, priority: int = 0) -> None:
        """Add `key` to the queue now. Ignored once the queue is closed."""
        if not self._open:
            return
        if self._delayed and (pending := self._delayed.pop(key, None)) is not None:
            priority = max(priority, pending[1])
            self._drop_stale_timers()
        waiting = self._ready.get(key)
        if waiting is not None:
            if priority > waiting:
                self._enqueue(key, priority, self._unlist(key, waiting))
            return
        if key not in self._processing:
            self._adds()
            self._enqueue(key, priority, self._now())
            return
        before = self._again.get(key)
        if before is None:
            self._adds()
            self._again[key] = (self._now(), priority)
        elif priority > before[1]:
            self._again[key] = (before[0], priority)

    def add_after(self, key: K, seconds: float, *, priority: int = 0) -> None:
        """Add `key` to the queue in `seconds`, or earlier if the key is due earlier already."""
        if seconds <= 0 or key in self._ready or key in self._again:
            self.add(key, priority=priority)
            return
        if not self._open:
            return
        due = self._now() + seconds
        pending = self._delayed.get(key)
        if pending is not None:
            priority = max(priority, pending[1])
            if pending[0] <= due:
                self._delayed[key] = (pending[0], priority)
                return
        self._delayed[key] = (due, priority)
        timer = (due, next(self._ticket), key)
        heapq.heappush(self._timers, timer)
        if self._timers[0] is timer:
            self._sooner.set()
        self._drop_stale_timers()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Add `key` again after its backoff, which doubles; return the delay in seconds.

        The key keeps the priority with which the queue handed it out.
        """
        failures = self._failures.get(key, 0)
        delay = max(min(self._base_s * 2.0 ** min(failures, _DOUBLINGS), self._max_s), at_least)
        if self._open:
            self._failures[key] = failures + 1
            self._retries()
            self.add_after(key, delay, priority=self.priority(key))
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of `key`: its next `retry` starts from the shortest delay again."""
        self._failures.pop(key, None)

    def retry_failed(self) -> None:
        """Make all keys that wait for a retry ready now, and reset their backoff."""
        failed, self._failures = self._failures, {}
        for key in failed:
            if key in self._delayed:
                self.add(key)

    def failures(self, key: K) -> int:
        """Return the number of calls of `retry` for `key` since the last `forget`."""
        return self._failures.get(key, 0)

    def priority(self, key: K) -> int:
        """Return the priority with which the key was handed out; 0 if the key is not being
        processed."""
        handed = self._processing.get(key)
        return 0 if handed is None else handed[1]

    async def get(self) -> K:
        """Wait for the next key and return it; no other consumer gets the key until `done`.

        Raises QueueClosed when no key is left and the queue is closed or being drained.
        """
        while not self._ready:
            if not self._open:
                raise QueueClosed(f"work queue {self.name!r} is closed")
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except BaseException:
                self._abandon(getter)
                raise
        return self._take()

    def done(self, key: K) -> None:
        """Report that a worker has finished `key`, which `get` returned, with success or not."""
        handed = self._processing.pop(key, None)
        if handed is None:
            raise InvariantError(
                "done was called for a key that no worker processes", queue=self.name, key=key
            )
        self._worked(self._now() - handed[0])
        if self._again and (again := self._again.pop(key, None)) is not None:
            self._enqueue(key, again[1], again[0])
        elif not self._open and not self._ready and not self._processing:
            self._idle.set()

    async def run(self) -> None:
        """Make delayed keys ready when they are due, until the queue is closed or drained."""
        async with asyncio.TaskGroup() as group:
            while self._open:
                self._sooner.clear()
                wait = self._due()
                nap = None if wait is None else group.create_task(self._nap(wait))
                await self._sooner.wait()
                if nap is not None:
                    nap.cancel()

    async def drain(self) -> None:
        """Accept no more keys and drop delayed ones; return when all waiting keys are handed out
        and done."""
        self._shut()
        if self._ready or self._processing:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """Accept no more keys and drop waiting ones; keys in progress still need `done`."""
        self._shut()
        self._ready.clear()
        self._lines = {0: OrderedDict()}
        self._order = [0]
        self._again.clear()
        if not self._processing:
            self._idle.set()

    def _shut(self) -> None:
        self._open = False
        self._delayed.clear()
        self._timers.clear()
        self._failures.clear()
        self._sooner.set()
        while self._getters:
            self._wake()

    def _enqueue(self, key: K, priority: int, since: float) -> None:
        self._ready[key] = priority
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = OrderedDict()
            insort(self._order, -priority)
        line[key] = since
        self._wake()

    def _unlist(self, key: K, priority: int) -> float:
        """Remove a waiting key from its line; return the time since which the key waits."""
        line = self._lines[priority]
        since = line.pop(key)
        if not line and priority:
            self._close_line(priority)
        return since

    def _take(self) -> K:
        # Only the line of priority 0 is kept while empty, so the next one is not empty.
        line = self._lines[-self._order[0]] or self._lines[-self._order[1]]
        key, since = line.popitem(last=False)
        priority = self._ready.pop(key)
        if not line and priority:
            self._close_line(priority)
        now = self._now()
        self._processing[key] = (now, priority)
        self._waited(now - since)
        return key

    def _close_line(self, priority: int) -> None:
        del self._lines[priority]
        self._order.remove(-priority)

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _abandon(self, getter: asyncio.Future[None]) -> None:
        """Remove a cancelled consumer; if the consumer was woken for a key, wake another one."""
        getter.cancel()
        if getter in self._getters:
            self._getters.remove(getter)
        else:
            self._wake()

    def _due(self) -> float | None:
        """Move due keys to the ready ones; return the seconds until the next key is due, or
        None."""
        now = self._now()
        while self._timers:
            due, _, key = self._timers[0]
            pending = self._delayed.get(key)
            # A timer is dead when its key was added at once, or got a shorter delay, since.
            if pending is None or pending[0] != due:
                heapq.heappop(self._timers)
            elif due > now:
                return due - now
            else:
                heapq.heappop(self._timers)
                self.add(key, priority=pending[1])
        return None

    async def _nap(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._sooner.set()

    def _drop_stale_timers(self) -> None:
        """Remove the timers of keys that were rescheduled, once they outnumber the valid timers."""
        if len(self._timers) > 2 * len(self._delayed) + _STALE:
            self._timers = [(due, next(self._ticket), k) for k, (due, _) in self._delayed.items()]
            heapq.heapify(self._timers)

    def _measure(self, metrics: Metrics) -> None:
        """Create every metric series once: the series exist at zero, and an update costs one
        call."""
        label, name = ["name"], self.name
        # Queue lengths are read at each scrape; through a weak reference, or the registry would
        # keep every queue that ever existed.
        this = weakref.ref(self)

        def level(of: Callable[[WorkQueue[K]], float]) -> Callable[[], float]:
            return lambda: 0.0 if (queue := this()) is None else of(queue)

        metrics.gauge("workqueue_depth", "Keys that wait to be handed out", label).labels(
            name
        ).set_function(level(len))
        metrics.gauge(
            "workqueue_unfinished_work_seconds",
            "Seconds of work on keys that are handed out and not done, added up",
            label,
        ).labels(name).set_function(level(lambda queue: sum(queue._ages())))
        metrics.gauge(
            "workqueue_longest_running_processor_seconds",
            "Seconds for which the key that is longest in work has been handed out",
            label,
        ).labels(name).set_function(level(lambda queue: max(queue._ages(), default=0.0)))
        self._adds = (
            metrics.counter("workqueue_adds_total", "Keys added, each once until handed out", label)
            .labels(name)
            .inc
        )
        self._retries = (
            metrics.counter("workqueue_retries_total", "Keys put back with backoff", label)
            .labels(name)
            .inc
        )
        self._waited = (
            metrics.histogram(
                "workqueue_queue_duration_seconds",
                "Seconds from added to handed out",
                label,
                _BUCKETS,
            )
            .labels(name)
            .observe
        )
        self._worked = (
            metrics.histogram(
                "workqueue_work_duration_seconds",
                "Seconds from handed out to done",
                label,
                _BUCKETS,
            )
            .labels(name)
            .observe
        )

    def _ages(self) -> list[float]:
        now = self._now()
        return [now - since for since, _ in list(self._processing.values())]
