"""Process nodes in tests: a running node, and the processes that the node runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubeocean.local.process_node.node import ProcessNode

__all__ = ["processes", "running_node"]


@asynccontextmanager
async def running_node(node: ProcessNode) -> AsyncIterator[None]:
    """Run a node; none of its processes runs after the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(node.run())
        await node.ready.wait()
        try:
            yield
        finally:
            task.cancel()
    assert processes(node) == {}


def processes(node: ProcessNode) -> dict[int, str]:
    """Return the processes that run for the node's pods."""
    actual: dict[int, str] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().decode("utf-8", "replace")
                if f"kubeocean_pod={node.root}" in words:
                    actual[int(entry.name)] = words.replace("\0", " ")
    return actual
