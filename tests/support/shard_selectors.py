"""A transport that filters by shard selectors, as newer API servers will do.

The API servers of the tests do not filter by `shardSelector` yet. The transport removes the
parameter from requests, and from the answers all objects that are not in its ranges. It cannot show
that a future API server will filter in the same way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import msgspec

from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.slots import fnv1a

__all__ = ["ShardFiltering"]

_RANGE = re.compile(r"shardRange\(object\.metadata\.uid, '(0x[0-9a-f]+)', '(0x[0-9a-f]+)'\)")


def _ranges(selector: str) -> list[tuple[int, int]]:
    return [(int(start, 16), int(end, 16)) for start, end in _RANGE.findall(selector)]


def _inside(obj: dict[str, object], ranges: list[tuple[int, int]]) -> bool:
    meta = obj.get("metadata")
    assert isinstance(meta, dict)
    value = fnv1a(meta.get("uid", ""))
    return any(start <= value < end for start, end in ranges)


class ShardFiltering:
    """A transport whose server filters by shard selector."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        selector = dict(request.query).get("shardSelector")
        if selector is None:
            return await self._inner.send(request)
        response = await self._inner.send(_without(request))
        answer = msgspec.json.decode(response.body)
        ranges = _ranges(selector)
        answer["items"] = [item for item in answer.get("items") or () if _inside(item, ranges)]
        answer["metadata"]["shardInfo"] = {"selector": selector}
        return replace(response, body=msgspec.json.encode(answer))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        selector = dict(request.query).get("shardSelector")
        async with self._inner.stream(_without(request)) as stream:
            yield stream if selector is None else _Filtered(stream, _ranges(selector))

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()


def _without(request: Request) -> Request:
    return replace(request, query=tuple(p for p in request.query if p[0] != "shardSelector"))


class _Filtered:
    def __init__(self, inner: Stream, ranges: list[tuple[int, int]]) -> None:
        self._inner = inner
        self._ranges = ranges
        self._tail = b""

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    async def read(self) -> bytes:
        while chunk := await self._inner.read():
            *lines, self._tail = (self._tail + chunk).split(b"\n")
            kept = b"".join(line + b"\n" for line in lines if self._passes(line))
            if kept:
                return kept
        return b""

    def _passes(self, line: bytes) -> bool:
        event = msgspec.json.decode(line)
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return True
        return _inside(event["object"], self._ranges)
