"""Readiness: waits until a component serves, and explains in an error why it does not.

A wait ends in one of three ways: the component answers, the component has ended, or the time is
over. The last two are a `LocalError` that carries the end of the component's log.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from kubeocean.errors import LocalError
from kubeocean.local.process import Process
from kubeocean.runtime.clock import Clock

__all__ = ["ReadinessProbe", "failure", "until_ready"]

_EVERY_S = 0.05
_ANSWER_S = 5.0
_SHOWN = 15
_WIDTH = 400  # some lines contain a whole stack trace
_LOOKED_AT = 500
_NOISE = ("Usage:", "goroutine ")
_FULL = "no space left on device"


class ReadinessProbe:
    """Sends GET requests to the servers of one cluster, with a client certificate."""

    def __init__(self, pki: Path, *, identity: str) -> None:
        tls = ssl.create_default_context(cafile=pki / "ca.crt")
        tls.load_verify_locations(pki / "etcd-ca.crt")
        tls.load_cert_chain(pki / f"{identity}.crt", pki / f"{identity}.key")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def ok(self, url: str) -> bool:
        """Whether the server answers a GET request for `url` with 200."""
        try:
            async with self._session.get(url) as response:
                await response.read()
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


async def until_ready(
    process: Process,
    ready: Callable[[], Awaitable[bool]],
    *,
    what: str,
    within_s: float,
    every_s: float = _EVERY_S,
    clock: Clock,
) -> None:
    """Return when `ready()` returns true.

    :raises LocalError: the process has ended, or was not ready in time.
    """
    deadline = clock.monotonic() + within_s
    while not await ready():
        if not process.running:
            raise failure(process, f"{what} ended with exit code {process.returncode}")
        if clock.monotonic() > deadline:
            raise failure(process, f"{what} was not ready within {within_s:g} s")
        await clock.sleep(every_s)


def failure(process: Process, what: str) -> LocalError:
    """Return the error `what` of a process, with the end of its log."""
    lines = _telling(process.tail(_LOOKED_AT)) or ["(nothing)"]
    if any(_FULL in line for line in lines):
        what = f"{what}: {_FULL}"
    shown = "\n".join(f"  {line[:_WIDTH]}" for line in lines)
    return LocalError(f"{what}; the end of {process.log}:\n{shown}")


def _telling(lines: list[str]) -> list[str]:
    """Return the last lines of a log without help texts and stack traces at its end."""
    noise = (at for at, line in enumerate(lines) if at and line.startswith(_NOISE))
    return lines[: next(noise, len(lines))][-_SHOWN:]
