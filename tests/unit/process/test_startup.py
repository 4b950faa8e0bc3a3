"""The start of a process, and its exit code when the start fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from kubeocean.errors import ConfigError
from kubeocean.process.startup import run_process
from kubeocean.runtime.log_flags import ZapFlags
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.service import Service

Prepare = Callable[[AsyncExitStack], Awaitable[Service]]


async def start(prepare: Prepare) -> int:
    return await run_process("syncer", ZapFlags(), prepare, log=get_logger("kubeocean.test"))


async def test_an_error_of_the_start_is_logged_and_the_stack_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed: list[str] = []

    async def prepare(stack: AsyncExitStack) -> Service:
        stack.callback(closed.append, "client")
        raise ConfigError("is missing", source="--kubeconfig")

    assert await start(prepare) == 1
    assert closed == ["client"]
    line = json.loads(capsys.readouterr().err)
    assert line["logger"] == "kubeocean.test"
    assert line["msg"] == "Could not start syncer"
    assert line["error"] == "--kubeconfig: is missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_start_that_takes_long(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def prepare(stack: AsyncExitStack) -> Service:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        raise AssertionError

    assert await asyncio.create_task(start(prepare)) == 128 + number
    assert signal.getsignal(number) is before


async def test_a_cancelled_start_raises_the_cancellation() -> None:
    begun = asyncio.Event()

    async def prepare(stack: AsyncExitStack) -> Service:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    starting = asyncio.create_task(start(prepare))
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
