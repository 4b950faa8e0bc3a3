"""Worker health: whether the worker's API server serves this syncer.

Only an answer that proves service is a sign of life: success, a `Status` that only an API server
returns (404, 409, 410, 422), and every byte of a watch. Server errors, a rejected credential, a
missing permission that the syncer requires, pages of a proxy in front of the server, and a missing
answer are doubts.

If there was no sign of life for a while, the watch that has been open longest is renewed: it would
have been renewed sooner or later, and the answer is a sign of life. A node is read only if no such
answer arrives, and after a doubt. So a quiet worker costs no request of its own; a dead one is
known within seconds, or within `ASK_EVERY_S` and three times `PATIENCE_S` if it only stopped
sending.

While the worker does not serve the syncer, or while its kubeconfig points to another cluster,
nothing is decided from its last answers; in the latter case no answer is a sign of life. A worker
that answers again counts as serving only when every cache of its objects was listed again: an owner
may have extended a time window meanwhile, which the watch of policies has not delivered yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from enum import Enum
from typing import Final, Protocol

from kubeocean.errors import Unreachable, api_error, is_status
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Evidence", "RelistableCache", "WorkerHealth", "judge"]

ASK_EVERY_S: Final = 20.0
PATIENCE_S: Final = 5.0
ASK_AGAIN_S: Final = 2.0  # while the worker does not answer
LIST_WITHIN_S: Final = 60.0  # from the first answer; then the binding names the missing lists
DOUBTS: Final = 2  # one failure may be transient

_PROVING: Final = frozenset({404, 409, 410, 422})  # with a Status
_NODES_PATH: Final = NODES.path()
_REMEDIES: Final = {
    401: "; the worker does not accept the credential of the kubeconfig: it has expired or was"
    " revoked; renew it with kubeocean join --renew",
    403: "; the credential of the kubeconfig lacks this right: grant it again, as kubeocean join"
    " does",
}

_log = get_logger(__name__)


class Evidence(Enum):
    """The conclusion from an HTTP response about whether the API server serves this syncer."""

    SERVES = "the API server serves this syncer"
    REFUSES = "the API server, or a proxy in front of it, does not"
    UNCLEAR = "the answer proves neither"


def judge(status: int, body: bytes | None) -> Evidence:
    """Classify an HTTP response of the worker's API server; `body` is None if it was not read."""
    if 200 <= status < 300:
        return Evidence.SERVES
    if status in (401, 403) or status >= 500:
        return Evidence.REFUSES
    if status in _PROVING and body is not None:
        return Evidence.SERVES if is_status(body) else Evidence.REFUSES
    return Evidence.REFUSES if status == 404 else Evidence.UNCLEAR


class RelistableCache(Protocol):
    """A cache that can be listed again; an `Informer`."""

    @property
    def has_synced(self) -> bool: ...
    @property
    def listed_from(self) -> float: ...
    def relist(self, since: float) -> None: ...
    def on_listed(self, handler: Callable[[], None]) -> None: ...


class WorkerHealth:
    """Observes the answers of one worker; `wrap` inserts it between a client and its transport."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._alive_at = self._clock.monotonic()
        self._doubt = asyncio.Event()
        self._failures = 0
        self._answers = True
        self._since = self._clock.now()
        self._error = ""
        self._status = 0  # HTTP status that made the worker count as lost; 0 is silence
        self._mistaken = False
        self._required = {_NODES_PATH}
        self._refused: set[str] = set()  # paths among the required ones
        self._checked_at = self._lost_at = float("-inf")
        self._caches: list[tuple[str, RelistableCache]] = []
        self._handlers: list[Callable[[bool], None]] = []
        self._transport: Transport | None = None
        self._watches: dict[_ObservedWatch, None] = {}  # open ones, the oldest first

    @property
    def answers(self) -> bool:
        return self._answers

    @property
    def since(self) -> datetime:
        """Since when the worker has been answering, or has not."""
        return self._since

    @property
    def error(self) -> str:
        """Why the worker does not answer, as observed when it stopped answering."""
        return self._error

    @property
    def refused(self) -> bool:
        """Whether the worker sends answers, but none that proves service."""
        return not self._answers and self._status != 0

    @property
    def mistaken(self) -> bool:
        """Whether requests are not sent because they would reach another cluster."""
        return self._mistaken

    def on_change(self, handler: Callable[[bool], None]) -> None:
        """Call `handler` when the worker answers again, stops answering, or the reason changes."""
        self._handlers.append(handler)

    def require(self, *paths: str) -> None:
        """Add collections that must be readable for the worker to count as healthy."""
        self._required.update(paths)

    def relist_on_return(self, path: str, cache: RelistableCache) -> None:
        """Register a cache that must be listed again before a lost worker counts as serving."""
        self._caches.append((path, cache))
        cache.on_listed(self.alive)

    def wrap(self, inner: Transport) -> Transport:
        self._transport = inner
        return _ObservedTransport(inner, self)

    async def run(self) -> None:
        """Probe the worker when no answer has arrived for a while, until cancelled."""
        while True:
            await self._until_due()
            if self._doubt.is_set() or self._refused:
                # Doubts that follow each other closely are probed together.
                recent_s = self._checked_at + ASK_AGAIN_S - self._clock.monotonic()
                await self._clock.sleep(max(0.0, recent_s))
                self._doubt.clear()
                await self._check()
            elif self._silent() and not await self._renewed():
                await self._check()

    def mistake(self, error: str) -> None:
        """Record that requests would reach another cluster; an empty `error` means that they no
        longer do.
        """
        self._mistaken = bool(error)
        if error:
            self._lost_at = self._clock.monotonic()
            self._set(False, error)
        else:
            self.failed()  # the worker is probed

    def alive(self) -> None:
        """Record an answer that proves service; not enough while a required list is refused."""
        if self._mistaken:
            return
        self._alive_at = self._clock.monotonic()
        if self._refused:
            return
        self._failures = 0
        if not self._answers and self._is_listed():
            self._set(True)

    def _is_listed(self) -> bool:
        """Whether all caches were listed since the worker was lost; relist those that were not."""
        stale = [
            (path, cache)
            for path, cache in self._caches
            if cache.has_synced and cache.listed_from < self._lost_at
        ]
        for _, cache in stale:
            cache.relist(self._lost_at)
        if stale and self._clock.monotonic() - self._lost_at >= LIST_WITHIN_S:
            self._report_unlisted(sorted({path for path, _ in stale}))
        return not stale

    def _report_unlisted(self, paths: list[str]) -> None:
        """Report the collections that a worker that answers again has not listed in time."""
        error = f"the worker answers, but could not be listed again: {', '.join(paths)}"
        if self._error != error:
            self._set(False, error, since=self._since)

    def failed(self) -> None:
        """Note a doubt about the worker's health, which makes `run` probe the worker."""
        self._doubt.set()

    def answered(self, request: Request, status: int, body: bytes | None) -> None:
        """Note an HTTP response of the worker; `body` is None if it was not read yet."""
        required = request.method == "GET" and request.path in self._required
        match judge(status, body):
            case Evidence.SERVES:
                if required:
                    self._refused.discard(request.path)
                self.alive()
            case Evidence.REFUSES if status != 403 or required:
                # A 404 does not refuse the read: the worker may not have this kind.
                if required and status != 404:
                    self._refused.add(request.path)
                self.failed()
            case _:  # a 403 of admission or a quota says nothing about the worker's health
                pass

    @contextmanager
    def watching(self, watch: _ObservedWatch) -> Iterator[None]:
        """Register an open watch, which may be opened again to get an answer."""
        self._watches[watch] = None
        try:
            yield
        finally:
            del self._watches[watch]

    def _silent(self) -> bool:
        return self._clock.monotonic() - self._alive_at >= self._pause_s()

    async def _renewed(self) -> bool:
        """Open the oldest watch again; return whether the worker answered."""
        if not self._answers or self._failures:
            return False
        if (watch := next((watch for watch in self._watches if watch.received), None)) is None:
            return False
        before = self._alive_at
        watch.end()
        deadline = self._clock.monotonic() + PATIENCE_S
        while self._alive_at == before and self._clock.monotonic() < deadline:
            await self._clock.sleep(PATIENCE_S / 10)
        return self._alive_at != before

    def _pause_s(self) -> float:
        return ASK_EVERY_S if self._answers and not self._failures else ASK_AGAIN_S

    async def _until_due(self) -> None:
        due_s = max(0.0, self._alive_at + self._pause_s() - self._clock.monotonic())
        if self._failures:
            due_s = ASK_AGAIN_S
        if due_s == 0.0 or self._failures:
            await self._clock.sleep(due_s)
            return
        timer = asyncio.create_task(self._clock.sleep(due_s))
        doubt = asyncio.create_task(self._doubt.wait())
        try:
            await asyncio.wait([timer, doubt], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (timer, doubt):
                task.cancel()
            await asyncio.wait([timer, doubt])

    async def _check(self) -> None:
        """Probe the worker: read a node, and one object of each refused collection."""
        if self._transport is None:
            return
        self._checked_at = self._clock.monotonic()
        for path in (_NODES_PATH, *sorted(self._refused - {_NODES_PATH})):
            if (failure := await self._probe(self._transport, path)) is not None:
                self._failures += 1
                if self._failures >= DOUBTS:
                    self._lost_at = self._clock.monotonic()
                    self._lose(*failure)
                return
        self.alive()

    async def _probe(self, transport: Transport, path: str) -> tuple[int, str] | None:
        """Read one object of a collection; return HTTP status and reason if that fails."""
        request = Request("GET", path, (("limit", "1"),), timeout_s=PATIENCE_S)
        try:
            response = await transport.send(request)
        except Unreachable as error:
            return 0, str(error)
        status, body = response.status, response.body
        unknown = status == 404 and path != _NODES_PATH
        if judge(status, body) is Evidence.SERVES or unknown:
            self._refused.discard(path)
            return None
        refusal = api_error(status, body, doing=f"GET {path}")
        return status, f"{refusal} (HTTP {status}){_REMEDIES.get(status, '')}"

    def _lose(self, status: int, error: str) -> None:
        """Record that the worker does not answer, or another reason why it does not."""
        if self._mistaken or (not self._answers and status == self._status):
            return
        since = None if self._answers else self._since
        self._set(False, error, status=status, since=since)

    def _set(
        self, answers: bool, error: str = "", *, status: int = 0, since: datetime | None = None
    ) -> None:
        self._answers = answers
        self._error = error
        self._status = status
        self._since = since or self._clock.now()
        if answers:
            _log.info("Reached worker again")
        else:
            _log.warning("Lost connection to worker", error=error)
        for handler in self._handlers:
            handler(answers)


class _ObservedTransport:
    """A transport that reports answers and failures to `WorkerHealth`."""

    def __init__(self, inner: Transport, worker_health: WorkerHealth) -> None:
        self._inner = inner
        self._worker_health = worker_health

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        try:
            response = await self._inner.send(request)
        except Unreachable:
            self._worker_health.failed()
            raise
        self._worker_health.answered(request, response.status, response.body)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        try:
            async with self._inner.stream(request) as stream:
                self._worker_health.answered(request, stream.status, None)
                if not request.watches or judge(stream.status, None) is not Evidence.SERVES:
                    yield stream
                    return
                observed = _ObservedWatch(stream, self._worker_health)
                with self._worker_health.watching(observed):
                    yield observed
        except Unreachable:
            self._worker_health.failed()
            raise

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()


class _ObservedWatch:
    """A watch that reports received data to `WorkerHealth`, and that can be ended from outside."""

    def __init__(self, inner: Stream, worker_health: WorkerHealth) -> None:
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self.received = False  # the informer takes a watch that ends without data for broken
        self._inner = inner
        self._worker_health = worker_health
        self._timeout: asyncio.Timeout | None = None
        self._ended = False

    async def read(self) -> bytes:
        if self._ended:
            return b""
        self._timeout = timeout = asyncio.timeout(None)
        try:
            async with timeout:
                data = await self._inner.read()
        except TimeoutError:
            if not timeout.expired():
                raise
            return b""
        finally:
            self._timeout = None
        if data:
            self.received = True
            self._worker_health.alive()
        return data

    def end(self) -> None:
        """End the watch stream for its reader, now."""
        self._ended = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
