"""Answers, events and objects of a cluster are limited in size; a cache recovers from a flood."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from kubeocean.errors import ResponseTooLarge
from kubeocean.runtime import cache_budget
from kubeocean.runtime.cache_budget import CacheBudget, memory_limit, size_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.informer import OVERFLOW_S, Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap, Node, Pod
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Object, decode_object, encode
from kubeocean.runtime.transport import Request, Response
from kubeocean.runtime.watch import BACKOFF_S, LARGEST_EVENT, Listed, Scope, Watch
from support.scripted_transport import Scripted, ScriptedStream, answer
from support.wait import until

KIB = 1 << 10
LIMIT = 10 * KIB  # of some thirty objects without annotations


def event(type_: str, name: str, version: int, *, uid: str = "", size: int = 0) -> bytes:
    meta: Json = {"name": name, "uid": uid or name, "resourceVersion": str(version)}
    meta["annotations"] = {"a": "x" * size}
    return encode({"type": type_, "object": {"metadata": meta}}) + b"\n"


def end_of_list(version: int) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"}
    meta = {"resourceVersion": str(version), "annotations": annotations}
    return encode({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"


def listing(*names: str, version: int = 1, size: int = 0) -> bytes:
    added = [event("ADDED", name, version, size=size) for name in names]
    return b"".join((*added, end_of_list(version)))


class Flooded:
    """An informer with a small budget, and the streams that it reads in turn."""

    def __init__(self, *streams: ScriptedStream) -> None:
        self.clock = VirtualClock()
        self.budget = CacheBudget(LIMIT)
        client = Client(Scripted(streams=streams), clock=self.clock, cache_budget=self.budget)
        self.informer: Informer[ConfigMap] = Informer(client, CONFIG_MAPS, clock=self.clock)

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.informer.items()}


@asynccontextmanager
async def flooded(*pieces: bytes) -> AsyncIterator[Flooded]:
    """Run the informer; each piece is a stream of its own, and stays open."""
    streams = [ScriptedStream() for _ in pieces]
    for stream, piece in zip(streams, pieces, strict=True):
        stream.feed(piece)
    made = Flooded(*streams)
    task = asyncio.create_task(made.informer.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


async def relist(made: Flooded) -> None:
    """Let the time pass until objects are listed again."""
    await made.clock.advance(OVERFLOW_S)


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"a": "x" * 100_000}},
        {"annotations": {"a": "x" * 100_000 + "\U0001f600"}},
        {"labels": {f"l{number}": f"{number}v" for number in range(2_000)}},
        {"finalizers": [f"f{number}" for number in range(2_000)]},
        {"finalizers": ["\U0001f600" * 10 + str(number) for number in range(2_000)]},
        {"ownerReferences": [{}] * 2_000},
        {"ownerReferences": [{"uid": f"u{number}"} for number in range(2_000)]},
    ],
    ids=["text", "wide text", "labels", "texts", "wide texts", "empty structs", "structs"],
)
@pytest.mark.parametrize("keep_raw", [False, True])
def test_the_size_of_an_object_is_at_least_the_memory_that_it_takes(
    metadata: Json, keep_raw: bool
) -> None:
    body = encode({"metadata": {"name": "a"} | metadata})
    obj = decode_object(ConfigMap, body, keep_raw=False)  # builds the decoder
    copies = 20

    def measure() -> float:
        objects: list[ConfigMap] = [obj] * copies  # the list itself is not measured
        tracemalloc.start()
        try:
            for number in range(copies):
                # As in a list, each object has a copy of its bytes.
                copy = bytes(bytearray(body))
                objects[number] = decode_object(ConfigMap, copy, keep_raw=keep_raw)
                del copy
            return tracemalloc.get_traced_memory()[0] / copies
        finally:
            tracemalloc.stop()

    # Other threads of the test's process allocate memory, too, but not at each measurement.
    taken = min(measure() for _ in range(5))
    size = size_of(decode_object(ConfigMap, body, keep_raw=keep_raw))
    assert taken < size < 20 * taken


@pytest.mark.parametrize(
    ("type_", "part", "name"),
    [
        (Pod, "spec", "containers"),
        (Pod, "status", "conditions"),
        (Node, "spec", "taints"),
        (Node, "status", "addresses"),
    ],
)
def test_structs_without_values_count_with_the_memory_that_they_take(
    type_: type[Object], part: str, name: str
) -> None:
    body = encode({"metadata": {"name": "a"}, part: {name: [{}] * 10_000}})
    decode_object(type_, body, keep_raw=False)  # builds the decoder
    tracemalloc.start()
    try:
        obj = decode_object(type_, body, keep_raw=False)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < size_of(obj) < 4 * taken


def test_the_size_of_an_ordinary_object_is_near_the_memory_that_it_takes() -> None:
    labels = {f"example.com/label-{number}": "value" for number in range(10)}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1"}
    meta = {"name": "web-1", "namespace": "shop", "labels": labels, "ownerReferences": [owner]}
    bodies = [encode({"metadata": meta | {"uid": f"uid-{number}"}}) for number in range(1_000)]
    tracemalloc.start()
    try:
        objects = [decode_object(ConfigMap, body, keep_raw=False) for body in bodies]
        taken = tracemalloc.get_traced_memory()[0] / len(bodies)
    finally:
        tracemalloc.stop()
    assert taken < size_of(objects[0]) < 2 * taken


async def test_objects_that_do_not_fit_are_left_out_and_the_cache_is_not_synced() -> None:
    names = [f"n{number}" for number in range(30)]
    async with flooded(listing(*names, size=KIB // 2)) as made:
        await until(lambda: made.budget.held)
        await asyncio.sleep(0)
        assert 0 < len(made.names) < 20
        assert made.budget.held <= LIMIT
        assert not made.informer.has_synced


async def test_a_cache_recovers_when_a_list_fits() -> None:
    names = [f"n{number}" for number in range(30)]
    first, second = listing(*names, size=KIB // 2), listing("a", "b", version=9)
    async with flooded(first, second) as made:
        await until(lambda: made.names)
        await relist(made)
        await until(lambda: made.informer.has_synced)
        assert made.names == {"a", "b"}
        assert made.budget.held == sum(size_of(each) for each in made.informer.items())


async def test_objects_without_end_after_the_list_do_not_fill_the_memory() -> None:
    flood = b"".join(event("ADDED", f"f{n}", 2 + n, size=100) for n in range(100))
    async with flooded(listing("a") + flood, listing("a", version=500)) as made:
        await until(lambda: made.names)
        assert made.budget.held <= LIMIT
        assert not made.informer.has_synced
        await relist(made)
        await until(lambda: made.informer.has_synced)
        assert made.names == {"a"}


async def test_an_object_that_is_replaced_or_deleted_gives_its_memory_back() -> None:
    changes = (
        event("MODIFIED", "a", 2, size=2 * KIB),
        event("MODIFIED", "a", 3, uid="another", size=3 * KIB),
        event("DELETED", "b", 4),
    )
    async with flooded(listing("a", "b") + b"".join(changes)) as made:
        await until(lambda: made.names == {"a"})
        (left,) = made.informer.items()
        assert left.uid == "another"
        assert made.budget.held == size_of(left)
        assert made.informer.has_synced


async def test_an_event_without_an_end_is_given_up_for_another_stream() -> None:
    endless, honest = ScriptedStream(), ScriptedStream()
    pieces = (LARGEST_EVENT >> 20) + 1
    endless.feed(*[b"x" * (1 << 20)] * pieces, b"\n")
    honest.feed(listing("a"))
    metrics, clock = Metrics(), VirtualClock()
    client = Client(Scripted(streams=[endless, honest]), cluster="c", clock=clock)
    watch: Watch[ConfigMap] = Watch(client, Scope(CONFIG_MAPS), clock=clock, metrics=metrics)
    labels = {"cluster": "c", "resource": "configmaps", "why": "failed"}

    async def first_list() -> None:
        async with aclosing(watch.follow()) as account:
            async for news in account:
                if isinstance(news, Listed):
                    return

    async with asyncio.TaskGroup() as group:
        group.create_task(first_list())
        await until(lambda: metrics.value("kubeocean_watch_restarts_total", labels) == 1)
        await clock.advance(BACKOFF_S[1])


async def test_a_page_that_is_too_large_is_requested_in_parts() -> None:
    page = answer(body=encode({"metadata": {"resourceVersion": "1"}, "items": []}))
    server = Scripted(ResponseTooLarge("large"), ResponseTooLarge("large"), page)
    await Client(server).list(CONFIG_MAPS)
    limits = [dict(request.query)["limit"] for request in server.requests]
    assert limits == ["500", "62", "7"]


async def test_one_object_that_is_too_large_is_an_error() -> None:
    server = Scripted(ResponseTooLarge("large"))
    with pytest.raises(ResponseTooLarge):
        await Client(server).list(CONFIG_MAPS)
    assert len(server.requests) == 4


async def test_pages_without_an_end_are_given_up() -> None:
    items = [{"metadata": {"name": "a", "annotations": {"a": "x" * KIB}}}]
    page = encode({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": items})
    server = Scripted(answer(body=page))
    with pytest.raises(ResponseTooLarge, match="could not list configmaps"):
        await Client(server, cache_budget=CacheBudget(LIMIT)).list(CONFIG_MAPS)
    assert len(server.requests) < 15


async def test_a_list_charges_the_budget_of_the_caches_while_it_is_read() -> None:
    items = [{"metadata": {"name": "a", "annotations": {"a": "x" * KIB}}}]
    first = encode({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": items})
    last = encode({"metadata": {"resourceVersion": "1"}, "items": items})
    budget = CacheBudget(LIMIT)
    held: list[int] = []

    class Observed(Scripted):
        async def send(self, request: Request) -> Response:
            held.append(budget.held)
            return await super().send(request)

    server = Observed(answer(body=first), answer(body=last))
    listing = await Client(server, cache_budget=budget).list(CONFIG_MAPS)
    assert held == [0, size_of(listing.items[0])]
    assert budget.held == 0


async def test_a_list_that_does_not_fit_beside_the_caches_is_given_up() -> None:
    items = [{"metadata": {"name": "a", "annotations": {"a": "x" * KIB}}}]
    page = answer(body=encode({"metadata": {"resourceVersion": "1"}, "items": items}))
    budget = CacheBudget(LIMIT)
    client = Client(Scripted(page), cache_budget=budget)
    assert budget.take(LIMIT - KIB)
    with pytest.raises(ResponseTooLarge, match="take more than 10240 bytes"):
        await client.list(CONFIG_MAPS)
    budget.take(KIB - LIMIT)
    assert len((await client.list(CONFIG_MAPS)).items) == 1
    assert budget.held == 0


@pytest.mark.parametrize(
    ("text", "limit"),
    [("536870912\n", 536_870_912), ("max\n", None), ("9223372036854771712", None)],
)
def test_the_memory_limit_is_that_of_the_container(
    text: str, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    file.write_text(text)
    monkeypatch.setattr(cache_budget, "_LIMITS", (tmp_path / "absent", file))
    assert memory_limit() == limit


def test_a_budget_is_never_exceeded_and_gives_back_what_was_taken() -> None:
    budget = CacheBudget(LIMIT)
    assert budget.take(LIMIT)
    assert not budget.take(1)
    assert budget.held == LIMIT
    assert budget.take(-LIMIT)
    assert budget.held == 0
