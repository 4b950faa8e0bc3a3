"""The part of WebSocket that `/run` needs: run a command and read its output.

Kubernetes prefixes each message with the number of the stream that it belongs to. Other sessions
are relayed without being read; the response of `/run` is the output itself.
"""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from kubeocean.errors import Unreachable
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Channel", "failure_message", "handshake", "messages"]

_SUBPROTOCOL: Final = "v4.channel.k8s.io"

_MAX_MESSAGE: Final = 1 << 20
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


class Channel(IntEnum):
    """The stream of a command that a WebSocket message belongs to."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class _Frame:
    opcode: int
    final: bool
    payload: bytes


def handshake() -> dict[str, str]:
    """Return the headers of a WebSocket handshake."""
    return {
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": _SUBPROTOCOL,
    }


async def messages(tunnel: Tunnel) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield channel and content of each WebSocket message until the worker closes.

    :raises Unreachable: the connection breaks off, or the worker violates the protocol.
    """
    reader = _FrameReader(tunnel)
    message = b""
    while (frame := await reader.frame()) is not None:
        if frame.opcode == _CLOSE:
            return
        if frame.opcode == _PING:
            await tunnel.write(_masked(_PONG, frame.payload))
        elif frame.opcode in (_CONTINUATION, _TEXT, _BINARY):
            message += frame.payload
            if len(message) > _MAX_MESSAGE:
                raise Unreachable("the worker sent a message that is too large")
            if frame.final and message:
                yield message[0], message[1:]
            if frame.final:
                message = b""


def failure_message(content: bytes) -> str:
    """Return why a command failed, from a message of the error channel; empty if it succeeded."""
    try:
        status = msgspec.json.decode(content, type=_Status) if content else _Status()
    except msgspec.DecodeError:
        return "the exit status of the command cannot be read"
    return "" if status.status == "Success" else status.message or "the command failed"


class _Status(msgspec.Struct):
    status: str = ""
    message: str = ""


class _FrameReader:
    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._buffer = b""

    async def frame(self) -> _Frame | None:
        head = await self._take(2)
        if head is None:
            return None
        length = head[1] & 0x7F
        if head[1] & _MASKED:
            raise Unreachable("the worker sent a frame that only a client may send")
        for marker, size in ((126, 2), (127, 8)):
            if head[1] == marker:
                length = int.from_bytes(await self._take(size) or b"", "big")
        if length > _MAX_MESSAGE:
            raise Unreachable("the worker sent a frame that is too large")
        payload = await self._take(length) if length else b""
        if payload is None:
            raise Unreachable("the worker closed the connection in the middle of a frame")
        return _Frame(head[0] & 0x0F, bool(head[0] & _FINAL), payload)

    async def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            more = await self._tunnel.read()
            if not more:
                return None
            self._buffer += more
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def _masked(opcode: int, payload: bytes) -> bytes:
    """Return a short WebSocket frame, masked as frames of a client must be."""
    key = os.urandom(4)
    body = bytes(byte ^ key[at % 4] for at, byte in enumerate(payload[:125]))
    return bytes((_FINAL | opcode, _MASKED | len(body))) + key + body
