"""The `Clusters` of a syncer under test, with clients of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.transport import Transport
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.worker_health import WorkerHealth
from kubeocean.worker_access.identity import identity_of

__all__ = ["Wrap", "crossing"]

Wrap = Callable[[Transport], Transport]


class _Env(Protocol):
    @property
    def computing(self) -> Cluster: ...
    @property
    def worker(self) -> Cluster: ...
    @property
    def computing_api(self) -> Client: ...
    @property
    def name(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...


@asynccontextmanager
async def crossing(
    env: _Env,
    *,
    computing_api: Wrap | None = None,
    worker_api: Wrap | None = None,
    clock: Clock | None = None,
    account: Path | None = None,
    **more: Any,
) -> AsyncIterator[Clusters]:
    """Yield the `Clusters` of a syncer, with transports wrapped by the two arguments.

    `account` is a kubeconfig of the computing cluster; None means that of its administrator.
    """
    worker_health = WorkerHealth(clock=clock)

    def observed(transport: Transport) -> Transport:
        return worker_health.wrap(worker_api(transport) if worker_api else transport)

    async with AsyncExitStack() as stack:
        computing = env.computing.client(wrap=computing_api, kubeconfig=account)
        stack.push_async_callback(computing.close)
        worker = env.worker.client(wrap=observed)
        stack.push_async_callback(worker.close)
        yield Clusters(
            binding_name=env.name,
            cluster_id=env.cluster_id,
            computing_id=await identity_of(env.computing_api),
            computing=computing,
            worker=worker,
            worker_health=worker_health,
            events=EventRecorder(computing, component="kubeocean-syncer"),
            worker_events=EventRecorder(worker, component="kubeocean-syncer"),
            clock=clock or RealClock(),
            **more,
        )
