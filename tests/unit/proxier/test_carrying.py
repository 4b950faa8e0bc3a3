"""How sessions end, when both sides end them at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubeocean.errors import Unreachable
from kubeocean.proxier.carrying import Carried, carry


@dataclass
class Caller:
    """One that takes nothing more; what it says last is heard after that was noticed."""

    closed: bool
    last: bytes | Unreachable = b""
    refused: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, most: int) -> bytes:
        await self.refused.wait()
        await asyncio.sleep(0)
        if isinstance(self.last, Unreachable):
            raise self.last
        return self.last

    async def write(self, data: bytes) -> None:
        self.refused.set()
        raise Unreachable("lost the caller: it takes nothing")


class Worker:
    """One that says something and then waits."""

    def __init__(self) -> None:
        self._said = [b"bye"]

    async def read(self, most: int) -> bytes:
        if not self._said:
            await asyncio.Event().wait()
        return self._said.pop()

    async def write(self, data: bytes) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("caller", "told"),
    [
        (Caller(closed=True), ""),  # it left, as who has heard enough does
        (Caller(closed=True, last=Unreachable("lost the caller: reset")), "lost the caller: reset"),
        (Caller(closed=False), "lost the caller: it takes nothing"),
    ],
)
async def test_a_caller_that_left_is_not_lost(caller: Any, told: str) -> None:
    carried, worker = Carried(), Worker()
    await carry(caller, worker, carried, idle_s=30.0)
    assert carried.broken == told
