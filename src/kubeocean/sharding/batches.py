"""Batches of changes in one slot, which a handler gets in one call.

A batch is sent when it is full or its first change has waited for `delay_s`. The task that
submitted the first change sends the batch, under that task's grant of the slot; the tasks of the
other changes wait for the result. So no batch runs without a task that holds its slot, and the loss
of a slot cancels its batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kubeocean.errors import ConfigError, KubeoceanError
from kubeocean.runtime.clock import Clock, RealClock, within

__all__ = ["BatchEnded", "BatchSizes", "SlotBatches"]

T = TypeVar("T")
_LARGEST: Final = 10_000  # a task waits for each change of a batch


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Bounds of a batch: at most `most` changes, of which none waits longer than `delay_s`."""

    most: int = 100
    delay_s: float = 0.1
    clock: Clock = field(default_factory=RealClock)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError("must be at least 1", field="batch_size", value=self.most)
        if self.most > _LARGEST:
            raise ConfigError(f"must be at most {_LARGEST}", field="batch_size", value=self.most)
        if self.delay_s < 0:
            raise ConfigError("must not be negative", field="batch_delay_s", value=self.delay_s)


class BatchEnded(KubeoceanError):
    """Raised when the batch of a change was cancelled because its slot was lost; the change is
    retried."""


class _Batch(Generic[T]):
    """Changes that are sent together; the future `sent` has the outcome of the call."""

    def __init__(self) -> None:
        self.changes: list[T] = []
        self.full = asyncio.Event()
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SlotBatches(Generic[T]):
    """Collects changes by slot and calls `send` with each batch."""

    def __init__(self, send: Callable[[Sequence[T]], Awaitable[None]], sizes: BatchSizes) -> None:
        self._send = send
        self._sizes = sizes
        self._open: dict[int, _Batch[T]] = {}

    async def submit(self, slot: int, change: T) -> None:
        """Add a change to the batch of its slot, and return when that batch was handled.

        :raises Exception: the error that the handler raised for the batch.
        """
        batch = self._open.get(slot)
        first = batch is None
        if batch is None:
            batch = self._open[slot] = _Batch[T]()
        batch.changes.append(change)
        if len(batch.changes) >= self._sizes.most:
            self._close(slot, batch)
        if first:
            await self._lead(slot, batch)
        else:
            # Shielded: the batch goes on if one of its waiters is cancelled.
            await asyncio.shield(batch.sent)

    async def _lead(self, slot: int, batch: _Batch[T]) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await within(self._sizes.clock, self._sizes.delay_s, batch.full.wait)
            self._close(slot, batch)
            await self._send(batch.changes)
        except BaseException as error:
            self._close(slot, batch)
            batch.sent.set_exception(
                error
                if isinstance(error, Exception)
                else BatchEnded(f"batch of slot {slot} was cancelled")
            )
            batch.sent.exception()  # marks the error as read, even if no other task waits
            raise
        batch.sent.set_result(None)

    def _close(self, slot: int, batch: _Batch[T]) -> None:
        batch.full.set()
        if self._open.get(slot) is batch:
            del self._open[slot]
