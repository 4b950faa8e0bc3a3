"""Sessions with pods: logs, exec, attach, port-forward and run, through the worker's API server.

An authorized request is sent to the worker with the binding's credential, for the located pod only.
An upgraded connection is relayed after the worker's 101 and not before; any other response is
returned to the caller and ends the request.

API servers address a pod by name, and the cache can be behind: another pod may have the name by
now. So the worker is asked for the pod's UID once more, after it has begun to answer and before a
byte is relayed. UIDs are not reused: the pod that has the UID before and after had that UID in
between. Where a command starts by itself, the UID is checked before, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from kubeocean.errors import NotFound, Refusal, Unreachable, api_error
from kubeocean.proxier.audit import AuditEntry
from kubeocean.proxier.http import PLAIN_TEXT, Exchange
from kubeocean.proxier.pod_lookup import PodLocation
from kubeocean.proxier.relay import RelayResult, cancel_on_disconnect, relay
from kubeocean.proxier.routes import Logs, Run, Session, SessionKind
from kubeocean.proxier.websocket import Channel, failure_message, handshake, messages
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request, Stream

__all__ = ["Sessions"]

IDLE_S: Final = 4 * 3600.0  # a kubelet's default

_HEAD_S: Final = 30.0  # until a worker begins to answer
_LOG_BUFFER: Final = 64 * 1024  # a caller that reads slowly makes the worker wait
_MAX_OUTPUT: Final = 4 << 20
_MAX_ERROR_BODY: Final = 64 * 1024
_MAX_SHOWN: Final = 40
_JSON: Final = "application/json"  # the type that a kubelet gives to any output of a command

# Protocols of an upgrade, as the worker is asked for them.
_PROTOCOLS: Final = {"spdy/3.1": "SPDY/3.1", "websocket": "websocket"}
_REQUEST_HEADERS: Final = (
    "X-Stream-Protocol-Version",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)
_RESPONSE_HEADERS: Final = (
    "X-Stream-Protocol-Version",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)
_SUBPROTOCOL_HEADERS: Final = ("X-Stream-Protocol-Version", "Sec-WebSocket-Protocol")


class Sessions:
    """Serves sessions with the pods of one worker."""

    def __init__(self, worker: Client, *, idle_s: float = IDLE_S) -> None:
        self._worker = worker
        self._idle_s = idle_s

    async def logs(self, exchange: Exchange, route: Logs, location: PodLocation) -> None:
        """Relay a container's log to its end, or until the caller disconnects."""
        # A server sends not even a head before a followed container prints something.
        follows = ("follow", "true") in route.query
        request = Request(
            "GET",
            _path(location.physical, "log"),
            query=(("container", route.container), *route.query),
            accept="*/*",
            timeout_s=self._idle_s if follows else _HEAD_S,
            buffer=_LOG_BUFFER,
        )
        exchange.write_timeout_s = self._idle_s
        await cancel_on_disconnect(exchange, self._relay_log(exchange, request, location))

    async def _relay_log(self, exchange: Exchange, request: Request, location: PodLocation) -> None:
        async with self._worker.transport.stream(request) as stream:
            if stream.status != 200:
                raise api_error(
                    stream.status,
                    await _error_body(stream),
                    doing=f"read the log of pod {location.virtual}",
                )
            # Before the UID is checked: the first piece of a log that breaks off would be lost.
            piece = await stream.read()
            await self._confirm_uid(location)
            await exchange.begin_chunks(200, PLAIN_TEXT)
            while piece:
                await exchange.send_chunk(piece)
                piece = await stream.read()
        await exchange.end_chunks()

    async def stream(
        self, exchange: Exchange, route: Session, location: PodLocation, entry: AuditEntry
    ) -> None:
        """Relay an upgraded connection, once the worker has switched protocols."""
        head = exchange.head
        protocol = _PROTOCOLS.get(head.upgrade)
        if protocol is None:
            shown = head.upgrade[:_MAX_SHOWN] or "none"
            raise Refusal(400, f"upgrade: must be SPDY/3.1 or websocket (got {shown!r})")
        if head.has_body:
            raise Refusal(400, "a request to switch protocols must not have a body")
        offered = _picked(head.headers, _REQUEST_HEADERS)
        if route.kind is SessionKind.EXEC:
            await self._confirm_uid(location)
        async with self._worker.upgrade(
            head.method,
            _path(location.physical, route.kind),
            protocol=protocol,
            query=route.query,
            headers=offered,
        ) as tunnel:
            _check_subprotocol(tunnel.headers, offered)
            await self._confirm_uid(location)
            picked = _picked(CIMultiDict(tunnel.headers), _RESPONSE_HEADERS)
            headers = [("Connection", "Upgrade"), ("Upgrade", protocol), *picked.items()]
            await exchange.switch_protocols(headers)
            exchange.write_timeout_s = self._idle_s
            result = RelayResult()
            try:
                await relay(exchange, tunnel, result, idle_s=self._idle_s)
            except TimeoutError:
                result.error = f"idle for {self._idle_s:g} s"
            finally:
                entry.received = result.received
                entry.outcome = result.error

    async def run(
        self, exchange: Exchange, route: Run, location: PodLocation, entry: AuditEntry
    ) -> None:
        """Run a command to its end and respond with its output."""
        query = [("container", route.container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in route.command]
        await cancel_on_disconnect(exchange, self._run(exchange, query, location, entry))

    async def _run(
        self,
        exchange: Exchange,
        query: list[tuple[str, str]],
        location: PodLocation,
        entry: AuditEntry,
    ) -> None:
        output, status = bytearray(), b""
        await self._confirm_uid(location)
        async with (
            asyncio.timeout(self._idle_s),
            self._worker.upgrade(
                "GET",
                _path(location.physical, SessionKind.EXEC),
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
                    status += content
                if len(output) + len(status) > _MAX_OUTPUT:
                    raise Refusal(500, f"the command printed more than {_MAX_OUTPUT >> 20} MiB")
        await self._confirm_uid(location)
        failure = failure_message(status)
        if not failure:
            await exchange.respond(200, bytes(output), _JSON)
            return
        entry.outcome = "the command failed"  # the reason and the output belong to the caller
        await exchange.respond(500, f"{failure}: {output.decode('utf-8', 'replace')}\n".encode())

    async def _confirm_uid(self, location: PodLocation) -> None:
        """Check that the located pod still has its name in the worker cluster.

        :raises Refusal: another pod has the name, or none.
        """
        physical = location.physical
        try:
            pod = await self._worker.get(PODS, physical.name, physical.namespace)
        except NotFound:
            pod = None
        if pod is None or pod.uid != location.physical_uid:
            raise Refusal(404, f"pod {location.virtual} no longer runs in the worker cluster")


async def _error_body(stream: Stream) -> bytes:
    """Read the part of an error response that the caller is shown."""
    body = b""
    while len(body) < _MAX_ERROR_BODY and (piece := await stream.read()):
        body += piece
    return body[:_MAX_ERROR_BODY]


def _check_subprotocol(headers: Mapping[str, str], offered: CIMultiDict[str]) -> None:
    """Check that the caller offered the subprotocol that the worker chose.

    :raises Unreachable: the worker chose another one.
    """
    for name in _SUBPROTOCOL_HEADERS:
        chosen = headers.get(name.lower(), "").strip()
        offers = ",".join(offered.getall(name, [])).split(",")
        if chosen and chosen not in (each.strip() for each in offers):
            raise Unreachable(f"the worker chose a {name} that the caller did not offer")


def _path(pod: Key, subresource: str) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/{subresource}"


def _picked(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], names: tuple[str, ...]
) -> CIMultiDict[str]:
    """Return only the named headers: credentials and cookies must not be passed on."""
    return CIMultiDict((name, value) for name in names for value in headers.getall(name, []))
