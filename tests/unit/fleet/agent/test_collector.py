"""Collection of properties: limits, fallback, and providers that fail or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubeocean.api.fleet.clusters import PropertyValue
from kubeocean.fleet.agent.collector import Collected, Collector
from kubeocean.fleet.agent.protocols import Collection
from kubeocean.runtime.clock import VirtualClock

PERIOD_S = 60.0


class Provider:
    """A provider whose start and collections a test controls."""

    def __init__(self, name: str = "built-in") -> None:
        self.collection = Collection({name: PropertyValue("1", "t")})
        self.start_error: Exception | None = None
        self.collect_error: Exception | None = None
        self.starts_slowly = False
        self.hangs = False
        self.starts = 0
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        await asyncio.Event().wait()

    async def start(self) -> None:
        self.starts += 1
        if self.starts_slowly:
            await asyncio.Event().wait()
        if self.start_error is not None:
            raise self.start_error

    async def collect(self) -> Collection:
        while self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.hangs:
                    raise
        if self.collect_error is not None:
            raise self.collect_error
        return self.collection


@asynccontextmanager
async def running(collector: Collector) -> AsyncIterator[None]:
    task = asyncio.create_task(collector.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def collected(collector: Collector, clock: VirtualClock, advance_s: float = 0.0) -> Collected:
    task = asyncio.create_task(collector.collect(PERIOD_S))
    await clock.advance(advance_s)
    return await task


def outcomes(result: Collected) -> list[tuple[str, str, str]]:
    return [(each.type, each.status, each.reason) for each in result.conditions]


STARTED = ("ClusterPropertyProviderStarted", "True", "Started")
COLLECTED = ("ClusterPropertyCollectionSucceeded", "True", "PropertiesCollected")


async def test_the_built_in_provider_has_no_conditions() -> None:
    clock, built_in = VirtualClock(), Provider()
    collector = Collector(built_in, clock=clock)
    async with running(collector):
        result = await collected(collector, clock)
    assert result.collection is built_in.collection
    assert outcomes(result) == []


async def test_a_provider_reports_its_start_and_its_collection() -> None:
    clock, own = VirtualClock(), Provider("own")
    collector = Collector(Provider(), own, clock=clock)
    async with running(collector):
        result = await collected(collector, clock)
        again = await collected(collector, clock)
    assert result.collection is own.collection
    assert outcomes(result) == outcomes(again) == [STARTED, COLLECTED]
    assert own.starts == 1


async def test_the_built_in_provider_takes_the_place_of_one_that_does_not_start() -> None:
    clock, built_in, own = VirtualClock(), Provider(), Provider("own")
    collector = Collector(built_in, own, clock=clock)
    async with running(collector):
        own.starts_slowly = True
        slow = await collected(collector, clock, 11)
        own.starts_slowly, own.start_error = False, RuntimeError("no rights")
        failed = await collected(collector, clock)
        own.start_error = None
        recovered = await collected(collector, clock)
    assert slow.collection is failed.collection is built_in.collection
    assert outcomes(slow) == [("ClusterPropertyProviderStarted", "False", "TimedOut")]
    assert outcomes(failed) == [("ClusterPropertyProviderStarted", "False", "FailedToStart")]
    assert "no rights" in failed.conditions[0].message
    assert outcomes(recovered) == [STARTED, COLLECTED]


async def test_a_collection_that_takes_too_long_is_given_up() -> None:
    clock, own = VirtualClock(), Provider("own")
    collector = Collector(Provider(), own, clock=clock)
    async with running(collector):
        await collected(collector, clock)
        own.hangs = True
        results = [await collected(collector, clock, 11) for _ in range(4)]
        own.hangs = False
    reasons = [outcomes(each)[1] for each in results]
    type_ = "ClusterPropertyCollectionSucceeded"
    assert reasons == [(type_, "False", "TimedOut")] * 3 + [(type_, "False", "TooManyCalls")]
    assert all(each.collection is None for each in results)


async def test_a_collection_that_fails_is_told_and_repeated() -> None:
    clock, own = VirtualClock(), Provider("own")
    collector = Collector(Provider(), own, clock=clock)
    async with running(collector):
        own.collect_error = RuntimeError("broken")
        failed = await collected(collector, clock)
        own.collect_error = None
        recovered = await collected(collector, clock)
    assert failed.collection is None
    assert "broken" in failed.conditions[1].message
    assert outcomes(recovered) == [STARTED, COLLECTED]


async def test_a_short_period_shortens_the_limits() -> None:
    clock, built_in = VirtualClock(), Provider()
    built_in.starts_slowly = True
    collector = Collector(built_in, clock=clock)
    async with running(collector):
        task = asyncio.create_task(collector.collect(1.0))
        await clock.advance(0.6)
        assert task.done()


async def test_a_provider_that_is_the_built_in_one_has_no_substitute() -> None:
    clock, own = VirtualClock(), Provider("own")
    collector = Collector(own, own, clock=clock)
    async with running(collector):
        own.start_error = RuntimeError("no nodes")
        failed = await collected(collector, clock)
        own.start_error = None
        recovered = await collected(collector, clock)
    assert failed.collection is None
    assert outcomes(failed) == [("ClusterPropertyProviderStarted", "False", "FailedToStart")]
    assert own.runs == 1
    assert outcomes(recovered) == [STARTED, COLLECTED]
