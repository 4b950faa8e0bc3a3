"""The world of a syncer between the two clusters of a test, with clients of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from kubeocean.bound.identities import identity_of
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.transport import Transport
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.world import World

__all__ = ["Wrap", "crossing"]

Wrap = Callable[[Transport], Transport]


class _Shores(Protocol):
    @property
    def computing(self) -> Cluster: ...
    @property
    def worker(self) -> Cluster: ...
    @property
    def above(self) -> Client: ...
    @property
    def name(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...


@asynccontextmanager
async def crossing(
    shores: _Shores,
    *,
    above: Wrap | None = None,
    below: Wrap | None = None,
    clock: Clock | None = None,
    **more: Any,
) -> AsyncIterator[World]:
    """A world whose requests go through `above` and `below`; its clients close with the block."""
    reach = Reach(clock=clock)

    def listening(transport: Transport) -> Transport:
        return reach.wrap(below(transport) if below else transport)

    async with AsyncExitStack() as stack:
        computing = shores.computing.client(wrap=above)
        stack.push_async_callback(computing.close)
        worker = shores.worker.client(wrap=listening)
        stack.push_async_callback(worker.close)
        yield World(
            binding_name=shores.name,
            cluster_id=shores.cluster_id,
            computing_id=await identity_of(shores.above),
            computing=computing,
            worker=worker,
            reach=reach,
            events=EventRecorder(computing, component="kubeocean-syncer"),
            worker_events=EventRecorder(worker, component="kubeocean-syncer"),
            clock=clock or RealClock(),
            **more,
        )
