"""Transports that wrap another transport: request counting, write fencing, ends of outages.

`CountedTransport` exports client-go's metric `rest_client_requests_total` by method, host and
status code, with `<error>` for requests without an answer. When the server's host changes, the
series of the old host are removed. The bytes of bodies, sent and received, are counted by cluster.

`FencedTransport` refuses writes while its fence is closed. A leader that was frozen and resumes
does not know yet that another replica leads; the fence is checked before each write, so a stale
write does not leave the process.

`RecoveryTransport` calls its handlers when a server serves again after an outage. Keys whose
reconciles failed meanwhile have long backoffs by then, and are retried at once by the handlers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from kubeocean.errors import ApiError, KubeoceanError, Unreachable
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Counter, Metrics
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["CountedTransport", "Fenced", "FencedTransport", "RecoveryTransport"]

_NONE: Final = "<error>"
_OUTAGE_S: Final = 10.0  # shorter failures leave short backoffs behind

_log: Final = get_logger(__name__)


class CountedTransport:
    """Transport that counts its requests and bytes; `source` gives the server's host."""

    def __init__(
        self, inner: Transport, source: AccessSource, metrics: Metrics, *, cluster: str = ""
    ) -> None:
        self._inner = inner
        self._source = source
        self._total = metrics.counter(
            "rest_client_requests_total",
            "Requests by method, host and code of the answer",
            ["code", "host", "method"],
        )
        bytes_total = metrics.counter(
            "kubeocean_client_bytes_total",
            "Bytes of the bodies of requests and answers",
            ["cluster", "direction"],
        )
        self._sent = bytes_total.labels(cluster, "sent")
        self._received = bytes_total.labels(cluster, "received")
        self._server = ""
        self._host = ""
        self._children: dict[tuple[str, str], Counter] = {}  # series of the present server

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        self._sent.inc(len(request.body or b""))
        try:
            response = await self._inner.send(request)
        except Unreachable:
            self._count(_NONE, request)
            raise
        self._count(str(response.status), request)
        self._received.inc(len(response.body))
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        opened = False
        try:
            async with self._inner.stream(request) as stream:
                opened = True
                self._count(str(stream.status), request)
                yield _CountedStream(stream, self._received)
        except Unreachable:
            if not opened:
                self._count(_NONE, request)
            raise

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()

    def _count(self, code: str, request: Request) -> None:
        server = self._source.current().server
        if server != self._server:
            self._move(server)
        child = self._children.get((code, request.method))
        if child is None:
            child = self._total.labels(code, self._host, request.method)
            self._children[code, request.method] = child
        child.inc()

    def _move(self, server: str) -> None:
        for code, method in self._children:
            with suppress(KeyError):  # another transport to that server has removed the series
                self._total.remove(code, self._host, method)
        self._children.clear()
        self._server, self._host = server, urlsplit(server).netloc


class _CountedStream:
    """Stream that counts its bytes."""

    def __init__(self, inner: Stream, received: Counter) -> None:
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self._inner = inner
        self._received = received

    async def read(self) -> bytes:
        data = await self._inner.read()
        self._received.inc(len(data))
        return data


class Fenced(ApiError):
    """Raised for a write that was not sent, because this process may no longer write. Not
    retried."""


class FencedTransport:
    """Transport that calls `check` before each write; an exception of `check` prevents the
    write."""

    def __init__(self, inner: Transport, check: Callable[[], None]) -> None:
        self._inner = inner
        self._check = check

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        self._pass(request)
        return await self._inner.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self._pass(request)
        return self._inner.stream(request)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        # A tunnel may change anything at its other end, whatever the method of its request.
        self._pass(request, always=True)
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()

    def _pass(self, request: Request, *, always: bool = False) -> None:
        if not request.writes and not always:
            return
        try:
            self._check()
        except KubeoceanError as error:
            what = f"{request.method} {request.path}"
            raise Fenced(f"could not {what}: {error}") from error


class RecoveryTransport:
    """Transport that calls handlers at the first success after an outage.

    An outage is at least ten seconds of failures (no answer, or a server error) without a success.
    Watches are opened anew every few seconds, so the end of an outage is noticed without a probe.
    """

    def __init__(self, inner: Transport, *, cluster: str, clock: Clock | None = None) -> None:
        self._inner = inner
        self._cluster = cluster
        self._clock = clock or RealClock()
        self._failing_since: float | None = None
        self._handlers: list[Callable[[], None]] = []

    def on_recovery(self, handler: Callable[[], None]) -> None:
        """Call `handler` when the server serves again after an outage."""
        self._handlers.append(handler)

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        try:
            response = await self._inner.send(request)
        except Unreachable:
            self._failed()
            raise
        self._answered(response.status)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        try:
            async with self._inner.stream(request) as stream:
                self._answered(stream.status)
                yield stream
        except Unreachable:
            self._failed()
            raise

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()

    def _answered(self, status: int) -> None:
        if status >= 500:
            self._failed()
        elif status < 300:
            self._succeeded()

    def _failed(self) -> None:
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()

    def _succeeded(self) -> None:
        if self._failing_since is None:
            return
        outage_s = self._clock.monotonic() - self._failing_since
        self._failing_since = None
        if outage_s < _OUTAGE_S:
            return
        _log.info("Reached cluster again", cluster=self._cluster, outage_s=round(outage_s, 1))
        for handler in self._handlers:
            handler()
