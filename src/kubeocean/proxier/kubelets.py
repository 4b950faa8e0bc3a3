"""Kubelets: the worker's nodes themselves, asked for figures that no API server has.

They are asked directly, at the address that the worker's own Node says, with a `Badge`; their
certificates must be good. That takes `nodes/metrics` and `nodes/stats` there, and nothing that
could change something.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from kubeocean.errors import Refusal, api_error
from kubeocean.proxier.badges import Badge
from kubeocean.proxier.remembered import Remembered
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import HttpTransport, Request, Stream

__all__ = ["Kubelets"]

_MOST: Final = 256  # connections that are kept
_MOST_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 20.0
_ADDRESS_S: Final = 60.0
_NEVER_S: Final = 3600.0


@dataclass(slots=True)
class _Line:
    transport: HttpTransport
    users: int = field(default=0)


class Kubelets:
    """The kubelets of one worker."""

    def __init__(
        self,
        client: Client,
        badge: Badge,
        *,
        port: int,
        authority: bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._badge = badge
        self._port = port
        self._authority = authority
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._addresses: Remembered[str, str] = Remembered(16 * _MOST, clock=clock or RealClock())

    @asynccontextmanager
    async def opened(
        self, node: str, path: str, query: tuple[tuple[str, str], ...] = ()
    ) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        """A page of the kubelet of a node, which has begun to answer: what reads it.

        :raises ApiError: it does not answer, or not with that page.
        :raises Refusal: there is no way to ask it.
        """
        address = await self._address(node)
        await self._badge.ensure()
        request = Request("GET", path, query=query, accept="*/*", timeout_s=_TIMEOUT_S)
        line = self._to(address)
        line.users += 1
        try:
            async with AsyncExitStack() as stack:
                async with _in_time():
                    stream = await stack.enter_async_context(line.transport.stream(request))

                async def read() -> bytes:
                    async with _in_time():
                        body = await _whole(stream, path)
                    if stream.status != 200:
                        raise api_error(stream.status, body, doing=f"read {path} of the kubelet")
                    return body

                yield read
        finally:
            line.users -= 1
            await self._tidy()

    async def close(self) -> None:
        while self._lines:
            _, line = self._lines.popitem()
            await line.transport.close()

    async def _address(self, node: str) -> str:
        if not node:
            raise Refusal(503, "the worker's node is not known")
        address = self._addresses.get(node)
        if address is None:
            found = await self._client.get(NODES, node, keep_raw=True)
            address = _internal(found.content())
            self._addresses.put(node, address, _ADDRESS_S)
        if not address:
            raise Refusal(503, f"the worker's node {node} has no address")
        return address

    def _to(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line(HttpTransport(self._source(address)))
        self._lines.move_to_end(address)
        return line

    async def _tidy(self) -> None:
        """Give back the connections that were not used for longest."""
        spare = [address for address, line in self._lines.items() if not line.users]
        for address in spare[: max(0, len(self._lines) - _MOST)]:
            await self._lines.pop(address).transport.close()

    def _source(self, address: str) -> _KubeletAccess:
        host = f"[{address}]" if ":" in address else address
        return _KubeletAccess(self._badge, f"https://{host}:{self._port}", self._authority)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except TimeoutError:
        raise Refusal(504, "the kubelet does not answer in time") from None


async def _whole(stream: Stream, path: str) -> bytes:
    pieces, size = [], 0
    while piece := await stream.read():
        size += len(piece)
        if size > _MOST_BYTES:
            raise Refusal(502, f"{path} of the kubelet is over {_MOST_BYTES >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def _internal(node: Json) -> str:
    """The first address of a node within its own cluster."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")


class _KubeletAccess:
    """A badge at a kubelet's address. Whoever asks there has seen to it that there is one."""

    interval_s = _NEVER_S

    def __init__(self, badge: Badge, server: str, authority: bytes | None) -> None:
        self._badge = badge
        self._server = server
        self._authority = authority
        self._of: Access | None = None
        self._made: Access | None = None

    def current(self) -> Access:
        of = self._badge.current()
        if self._made is None or of is not self._of:
            self._of = of
            self._made = replace(
                of,
                server=self._server,
                ca=self._authority or of.ca,
                insecure=False,
                tls_server_name=None,
                proxy_url=None,
            )
        return self._made

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self.current()
        if rejected:
            await self._badge.replace()
        return self.current() is not before
