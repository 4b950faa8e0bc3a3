"""Serving: the figures of a replica, where its configuration says."""

from __future__ import annotations

import asyncio

from aiohttp import web

from kubeocean.runtime.addresses import BindAddress
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.server import Server
from kubeocean.sharding.config import Config

__all__ = ["MetricsPage"]


class MetricsPage:
    """A part of a service: serves `metrics.path` on `metrics.port`, unless it is switched off."""

    name = "metrics"

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._section = config.metrics
        self._metrics = metrics
        self.address: BindAddress | None = None  # where it listens

    async def run(self) -> None:
        if not self._section.enabled:
            await asyncio.Event().wait()
        app = web.Application()
        app.router.add_get(self._section.path, self._page)
        wanted = BindAddress("", self._section.port, "metrics.port")
        async with Server(app, wanted) as server:
            self.address = server.address
            await asyncio.Event().wait()

    async def _page(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        body = await asyncio.to_thread(self._metrics.render, accept)
        return web.Response(body=body, headers={"Content-Type": self._metrics.content_type(accept)})
