"""Sessions: logs, commands and ports of pods, by way of the worker's API server.

What was authorized here is asked for there with our own credentials, and only for the pod that was
found. An upgraded connection is handed on as bytes after the worker's 101 and not before; any other
answer is the caller's answer, and ends it.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from kubeocean.errors import Refusal, api_error
from kubeocean.proxier.audit import Entry
from kubeocean.proxier.carrying import carry
from kubeocean.proxier.exchange import PLAIN, Exchange
from kubeocean.proxier.frames import Channel, handshake, messages
from kubeocean.proxier.places import Place
from kubeocean.proxier.routes import Logs, Run, Session, SessionKind
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request

__all__ = ["Sessions"]

IDLE_S: Final = 4 * 3600.0  # a kubelet's default

# What may be switched to, as the worker is asked for it.
_PROTOCOLS: Final = {"spdy/3.1": "SPDY/3.1", "websocket": "websocket"}
_ASKED: Final = (
    "X-Stream-Protocol-Version",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)
_ANSWERED: Final = (
    "X-Stream-Protocol-Version",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)


class Sessions:
    """What leads into the pods of one worker."""

    def __init__(self, worker: Client, *, idle_s: float = IDLE_S) -> None:
        self._worker = worker
        self._idle_s = idle_s

    async def logs(self, exchange: Exchange, asked: Logs, place: Place) -> None:
        """The log, as it comes."""
        query = (("container", asked.container), *asked.query)
        request = Request("GET", _path(place.physical, "log"), query=query, accept="*/*")
        async with self._worker.transport.stream(request) as stream:
            if stream.status != 200:
                raise api_error(stream.status, await stream.read(), doing="read the log")
            await exchange.begin(200, stream.headers.get("Content-Type", PLAIN))
            while piece := await stream.read():
                await exchange.send(piece)
        await exchange.end()

    async def enter(self, exchange: Exchange, asked: Session, place: Place, entry: Entry) -> None:
        """Hand the connection on, once the worker has switched its own."""
        head = exchange.head
        protocol = _PROTOCOLS.get(head.upgrade)
        if protocol is None:
            shown = head.upgrade or "none"
            raise Refusal(400, f"upgrade: must be SPDY/3.1 or websocket (got {shown!r})")
        async with self._worker.upgrade(
            head.method,
            _path(place.physical, asked.kind),
            protocol=protocol,
            query=asked.query,
            headers=_picked(head.headers, _ASKED),
        ) as tunnel:
            picked = _picked(CIMultiDict(tunnel.headers), _ANSWERED)
            switched = [("Connection", "Upgrade"), ("Upgrade", protocol), *picked.items()]
            await exchange.switch(switched)
            try:
                carried = await carry(exchange, tunnel, idle_s=self._idle_s)
            except TimeoutError:
                entry.outcome = f"idle for {self._idle_s:g} s"
            else:
                entry.received = carried.inwards
                entry.outcome = carried.broken

    async def run(self, exchange: Exchange, asked: Run, place: Place) -> None:
        """What a command prints."""
        query = [("container", asked.container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in asked.command]
        async with self._worker.upgrade(
            "GET",
            _path(place.physical, SessionKind.EXEC),
            protocol="websocket",
            query=query,
            headers=handshake(),
        ) as tunnel:
            await exchange.begin(200, PLAIN)
            async with aclosing(messages(tunnel)) as received:
                async for channel, content in received:
                    if channel in (Channel.STDOUT, Channel.STDERR):
                        await exchange.send(content)
        await exchange.end()


def _path(pod: Key, subresource: str) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/{subresource}"


def _picked(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], names: tuple[str, ...]
) -> CIMultiDict[str]:
    """These headers and no others: whose credentials they are must not be seen below."""
    return CIMultiDict((name, value) for name in names for value in headers.getall(name, []))
