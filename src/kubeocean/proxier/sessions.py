"""Sessions: logs, commands and ports of pods, by way of the worker's API server.

What was authorized here is asked for there with our own credentials, and only for the pod that was
found. An upgraded connection is handed on as bytes after the worker's 101 and not before; any other
answer is the caller's answer, and ends it.

An API server is asked for a pod by its name, and under that name there may be somebody else's by
now: our cache can be behind. So the worker is asked once more which pod it is, after it has begun
to answer and before a byte goes either way. A UID does not come back: what was there before and is
there afterwards was there in between. Where a command begins by itself it is asked before, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from kubeocean.errors import NotFound, Refusal, Unreachable, api_error
from kubeocean.proxier.audit import Entry
from kubeocean.proxier.carrying import Carried, carry
from kubeocean.proxier.exchange import PLAIN, Exchange
from kubeocean.proxier.frames import Channel, failed, handshake, messages
from kubeocean.proxier.hearing import while_heard
from kubeocean.proxier.places import Place
from kubeocean.proxier.routes import Logs, Run, Session, SessionKind
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request, Stream

__all__ = ["Sessions"]

IDLE_S: Final = 4 * 3600.0  # a kubelet's default

_HEAD_S: Final = 30.0  # until a worker begins to answer
_BUFFER: Final = 64 * 1024  # of each log: a caller that is slow makes the worker wait
_MOST_OUTPUT: Final = 4 << 20
_MOST_REFUSAL: Final = 64 * 1024
_SHOWN: Final = 40
_JSON: Final = "application/json"  # what a kubelet says of anything that a command prints

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
_CHOICES: Final = ("X-Stream-Protocol-Version", "Sec-WebSocket-Protocol")


class Sessions:
    """What leads into the pods of one worker."""

    def __init__(self, worker: Client, *, idle_s: float = IDLE_S) -> None:
        self._worker = worker
        self._idle_s = idle_s

    async def logs(self, exchange: Exchange, asked: Logs, place: Place) -> None:
        """The log, as it comes, for as long as somebody listens."""
        query = (("container", asked.container), *asked.query)
        # A server says nothing at all before the container does.
        head_s = self._idle_s if ("follow", "true") in asked.query else _HEAD_S
        request = Request(
            "GET",
            _path(place.physical, "log"),
            query=query,
            accept="*/*",
            timeout_s=head_s,
            buffer=_BUFFER,
        )
        exchange.patience_s = self._idle_s
        await while_heard(exchange, self._log(exchange, request, place))

    async def _log(self, exchange: Exchange, request: Request, place: Place) -> None:
        async with self._worker.transport.stream(request) as stream:
            if stream.status != 200:
                raise api_error(stream.status, await _some(stream), doing="read the log")
            piece = await stream.read()  # first: of a log that breaks off it would be lost
            await self._confirm(place)
            await exchange.begin(200, PLAIN)
            while piece:
                await exchange.send(piece)
                piece = await stream.read()
        await exchange.end()

    async def enter(self, exchange: Exchange, asked: Session, place: Place, entry: Entry) -> None:
        """Hand the connection on, once the worker has switched its own."""
        head = exchange.head
        protocol = _PROTOCOLS.get(head.upgrade)
        if protocol is None:
            shown = head.upgrade[:_SHOWN] or "none"
            raise Refusal(400, f"upgrade: must be SPDY/3.1 or websocket (got {shown!r})")
        if head.has_body:
            raise Refusal(400, "a request to switch protocols has no body")
        offered = _picked(head.headers, _ASKED)
        if asked.kind is SessionKind.EXEC:
            await self._confirm(place)
        async with self._worker.upgrade(
            head.method,
            _path(place.physical, asked.kind),
            protocol=protocol,
            query=asked.query,
            headers=offered,
        ) as tunnel:
            _check_choice(tunnel.headers, offered)
            await self._confirm(place)
            picked = _picked(CIMultiDict(tunnel.headers), _ANSWERED)
            switched = [("Connection", "Upgrade"), ("Upgrade", protocol), *picked.items()]
            await exchange.switch(switched)
            exchange.patience_s = self._idle_s
            carried = Carried()
            try:
                await carry(exchange, tunnel, carried, idle_s=self._idle_s)
            except TimeoutError:
                carried.broken = f"idle for {self._idle_s:g} s"
            finally:
                entry.received = carried.inwards
                entry.outcome = carried.broken

    async def run(self, exchange: Exchange, asked: Run, place: Place, entry: Entry) -> None:
        """What a command prints, once it has ended."""
        query = [("container", asked.container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in asked.command]
        await while_heard(exchange, self._run(exchange, query, place, entry))

    async def _run(
        self, exchange: Exchange, query: list[tuple[str, str]], place: Place, entry: Entry
    ) -> None:
        output, verdict = bytearray(), b""
        await self._confirm(place)
        async with (
            asyncio.timeout(self._idle_s),
            self._worker.upgrade(
                "GET",
                _path(place.physical, SessionKind.EXEC),
                protocol="websocket",
                query=query,
                headers=handshake(),
            ) as tunnel,
            aclosing(messages(tunnel)) as received,
        ):
            async for channel, content in received:
                if channel in (Channel.STDOUT, Channel.STDERR):
                    output += content
                elif channel == Channel.ERROR:
                    verdict += content
                if len(output) + len(verdict) > _MOST_OUTPUT:
                    raise Refusal(500, f"the command printed over {_MOST_OUTPUT >> 20} MiB")
        await self._confirm(place)
        failure = failed(verdict)
        if not failure:
            await exchange.answer(200, bytes(output), _JSON)
            return
        entry.outcome = "the command failed"  # how, and what it printed, is the caller's own
        await exchange.answer(500, f"{failure}: {output.decode('utf-8', 'replace')}\n".encode())

    async def _confirm(self, place: Place) -> None:
        """That it is still the pod that was found which has its name below.

        :raises Refusal: it is not.
        """
        try:
            found = await self._worker.get(PODS, place.physical.name, place.physical.namespace)
        except NotFound:
            found = None
        if found is None or found.uid != place.physical_uid:
            raise Refusal(404, f"pod {place.virtual} does not run in the worker cluster any more")


async def _some(stream: Stream) -> bytes:
    """Enough of a refusal to tell the caller why."""
    body = b""
    while len(body) < _MOST_REFUSAL and (piece := await stream.read()):
        body += piece
    return body[:_MOST_REFUSAL]


def _check_choice(answered: Mapping[str, str], offered: CIMultiDict[str]) -> None:
    """What the worker has chosen must be what the caller would speak.

    :raises Unreachable: it is something else.
    """
    for name in _CHOICES:
        chosen = answered.get(name.lower(), "").strip()
        said = ",".join(offered.getall(name, [])).split(",")
        if chosen and chosen not in (each.strip() for each in said):
            raise Unreachable(f"the worker has chosen a {name} that nobody offered")


def _path(pod: Key, subresource: str) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/{subresource}"


def _picked(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], names: tuple[str, ...]
) -> CIMultiDict[str]:
    """These headers and no others: whose credentials they are must not be seen below."""
    return CIMultiDict((name, value) for name in names for value in headers.getall(name, []))
