"""Start-up of a process: from its settings to a service that runs until a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final

from kubeocean import __version__
from kubeocean.errors import KubeoceanError
from kubeocean.process.settings import IN_CLUSTER
from kubeocean.runtime import tracing
from kubeocean.runtime.answer_budget import AnswerBudget
from kubeocean.runtime.cache_budget import CacheBudget
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, InClusterAccess, KubeconfigAccess
from kubeocean.runtime.log_flags import ZapFlags
from kubeocean.runtime.logs import Logger
from kubeocean.runtime.service import SIGNALLED, Service, cancelled_by_signals
from kubeocean.runtime.transport import Transport

__all__ = ["MANAGEMENT", "management_access", "open_client", "run_process", "trace"]

MANAGEMENT: Final = "management"  # name of the management cluster in logs and metrics

_FAILED: Final = 1
_DEFAULT_BURST: Final = 10  # of client-go


async def run_process(
    name: str,
    settings: ZapFlags,
    prepare: Callable[[AsyncExitStack], Awaitable[Service]],
    *,
    log: Logger,
) -> int:
    """Prepare a service, run the service until a signal, and return the exit code.

    The stack of `prepare` is closed at the end. A signal also ends `prepare`; a KubeoceanError of
    `prepare` is logged to `log`.
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
    """Send traces as the environment configures them, until the stack is closed."""
    finish = tracing.configure(service, version=__version__, instance=instance, environ=environ)
    stack.push_async_callback(asyncio.to_thread, finish)


def open_client(
    stack: AsyncExitStack,
    transport: Transport,
    cluster: str,
    *,
    qps: float = 0.0,
    burst: int = 0,
    cache_budget: CacheBudget | None = None,
    answer_budget: AnswerBudget | None = None,
) -> Client:
    """Return a client of a cluster over a transport; the stack closes the client."""
    # As in client-go: without a rate there is no limit, and without a burst the default applies.
    rate, limit = (qps if qps > 0 else None), (burst if burst > 0 else _DEFAULT_BURST)
    client = Client(
        transport,
        cluster=cluster,
        qps=rate,
        burst=limit,
        cache_budget=cache_budget,
        answer_budget=answer_budget,
    )
    stack.push_async_callback(client.close)
    return client


def management_access(kubeconfig: str, environ: Mapping[str, str]) -> AccessSource:
    """Return the access to the management cluster, as `--management-kubeconfig` gives it.

    :raises ConfigError: the kubeconfig, or the pod's account, cannot be read.
    """
    if kubeconfig == IN_CLUSTER:
        return InClusterAccess(environ=environ)
    return KubeconfigAccess(kubeconfig, environ=environ)
