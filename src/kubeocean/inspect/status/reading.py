"""Reads the snapshot that status and top show.

Lists are read in pages and pruned while they are decoded; pods are counted and not kept.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.errors import ConfigError, NotFound
from kubeocean.inspect.pod_counts import NodeUse, PodCounter
from kubeocean.inspect.reader import SnapshotReader, concurrently
from kubeocean.inspect.snapshot import (
    NotRead,
    Snapshot,
    WorkerSnapshot,
    WorkerState,
    failures,
    read_part,
)
from kubeocean.inspect.status.build import installation_view
from kubeocean.inspect.status.model import InstallationView
from kubeocean.leasing.requests import COUNTED_PODS
from kubeocean.runtime.client import Client
from kubeocean.syncer.pods.views import bound_pods

__all__ = ["StatusReader"]


class StatusReader(SnapshotReader):
    """Reads the installation that status and top show; `look` may be called repeatedly."""

    def __init__(self, computing: Client, *, ask_workers: bool = True, **options: Any) -> None:
        super().__init__(computing, **options)
        self._ask_workers = ask_workers

    async def look(self, name: str = "") -> InstallationView:
        """Return the view of the installation, with all bindings or the named one.

        :raises ConfigError: there is no binding of that name.
        :raises ApiError: the bindings cannot be read.
        """
        return installation_view(await self.read(name))

    async def read(self, name: str = "") -> Snapshot:
        """Return the snapshot from which `look` builds its view; raises as `look` does."""
        bindings = await self._bindings(name)
        now = await self.now()
        async with asyncio.TaskGroup() as group:
            nodes = group.create_task(self.nodes(name))
            usage = group.create_task(read_part("pods", self._usage(now)))
            deployments = group.create_task(self.deployments())
            elections = group.create_task(self.leases(self.domain.system_namespace))
            to_read = bindings if self._ask_workers else ()
            workers = group.create_task(concurrently(to_read, self._worker))
        return Snapshot(
            at=now,
            only=name,
            domain=self.domain,
            server=await self.server(),
            bindings=bindings,
            nodes=nodes.result(),
            usage=usage.result(),
            deployments=deployments.result(),
            elections=elections.result(),
            workers={each.name: each for each in workers.result()},
            unread=failures(
                nodes.result(), usage.result(), deployments.result(), elections.result()
            ),
        )

    async def _bindings(self, name: str) -> tuple[ClusterBinding, ...]:
        if not name:
            return await self.all_bindings()
        try:
            return (await self.computing.get(CLUSTER_BINDINGS, name),)
        except NotFound:
            names = ", ".join(await self.names()) or "none"
            message = f"there is no such binding; there are: {names}"
            raise ConfigError(message, source="NAME", value=name) from None

    async def _usage(self, now: datetime) -> dict[str, NodeUse]:
        counter = PodCounter(now, domain=self.domain)
        async for page in self.computing.pages(COUNTED_PODS, fields=bound_pods(self.domain)):
            if page.begins:
                counter.clear()
            counter.count(page.items)
        return counter.usage()

    async def _worker(self, binding: ClusterBinding) -> WorkerSnapshot:
        connection, policies = await self.workers.policies(await self.workers.connect(binding))
        answered = connection.state is WorkerState.ANSWERED
        unread = NotRead(f"policies of {binding.name}", connection.message)
        return WorkerSnapshot(
            binding=binding,
            state=connection.state,
            message=connection.message,
            policies=policies if answered else unread,
        )
