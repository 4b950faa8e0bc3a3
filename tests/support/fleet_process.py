"""Hubs and members as their users run them: `kubeocean fleet hub|member`, each in a process."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kubeocean.local.process import Process
from support.syncer_process import LEASE_S, SyncerProcess

__all__ = ["HASTY", "fleet_process"]

# For replicas whose successor has to lead soon
HASTY = (
    f"--leader-lease-duration={LEASE_S:g}s",
    "--leader-renew-deadline=3s",
    "--leader-retry-period=500ms",
)


@asynccontextmanager
async def fleet_process(
    command: str,
    name: str,
    *flags: str,
    kubeconfig: Path,
    directory: Path,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[SyncerProcess]:
    """Yield a process `kubeocean fleet COMMAND`; killed at the end if it still runs."""
    words = (
        f"--kubeconfig={kubeconfig}",
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        *flags,
    )
    process = Process(
        name,
        [sys.executable, "-m", "kubeocean", "fleet", command, *words],
        log=directory / f"{name}.log",
        env={"PATH": os.environ["PATH"], **(environ or {})},
    )
    await process.start()
    try:
        yield SyncerProcess(process)
    finally:
        await process.kill()
