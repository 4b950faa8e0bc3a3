"""Managers as their users run them: `kubeocean manager`, each in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubeocean.local.process import Process
from support.syncer_process import HASTY, SyncerProcess

__all__ = ["manager"]


@asynccontextmanager
async def manager(
    name: str, *flags: str, kubeconfig: Path, directory: Path, templates: tuple[Path, Path]
) -> AsyncIterator[SyncerProcess]:
    """Run a replica in the background of the test; kill it at the end if it still runs."""
    words = (
        f"--kubeconfig={kubeconfig}",
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        "--leader-election-namespace=kubeocean-system",
        *HASTY,
        *flags,
    )
    syncers, proxiers = templates
    process = Process(
        name,
        [sys.executable, "-m", "kubeocean", "manager", *words],
        log=directory / f"{name}.log",
        env={
            "PATH": os.environ["PATH"],
            "KUBEOCEAN_SYNCER_TEMPLATE_DIR": str(syncers),
            "KUBEOCEAN_PROXIER_TEMPLATE_DIR": str(proxiers),
        },
    )
    await process.start()
    try:
        yield SyncerProcess(process)
    finally:
        await process.kill()
