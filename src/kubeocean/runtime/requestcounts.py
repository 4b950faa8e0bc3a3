"""Request counts: what a client asked of its server, under the name that client-go gives it.

`rest_client_requests_total` by method, host and the code of the answer; who got none is counted as
`<error>`. A server that moved begins series of its own, and those of the old one end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from kubeocean.errors import Unreachable
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.metrics import Counter, Metrics
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["CountedTransport"]

_NONE: Final = "<error>"


class CountedTransport:
    """Counts the requests that go through it; `source` says which server they go to."""

    def __init__(self, inner: Transport, source: AccessSource, metrics: Metrics) -> None:
        self._inner = inner
        self._source = source
        self._total = metrics.counter(
            "rest_client_requests_total",
            "Requests by method, host and code of the answer",
            ["code", "host", "method"],
        )
        self._server = ""
        self._host = ""
        self._children: dict[tuple[str, str], Counter] = {}  # of the server of now

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        try:
            response = await self._inner.send(request)
        except Unreachable:
            self._count(_NONE, request)
            raise
        self._count(str(response.status), request)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        opened = False
        try:
            async with self._inner.stream(request) as stream:
                opened = True
                self._count(str(stream.status), request)
                yield stream
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
            with suppress(KeyError):  # another transport to that server was quicker
                self._total.remove(code, self._host, method)
        self._children.clear()
        self._server, self._host = server, urlsplit(server).netloc
