"""Collection of a member's properties for each heartbeat, bounded in time.

A property provider is started at the first heartbeat and has 10 seconds to start. Until the start
has succeeded, the built-in provider replaces it, and each heartbeat tries the start again. A
collection has 10 seconds, too. Both limits are half a heartbeat period if that is shorter. A
collection that does not end when cancelled stays pending; with three pending collections no further
one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kubeocean.api.fleet.conditions import MemberCondition, MemberReason
from kubeocean.fleet.agent.protocols import Collection, PropertyProvider
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition

__all__ = ["Collected", "Collector"]

LIMIT_S: Final = 10.0
MOST_PENDING: Final = 3

_log = get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of one attempt to collect properties.

    `collection` is None if the attempt failed; `conditions` report the start and the attempt.
    """

    collection: Collection | None
    conditions: tuple[Condition, ...] = ()


class Collector:
    """Collects from `provider`, or from `built_in` if there is no provider or it has not started.

    No conditions are reported about the built-in provider, because KubeFleet has none. If
    `provider` and `built_in` are the same object, conditions are reported, and a provider that has
    not started is not replaced.
    """

    def __init__(
        self,
        built_in: PropertyProvider,
        provider: PropertyProvider | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._built_in = built_in
        self._provider = provider
        self._clock = clock or RealClock()
        self._started: set[PropertyProvider] = set()
        self._pending: set[asyncio.Task[Collection | Exception]] = set()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run both providers until cancelled; a failure of one does not end the other."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._run(self._built_in))
            if self._provider is not None and self._provider is not self._built_in:
                self._group.create_task(self._run(self._provider))

    async def _run(self, provider: PropertyProvider) -> None:
        try:
            await provider.run()
        except Exception as error:  # providers may be classes of others
            self._started.discard(provider)
            _log.error(
                "Property provider failed",
                provider=type(provider).__name__,
                error=str(error),
                exc_info=error,
            )

    async def collect(self, period_s: float) -> Collected:
        """Collect the member's properties, within half of `period_s`; never raise an Exception."""
        limit_s = min(LIMIT_S, period_s / 2)
        conditions: tuple[Condition, ...] = ()
        if self._provider is not None:
            started = await self._start(self._provider, limit_s)
            conditions = (started,)
            if started.status == "True":
                return await self._collect(self._provider, limit_s, conditions)
            if self._provider is self._built_in:
                return Collected(None, conditions)
        built_in = await self._start(self._built_in, limit_s)
        if built_in.status != "True":
            _log.warning("Failed to start the built-in property provider", error=built_in.message)
            return Collected(None, conditions)
        collected = await self._collect(self._built_in, limit_s, ())
        return Collected(collected.collection, conditions)

    async def _start(self, provider: PropertyProvider, limit_s: float) -> Condition:
        type_ = MemberCondition.PROVIDER_STARTED
        if provider in self._started:
            return Condition(type_, "True", MemberReason.PROVIDER_STARTED, "the provider runs")
        try:
            await within(self._clock, limit_s, provider.start)
        except TimeoutError:
            message = f"the provider did not start within {limit_s:g} s"
            return Condition(type_, "False", MemberReason.TIMED_OUT, message)
        except Exception as error:  # providers may be classes of others
            message = f"the provider failed to start: {error}"
            return Condition(type_, "False", MemberReason.PROVIDER_FAILED_TO_START, message)
        self._started.add(provider)
        return Condition(type_, "True", MemberReason.PROVIDER_STARTED, "the provider runs")

    async def _collect(
        self, provider: PropertyProvider, limit_s: float, before: tuple[Condition, ...]
    ) -> Collected:
        type_ = MemberCondition.PROPERTIES_COLLECTED

        def failed(reason: MemberReason, message: str) -> Collected:
            _log.warning("Failed to collect properties", reason=str(reason), error=message)
            return Collected(None, (*before, Condition(type_, "False", reason, message)))

        if len(self._pending) >= MOST_PENDING:
            message = f"{len(self._pending)} earlier collections have not ended"
            return failed(MemberReason.TOO_MANY_CALLS, message)
        assert self._group is not None
        task = self._group.create_task(_shielded(provider.collect))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        try:
            await within(self._clock, limit_s, lambda: asyncio.wait([task]))
        except TimeoutError:
            task.cancel()
            message = f"the collection took longer than {limit_s:g} s"
            return failed(MemberReason.TIMED_OUT, message)
        outcome = task.result()
        if isinstance(outcome, Exception):
            return failed(MemberReason.TIMED_OUT, f"the collection failed: {outcome}")
        message = "the properties are collected"
        done = Condition(type_, "True", MemberReason.PROPERTIES_COLLECTED, message)
        return Collected(outcome, (*before, done))


async def _shielded(work: Callable[[], Awaitable[_T]]) -> _T | Exception:
    """Await `work` and return its result or its exception; raising would end the task group."""
    try:
        return await work()
    except Exception as error:
        return error
