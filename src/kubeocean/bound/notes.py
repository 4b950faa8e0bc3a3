"""Notes: reading what may not be readable, and a note of all that was not."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from kubeocean.errors import ApiError, NotFound

__all__ = ["Notes"]

T = TypeVar("T")


class Notes:
    """What could not be read, and why."""

    def __init__(self) -> None:
        self.unread: list[str] = []

    async def read(self, what: str, reading: Awaitable[T], otherwise: T) -> T:
        """What is read; what is not there is `otherwise`, and so is what cannot be read."""
        try:
            return await reading
        except NotFound:
            return otherwise
        except ApiError as error:
            self.unread.append(f"{what}: {error}")
            return otherwise
