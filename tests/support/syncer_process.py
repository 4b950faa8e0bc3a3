"""Syncer processes: `kubeocean syncer`, as users run it."""

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
from support.wait import PATIENCE_S, until

__all__ = ["HASTY", "LEASE_S", "SyncerProcess", "syncer"]

LEASE_S = 4.0
# For replicas whose successor has to lead soon. Others keep the usual periods: on a busy machine, a
# leader that has to renew within three seconds may lose its lease without a competitor.
HASTY = (
    f"--leader-election-lease-duration={LEASE_S:g}s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=500ms",
)


@dataclass(frozen=True)
class SyncerProcess:
    """Replica of a syncer as a process, with its log and its HTTP pages."""

    process: Process

    def lines(self, message: str = "") -> list[Json]:
        """Return the log lines of the replica, or only those with this message."""
        text = self.process.log.read_text() if self.process.log.exists() else ""
        logged = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in logged if line["msg"] == (message or line["msg"])]

    async def wait_for_output(self, message: str, *, within: float = PATIENCE_S) -> Json:
        """Return the first log line with this message, once there is one."""
        return (await until(lambda: self.lines(message), within=within, waiting_for=message))[0]

    async def page(self, server: str, path: str) -> tuple[int, str]:
        """Return the status and text at a path of the metrics or health server."""
        address = (await self.wait_for_output("Started service"))[server]
        url = f"http://{address}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def metrics_status(self, token: str) -> int:
        """Return the status of the page of metrics over HTTPS, for a caller with this token."""
        url = f"https://{(await self.wait_for_output('Started service'))['metrics']}/metrics"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False) as answer,  # it is self-signed
        ):
            return answer.status

    async def is_ready(self) -> bool:
        return (await self.page("health", "/readyz"))[0] == 200


@asynccontextmanager
async def syncer(
    name: str, *flags: str, kubeconfig: Path, directory: Path, **environ: str
) -> AsyncIterator[SyncerProcess]:
    """Run a replica until the block ends; a replica that still runs then is killed."""
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
