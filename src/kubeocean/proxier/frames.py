"""Frames: as much of WebSocket as it takes to run a command and read what it prints.

Kubernetes puts a number in front of each message that says which stream it belongs to. Everything
else that goes through the proxier is carried unread; this is only for `/run`, whose answer is the
output itself.
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

__all__ = ["HANDSHAKE", "Channel", "failed", "handshake", "messages"]

HANDSHAKE: Final = "v4.channel.k8s.io"

_LARGEST: Final = 1 << 20
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


class Channel(IntEnum):
    """Which stream a message is of."""

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
    """The headers that ask for WebSocket."""
    return {
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": HANDSHAKE,
    }


async def messages(tunnel: Tunnel) -> AsyncGenerator[tuple[int, bytes], None]:
    """What the other side sends: channel and content, until it ends.

    :raises Unreachable: it breaks off, or does not keep to the protocol.
    """
    reader = _Reader(tunnel)
    whole = b""
    while (frame := await reader.frame()) is not None:
        if frame.opcode == _CLOSE:
            return
        if frame.opcode == _PING:
            await tunnel.write(_masked(_PONG, frame.payload))
        elif frame.opcode in (_CONTINUATION, _TEXT, _BINARY):
            whole += frame.payload
            if len(whole) > _LARGEST:
                raise Unreachable("the worker sent a message that is too large")
            if frame.final and whole:
                yield whole[0], whole[1:]
            if frame.final:
                whole = b""


def failed(verdict: bytes) -> str:
    """How a command ended badly, as the last message tells it; nothing if it did not."""
    try:
        status = msgspec.json.decode(verdict, type=_Verdict) if verdict else _Verdict()
    except msgspec.DecodeError:
        return "nobody can tell how the command ended"
    return "" if status.status == "Success" else status.message or "the command failed"


class _Verdict(msgspec.Struct):
    status: str = ""
    message: str = ""


class _Reader:
    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._held = b""

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
        if length > _LARGEST:
            raise Unreachable("the worker sent a frame that is too large")
        payload = await self._take(length) if length else b""
        if payload is None:
            raise Unreachable("the worker broke off in the middle of a frame")
        return _Frame(head[0] & 0x0F, bool(head[0] & _FINAL), payload)

    async def _take(self, count: int) -> bytes | None:
        while len(self._held) < count:
            more = await self._tunnel.read()
            if not more:
                return None
            self._held += more
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _masked(opcode: int, payload: bytes) -> bytes:
    """A short frame from a client."""
    key = os.urandom(4)
    body = bytes(byte ^ key[at % 4] for at, byte in enumerate(payload[:125]))
    return bytes((_FINAL | opcode, _MASKED | len(body))) + key + body
