"""Fencing: a transport that writes only while it may.

A leader that was stopped and wakes up again does not know yet that another one leads. Its clients
ask before each write; what they may not write does not leave the process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kubeocean.errors import ApiError, KubeoceanError
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Fenced", "FencedTransport"]


class Fenced(ApiError):
    """The request was not sent, because we may not write any more; it is not worth a retry."""


class FencedTransport:
    """Calls `check` before each request that may change something; what it raises forbids it."""

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
        # A tunnel can do anything at its other end, whatever the method of its request.
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
