"""A simulation of elections: processes, a network and a register, in simulated time.

The code under test is the real one. Its surroundings are simulated: when a request arrives and
whether its answer does, how fast the clock of a process runs, and when the process is frozen. Time
jumps to the next event, so minutes take milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from types import TracebackType
from typing import Any, Self

from kubeocean.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from kubeocean.runtime.election import Campaign, LeadershipLost, LockEntry, Record

__all__ = ["Network", "Process", "Register", "World", "now", "simulate"]


class _TimelessLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is ready."""

    _ready: Any
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _elapsed = 0.0

    def time(self) -> float:
        return self._elapsed

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self._elapsed = max(self._elapsed, self._scheduled[0].when())
        super()._run_once()


def simulate(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `story` in simulated time."""
    with asyncio.Runner(loop_factory=_TimelessLoop) as runner:
        runner.run(story())


def now() -> float:
    """Return the true time, which no process can read."""
    return asyncio.get_running_loop().time()


@dataclass
class Register:
    """The lease on the server, which a write changes only if the write names its version."""

    entry: LockEntry | None = None
    reads: int = 0
    writes: int = 0
    on_write: Callable[[], None] = lambda: None

    @property
    def record(self) -> Record:
        assert self.entry is not None
        return self.entry.record

    def read(self) -> LockEntry | None:
        self.reads += 1
        return self.entry

    def create(self, record: Record) -> LockEntry:
        if self.entry is not None:
            raise AlreadyExists("the lease exists")
        return self._put(record)

    def update(self, record: Record, version: str) -> LockEntry:
        if self.entry is None:
            raise NotFound("the lease does not exist")
        if self.entry.version != version:
            raise Conflict(f"the lease is at {self.entry.version}, not at {version}")
        return self._put(record)

    def touch(self) -> None:
        """Write the lease with the same holder, as a change of its labels does."""
        if self.entry is not None:
            self._put(self.entry.record)

    def give_to(self, holder: str, duration_s: int = 15) -> None:
        """Write a holder into the lease that is no candidate."""
        self._put(Record(holder, duration_s))

    def _put(self, record: Record) -> LockEntry:
        self.writes += 1
        self.entry = LockEntry(record, str(self.writes))
        self.on_write()
        return self.entry


@dataclass
class Network:
    """Faults of requests; chances are per request, delays in seconds each way."""

    chance: Random = field(default_factory=lambda: Random(0))
    delay_s: float = 0.01
    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    down: bool = False

    def happens(self, probability: float) -> bool:
        return self.down or self.chance.random() < probability

    def some_delay(self) -> float:
        # Mostly quick, sometimes very slow.
        return self.delay_s * self.chance.random() ** 3


class Process:
    """A candidate that can be frozen; the object is also the candidate's clock and its lock."""

    def __init__(
        self,
        name: str,
        register: Register,
        network: Network,
        *,
        rate: float = 1.0,
        clean_up_s: float = 0.0,
        **settings: Any,
    ) -> None:
        self.name = name
        self.register = register
        self.network = network
        self.rate = rate
        self.started = now()
        self.clean_up_s = clean_up_s
        self.frozen_until = 0.0
        self.cut_until = 0.0
        self.leading = False
        self.acts: list[float] = []
        self.refusals = 0
        self.tenures = 0
        self.campaign = Campaign(
            self, name="world", identity=name, clock=self, chance=network.chance.random, **settings
        )

    def freeze(self, seconds: float) -> None:
        """Run none of its code for this time, in which its clock goes on."""
        self.frozen_until = max(self.frozen_until, now() + seconds)

    def cut(self, seconds: float) -> None:
        """Cut the connection to the server for a period, in both directions."""
        self.cut_until = max(self.cut_until, now() + seconds)

    # A clock.

    def monotonic(self) -> float:
        return (now() - self.started) * self.rate

    def now(self) -> datetime:
        # Wall clocks of candidates disagree by hours.
        shift = timedelta(hours=len(self.name) * 3, seconds=now())
        return datetime(2026, 1, 1, tzinfo=UTC) + shift

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self._thaw()

    async def _thaw(self) -> None:
        if now() < self.frozen_until:
            await asyncio.sleep(self.frozen_until - now())
            await self._thaw()  # it may have been frozen again

    # A lock, far away.

    async def read(self) -> LockEntry | None:
        return await self._call(self.register.read)

    async def create(self, record: Record) -> LockEntry:
        entry = await self._call(lambda: self.register.create(record))
        assert entry is not None
        return entry

    async def update(self, record: Record, version: str) -> LockEntry:
        entry = await self._call(lambda: self.register.update(record, version))
        assert entry is not None
        return entry

    async def _call(self, work: Callable[[], LockEntry | None]) -> LockEntry | None:
        """Send a request, which may be lost, and which may arrive after its caller was
        cancelled."""
        net, loop = self.network, asyncio.get_running_loop()
        if net.happens(net.refused) or now() < self.cut_until:
            await asyncio.sleep(net.some_delay())
            await self._thaw()
            raise Unreachable("connection refused", sent=False)
        answer: asyncio.Future[LockEntry | None] = loop.create_future()

        def arrive() -> None:
            if net.happens(net.request_lost) or now() < self.cut_until:
                return
            try:
                result, error = work(), None
            except ApiError as refused:
                result, error = None, refused
            if not net.happens(net.answer_lost):
                loop.call_later(net.some_delay(), back, result, error)

        def back(result: LockEntry | None, error: ApiError | None) -> None:
            if answer.done() or now() < self.cut_until:
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        loop.call_later(net.some_delay(), arrive)
        try:
            return await answer
        finally:
            await self._thaw()

    # A program.

    async def lead(self) -> None:
        """Act every tenth of a second, asking first, as a controller does."""
        assert not self.leading
        self.leading = True
        self.tenures += 1
        try:
            while True:
                self.act()
                await self.sleep(0.1)
        finally:
            await self.sleep(self.clean_up_s)
            self.leading = False

    def act(self) -> None:
        try:
            self.campaign.check()
        except LeadershipLost:
            self.refusals += 1
        else:
            self.acts.append(now())

    async def run(self) -> None:
        await self.campaign.run(self.lead, rejoin=True)


class World:
    """Processes that share one register; checks that no two of them may write at one instant.

    With `ambush_s`, a leader is often cut off or frozen for up to so long soon after it renewed its
    lease: others have then seen its last renewal, and the leader acts for as long as it may.

    Processes can be started in the `async with` block. The end of the block ends them, and fails if
    two ever led at one instant.
    """

    def __init__(
        self, network: Network | None = None, *, ambush_s: float = 0.0, look_every_s: float = 0.05
    ) -> None:
        self.ambush_s = ambush_s
        self._look_every_s = look_every_s
        self.network = network or Network()
        self.chance = self.network.chance
        self.register = Register(on_write=self._on_write)
        self.processes: list[Process] = []
        self.violations: list[str] = []
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._tasks.append(self._group.create_task(self._watch()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)
        assert not self.violations, self.violations[0]

    def process(self, name: str, **settings: Any) -> Process:
        made = Process(name, self.register, self.network, **settings)
        self.processes.append(made)
        return made

    def start(self, process: Process) -> asyncio.Task[None]:
        task = self._group.create_task(process.run())
        self._tasks.append(task)
        return task

    def leaders(self) -> list[str]:
        return [p.name for p in self.processes if p.campaign.may_write()]

    def _on_write(self) -> None:
        self._look()
        for process in self.processes:
            if process.name == self.register.record.holder and self.chance.random() < 0.1:
                harm = self.chance.choice([process.freeze, process.cut])
                after_s = self.ambush_s * self.chance.random() ** 3
                loop = asyncio.get_running_loop()
                loop.call_later(after_s, harm, self.chance.uniform(0, self.ambush_s))

    def _look(self) -> None:
        leaders = self.leaders()
        if len(leaders) > 1:
            self.violations.append(f"{leaders} may all write at {now():.3f}")

    async def _watch(self) -> None:
        """Check all processes again and again, frozen ones too."""
        while not self.violations:
            self._look()
            await asyncio.sleep(self._look_every_s)
