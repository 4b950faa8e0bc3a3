"""Carrying: bytes between a caller and a worker, unread.

Each direction waits for its own reader, so that a slow side slows the other and nothing piles up.
It ends when a side ends: what that side said before is delivered first. TLS knows no half-closed
connection; protocols that need one say it in bytes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import Unreachable
from kubeocean.proxier.exchange import Exchange
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Carried", "carry"]

_PIECE: Final = 64 * 1024  # what is held of each session while its reader is slow


@dataclass(slots=True)
class Carried:
    """How much went each way, and which side broke off, if one did."""

    inwards: int = 0
    outwards: int = 0
    broken: str = ""


async def carry(exchange: Exchange, tunnel: Tunnel, carried: Carried, *, idle_s: float) -> None:
    """Carry until a side has no more to say, or neither has for too long.

    :raises TimeoutError: neither had.
    """
    heard, delivered = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def alive() -> None:
        limit.reschedule(loop.time() + idle_s)

    async def inwards() -> None:
        while piece := await exchange.read(_PIECE):
            alive()
            try:
                await tunnel.write(piece)
            except Unreachable:
                # It has closed; what it said before may still be on its way to the caller.
                await delivered.wait()
                return
            carried.inwards += len(piece)
        heard.set()

    async def outwards() -> None:
        while piece := await tunnel.read(_PIECE):
            alive()
            try:
                await exchange.write(piece)
            except Unreachable:
                if not exchange.closed:
                    raise
                # It has closed. Whether it left or was lost is said where we listen to it.
                await heard.wait()
                return
            carried.outwards += len(piece)
        delivered.set()

    async def one_way(go: Callable[[], Awaitable[None]]) -> None:
        try:
            await go()
        except Unreachable as error:
            carried.broken = str(error)

    async with asyncio.timeout(idle_s) as limit, asyncio.TaskGroup() as group:
        both = {group.create_task(one_way(go)) for go in (inwards, outwards)}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
