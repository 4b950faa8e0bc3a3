"""Large answers of one cluster share memory: at a time, only a limited number of bytes is read."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import NotFound, ResponseTooLarge
from kubeocean.runtime.access import Access
from kubeocean.runtime.answer_budget import (
    MOST_VALUES,
    PATIENCE_S,
    SMALL,
    WAIT_S,
    AnswerBudget,
    has_too_many_values,
)
from kubeocean.runtime.cache_budget import CacheBudget
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, encode
from kubeocean.runtime.transport import LARGEST_REFUSAL, HttpTransport, Request
from kubeocean.runtime.watch import LARGEST_EVENT, Listed, Scope, Watch
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.servers import Server, head_of, serving
from support.wait import until

MIB = 1 << 20
SHARED = 4 * MIB
LARGEST = 8 * MIB


class Answer:
    """An answer of any size that a test lets arrive piece by piece."""

    def __init__(self, budget: AnswerBudget) -> None:
        self.arrived: asyncio.Queue[int] = asyncio.Queue()
        self.size = 0  # read so far
        self.task = asyncio.create_task(self._read(budget))

    async def _read(self, budget: AnswerBudget) -> None:
        async with budget.reading("GET /x") as reservation:
            while more := await self.arrived.get():
                await reservation.grow(self.size + more)
                self.size += more

    def send(self, *pieces: int) -> None:
        for piece in pieces:
            self.arrived.put_nowait(piece)


class Cluster:
    """A budget on a virtual clock, and the answers that are read."""

    def __init__(self, shared: int | None = SHARED) -> None:
        self.clock = VirtualClock()
        self.budget = AnswerBudget(shared, clock=self.clock)
        self.answers: list[Answer] = []

    async def begin(self, *pieces: int) -> Answer:
        answer = Answer(self.budget)
        self.answers.append(answer)
        answer.send(*pieces)
        await self.settle()
        return answer

    async def settle(self, seconds: float = 0) -> None:
        await self.clock.advance(seconds)


@asynccontextmanager
async def reading(shared: int | None = SHARED) -> AsyncIterator[Cluster]:
    cluster = Cluster(shared)
    try:
        yield cluster
    finally:
        for each in cluster.answers:
            each.task.cancel()
        if cluster.answers:
            await asyncio.wait([each.task for each in cluster.answers])
        assert cluster.budget.held == 0


async def test_small_answers_reserve_nothing_and_never_wait() -> None:
    async with reading() as cluster:
        await cluster.begin(SHARED)
        await cluster.begin(LARGEST)
        small = [await cluster.begin(SMALL) for _ in range(100)]
        assert [each.size for each in small] == [SMALL] * 100
        assert cluster.budget.held == SHARED + LARGEST


async def test_answers_that_fit_are_read_at_the_same_time() -> None:
    async with reading() as cluster:
        answers = [await cluster.begin(MIB) for _ in range(4)]
        assert [each.size for each in answers] == [MIB] * 4
        assert cluster.budget.held == SHARED


async def test_answers_that_do_not_fit_are_read_one_after_the_other() -> None:
    async with reading() as cluster:
        await cluster.begin(*[MIB] * 4)
        second = await cluster.begin(*[MIB] * 8, 0)
        third = await cluster.begin(*[MIB] * 7)
        assert second.task.done()
        assert (third.size, cluster.budget.peak) == (7 * MIB, SHARED + 8 * MIB)
        fourth = await cluster.begin(MIB)
        assert fourth.size == 0
        third.send(0)
        await cluster.settle()
        assert fourth.size == MIB
        assert cluster.budget.peak == SHARED + LARGEST


async def test_two_answers_that_need_more_do_not_wait_for_each_other() -> None:
    async with reading() as cluster:
        answers = [await cluster.begin(*[MIB] * 2) for _ in range(2)]
        for each in answers:
            each.send(*[MIB] * 6, 0)
        await cluster.settle()
        assert [each.size for each in answers] == [LARGEST] * 2
        assert all(each.task.done() for each in answers)


async def test_the_turns_are_in_the_order_of_the_answers() -> None:
    async with reading() as cluster:
        await cluster.begin(SHARED)
        turns = [await cluster.begin(LARGEST) for _ in range(3)]
        for number, each in enumerate(turns):
            assert [other.size for other in turns[number:]] == [LARGEST, 0, 0][: 3 - number]
            each.send(0)
            await cluster.settle()


async def test_a_slow_answer_is_aborted_when_another_one_waits() -> None:
    async with reading(shared=0) as cluster:
        slow = await cluster.begin(LARGEST)
        await cluster.settle(PATIENCE_S - 1)
        quick = await cluster.begin(LARGEST, 0)
        assert quick.size == 0
        await cluster.settle(1)
        assert quick.task.done()
        with pytest.raises(ResponseTooLarge, match="could not GET /x: a large response was not"):
            await slow.task


async def test_slow_answers_that_use_up_the_shared_bytes_are_aborted() -> None:
    async with reading() as cluster:
        slow = [await cluster.begin(MIB) for _ in range(4)]
        turn = await cluster.begin(LARGEST)
        await cluster.settle(PATIENCE_S - 1)
        assert not any(each.task.done() for each in slow)
        turn.send(0)
        await cluster.settle(1)
        await cluster.begin(LARGEST)
        waits = await cluster.begin(MIB)
        assert waits.size == MIB
        assert all(isinstance(each.task.exception(), ResponseTooLarge) for each in slow)


async def test_a_slow_answer_for_which_no_other_one_waits_is_read() -> None:
    async with reading() as cluster:
        slow = await cluster.begin(LARGEST)
        await cluster.settle(10 * PATIENCE_S)
        slow.send(0)
        await cluster.settle()
        await slow.task


async def test_an_answer_that_waits_too_long_is_given_up() -> None:
    async with reading(shared=0) as cluster:
        await cluster.begin(LARGEST)
        queue = [await cluster.begin(LARGEST) for _ in range(5)]
        await cluster.settle(WAIT_S)
        assert cluster.budget.held == LARGEST
        with pytest.raises(ResponseTooLarge, match="in use by other responses"):
            await queue[-1].task


async def test_an_answer_that_waits_and_is_cancelled_leaves_its_place() -> None:
    async with reading(shared=0) as cluster:
        first = await cluster.begin(LARGEST)
        second = await cluster.begin(LARGEST)
        third = await cluster.begin(LARGEST)
        second.task.cancel()
        first.send(0)
        await cluster.settle()
        assert third.size == LARGEST


async def test_without_a_limit_nothing_is_reserved() -> None:
    async with reading(shared=None) as cluster:
        await cluster.begin(1 << 40)
        assert cluster.budget.held == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=6).filter(
            lambda pieces: sum(pieces) <= LARGEST
        ),
        min_size=1,
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_answers_in_any_order_stay_within_the_limit_and_all_end(
    answers: list[list[int]], chance: random.Random
) -> None:
    async def run() -> None:
        async with reading() as cluster:
            begun = [await cluster.begin() for _ in answers]
            pieces = [(n, piece) for n, sizes in enumerate(answers) for piece in sizes]
            chance.shuffle(pieces)
            for number, piece in pieces:
                begun[number].send(piece)
                await asyncio.sleep(0)
            for each in begun:
                each.send(0)
            await cluster.settle()
            assert all(each.task.done() and each.task.exception() is None for each in begun)
            # An answer reserves whole steps, of which it may use a part only.
            assert cluster.budget.peak <= SHARED + LARGEST

    asyncio.run(run())


# Values


def test_an_answer_of_many_tiny_values_is_too_large() -> None:
    assert has_too_many_values(b"[" + b"{}," * MOST_VALUES + b"{}]")
    assert not has_too_many_values(b"[" + b'"' + b"x" * (8 * MOST_VALUES) + b'"]')


async def test_a_list_of_many_tiny_values_is_requested_in_parts() -> None:
    bomb: Json = {"metadata": {"name": "a", "ownerReferences": [{}] * MOST_VALUES}}
    page = answer(body=encode({"metadata": {"resourceVersion": "1"}, "items": [bomb]}))
    empty = answer(body=encode({"metadata": {"resourceVersion": "1"}, "items": []}))
    server = Scripted(page, empty)
    await Client(server, answer_budget=AnswerBudget(SHARED)).list(CONFIG_MAPS)
    assert [dict(request.query)["limit"] for request in server.requests] == ["500", "62"]
    assert len((await Client(Scripted(page)).list(CONFIG_MAPS)).items) == 1


# Answers of a server


def page_of_eight_mib() -> bytes:
    items = [{"metadata": {"name": f"n{n}", "annotations": {"a": "x" * 2 * MIB}}} for n in range(4)]
    return encode({"metadata": {"resourceVersion": "1"}, "items": items})


async def peak_of_six_pages(budget: AnswerBudget) -> int:
    """Read six pages of eight MiB at the same time; return the largest memory meanwhile."""
    body = memoryview(page_of_eight_mib())

    async def serve(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for start in range(0, len(body), 1 << 16):
            writer.write(body[start : start + (1 << 16)])
            await writer.drain()

    async with serving(serve) as server:
        source = StaticAccess(Access(server.url))
        transport = HttpTransport(source, largest=2 * LARGEST, answers=budget)
        client = Client(transport, answer_budget=budget)

        async def read() -> int:
            total = 0
            async for page in client.pages(CONFIG_MAPS):
                total += len(page.items)
                page.items.clear()
            return total

        assert await read() == 4  # decoders are built before the measurement
        tracemalloc.start()
        try:
            assert await asyncio.gather(*(read() for _ in range(6))) == [4] * 6
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await transport.close()


async def test_pages_at_the_same_time_take_the_memory_of_one() -> None:
    budget = AnswerBudget(0)
    peak = await peak_of_six_pages(budget)
    assert 8 * MIB < budget.peak <= 9 * MIB
    # The bytes, a copy of them and the decoded objects of one page; buffers of six connections.
    assert peak < 34 * MIB


async def test_without_a_limit_pages_at_the_same_time_take_the_memory_of_all() -> None:
    assert await peak_of_six_pages(AnswerBudget()) > 40 * MIB


async def test_an_error_is_read_in_part_only() -> None:
    message = b'{"kind":"Status","message":"' + b"x" * 4 * LARGEST_REFUSAL

    async def refuse(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n" + message)

    async with serving(refuse) as server:
        source = StaticAccess(Access(server.url))
        transport = HttpTransport(source, largest=LARGEST, answers=AnswerBudget(SHARED))
        response = await transport.send(Request("GET", "/x"))
        assert LARGEST_REFUSAL < len(response.body) < len(message)
        with pytest.raises(NotFound):
            await Client(transport).get(CONFIG_MAPS, "x", "d")
        await transport.close()


# Events of watches


def event(name: str, version: int, size: int) -> bytes:
    meta: Json = {"name": name, "uid": name, "resourceVersion": str(version)}
    meta["annotations"] = {"a": "x" * size}
    return encode({"type": "ADDED", "object": {"metadata": meta}}) + b"\n"


def end_of_list(version: int) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"}
    meta = {"resourceVersion": str(version), "annotations": annotations}
    return encode({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"


async def test_large_events_of_several_watches_are_read_one_after_the_other() -> None:
    streams = [ScriptedStream() for _ in range(4)]
    budget = AnswerBudget(0)
    line = event("large", 2, 5 * MIB).removesuffix(b"\n")
    for stream in streams:
        stream.feed(end_of_list(1), *(line[at : at + MIB] for at in range(0, len(line), MIB)))
    client = Client(Scripted(streams=streams), answer_budget=budget)
    informers: list[Informer[ConfigMap]] = [Informer(client, CONFIG_MAPS) for _ in streams]
    tasks = [asyncio.create_task(each.run()) for each in informers]
    try:
        await until(lambda: budget.held == 6 * MIB)
        for left, stream in enumerate(streams):
            assert sum(len(each) for each in informers) == left
            stream.feed(b"\n")
            await until(lambda left=left: sum(len(each) for each in informers) > left)
        assert budget.peak == 6 * MIB
        assert budget.held == 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_objects_that_do_not_fit_into_a_cache_do_not_stay_in_memory() -> None:
    streams = [ScriptedStream() for _ in range(4)]
    for stream in streams:
        stream.feed(b"".join((event("large", 1, LARGEST_EVENT // 2), end_of_list(1))))
    server = Scripted(streams=streams)
    client = Client(server, cache_budget=CacheBudget(MIB))
    informers: list[Informer[ConfigMap]] = [
        Informer(client, CONFIG_MAPS, keep_raw=True) for _ in streams
    ]
    del stream
    tracemalloc.start()
    tasks = [asyncio.create_task(each.run()) for each in informers]
    try:
        # The streams of the test have given their bytes away by then.
        await until(lambda: not server.streams)
        streams.clear()
        await until(lambda: all(each.version for each in informers))
        # Then the informers wait for events, which never come: what they hold, they keep.
        await until(lambda: tracemalloc.get_traced_memory()[0] < MIB)
    finally:
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_an_answer_that_cannot_be_read_does_not_stay_in_memory_until_the_next_attempt() -> (
    None
):
    async def serve(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Refuse streaming lists, and answer lists with a broken page or one that is too large."""
        head = await head_of(server, reader)
        if "watch=true" in head:
            writer.write(b"HTTP/1.1 422 Unprocessable\r\nConnection: close\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{{{")
        for _ in range(5 if "namespaces/broken" in head else 20):
            writer.write(part)
            await writer.drain()

    part = b" " * MIB  # made once: the memory of this server is not measured
    clock = VirtualClock()
    async with serving(serve) as server:
        transport = HttpTransport(StaticAccess(Access(server.url)), largest=LARGEST)
        client = Client(transport, clock=clock)
        watches = [
            Watch(client, Scope(CONFIG_MAPS, namespace), clock=clock, metrics=Metrics())
            for namespace in ("broken", "large") * 3
        ]
        tracemalloc.start()
        tasks = [asyncio.create_task(first_list(each)) for each in watches]
        try:
            # Each page that is too large is requested in parts: 500, 62, 7 and 1 objects.
            await until(lambda: len(server.heads) == 6 + 3 + 3 * 4 and not server.open)
            # The client reads on after the server has closed its connections. Then it waits for
            # the next attempts, which the clock of the test never reaches: what it holds, it keeps.
            smallest = 5 * MIB
            await until(lambda: tracemalloc.get_traced_memory()[0] < smallest)
        finally:
            tracemalloc.stop()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await transport.close()


async def first_list(watch: Watch[ConfigMap]) -> None:
    async with aclosing(watch.follow()) as account:
        async for news in account:
            if isinstance(news, Listed):
                return
