"""Faults: a transport that misbehaves on request.

`Faults` is a plan that a test changes while it runs; `wrap` puts it between a client and the real
transport. Requests still go to a real API server, and the faults of the plan happen on the way:
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

from multidict import CIMultiDict

from kubeocean.errors import ConfigError, Unreachable, api_error
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import encode
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Crashed", "Faults", "SkewedClock", "anything", "reads", "watches", "writes"]

When: TypeAlias = Callable[[Request], bool]
_FOREVER: Final = 1 << 60
_BOOKMARK: Final = b'{"type":"BOOKMARK"'


def anything(request: Request) -> bool:
    """Whether a request is any request: always true."""
    return True


def writes(request: Request) -> bool:
    """Whether a request is a create, update, patch or delete."""
    return request.writes


def reads(request: Request) -> bool:
    """Whether a request is a get or a list, not a watch."""
    return not request.writes and not request.watches


def watches(request: Request) -> bool:
    """Whether a request is a watch."""
    return request.watches


class Crashed(BaseException):
    """The program ended here. Not an Exception: nothing that handles errors may survive it."""


@dataclass(slots=True)
class _Rule:
    """A fault, and how many more times it occurs."""

    when: When
    times: int
    respond: Callable[[], Response] | None = None  # or raises
    lose_answer: bool = False
    delay_s: float = 0.0

    @property
    def only_delays(self) -> bool:
        return self.respond is None and not self.lose_answer

    def takes(self, request: Request) -> bool:
        if self.times <= 0 or not self.when(request):
            return False
        self.times -= 1
        return True


class Faults:
    """Faults of a client. Every method takes effect at once, also on open watches.

    Of the rules for requests, those that fit one follow each other in the order they were made, one
    a request; delays come on top.
    """

    def __init__(self, seed: int = 0, *, clock: Clock | None = None) -> None:
        self.writes = 0
        self.requests: list[Request] = []
        self._clock = clock or RealClock()
        self._chance = random.Random(seed)
        self._rules: list[_Rule] = []
        self._crash_in = 0
        self._crash_when: When = anything
        self.crashed = False
        self._on_crash: Callable[[], None] | None = None
        self.partitioned = False
        self._streams: set[_FaultyStream] = set()
        self._tunnels: set[Tunnel] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self.watch_delay_s = 0.0
        self.watch_loss = 0.0
        self.watch_repeats = 0

    def wrap(self, inner: Transport) -> Transport:
        """Return the same transport, under this plan. Several may share one plan."""
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
        page: bytes | None = None,
    ) -> None:
        """Answer with this status instead of asking the server: a `Status`, or this page."""
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": f"injected {status}",
            "reason": reason,
            "code": status,
        }
        content = encode(body) if page is None else page
        response = Response(status, CIMultiDict(headers or {}), content)
        self._rules.append(_Rule(when, times, respond=lambda: response))

    def refuse(self, *, times: int = 1, when: When = anything) -> None:
        """Fail before the request is sent."""

        def refused() -> Response:
            raise Unreachable("injected: connection refused", sent=False)

        self._rules.append(_Rule(when, times, respond=refused))

    def lose_answer(self, *, times: int = 1, when: When = writes) -> None:
        """Carry the request out and lose the answer, so that the caller does not know its
        result."""
        self._rules.append(_Rule(when, times, lose_answer=True))

    def delay(self, seconds: float, *, times: int = _FOREVER, when: When = anything) -> None:
        """Hold requests back for so long before they are sent."""
        self._rules.append(_Rule(when, times, delay_s=seconds))

    def crash_after_write(
        self, n: int, *, when: When = anything, by: Callable[[], None] | None = None
    ) -> None:
        """End the program when the server has carried out the n-th such write from now on.

        `Crashed` is raised then and by every later request. A program in a process of its own is
        killed with `by=lambda: os.kill(os.getpid(), signal.SIGKILL)`.
        """
        self._crash_in = n
        self._crash_when = when
        self._on_crash = by

    def partition(self) -> None:
        """Cut the network: requests fail, answers are lost, watches and tunnels break."""
        self.partitioned = True
        self._break()

    def rejoin(self) -> None:
        """End a partition; all other faults of the plan remain."""
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
        for stream in self._streams:
            stream.end(Unreachable("injected: connection reset"))

    def freeze(self) -> None:
        """Deliver nothing on any watch, though connections stay open, until `thaw`."""
        self._moving.clear()

    def thaw(self) -> None:
        """Deliver the events that were held back."""
        self._moving.set()

    def rewind(self, events: int) -> None:
        """Deliver the last events of every open watch again, as a server does whose data was
        restored."""
        for stream in self._streams:
            stream.rewind(events)

    def lose(self, share: float) -> None:
        """Never deliver this share of the events; bookmarks are none."""
        self.watch_loss = share

    def lag(self, seconds: float) -> None:
        """Deliver events so late."""
        self.watch_delay_s = seconds

    def repeat(self, times: int) -> None:
        """Deliver every event so many times more."""
        self.watch_repeats = times

    # For the transport

    async def _meet(self, request: Request) -> tuple[Response | None, bool]:
        """Return the answer that replaces the server's, if any, and whether the answer gets
        lost."""
        if not self.crashed:
            self.requests.append(request)
        self._check(sent=False)
        fits = [rule for rule in self._rules if rule.only_delays and rule.takes(request)]
        rule = next((r for r in self._rules if not r.only_delays and r.takes(request)), None)
        self._rules = [rule for rule in self._rules if rule.times > 0]
        if fits:
            await self._clock.sleep(sum(delay.delay_s for delay in fits))
            self._check(sent=False)
        if rule is None:
            return None, False
        return rule.respond() if rule.respond else None, rule.lose_answer

    def _answered(self, request: Request, response: Response) -> None:
        if request.writes and response.status < 300:
            self.writes += 1
            if self._crash_in and self._crash_when(request):
                self._crash_in -= 1
                if not self._crash_in:
                    self._crash()
        self._check(sent=True)

    def _check(self, *, sent: bool) -> None:
        if self.crashed:
            raise Crashed
        if self.partitioned:
            raise Unreachable("injected: partitioned", sent=sent)

    def _crash(self) -> None:
        self.crashed = True
        self._crash_in = 0
        self._break(Crashed)
        if self._on_crash is not None:
            self._on_crash()

    def _break(self, kind: type[Crashed | Unreachable] = Unreachable) -> None:
        for stream in self._streams:
            stream.end(kind("injected: connection reset"))
        for tunnel in self._tunnels:
            tunnel.abort()

    def _loses(self, line: bytes) -> bool:
        if self.watch_loss <= 0 or line.startswith(_BOOKMARK):
            return False
        return self._chance.random() < self.watch_loss


class _FaultyTransport:
    def __init__(self, inner: Transport, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        canned, lost = await self._faults._meet(request)
        if canned is not None:
            return canned
        response = await self._inner.send(request)
        self._faults._answered(request, response)
        if lost:
            raise Unreachable("injected: answer lost", sent=True)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        faults = self._faults
        canned, _ = await faults._meet(request)
        if canned is not None:
            yield _Canned(canned)
            return
        async with self._inner.stream(request) as inner:
            faults._check(sent=True)
            stream = _FaultyStream(inner, faults, lines=request.watches and inner.status == 200)
            faults._streams.add(stream)
            # Not a TaskGroup, which would wrap the exceptions of the reader.
            running = asyncio.create_task(stream.run())
            try:
                yield stream
            finally:
                faults._streams.discard(stream)
                running.cancel()
                await asyncio.wait([running])

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        faults = self._faults
        canned, _ = await faults._meet(request)
        if canned is not None:
            doing = f"upgrade {request.method} {request.path} to {protocol}"
            raise api_error(canned.status, canned.body, doing=doing)
        async with self._inner.upgrade(request, protocol) as tunnel:
            faults._check(sent=True)
            faults._tunnels.add(tunnel)
            try:
                yield tunnel
            finally:
                faults._tunnels.discard(tunnel)

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


_News: TypeAlias = bytes | BaseException


class _FaultyStream:
    """A stream that passes through the plan; a watch does so line by line.

    One task receives from the server, another delivers the lines that the plan permits, at the time
    that the plan chooses. So a break or a repetition reaches the reader while the server is quiet,
    and a late event does not make the next one later.
    """

    REMEMBERED: Final = 256

    def __init__(self, inner: Stream, faults: Faults, *, lines: bool) -> None:
        self.status = inner.status
        self.headers = inner.headers
        self._inner = inner
        self._faults = faults
        self._lines = lines
        self._arrived: asyncio.Queue[tuple[float, _News]] = asyncio.Queue()
        self._out: asyncio.Queue[_News] = asyncio.Queue()
        self._tail = b""
        self._past: list[bytes] = []

    async def read(self) -> bytes:
        out = await self._out.get()
        if isinstance(out, bytes):
            return out
        raise out

    def end(self, error: BaseException) -> None:
        self._out.put_nowait(error)

    def rewind(self, events: int) -> None:
        if events > 0 and self._past:
            self._out.put_nowait(b"".join(self._past[-events:]))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take())
            group.create_task(self._deliver())

    async def _take(self) -> None:
        now = self._faults._clock.monotonic
        try:
            while chunk := await self._inner.read():
                self._arrived.put_nowait((now(), chunk))
            self._arrived.put_nowait((now(), b""))
        except Unreachable as error:
            self._arrived.put_nowait((now(), error))

    async def _deliver(self) -> None:
        faults = self._faults
        news: _News = b"."
        while news and isinstance(news, bytes):
            arrived_at, news = await self._arrived.get()
            await faults._moving.wait()
            due_s = arrived_at + faults.watch_delay_s - faults._clock.monotonic()
            if due_s > 0:
                await faults._clock.sleep(due_s)
            if news and isinstance(news, bytes) and (passed := self._let_through(news)):
                self._out.put_nowait(passed)
        if self._tail:
            self._out.put_nowait(self._tail)
        self._out.put_nowait(news)

    def _let_through(self, chunk: bytes) -> bytes:
        if not self._lines:
            return chunk
        *whole, self._tail = (self._tail + chunk).split(b"\n")
        lines = [line + b"\n" for line in whole if not self._faults._loses(line)]
        self._past = (self._past + lines)[-self.REMEMBERED :]
        return b"".join(line * (1 + self._faults.watch_repeats) for line in lines)


class SkewedClock:
    """A machine whose wall clock is off, and whose time runs faster or slower than it should."""

    def __init__(
        self, offset_s: float = 0.0, *, rate: float = 1.0, inner: Clock | None = None
    ) -> None:
        if not rate > 0:
            raise ConfigError("must be positive", field="rate", value=rate)
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
