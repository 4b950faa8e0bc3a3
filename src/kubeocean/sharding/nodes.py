"""Nodes of a ring: the replicas as one of them sees them, and callbacks for their changes.

A node is one incarnation of a replica, known by its Lease. Its status is judged by the observer's
own clock, as the planner does; reading the status makes no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.members import MemberState

__all__ = ["NodeInfo", "NodeMonitor", "NodeWatcher"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Replica of a ring, as another replica sees it.

    - `id`: ID of this incarnation; a replica that restarts gets another one.
    - `name`: name of the replica, such as its pod's name.
    - `address`: address that the replica publishes (`node.address`, else its pod's IP address).
    - `shards`: the shards that the replica owns.
    - `last_seen`: when this observer last saw a change of the replica's Lease.
    """

    id: str
    name: str
    address: str
    status: MemberState
    shards: tuple[int, ...]
    last_seen: datetime


class NodeWatcher:
    """Callbacks for changes of the status of a node (a replica of the ring). Override the methods
    you need.

    Every replica calls its own watchers, one call at a time. An error that a callback raises is
    logged.
    """

    async def on_node_joining(self, node: NodeInfo) -> None:
        """Handle a node (a replica) that has a Lease and is not ready for shards."""

    async def on_node_healthy(self, node: NodeInfo) -> None:
        """Handle a node (a replica) that may get shards."""

    async def on_node_unhealthy(self, node: NodeInfo) -> None:
        """Handle a node (a replica) that did not renew its Lease in time."""

    async def on_node_leaving(self, node: NodeInfo) -> None:
        """Handle a node (a replica) that hands its shards over and ends."""


_METHODS: Final = {
    MemberState.JOINING: "on_node_joining",
    MemberState.HEALTHY: "on_node_healthy",
    MemberState.UNHEALTHY: "on_node_unhealthy",
    MemberState.LEAVING: "on_node_leaving",
}


class NodeMonitor:
    """Calls watchers when the status of a node (a replica) changes; checks every `period_s`,
    because a node becomes unhealthy without any event."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[NodeInfo]],
        watchers: Sequence[NodeWatcher],
        *,
        clock: Clock,
        period_s: float,
    ) -> None:
        self._nodes = nodes
        self._watchers = watchers
        self._clock = clock
        self._period_s = period_s
        self._known: dict[str, MemberState] = {}
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Check the status of all nodes (replicas) at once; called when a Lease has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Check the status of nodes (replicas) and call the watchers until cancelled."""
        while True:
            self._changed.clear()
            for node in self._look():
                await self._call(node)
            with suppress(TimeoutError):
                await within(self._clock, self._period_s, self._changed.wait)

    def _look(self) -> list[NodeInfo]:
        """Return the nodes (replicas) whose status has changed since the last check."""
        nodes = self._nodes()
        changed = [node for node in nodes if self._known.get(node.id) is not node.status]
        self._known = {node.id: node.status for node in nodes}
        return changed

    async def _call(self, node: NodeInfo) -> None:
        for watcher in self._watchers:
            try:
                await getattr(watcher, _METHODS[node.status])(node)
            except Exception as error:  # whatever the code of the user raises
                _log.error(
                    "NodeWatcher raised an error when the status of a replica changed",
                    replica=node.id,
                    watcher=type(watcher).__name__,
                    status=node.status.value,
                    error=str(error),
                )
