"""Controller: workers that reconcile the keys of one queue, and the outcomes of a reconcile.

A worker takes and reconciles a key, and maps the outcome to queue, metric, log and hook:

    Done()                  forget the key until its next event             success
    After(seconds)          requeue the key after that time                 requeue_after
    Stuck(reason, message)  call the hook; retry with backoff from 1 s      requeue
    Conflict                retry with backoff, without a log line          requeue
    any other exception     count, log and retry with backoff               error

The backoff doubles from 5 ms to 5 minutes and is never shorter than a server's Retry-After.

A key is not reconciled while its gate reports that the cache does not show this program's own
writes yet, nor if another replica owns the key. An interrupted reconcile leaves its key in the
queue, so that the next run of the controller repeats the reconcile. Metrics have the names of
controller-runtime.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import weakref
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from kubeocean.errors import ApiError, ConfigError, Conflict, InvariantError, KubeoceanError
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.tracing import span
from kubeocean.runtime.workqueue import QueueClosed, WorkQueue

__all__ = ["After", "Controller", "Done", "Outcome", "Reconcile", "Stuck", "StuckHook"]


@dataclass(frozen=True, slots=True)
class Done:
    """Outcome of a reconcile: nothing is left to do for the key."""


@dataclass(frozen=True, slots=True)
class After:
    """Outcome of a reconcile: requeue the key after `seconds`, or earlier if the object changes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stuck:
    """Outcome of a reconcile: the key cannot be reconciled until an object changes. `reason` is a
    CamelCase word, `message` a sentence.
    """

    reason: str
    message: str


Outcome: TypeAlias = Done | After | Stuck


K = TypeVar("K", bound=Hashable)
Reconcile: TypeAlias = Callable[[K], Awaitable[Outcome]]
StuckHook: TypeAlias = Callable[[K, Stuck], Awaitable[None] | None]
_Result: TypeAlias = Literal["success", "error", "requeue", "requeue_after"]

_RESULTS: Final[tuple[_Result, ...]] = ("success", "error", "requeue", "requeue_after")
_STUCK_S: Final = 1.0  # a cause that only a person can remove lasts longer than milliseconds
_LONGEST_S: Final = 300.0
_DOUBLINGS: Final = 16
_BEHIND_S: Final = 1.0  # constant: a cache that was behind for long must not stay unused for long
# controller-runtime's buckets, so that its dashboards fit.
_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
)  # fmt: skip

_log = get_logger(__name__)


class Controller(Generic[K]):
    """Workers that reconcile the keys of one queue.

    - `gate`: awaited before a reconcile; False means that the cache is behind: the key is retried
      later.
    - `owns`: whether this replica owns a key, called before each reconcile.
    - `on_stuck`: called with every `Stuck`; sets the condition and emits the event.
    - `deadline_s`: a reconcile that takes longer is cancelled and counts as an error.
    - `drain_s`: how long running reconciles may still take after `stop`.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[K],
        *,
        queue: WorkQueue[K] | None = None,
        workers: int = 1,
        gate: Callable[[K], Awaitable[bool]] | None = None,
        owns: Callable[[K], bool] | None = None,
        on_stuck: StuckHook[K] | None = None,
        deadline_s: float | None = None,
        drain_s: float = 10.0,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(
                "a controller needs at least one worker", field="workers", value=workers
            )
        metrics = metrics or Metrics()
        self.name = name
        self.workers = workers
        self._clock = clock or RealClock()
        if queue is None:  # not `or`: an empty queue is falsy
            queue = WorkQueue[K](name, clock=self._clock, metrics=metrics)
        self.queue = queue
        self._reconcile = reconcile
        self._gate = gate
        self._owns = owns
        self._on_stuck = on_stuck
        self._deadline_s = deadline_s
        self._drain_s = drain_s
        self._stuck: dict[K, int] = {}  # number of `Stuck` outcomes in a row
        self._busy: set[asyncio.Task[None]] = set()  # workers that hold a key
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._measure(metrics)

    def share(
        self, owns: Callable[[K], bool], around: Callable[[K, Reconcile[K]], Awaitable[Outcome]]
    ) -> None:
        """Reconcile only keys for which `owns` is true, each within `around(key, reconcile)`.
        Call before `run`."""
        reconcile = self._reconcile
        self._owns = owns
        self._reconcile = lambda key: around(key, reconcile)

    def enqueue(self, key: K, *, priority: int = 0) -> None:
        """Enqueue `key` for a reconcile, also while a reconcile of `key` runs."""
        self.queue.add(key, priority=priority)

    def retry_failed(self) -> None:
        """Requeue at once every key whose last reconcile failed; called when the cause of failure
        is over."""
        self._stuck.clear()
        self.queue.retry_failed()

    async def run(self) -> None:
        """Reconcile the keys of the queue until `stop`, or until the queue is closed.

        A cancellation cancels the running reconciles at once and awaits them. The controller may be
        run again afterwards: the queue keeps its keys.
        """
        if not self._ended.is_set():
            raise InvariantError("the controller is already running", controller=self.name)
        self._ended.clear()
        self._stop.clear()
        try:
            async with asyncio.TaskGroup() as group:
                delays = group.create_task(self.queue.run())
                workers = [group.create_task(self._work()) for _ in range(self.workers)]
                await self._stop.wait()
                await self._drain(workers)
                delays.cancel()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Start no more reconciles, give running ones `drain_s`, cancel the rest; `run` has ended
        when this returns."""
        self._stop.set()
        await self._ended.wait()

    async def _drain(self, workers: list[asyncio.Task[None]]) -> None:
        busy = [worker for worker in workers if worker in self._busy]
        for worker in workers:
            if worker not in busy:
                worker.cancel()  # this worker waits for a key, and holds none
        try:
            if busy:
                await within(self._clock, self._drain_s, lambda: asyncio.wait(busy))
        except TimeoutError:
            _log.warning(
                "Cancelled reconciles that did not end in time",
                controller=self.name,
                running=sum(not worker.done() for worker in busy),
                drain_s=self._drain_s,
            )
            for worker in busy:
                worker.cancel()

    async def _work(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        while not self._stop.is_set():
            try:
                key = await self.queue.get()
            except QueueClosed:
                self._stop.set()
                return
            # No await between `get` and here: `_drain` must see which keys are in progress.
            self._busy.add(this)
            try:
                await self._handle(key)
            finally:
                self._busy.discard(this)
            # Reconciles that never wait must not keep other tasks from running.
            await asyncio.sleep(0)
            if this.cancelling():
                raise asyncio.CancelledError  # `reconcile` swallowed the first cancellation

    async def _handle(self, key: K) -> None:
        """Reconcile a key and report `done` to the queue; an interrupted reconcile puts its key
        back into the queue."""
        decided = False
        try:
            if self._owns is not None and not self._owns(key):
                self._forget(key)
            else:
                about = {"controller": self.name, "key": str(key)}
                ident = f"{random.getrandbits(32):08x}"  # groups the log lines of one reconcile
                with (
                    bound(**about, reconcile=ident),
                    span("reconcile", **about) as trace,
                ):
                    trace.set(result=await self._turn(key) or "put off")
            decided = True
        finally:
            if not decided:
                self.queue.add(key, priority=self.queue.priority(key))
            self.queue.done(key)

    async def _turn(self, key: K) -> _Result | None:
        """Reconcile one key, measure the reconcile, and handle its outcome or exception."""
        started = self._clock.monotonic()
        try:
            result = await self._attempt(key)
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            # A task that the reconciler awaited was cancelled, not the reconciler.
            result = self._failed(key, error)
        except Exception as error:
            result = self._failed(key, error)
        if result is None:
            return None
        self._seconds.observe(self._clock.monotonic() - started)
        self._total[result].inc()
        if result == "error":
            self._errors.inc()
        return result

    async def _attempt(self, key: K) -> _Result | None:
        if self._gate is not None and not await self._gate(key):
            _log.debug("Postponed reconcile until the cache shows the last write")
            self.queue.add_after(key, _BEHIND_S, priority=self.queue.priority(key))
            return None
        match await self._limited(key):
            case Done():
                self._forget(key)
                return "success"
            case After(seconds):
                self._forget(key)
                self.queue.add_after(key, seconds, priority=self.queue.priority(key))
                return "requeue_after"
            case Stuck() as stuck:
                await self._report_stuck(key, stuck)
                delay = self.queue.retry(key, at_least=self._stuck_s(key))
                _log.info(
                    "Could not reconcile object, waited for a change",
                    reason=stuck.reason,
                    message=stuck.message,
                    retry_in_s=delay,
                )
                return "requeue"
            case other:
                raise InvariantError(
                    "reconcile returned no outcome", controller=self.name, gave=other
                )

    def _forget(self, key: K) -> None:
        self.queue.forget(key)
        self._stuck.pop(key, None)

    def _stuck_s(self, key: K) -> float:
        """Return the shortest delay before a stuck key is retried, twice the last delay."""
        times = self._stuck.get(key, 0)
        self._stuck[key] = times + 1
        return float(min(_STUCK_S * 2 ** min(times, _DOUBLINGS), _LONGEST_S))

    async def _limited(self, key: K) -> Outcome:
        if self._deadline_s is None:
            return await self._reconcile(key)
        return await within(self._clock, self._deadline_s, lambda: self._reconcile(key))

    async def _report_stuck(self, key: K, stuck: Stuck) -> None:
        result = None if self._on_stuck is None else self._on_stuck(key, stuck)
        if inspect.isawaitable(result):
            await result

    def _failed(self, key: K, error: BaseException) -> _Result:
        wait = error.retry_after_s if isinstance(error, ApiError) else None
        delay = self.queue.retry(key, at_least=wait or 0.0)
        about = {"retry_in_s": delay, "failures": self.queue.failures(key)}
        message = str(error) or type(error).__name__
        if isinstance(error, Conflict):
            _log.debug(
                "Requeued object after a write conflict",
                error=message,
                **about,
            )
            return "requeue"
        if isinstance(error, InvariantError):
            _log.error(
                "Failed to reconcile because of a defect in the program",
                error=message,
                evidence=error.evidence,
                exc_info=error,
                **about,
            )
        elif isinstance(error, KubeoceanError | TimeoutError):
            _log.warning("Failed to reconcile", error=message, **about)
        else:
            _log.error("Failed to reconcile", error=message, exc_info=error, **about)
        return "error"

    def _measure(self, metrics: Metrics) -> None:
        """Create every metric series once, so that all of them exist at zero."""
        label, name = ["controller"], self.name
        totals = metrics.counter(
            "controller_runtime_reconcile_total", "Reconciles by result", [*label, "result"]
        )
        self._total = {result: totals.labels(name, result) for result in _RESULTS}
        self._errors = metrics.counter(
            "controller_runtime_reconcile_errors_total", "Reconciles that failed", label
        ).labels(name)
        self._seconds = metrics.histogram(
            "controller_runtime_reconcile_time_seconds", "Seconds of a reconcile", label, _BUCKETS
        ).labels(name)
        # Read at each scrape; through a weak reference, or the registry would keep every controller
        # that ever existed.
        this = weakref.ref(self)
        metrics.gauge(
            "controller_runtime_active_workers", "Workers that reconcile now", label
        ).labels(name).set_function(
            lambda: 0 if (controller := this()) is None else len(controller._busy)
        )
        metrics.gauge(
            "controller_runtime_max_concurrent_reconciles", "Workers in all", label
        ).labels(name).set(self.workers)


def _cancelled() -> bool:
    this = asyncio.current_task()
    return this is not None and this.cancelling() > 0
