"""Syncers as their users run them: `kubeocean syncer`, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kubeocean.local.process import Process
from kubeocean.runtime.objects import Json
from waiting import PATIENCE_S, until

__all__ = ["HASTY", "LEASE_S", "SyncerProcess", "syncer"]

LEASE_S = 4.0
# For those whom somebody has to follow soon. Others keep the usual periods: on a busy machine, a
# leader that has to renew within three seconds may well lose what nobody else wants.
HASTY = (
    f"--leader-election-lease-duration={LEASE_S:g}s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=500ms",
)


@dataclass(frozen=True)
class SyncerProcess:
    """One replica, and what it says."""

    process: Process

    def lines(self, message: str = "") -> list[Json]:
        """What it logged, or only the lines that say this."""
        text = self.process.log.read_text() if self.process.log.exists() else ""
        logged = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in logged if line["msg"] == (message or line["msg"])]

    async def says(self, message: str, *, within: float = PATIENCE_S) -> Json:
        """The first line that says this, once there is one."""
        return (await until(lambda: self.lines(message), within=within, what=message))[0]

    async def page(self, server: str, path: str) -> tuple[int, str]:
        """What is served at a path of its metrics or health server."""
        address = (await self.says("Started service"))[server]
        url = f"http://{address}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        return (await self.page("health", "/readyz"))[0] == 200


@asynccontextmanager
async def syncer(
    name: str, *flags: str, kubeconfig: Path, directory: Path, **environ: str
) -> AsyncIterator[SyncerProcess]:
    """A replica that runs beside the test; killed at the end if it still does."""
    words = (
        f"--kubeconfig={kubeconfig}",
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        "--leader-election-namespace=default",
        *flags,
    )
    process = Process(
        name,
        [sys.executable, "-m", "kubeocean", "syncer", *words],
        log=directory / f"{name}.log",
        env={"PATH": os.environ["PATH"], "TZ": "UTC", **environ},
    )
    await process.start()
    try:
        yield SyncerProcess(process)
    finally:
        await process.kill()
