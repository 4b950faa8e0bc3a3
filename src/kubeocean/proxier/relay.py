"""Relaying bytes between a caller and a worker, and cancelling work when the caller disconnects.

Each direction waits for its own reader, so that a slow reader slows its writer and few bytes are
buffered. A relay ends when caller or worker closes; bytes sent before that are delivered first. TLS
knows no half-closed connection; protocols that need one signal it in bytes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import KubeoceanError, Refusal, Unreachable
from kubeocean.proxier.http import Exchange
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["RelayResult", "cancel_on_disconnect", "relay"]

_PIECE: Final = 64 * 1024


async def cancel_on_disconnect(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Run `work`, and cancel it if the caller disconnects.

    :raises Unreachable: the caller has disconnected.
    """
    async with asyncio.TaskGroup() as group:
        disconnected = group.create_task(exchange.wait_for_disconnect())
        working = group.create_task(_error_of(work))
        await asyncio.wait((disconnected, working), return_when=asyncio.FIRST_COMPLETED)
        cancelled = not working.done()
        disconnected.cancel()
        working.cancel()
    if cancelled:
        raise Unreachable("the caller has disconnected")
    if (error := working.result()) is not None:
        raise error


async def _error_of(work: Coroutine[None, None, None]) -> KubeoceanError | None:
    """Await `work` and return its error, which a task group would wrap in an exception group."""
    try:
        await work
    except KubeoceanError as error:
        return error
    except TimeoutError:
        return Refusal(504, "the request took too long")
    return None


@dataclass(slots=True)
class RelayResult:
    """The bytes relayed in each direction, and why the relay broke off, if it did."""

    received: int = 0  # from the caller
    sent: int = 0
    error: str = ""


async def relay(exchange: Exchange, tunnel: Tunnel, result: RelayResult, *, idle_s: float) -> None:
    """Relay bytes until caller or worker ends, or both are idle for `idle_s`.

    :raises TimeoutError: both were idle.
    """
    caller_ended, worker_ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def postpone_timeout() -> None:
        timeout.reschedule(loop.time() + idle_s)

    async def to_worker() -> None:
        while piece := await exchange.read(_PIECE):
            postpone_timeout()
            try:
                await tunnel.write(piece)
            except Unreachable:
                # The worker has closed; bytes that it sent before may still be on their way.
                await worker_ended.wait()
                return
            result.received += len(piece)
        caller_ended.set()

    async def to_caller() -> None:
        while piece := await tunnel.read(_PIECE):
            postpone_timeout()
            try:
                await exchange.write(piece)
            except Unreachable:
                if not exchange.closed:
                    raise
                # The caller has closed. Whether it ended or was lost shows in `to_worker`.
                await caller_ended.wait()
                return
            result.sent += len(piece)
        worker_ended.set()

    async def record_error(direction: Callable[[], Awaitable[None]]) -> None:
        try:
            await direction()
        except Unreachable as error:
            result.error = str(error)

    async with asyncio.timeout(idle_s) as timeout, asyncio.TaskGroup() as group:
        tasks = {group.create_task(record_error(each)) for each in (to_worker, to_caller)}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
