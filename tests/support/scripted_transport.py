"""A transport in memory, for code that is about requests and not about Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from kubeocean.errors import Unreachable
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Scripted", "ScriptedStream", "answer"]

Step = Response | BaseException


def answer(status: int = 200, body: bytes = b"{}", **headers: str) -> Response:
    return Response(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, body
    )


class ScriptedStream:
    """An answer that a test feeds piece by piece."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self._pieces: asyncio.Queue[bytes | BaseException] = asyncio.Queue()

    def feed(self, *pieces: bytes | BaseException) -> None:
        for piece in pieces:
            self._pieces.put_nowait(piece)

    async def read(self) -> bytes:
        piece = await self._pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        return piece


class Scripted:
    """Answers in the order of its script, the last answer again and again; records all requests."""

    def __init__(self, *script: Step, streams: Iterable[ScriptedStream] = ()) -> None:
        self.script = list(script) or [answer()]
        self.streams = list(streams)
        self.tunnel: Tunnel | None = None
        self.requests: list[Request] = []
        self.generation = 0
        self.closed = False

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, BaseException):
            raise step
        return step

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.requests.append(request)
        if not self.streams:
            raise Unreachable("there are no more streams", sent=False)
        yield self.streams.pop(0)

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        self.requests.append(request)
        assert self.tunnel is not None
        yield self.tunnel

    async def close(self) -> None:
        self.closed = True
