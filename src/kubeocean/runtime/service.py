"""Service: start, readiness, signals and shutdown of a program.

Components start in the given order and stop in reverse order, so that components on which others
depend (an event recorder, informers) come first. The program is ready when all components are. The
program stops

- on SIGTERM or SIGINT, or when `stop` is called: exit code 0;
- when a component fails, or ends without a request to stop: exit code 1.

On shutdown readiness is withdrawn first, then each component ends, all within `deadline_s`. A
second signal ends the program at once. SIGUSR1 raises the log level by one step, SIGUSR2 lowers the
level.

    sys.exit(run(Service("syncer", [recorder, informer, controller]).run))

`cancelled_by_signals` handles the same signals before a service runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.components import Component, ServicePart, components_of
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.health import Health, metrics_app
from kubeocean.runtime.logs import get_logger, step_level
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.metrics_access import SecureMetrics
from kubeocean.runtime.server import Server

__all__ = [
    "SIGNALLED",
    "Component",
    "Service",
    "cancelled_by_signals",
    "freeze",
    "relax",
    "return_buffers",
    "run",
]

_COLLECT_AFTER: Final = 20_000  # new objects
# Names and numbers of malloc.h; to set the first disables its adjustment.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BUFFER: Final = 1 << 17  # bytes; the default of glibc before its adjustment
_SPARE_HEAP: Final = 1 << 23  # bytes at the end of the heap that are not returned
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed
_LAST_S = 2.0  # time for cancelled components; afterwards the process ends without them
_RESERVE_S = 2.0  # of the deadline, kept for each component that may have to be cancelled
_LOOK_S = 0.1  # how often readiness is checked, until all components are ready

_log = get_logger(__name__)


def freeze() -> None:
    """Exclude all present objects, such as filled caches, from garbage collection."""
    gc.collect()
    gc.freeze()


def relax() -> None:
    """Make the garbage collector run less often than by default.

    Objects are freed by counting references; searching for cycles after every 700 new objects took
    a tenth of the time of a busy process, and found next to none.
    """
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def return_buffers() -> None:
    """Make the C library return large buffers to the system as soon as they are freed.

    By default, after a first large buffer was freed, glibc takes buffers of up to 32 MiB from the
    heap, between small objects that outlive them, and their memory stays with the process: half of
    the heap of a syncer whose worker sent large answers was free, and the heap grew for minutes.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # not in all libraries
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BUFFER)
        mallopt(_M_TRIM_THRESHOLD, _SPARE_HEAP)


def run(main: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run `main` in an event loop, uvloop's where installed; return the exit code of `main`."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        loop_factory = None
    else:
        loop_factory = new_event_loop
    relax()
    return_buffers()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


class Service:
    """Components of a program that start and stop together.

    - `secure_metrics`: serve metrics over HTTPS, to callers that may read them.
    - `drain_s`: how long components continue to work after the service stopped being ready.
    - `on_ready`: called once, when all components are ready for the first time.
    - `exit`: ends the process when a component cannot be ended.
    """

    def __init__(
        self,
        name: str,
        parts: Iterable[ServicePart],
        *,
        metrics: Metrics | None = None,
        health: Health | None = None,
        metrics_address: BindAddress | None = None,
        secure_metrics: SecureMetrics | None = None,
        health_address: BindAddress | None = None,
        deadline_s: float = 30.0,
        drain_s: float = 0.0,
        on_ready: Callable[[], None] = freeze,
        signals: bool = True,
        exit: Callable[[int], object] = os._exit,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.components = components_of(parts)
        self.metrics = metrics or Metrics(process=True)
        self.health = health or Health()
        self._secure_metrics = secure_metrics
        self._addresses = {"metrics": metrics_address, "health": health_address}
        self._deadline_s = deadline_s
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._signals = signals
        self._exit = exit
        self._clock = clock or RealClock()
        self._code = 0
        self._started = False
        self._stopping = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._add_checks()

    @property
    def ready(self) -> bool:
        """Whether every component is ready, and the service is not stopping."""
        return self._unfit() is None and all(part.ready() for part in self.components)

    def stop(self, why: str = "stop was called") -> None:
        """End the service as a signal does; a second call skips the shutdown."""
        if not self._stopping.is_set():
            _log.info(
                "Began to stop service", service=self.name, why=why, deadline_s=self._deadline_s
            )
            self._stopping.set()
        elif self._patience is not None:
            _log.warning("Skipped the shutdown of service", service=self.name, why=why)
            self._patience.reschedule(_NOW)
            self._patience = None

    async def run(self) -> int:
        """Run until the service is stopped; return the exit code."""
        async with AsyncExitStack() as stack:
            if self._signals:
                stack.enter_context(self._handling_signals())
            try:
                served = await self._serve(stack)
            except ConfigError as error:
                _log.error("Could not start service", service=self.name, error=error)
                return 1
            _log.info("Started service", service=self.name, pid=os.getpid(), **served)
            if not self._stopping.is_set():
                await self._live()
        _log.info("Stopped service", service=self.name, code=self._code)
        return self._code

    # Start and run

    async def _serve(self, stack: AsyncExitStack) -> dict[str, str]:
        """Serve the metrics and health pages that have an address; they are served before and after
        all components run."""
        secure = self._secure_metrics
        apps = {
            "metrics": metrics_app(self.metrics, secure=secure),
            "health": self.health.app(),
        }
        tls = {"metrics": secure.certificate.context} if secure is not None else {}
        served: dict[str, str] = {}
        for name, address in self._addresses.items():
            if address is not None:
                server = await stack.enter_async_context(
                    Server(apps[name], address, tls=tls.get(name))
                )
                served[name] = str(server.address)
        return served

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._tasks = [
                group.create_task(self._run(part), name=part.name) for part in self.components
            ]
            self._started = True
            watch = group.create_task(self._watch())
            try:
                await self._stopping.wait()
            finally:
                self._stopping.set()  # when cancelled
                watch.cancel()
                await self._end_all()

    async def _run(self, part: Component) -> None:
        """Run one component. Its end, for any reason, stops the service in order: nothing is raised
        here that would make the task group cancel all other components at once."""
        try:
            await part.run()
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                self._fail(part, "Component was cancelled")
            raise
        except Exception as error:  # logged with its traceback; the process ends
            self._fail(part, "Component failed", error)
        else:
            if not self._stopping.is_set():
                self._fail(part, "Component ended by itself")

    def _fail(self, part: Component, what: str, error: Exception | None = None) -> None:
        self._code = 1
        # An error that the user can correct names field and value, and needs no traceback.
        traced = None if isinstance(error, ConfigError) else error
        _log.error(what, service=self.name, component=part.name, error=error, exc_info=traced)
        if not self._stopping.is_set():
            self.stop(f"{part.name} is gone")

    async def _watch(self) -> None:
        started = self._clock.monotonic()
        while not self.ready:
            await self._clock.sleep(_LOOK_S)
        self._on_ready()
        seconds = round(self._clock.monotonic() - started, 3)
        _log.info("Service became ready", service=self.name, after_s=seconds)

    # End

    async def _end_all(self) -> None:
        try:
            async with asyncio.timeout(None) as self._patience:
                try:
                    await within(self._clock, self._deadline_s, self._end_in_order)
                finally:
                    self._patience = None
        except TimeoutError:
            self._code = 1
            await self._end_at_once()

    async def _end_in_order(self) -> None:
        deadline = self._clock.monotonic() + self._deadline_s
        if self._drain_s:
            await self._clock.sleep(self._drain_s)
        reserve_s = min(_RESERVE_S, self._deadline_s / (2 * len(self.components) + 1))
        for before, part in reversed(list(enumerate(self.components))):
            left_s = deadline - self._clock.monotonic() - (before + 1) * reserve_s
            await self._end(part, self._tasks[before], left_s)
        await _all_done(self._tasks)

    async def _end(self, part: Component, task: asyncio.Task[None], left_s: float) -> None:
        try:
            await within(self._clock, left_s, partial(self._ask, part, task))
        except TimeoutError:
            _log.warning(
                "Cancelled component that did not stop in time",
                service=self.name,
                component=part.name,
            )
            task.cancel()

    async def _ask(self, part: Component, task: asyncio.Task[None]) -> None:
        if part.stop is None:
            task.cancel()
        elif not task.done():
            try:
                stopping = part.stop()
                if inspect.isawaitable(stopping):
                    await stopping
            except (
                Exception
            ) as error:  # a component whose stop fails must not keep the others running
                self._fail(part, "Component could not be stopped", error)
                task.cancel()
        await _all_done([task])

    async def _end_at_once(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await within(self._clock, _LAST_S, partial(_all_done, self._tasks))
        except TimeoutError:
            left = [task.get_name() for task in self._tasks if not task.done()]
            _log.error(
                "Ended process before components of service stopped",
                service=self.name,
                components=left,
            )
            self._exit(self._code)

    # Signals and checks

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: partial(self.stop, "SIGTERM"),
            signal.SIGINT: partial(self.stop, "SIGINT"),
            signal.SIGUSR1: partial(_step, +1),
            signal.SIGUSR2: partial(_step, -1),
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def _add_checks(self) -> None:
        self.health.add_readiness("service", self._unfit)
        for part in self.components:
            self.health.add_readiness(part.name, partial(_not_ready, part))

    def _unfit(self) -> str | None:
        if self._stopping.is_set():
            return "stopping"
        return None if self._started else "starting"


def _not_ready(part: Component) -> str | None:
    return None if part.ready() else "not ready yet"


def _step(steps: int) -> None:
    _log.warning("Changed log level", now=step_level(steps))


async def _all_done(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


SIGNALLED: Final = 128  # plus the number of the signal: exit code of a process that a signal ended
_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def cancelled_by_signals(received: list[int]) -> Iterator[None]:
    """Make SIGTERM and SIGINT cancel the current task within the block, and append them to
    `received`.

    Without a handler, the kernel does not deliver these signals to the first process of a
    container.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(number: int) -> None:
        received.append(number)
        task.cancel()

    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number in _NUMBERS:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    finally:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
