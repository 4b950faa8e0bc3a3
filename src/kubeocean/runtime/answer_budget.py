"""Answer budget: how many bytes of incomplete answers of one cluster may be in memory at a time.

A cluster with another owner may send many large answers at once, and decoding multiplies their
bytes. Small answers are read at once. Every other answer, and every incomplete event of a watch,
reserves its bytes while it is read:

- Answers share `shared` bytes, and reserve more of them while they grow.
- When these are used up, one answer at a time has the *turn*: it may grow until it is complete or
  too large. So two answers never wait for each other, and all answers together have at most
  `shared` bytes more than the largest one.
- An answer that was not complete within `PATIENCE_S` is aborted if another one waits, so that a
  slow answer does not stop the others. Without others it may take its time.

An answer is decoded in the same step of the event loop in which its last bytes were read: answers
are decoded one after the other, and the next answer is read when the bytes of the last are freed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from kubeocean.errors import ResponseTooLarge
from kubeocean.runtime.clock import Clock, RealClock, within

__all__ = ["SMALL", "TOO_MANY_VALUES", "AnswerBudget", "AnswerReservation", "has_too_many_values"]

SMALL: Final = 1 << 17  # bytes; smaller answers reserve nothing
PATIENCE_S: Final = 10.0  # for the rest of a large answer, while another one waits
WAIT_S: Final = 30.0  # for the memory of a large answer
_STEP: Final = 1 << 20  # bytes that an answer reserves at a time
# Values of one answer that is decoded. Three bytes of JSON may become an object of 80 bytes; an API
# server stores 1.5 MiB in an object, and has some 30 bytes for each value.
MOST_VALUES: Final = 1 << 20
TOO_MANY_VALUES: Final = f"more than {MOST_VALUES} JSON values (commas and brackets are counted)"


def has_too_many_values(body: bytes) -> bool:
    """Whether an answer has so many values that it would take a multiple of its size in memory."""
    if len(body) <= 2 * MOST_VALUES:  # a value and its comma
        return False
    return body.count(b",") + body.count(b"{") + body.count(b"[") > MOST_VALUES


class AnswerBudget:
    """Bytes that all incomplete answers of one cluster reserve; without `shared` there is no limit.

    `held` is the number of bytes reserved now, `peak` the largest number so far.
    """

    def __init__(self, shared: int | None = None, *, clock: Clock | None = None) -> None:
        self.held = 0
        self.peak = 0
        self._shared = shared
        self._clock = clock or RealClock()
        self._turn: AnswerReservation | None = None
        self._reading: list[
            AnswerReservation
        ] = []  # that hold bytes and do not wait, the oldest first
        self._waiting: list[AnswerReservation] = []  # in the order of their turns
        self._changed = asyncio.Event()

    @property
    def limited(self) -> bool:
        return self._shared is not None

    @asynccontextmanager
    async def reading(self, doing: str) -> AsyncIterator[AnswerReservation]:
        """Yield the reservation of an answer, which ends with the block; `doing` names the request.

        :raises ResponseTooLarge: the answer was aborted, because others wait.
        """
        reservation = AnswerReservation(self, doing)
        try:
            async with asyncio.timeout(None) as reservation.limit:
                yield reservation
        except TimeoutError:
            if not reservation.aborted:
                raise
            message = f"a large response was not complete within {PATIENCE_S:g} s"
            raise ResponseTooLarge(f"could not {doing}: {message}") from None
        finally:
            self._release(reservation)

    async def reserve(self, reservation: AnswerReservation, more: int) -> None:
        """Reserve further bytes for an answer; wait until enough bytes of the budget are free.

        :raises ResponseTooLarge: not enough bytes were free within `WAIT_S`.
        """
        if not self._take(reservation, more):
            await self._wait(reservation, more)
        if reservation not in self._reading:
            reservation.since = self._clock.monotonic()
            self._reading.append(reservation)

    def _take(self, reservation: AnswerReservation, more: int, *, turn: bool = False) -> bool:
        if reservation is not self._turn and self._shared is not None:
            others = self.held - (self._turn.size if self._turn else 0)
            if others + more > self._shared:
                if not turn or self._turn is not None:
                    return False
                self._turn = reservation
        reservation.size += more
        self.held += more
        self.peak = max(self.peak, self.held)
        return True

    async def _wait(self, reservation: AnswerReservation, more: int) -> None:
        if reservation in self._reading:
            self._reading.remove(reservation)
        give_up_at = self._clock.monotonic() + WAIT_S
        self._waiting.append(reservation)
        try:
            while True:
                # No await between this line and the wait: a change in between would be missed.
                first = self._waiting[0] is reservation
                if self._take(reservation, more, turn=first):
                    return
                now = self._clock.monotonic()
                if now >= give_up_at:
                    message = "the memory for its response is in use by other responses"
                    raise ResponseTooLarge(f"could not {reservation.doing}: {message}")
                self._abort_slow(now)
                until = min([give_up_at, *(each.since + PATIENCE_S for each in self._reading)])
                self._changed.clear()
                with suppress(TimeoutError):
                    await within(self._clock, until - now, self._changed.wait)
        finally:
            self._waiting.remove(reservation)
            self._changed.set()

    def _abort_slow(self, now: float) -> None:
        for reservation in [each for each in self._reading if now >= each.since + PATIENCE_S]:
            self._reading.remove(reservation)
            reservation.abort()

    def _release(self, reservation: AnswerReservation) -> None:
        if not reservation.size:
            return
        self.held -= reservation.size
        reservation.size = 0
        if reservation in self._reading:
            self._reading.remove(reservation)
        if self._turn is reservation:
            self._turn = None
        self._changed.set()


class AnswerReservation:
    """Bytes that one answer reserves while it is read."""

    def __init__(self, budget: AnswerBudget, doing: str) -> None:
        self.doing = doing
        self.size = 0
        self.since = 0.0  # monotonic: when the answer began to hold bytes without waiting
        self.aborted = False
        self.limit: asyncio.Timeout
        self._budget = budget

    async def grow(self, size: int) -> None:
        """Reserve memory for an answer that has `size` bytes by now; wait until there is some.

        :raises ResponseTooLarge: there was none within `WAIT_S`.
        """
        if size > max(self.size, SMALL) and self._budget.limited:
            await self._budget.reserve(self, -(-size // _STEP) * _STEP - self.size)

    def abort(self) -> None:
        """End the block that reads the answer."""
        self.aborted = True
        self.limit.reschedule(float("-inf"))
