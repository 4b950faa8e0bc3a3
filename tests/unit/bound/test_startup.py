"""How a process starts, and with which exit code it ends when it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from kubeocean.bound.startup import run_process
from kubeocean.errors import ConfigError
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.service import Service
from kubeocean.runtime.zapflags import ZapFlags

Prepare = Callable[[AsyncExitStack], Awaitable[Service]]


async def start(prepare: Prepare) -> int:
    return await run_process("ferry", ZapFlags(), prepare, log=get_logger("harbour"))


async def test_what_makes_no_sense_is_told_and_all_is_given_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given_back: list[str] = []

    async def prepare(stack: AsyncExitStack) -> Service:
        stack.callback(given_back.append, "boat")
        raise ConfigError("is missing", source="--boat")

    assert await start(prepare) == 1
    assert given_back == ["boat"]
    told = json.loads(capsys.readouterr().err)
    assert told["logger"] == "harbour"
    assert told["msg"] == "Could not start ferry"
    assert told["error"] == "--boat: is missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_start_that_takes_long(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def prepare(stack: AsyncExitStack) -> Service:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        raise AssertionError

    assert await asyncio.create_task(start(prepare)) == 128 + number
    assert signal.getsignal(number) is before


async def test_a_start_that_somebody_cancels_is_cancelled() -> None:
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
