"""A client for the kubelets of a worker, for metrics that no API server has.

Kubelets are requested directly, at the address in the worker's Node, with a `KubeletCredential`;
their certificates must be valid. The credential needs `nodes/metrics` and `nodes/stats`, and no
right to change anything.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from kubeocean.errors import Refusal, api_error
from kubeocean.proxier.kubelet_credentials import KubeletCredential
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import HttpTransport, Request, Stream
from kubeocean.runtime.ttl_cache import TtlCache

__all__ = ["KubeletClient"]

_MAX_TRANSPORTS: Final = 256
_MAX_ADDRESSES: Final = 4_096
_MAX_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 20.0
_ADDRESS_S: Final = 60.0
_NEVER_S: Final = 3600.0


@dataclass(slots=True)
class _Kubelet:
    """The transport to one kubelet; it is not closed while requests use it."""

    transport: HttpTransport
    users: int = 0


class KubeletClient:
    """A client for all kubelets of one worker."""

    def __init__(
        self,
        client: Client,
        credential: KubeletCredential,
        *,
        port: int,
        authority: bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._credential = credential
        self._port = port
        self._authority = authority
        self._kubelets: OrderedDict[str, _Kubelet] = OrderedDict()  # by address
        self._addresses: TtlCache[str, str] = TtlCache(_MAX_ADDRESSES, clock=clock or RealClock())

    @asynccontextmanager
    async def opened(
        self, node: str, path: str, query: tuple[tuple[str, str], ...] = ()
    ) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        """Request a page of a node's kubelet; yield a function that reads the page's body.

        :raises ApiError: the kubelet does not answer, or not with that page.
        :raises Refusal: the node has no known address, or there is no credential for kubelets.
        """
        address = await self._address(node)
        await self._credential.ensure()
        request = Request("GET", path, query=query, accept="*/*", timeout_s=_TIMEOUT_S)
        kubelet = self._kubelet(address)
        kubelet.users += 1
        try:
            async with AsyncExitStack() as stack:
                async with _timeout():
                    stream = await stack.enter_async_context(kubelet.transport.stream(request))

                async def read() -> bytes:
                    async with _timeout():
                        body = await _read_all(stream, path)
                    if stream.status != 200:
                        raise api_error(stream.status, body, doing=f"read {path} of the kubelet")
                    return body

                yield read
        finally:
            kubelet.users -= 1
            await self._close_unused()

    async def close(self) -> None:
        while self._kubelets:
            _, kubelet = self._kubelets.popitem()
            await kubelet.transport.close()

    async def _address(self, node: str) -> str:
        if not node:
            raise Refusal(503, "the pod in the worker has no node yet")
        address = self._addresses.get(node)
        if address is None:
            address = _internal_ip((await self._client.get(NODES, node, keep_raw=True)).content())
            self._addresses.put(node, address, _ADDRESS_S)
        if not address:
            raise Refusal(503, f"the worker's node {node} has no InternalIP")
        return address

    def _kubelet(self, address: str) -> _Kubelet:
        kubelet = self._kubelets.get(address)
        if kubelet is None:
            host = f"[{address}]" if ":" in address else address
            server = f"https://{host}:{self._port}"
            access = _KubeletAccess(self._credential, server, self._authority)
            kubelet = self._kubelets[address] = _Kubelet(HttpTransport(access))
        self._kubelets.move_to_end(address)
        return kubelet

    async def _close_unused(self) -> None:
        """Close the transports over the limit that were not used for longest."""
        unused = [address for address, kubelet in self._kubelets.items() if not kubelet.users]
        for address in unused[: max(0, len(self._kubelets) - _MAX_TRANSPORTS)]:
            await self._kubelets.pop(address).transport.close()


@asynccontextmanager
async def _timeout() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except TimeoutError:
        raise Refusal(504, f"the kubelet did not answer within {_TIMEOUT_S:g} s") from None


async def _read_all(stream: Stream, path: str) -> bytes:
    pieces, size = [], 0
    while piece := await stream.read():
        size += len(piece)
        if size > _MAX_BYTES:
            raise Refusal(502, f"{path} of the kubelet is over {_MAX_BYTES >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def _internal_ip(node: Json) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")


class _KubeletAccess:
    """An `AccessSource` for one kubelet, with the credential for all kubelets.

    `KubeletCredential.ensure` is awaited before each request.
    """

    interval_s = _NEVER_S
    refresh_first = True

    def __init__(self, credential: KubeletCredential, server: str, authority: bytes | None) -> None:
        self._credential = credential
        self._server = server
        self._authority = authority
        self._made_of: Access | None = None
        self._access: Access | None = None

    def current(self) -> Access:
        shown = self._credential.current()
        if self._access is None or shown is not self._made_of:
            self._made_of = shown
            self._access = replace(
                shown,
                server=self._server,
                ca=self._authority or shown.ca,
                insecure=False,
                tls_server_name=None,
                proxy_url=None,
            )
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self.current()
        if rejected:
            await self._credential.replace()
        return self.current() is not before
