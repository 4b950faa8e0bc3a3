"""Start-up of a process: from its settings to a service that runs until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final

from kubeocean import __version__
from kubeocean.errors import KubeoceanError
from kubeocean.runtime import tracing
from kubeocean.runtime.client import Client
from kubeocean.runtime.interrupts import SIGNALLED, cancelled_by_signals
from kubeocean.runtime.logs import Logger
from kubeocean.runtime.service import Service
from kubeocean.runtime.transport import Transport
from kubeocean.runtime.zapflags import ZapFlags

__all__ = ["open_client", "run_process", "trace"]

_FAILED: Final = 1
_BURST: Final = 10


async def run_process(
    name: str,
    settings: ZapFlags,
    prepare: Callable[[AsyncExitStack], Awaitable[Service]],
    *,
    log: Logger,
) -> int:
    """Prepare a service and run it; the exit code.

    What `prepare` leaves on the stack is given back at the end. A signal ends it as well, and a
    KubeoceanError of it is told in `log`.
    """
    undo = settings.configure_logs()
    try:
        async with AsyncExitStack() as stack:
            signals: list[int] = []
            try:
                with cancelled_by_signals(signals):
                    service = await prepare(stack)
            except asyncio.CancelledError:
                if not signals:
                    raise
                return SIGNALLED + signals[0]
            except KubeoceanError as error:
                log.error(f"Could not start {name}", error=str(error))
                return _FAILED
            return await service.run()
    finally:
        undo()


def trace(
    stack: AsyncExitStack, service: str, *, instance: str, environ: Mapping[str, str]
) -> None:
    """Send traces as the environment says, until the stack ends."""
    finish = tracing.configure(service, version=__version__, instance=instance, environ=environ)
    stack.push_async_callback(asyncio.to_thread, finish)


def open_client(
    stack: AsyncExitStack, transport: Transport, cluster: str, *, qps: float = 0.0, burst: int = 0
) -> Client:
    """A client until the stack ends."""
    # As for client-go: no rate means no limit, and a rate without a burst gets its default.
    rate, at_once = (qps if qps > 0 else None), (burst if burst > 0 else _BURST)
    client = Client(transport, cluster=cluster, qps=rate, burst=at_once)
    stack.push_async_callback(client.close)
    return client
