"""Lifespans: what is started and stopped, by hand or with a block.

async with Server(app, address) as server:
    …
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Lifespan"]


class Lifespan(ABC):
    """Something that runs from `start` to `stop`; a block starts and stops it."""

    @abstractmethod
    async def start(self) -> None:
        """Return when it runs."""

    @abstractmethod
    async def stop(self) -> None:
        """Return when nothing of it runs any more."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
