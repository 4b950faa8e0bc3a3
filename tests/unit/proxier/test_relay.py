"""Ends of a relay, when both sides end at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubeocean.errors import Unreachable
from kubeocean.proxier.relay import RelayResult, relay


@dataclass
class Caller:
    """A caller that reads nothing more; `last` arrives after a write to it has failed."""

    closed: bool
    last: bytes | Unreachable = b""
    write_failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, limit: int) -> bytes:
        await self.write_failed.wait()
        await asyncio.sleep(0)
        if isinstance(self.last, Unreachable):
            raise self.last
        return self.last

    async def write(self, data: bytes) -> None:
        self.write_failed.set()
        raise Unreachable("lost the connection to the caller: the caller does not read")


class Worker:
    """A worker that sends something and then waits."""

    def __init__(self) -> None:
        self._pieces = [b"bye"]

    async def read(self, limit: int) -> bytes:
        if not self._pieces:
            await asyncio.Event().wait()
        return self._pieces.pop()

    async def write(self, data: bytes) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("caller", "error"),
    [
        (Caller(closed=True), ""),  # it has closed the connection
        (
            Caller(closed=True, last=Unreachable("lost the connection to the caller: reset")),
            "lost the connection to the caller: reset",
        ),
        (Caller(closed=False), "lost the connection to the caller: the caller does not read"),
    ],
)
async def test_a_caller_that_closes_the_connection_is_not_lost(caller: Any, error: str) -> None:
    result = RelayResult()
    await relay(caller, Worker(), result, idle_s=30.0)
    assert result.error == error
