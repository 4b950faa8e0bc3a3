"""Reach: whether the worker's API server answers.

Every answer and every byte of a watch counts. If nothing was heard for a while, the watch that has
been open longest is renewed: it would have been sooner or later, and its answer is a sign of life.
Only if that brings none, and when a request failed, the server is asked for its version. So a quiet
worker costs no request of its own; a dead one is known within seconds, or within `ASK_EVERY_S` and
three times `PATIENCE_S` if it only stopped talking.

While it does not answer, nothing is decided from what it said last. Nor is it while its kubeconfig
leads to another cluster: then whatever is heard is no sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final

from kubeocean.errors import Unreachable
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Reach"]

ASK_EVERY_S: Final = 20.0
PATIENCE_S: Final = 5.0
ASK_AGAIN_S: Final = 2.0  # while it does not answer
DOUBTS: Final = 2  # one failure may be a blink

_log = get_logger(__name__)


class Reach:
    """Listens to one worker. `wrap` puts it between a client and its transport."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._heard_at = self._clock.monotonic()
        self._doubt = asyncio.Event()
        self._failures = 0
        self._answers = True
        self._since = self._clock.now()
        self._error = ""
        self._mistaken = False
        self._handlers: list[Callable[[bool], None]] = []
        self._transport: Transport | None = None
        self._watches: dict[_HeardStream, None] = {}  # open ones, the oldest first

    @property
    def answers(self) -> bool:
        return self._answers

    @property
    def since(self) -> datetime:
        """Since when it answers, or does not."""
        return self._since

    @property
    def error(self) -> str:
        """Why it does not answer, as far as we were told when it stopped."""
        return self._error

    @property
    def mistaken(self) -> bool:
        """Whether it does not answer because another cluster would."""
        return self._mistaken

    def on_change(self, handler: Callable[[bool], None]) -> None:
        """Call when the worker stops answering, and when it answers again."""
        self._handlers.append(handler)

    def wrap(self, inner: Transport) -> Transport:
        self._transport = inner
        return _Heard(inner, self)

    async def run(self) -> None:
        """Ask when nothing is heard, until cancelled."""
        while True:
            await self._until_due()
            if self._doubt.is_set():
                self._doubt.clear()
                await self._ask()
            elif self._silent() and not await self._renewed():
                await self._ask()

    def mistake(self, error: str) -> None:
        """Requests would reach another cluster; without an error, they do not any more."""
        self._mistaken = bool(error)
        if error:
            self._turn(False, error)
        else:
            self.failed()  # it is asked

    def heard(self) -> None:
        if self._mistaken:
            return
        self._heard_at = self._clock.monotonic()
        self._failures = 0
        if not self._answers:
            self._turn(True)

    def failed(self) -> None:
        self._doubt.set()

    @contextmanager
    def listening(self, watch: _HeardStream) -> Iterator[None]:
        """While this watch is open, it may be renewed."""
        self._watches[watch] = None
        try:
            yield
        finally:
            del self._watches[watch]

    def _silent(self) -> bool:
        return self._clock.monotonic() - self._heard_at >= self._pause_s()

    async def _renewed(self) -> bool:
        """Whether a watch was renewed and brought a sign of life."""
        if not self._answers or self._failures:
            return False
        if (watch := next((watch for watch in self._watches if watch.spoke), None)) is None:
            return False
        before = self._heard_at
        watch.end()
        deadline = self._clock.monotonic() + PATIENCE_S
        while self._heard_at == before and self._clock.monotonic() < deadline:
            await self._clock.sleep(PATIENCE_S / 10)
        return self._heard_at != before

    def _pause_s(self) -> float:
        return ASK_EVERY_S if self._answers and not self._failures else ASK_AGAIN_S

    async def _until_due(self) -> None:
        due_s = max(0.0, self._heard_at + self._pause_s() - self._clock.monotonic())
        if self._failures:
            due_s = ASK_AGAIN_S
        if due_s == 0.0 or self._failures:
            await self._clock.sleep(due_s)
            return
        nap = asyncio.create_task(self._clock.sleep(due_s))
        doubt = asyncio.create_task(self._doubt.wait())
        try:
            await asyncio.wait([nap, doubt], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (nap, doubt):
                task.cancel()
            await asyncio.wait([nap, doubt])

    async def _ask(self) -> None:
        if self._transport is None:
            return
        try:
            await self._transport.send(Request("GET", "/version", timeout_s=PATIENCE_S))
        except Unreachable as error:
            self._failures += 1
            if self._failures >= DOUBTS and self._answers:
                self._turn(False, str(error))
        else:
            self.heard()

    def _turn(self, answers: bool, error: str = "") -> None:
        self._answers = answers
        self._error = error
        self._since = self._clock.now()
        if answers:
            _log.info("Reached worker again")
        else:
            _log.warning("Lost worker", error=error)
        for handler in self._handlers:
            handler(answers)


class _Heard:
    """A transport that tells what it hears."""

    def __init__(self, inner: Transport, reach: Reach) -> None:
        self._inner = inner
        self._reach = reach

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        try:
            response = await self._inner.send(request)
        except Unreachable:
            self._reach.failed()
            raise
        self._reach.heard()
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        try:
            async with self._inner.stream(request) as stream:
                self._reach.heard()
                if not request.watches:
                    yield stream
                    return
                heard = _HeardStream(stream, self._reach)
                with self._reach.listening(heard):
                    yield heard
        except Unreachable:
            self._reach.failed()
            raise

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()


class _HeardStream:
    """A watch that tells when it hears something, and that can be ended from outside."""

    def __init__(self, inner: Stream, reach: Reach) -> None:
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self.spoke = False  # one that ends without a word is taken for broken
        self._inner = inner
        self._reach = reach
        self._bound: asyncio.Timeout | None = None
        self._ended = False

    async def read(self) -> bytes:
        if self._ended:
            return b""
        self._bound = bound = asyncio.timeout(None)
        try:
            async with bound:
                data = await self._inner.read()
        except TimeoutError:
            if not bound.expired():
                raise
            return b""
        finally:
            self._bound = None
        if data:
            self.spoke = True
            self._reach.heard()
        return data

    def end(self) -> None:
        """Let the reader see the end, now."""
        self._ended = True
        if self._bound is not None:
            self._bound.reschedule(asyncio.get_running_loop().time())
