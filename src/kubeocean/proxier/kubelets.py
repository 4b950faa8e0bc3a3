"""Kubelets: the worker's nodes themselves, asked for figures that no API server has.

They are asked directly, on the address that the virtual node records, as whoever the worker's
kubeconfig says we are; their certificates must be good. That takes `nodes/metrics` and
`nodes/stats` there, and nothing that could change something.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from kubeocean.errors import Refusal, api_error
from kubeocean.runtime.access import Access
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.transport import HttpTransport, Request

__all__ = ["Kubelets"]

_MOST: Final = 256  # connections that are kept
_TIMEOUT_S: Final = 20.0


class Kubelets:
    """The kubelets of one worker."""

    def __init__(self, worker: AccessSource, *, port: int, authority: bytes | None = None) -> None:
        self._worker = worker
        self._port = port
        self._authority = authority
        self._transports: OrderedDict[str, HttpTransport] = OrderedDict()

    async def get(self, address: str, path: str, query: tuple[tuple[str, str], ...] = ()) -> bytes:
        """A page of the kubelet at an address.

        :raises ApiError: it does not answer, or not with that page.
        """
        if not address:
            raise Refusal(503, "the address of the worker's node is not known")
        request = Request("GET", path, query=query, accept="*/*", timeout_s=_TIMEOUT_S)
        response = await (await self._to(address)).send(request)
        if response.status != 200:
            raise api_error(response.status, response.body, doing=f"read {path} of the kubelet")
        return response.body

    async def close(self) -> None:
        while self._transports:
            _, transport = self._transports.popitem()
            await transport.close()

    async def _to(self, address: str) -> HttpTransport:
        found = self._transports.get(address)
        if found is None:
            found = self._transports[address] = HttpTransport(self._source(address))
            while len(self._transports) > _MOST:
                _, oldest = self._transports.popitem(last=False)
                await oldest.close()
        self._transports.move_to_end(address)
        return found

    def _source(self, address: str) -> _KubeletAccess:
        host = f"[{address}]" if ":" in address else address
        return _KubeletAccess(self._worker, f"https://{host}:{self._port}", self._authority)


class _KubeletAccess:
    """The worker's credentials at another address; a change of them is followed."""

    def __init__(self, worker: AccessSource, server: str, authority: bytes | None) -> None:
        self._worker = worker
        self._server = server
        self._authority = authority
        self._of: Access | None = None
        self._made: Access | None = None

    @property
    def interval_s(self) -> float:
        return self._worker.interval_s

    def current(self) -> Access:
        of = self._worker.current()
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
        return await self._worker.refresh(rejected=rejected)
