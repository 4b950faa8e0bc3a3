"""Runs a part only while a cluster has the CustomResourceDefinition of a kind.

A hub need not be a computing cluster, and the watch of a kind that does not exist would be retried
without end. Instead the CustomResourceDefinition is watched, by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Object, Resource

__all__ = ["WhileDefined"]

_DEFINITIONS = Resource(
    CUSTOM_RESOURCE_DEFINITIONS.group,
    CUSTOM_RESOURCE_DEFINITIONS.version,
    CUSTOM_RESOURCE_DEFINITIONS.plural,
    CUSTOM_RESOURCE_DEFINITIONS.kind,
    CUSTOM_RESOURCE_DEFINITIONS.namespaced,
    Object,
)


class WhileDefined:
    """Runs `work` whenever the CustomResourceDefinition of `resource` exists."""

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        work: Callable[[], Awaitable[None]],
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._work = work
        self._changed = asyncio.Event()
        self._definitions: Informer[Object] = Informer(
            client,
            _DEFINITIONS,
            fields=f"metadata.name={resource.plural}.{resource.group}",
            metadata_only=True,
            clock=clock,
            metrics=metrics,
        )
        self._definitions.on_change(lambda old, new: self._changed.set())

    async def run(self) -> None:
        """Watch the CustomResourceDefinition, and run `work` while it exists, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._definitions.run())
            await self._definitions.synced()
            while True:
                await self._until(defined=True)
                await self._work_while_defined()

    async def _work_while_defined(self) -> None:
        async with asyncio.TaskGroup() as group:

            async def work() -> None:
                await self._work()

            working = group.create_task(work())
            await self._until(defined=False)
            working.cancel()

    async def _until(self, *, defined: bool) -> None:
        while (len(self._definitions) > 0) is not defined:
            self._changed.clear()
            await self._changed.wait()
