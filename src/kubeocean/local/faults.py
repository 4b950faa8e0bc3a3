"""Faults: a transport that misbehaves on request.

`Faults` is a plan that a test changes while it runs; `wrap` puts it between a client and the real
transport. Requests still go to a real API server, and what the plan says happens on the way:
requests are refused, answered or lost, watches lag, lose, repeat, rewind or freeze, connections are
cut, the program "crashes" after its n-th write.

    faults = Faults()
    client = cluster.client(wrap=faults.wrap)
    faults.answer(503, times=2, when=writes)
    faults.crash_after_write(3)

Faults that choose by chance take their choices from a seed, so that a failure can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from kubeocean.errors import Unreachable
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.codec import encode
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Crashed", "Faults", "SkewedClock", "anything", "reads", "watches", "writes"]

When: TypeAlias = Callable[[Request], bool]
_FOREVER: Final = 1 << 60


def anything(request: Request) -> bool:
    """Every request."""
    return True


def writes(request: Request) -> bool:
    """Creates, updates, patches and deletes."""
    return request.writes


def reads(request: Request) -> bool:
    """Gets and lists, not watches."""
    return not request.writes and not request.watches


def watches(request: Request) -> bool:
    """Watches."""
    return request.watches


class Crashed(BaseException):
    """The program ended here. Not an Exception: nothing that handles errors may survive it."""


@dataclass(slots=True)
class _Rule:
    when: When
    times: int
    respond: Callable[[Request], Response] | None = None
    before: Unreachable | None = None
    lose_answer: bool = False
    delay_s: float = 0.0

    def takes(self, request: Request) -> bool:
        if self.times <= 0 or not self.when(request):
            return False
        self.times -= 1
        return True


class Faults:
    """What shall go wrong. Every method takes effect at once, also on watches that are open."""

    def __init__(self, seed: int = 0, *, clock: Clock | None = None) -> None:
        self.writes = 0
        self.requests: list[Request] = []
        self._clock = clock or RealClock()
        self._chance = random.Random(seed)  # noqa: S311 - a repeatable plan, not a secret
        self._rules: list[_Rule] = []
        self._crash_at: int | None = None
        self._crashed = False
        self._on_crash: Callable[[], None] | None = None
        self.partitioned = False
        self._streams: set[_FaultyStream] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self.watch_delay_s = 0.0
        self.watch_loss = 0.0
        self.watch_repeats = 0

    def wrap(self, inner: Transport) -> Transport:
        """The same transport, under this plan. Several may share one plan."""
        return _FaultyTransport(inner, self)

    # Requests

    def answer(
        self,
        status: int,
        *,
        times: int = 1,
        when: When = anything,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with this status instead of asking the server."""
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": f"injected {status}",
            "reason": reason,
            "code": status,
        }
        response = Response(status, dict(headers or {}), encode(body))
        self._rules.append(_Rule(when, times, respond=lambda _: response))

    def refuse(self, *, times: int = 1, when: When = anything) -> None:
        """Fail before the request is sent."""
        error = Unreachable("injected: connection refused", sent=False)
        self._rules.append(_Rule(when, times, before=error))

    def lose_answer(self, *, times: int = 1, when: When = writes) -> None:
        """Carry the request out and lose the answer: the caller cannot know."""
        self._rules.append(_Rule(when, times, lose_answer=True))

    def delay(self, seconds: float, *, times: int = _FOREVER, when: When = anything) -> None:
        """Hold requests back for so long before they are sent."""
        self._rules.append(_Rule(when, times, delay_s=seconds))

    def crash_after_write(self, n: int, *, by: Callable[[], None] | None = None) -> None:
        """End the program when the server has carried out the n-th write from now on.

        `Crashed` is raised then and by every later request. A program in a process of its own dies
        for real with `by=lambda: os.kill(os.getpid(), signal.SIGKILL)`.
        """
        self._crash_at = self.writes + n
        self._on_crash = by

    def partition(self) -> None:
        """Nothing gets through: requests fail, open watches break."""
        self.partitioned = True
        self.cut()

    def rejoin(self) -> None:
        """End a partition; whatever else was asked for still happens."""
        self.partitioned = False

    def heal(self) -> None:
        """End every fault but a crash."""
        self.rejoin()
        self._rules.clear()
        self.watch_delay_s = self.watch_loss = 0.0
        self.watch_repeats = 0
        self.thaw()

    # Watches

    def cut(self) -> None:
        """Break every open watch."""
        for stream in list(self._streams):
            stream.cut()

    def freeze(self) -> None:
        """Deliver nothing on any watch, though connections stay open, until `thaw`."""
        self._moving.clear()

    def thaw(self) -> None:
        """Deliver what was held back."""
        self._moving.set()

    def rewind(self, events: int) -> None:
        """Deliver the last events of every open watch once more, as a server gone back in time."""
        for stream in self._streams:
            stream.rewind(events)

    def lose(self, share: float) -> None:
        """Never deliver this share of the events."""
        self.watch_loss = share

    def lag(self, seconds: float) -> None:
        """Deliver events late."""
        self.watch_delay_s = seconds

    def repeat(self, times: int) -> None:
        """Deliver every event so many times more."""
        self.watch_repeats = times

    # For the transport

    def _admit(self, request: Request) -> _Rule | None:
        if self._crashed:
            raise Crashed
        self.requests.append(request)
        if self.partitioned:
            raise Unreachable("injected: partitioned", sent=False)
        return next((rule for rule in self._rules if rule.takes(request)), None)

    def _wrote(self) -> None:
        self.writes += 1
        if self._crash_at is not None and self.writes >= self._crash_at:
            self._crashed = True
            self._crash_at = None
            if self._on_crash is not None:
                self._on_crash()
            raise Crashed

    def _loses(self) -> bool:
        return self.watch_loss > 0 and self._chance.random() < self.watch_loss


class _FaultyTransport:
    def __init__(self, inner: Transport, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def send(self, request: Request) -> Response:
        faults = self._faults
        rule = faults._admit(request)
        if rule is not None:
            if rule.delay_s:
                await faults._clock.sleep(rule.delay_s)
            if rule.before is not None:
                raise rule.before
            if rule.respond is not None:
                return rule.respond(request)
        response = await self._inner.send(request)
        if request.writes and response.status < 300:
            faults._wrote()
        if rule is not None and rule.lose_answer:
            raise Unreachable("injected: answer lost", sent=True)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        faults = self._faults
        rule = faults._admit(request)
        if rule is not None:
            if rule.delay_s:
                await faults._clock.sleep(rule.delay_s)
            if rule.before is not None:
                raise rule.before
            if rule.respond is not None:
                yield _Canned(rule.respond(request))
                return
        async with self._inner.stream(request) as inner:
            stream = _FaultyStream(inner, faults)
            faults._streams.add(stream)
            # Not a TaskGroup: it would wrap what the reader raises.
            pump = asyncio.create_task(stream.pump())
            try:
                yield stream
            finally:
                faults._streams.discard(stream)
                pump.cancel()
                await asyncio.wait([pump])

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        rule = self._faults._admit(request)
        if rule is not None and rule.before is not None:
            raise rule.before
        async with self._inner.upgrade(request, protocol) as tunnel:
            yield tunnel

    async def close(self) -> None:
        await self._inner.close()


class _Canned:
    """A whole answer, read as a stream."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = response.headers
        self._body = response.body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body


class _FaultyStream:
    """A watch that passes through the plan, line by line.

    A pump takes what the server sends and queues what the plan lets through, so that a break or a
    repetition reaches the reader while the server is quiet.
    """

    REMEMBERED: Final = 256

    def __init__(self, inner: Stream, faults: Faults) -> None:
        self.status = inner.status
        self.headers = inner.headers
        self._inner = inner
        self._faults = faults
        self._out: asyncio.Queue[bytes | Unreachable] = asyncio.Queue()
        self._tail = b""
        self._past: list[bytes] = []

    async def read(self) -> bytes:
        out = await self._out.get()
        if isinstance(out, Unreachable):
            raise out
        return out

    def cut(self) -> None:
        self._out.put_nowait(Unreachable("injected: connection reset"))

    def rewind(self, events: int) -> None:
        if self._past:
            self._out.put_nowait(b"".join(self._past[-events:]))

    async def pump(self) -> None:
        faults = self._faults
        try:
            while chunk := await self._inner.read():
                await faults._moving.wait()
                if faults.watch_delay_s:
                    await faults._clock.sleep(faults.watch_delay_s)
                if lines := self._let_through(chunk):
                    self._out.put_nowait(b"".join(lines))
            self._out.put_nowait(b"")
        except Unreachable as error:
            self._out.put_nowait(error)

    def _let_through(self, chunk: bytes) -> list[bytes]:
        *whole, self._tail = (self._tail + chunk).split(b"\n")
        lines = [line + b"\n" for line in whole if not self._faults._loses()]
        self._past = (self._past + lines)[-self.REMEMBERED :]
        return [line for line in lines for _ in range(1 + self._faults.watch_repeats)]


class SkewedClock:
    """A machine whose wall clock is off, and whose time runs faster or slower than it should."""

    def __init__(
        self, offset_s: float = 0.0, *, rate: float = 1.0, inner: Clock | None = None
    ) -> None:
        self._inner = inner or RealClock()
        self._offset = timedelta(seconds=offset_s)
        self._rate = rate
        self._since = self._inner.monotonic()
        self._began = self._inner.now()

    def monotonic(self) -> float:
        return self._since + (self._inner.monotonic() - self._since) * self._rate

    def now(self) -> datetime:
        passed = timedelta(seconds=self.monotonic() - self._since)
        return self._began + passed + self._offset

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds / self._rate)
