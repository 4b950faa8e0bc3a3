"""Runs parts in the background of a test, which fails when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

__all__ = ["running"]


class _Runs(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def running(*parts: _Runs) -> AsyncIterator[None]:
    """Run the parts until the block ends; an exception of a part ends the block, too."""
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
