"""Hearing: what is done for a caller is done as long as there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from kubeocean.errors import KubeoceanError, Refusal, Unreachable
from kubeocean.proxier.exchange import Exchange

__all__ = ["while_heard"]


async def while_heard(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Do it, unless the caller leaves meanwhile.

    :raises Unreachable: it did.
    """
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(exchange.gone())
        doing = group.create_task(_kept(work))
        await asyncio.wait((gone, doing), return_when=asyncio.FIRST_COMPLETED)
        left = not doing.done()
        gone.cancel()
        doing.cancel()
    if left:
        raise Unreachable("lost the caller: it has left")
    if (error := doing.result()) is not None:
        raise error


async def _kept(work: Coroutine[None, None, None]) -> KubeoceanError | None:
    """How it failed, as a value: a task group would make a group of it."""
    try:
        await work
    except KubeoceanError as error:
        return error
    except TimeoutError:
        return Refusal(504, "it took too long")
    return None
