"""The recorder of Events: its queue, its retries and its end.

The Events on a real API server are tested in tests/cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.events import EventRecorder, Limits, reference
from kubeocean.runtime.kinds import NODES, PODS, Event, Node, ObjectReference, Pod
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Meta, Resource
from kubeocean.runtime.retries import RetryPolicy

POD = ObjectReference(api_version="v1", kind="Pod", namespace="a", name="web-0", uid="u1")
NODE = ObjectReference(api_version="v1", kind="Node", name="n1", uid="u2")


@dataclass
class Store:
    """Stores Events by name; `trouble` is called before each write and may raise."""

    events: dict[str, Json] = field(default_factory=dict)
    writes: list[tuple[str, int]] = field(default_factory=list)
    trouble: Callable[[], None] = lambda: None
    lost: int = 0  # so many answers to creates are lost after the Event was stored
    hold: asyncio.Event | None = None

    async def _before(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.trouble()

    async def create(self, resource: Resource[Event], body: Json, *, namespace: str) -> Event:
        await self._before()
        assert body["metadata"]["namespace"] == namespace
        name = body["metadata"]["name"]
        if name in self.events:
            raise AlreadyExists("there is one")
        self.events[name] = body
        self.writes.append(("create", body["count"]))
        if self.lost:
            self.lost -= 1
            raise Unreachable("the answer was lost")
        return Event()

    async def patch(
        self, resource: Resource[Event], name: str, patch: MergePatch, namespace: str
    ) -> Event:
        await self._before()
        if name not in self.events:
            raise NotFound("there is none")
        self.events[name] |= patch.body
        self.writes.append(("patch", patch.body["count"]))
        return Event()


class World:
    def __init__(self, **options: Any) -> None:
        self.store = Store()
        self.clock = VirtualClock()
        self.metrics = Metrics()
        retry = RetryPolicy(attempts=3, base_s=1, cap_s=1)
        settings = {"limits": Limits(burst=1000), "retry": retry} | options
        self.recorder = EventRecorder(
            self.store,
            component="syncer",
            instance="syncer-0",
            clock=self.clock,
            metrics=self.metrics,
            **settings,
        )
        self.running: asyncio.Task[None] | None = None

    def emit(self, message: str = "it broke", regarding: ObjectReference = POD) -> None:
        self.recorder.emit(regarding, "Warning", "Broke", message)

    async def start(self) -> None:
        self.running = asyncio.create_task(self.recorder.run())
        await self.clock.advance(0)

    async def stop(self, seconds: float = 0) -> None:
        assert self.running is not None
        self.running.cancel()
        await self.clock.advance(seconds)
        with pytest.raises(asyncio.CancelledError):
            await self.running

    def dropped(self, reason: str) -> float | None:
        return self.metrics.value("kubeocean_events_dropped_total", {"reason": reason})

    @property
    def written(self) -> float | None:
        return self.metrics.value("kubeocean_events_written_total")

    @property
    def pending(self) -> float | None:
        return self.metrics.value("kubeocean_events_pending")


async def test_an_event_says_what_when_about_what_and_by_whom() -> None:
    world = World()
    await world.start()
    world.recorder.emit(POD, "Normal", "Created", "created pod w1/x", action="Binding")
    await world.clock.advance(0)
    await world.stop()
    (event,) = world.store.events.values()
    name = event["metadata"].pop("name")
    assert name.startswith("web-0.")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "a"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "web-0", "uid": "u1",
        },
        "type": "Normal",
        "reason": "Created",
        "message": "created pod w1/x",
        "action": "Binding",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "syncer"},
        "reportingComponent": "syncer",
        "reportingInstance": "syncer-0",
    }  # fmt: skip


async def test_the_message_of_an_event_has_no_escape_sequences() -> None:
    world = World()
    await world.start()
    world.recorder.emit(POD, "Warning", "Failed", "no \x1b]0;name\x07 here")
    await world.clock.advance(0)
    await world.stop()
    (event,) = world.store.events.values()
    assert event["message"] == "no  ]0;name  here"


async def test_an_event_about_a_cluster_scoped_object_is_in_the_default_namespace() -> None:
    world = World()
    await world.start()
    world.emit(regarding=NODE)
    await world.clock.advance(0)
    await world.stop()
    (event,) = world.store.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_the_same_again_patches_the_event() -> None:
    world = World()
    await world.start()
    for _ in range(3):
        world.emit()
        await world.clock.advance(10)
    await world.stop()
    assert world.store.writes == [("create", 1), ("patch", 2), ("patch", 3)]
    (event,) = world.store.events.values()
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
    assert event["lastTimestamp"] == "2026-01-01T00:00:20Z"


async def test_what_happens_while_the_writer_is_busy_goes_out_in_one_write() -> None:
    world = World()
    world.store.hold = asyncio.Event()
    await world.start()
    world.emit("first")
    await world.clock.advance(0)
    for _ in range(50):
        world.emit("second")
    world.store.hold.set()
    await world.clock.advance(0)
    await world.stop()
    assert world.store.writes == [("create", 1), ("create", 50)]


async def test_news_of_the_event_that_is_being_written_are_written_after_it() -> None:
    world = World()
    world.store.hold = asyncio.Event()
    await world.start()
    world.emit()
    await world.clock.advance(0)
    world.emit()
    world.store.hold.set()
    await world.clock.advance(0)
    await world.stop()
    assert [e["count"] for e in world.store.events.values()] == [2]


async def test_emit_does_not_need_a_running_writer_and_its_queue_is_bounded() -> None:
    world = World(queue=10)
    for number in range(15):
        world.emit(regarding=msgspec.structs.replace(POD, uid=str(number)))
    assert (world.pending, world.dropped("queue")) == (10, 5)
    world.emit(regarding=msgspec.structs.replace(POD, uid="0"))
    assert world.dropped("queue") == 5, "an update of a queued event takes no place in the queue"
    await world.start()
    await world.stop()
    assert (len(world.store.events), world.pending, world.written) == (10, 0, 10)


async def test_spam_is_dropped_and_counted() -> None:
    world = World(limits=Limits())
    await world.start()
    for number in range(30):
        world.emit(f"message {number}")
    await world.clock.advance(0)
    await world.stop()
    assert world.dropped("spam") == 5
    assert len(world.store.events) == 10


async def test_a_failed_write_is_retried() -> None:
    failures = [ServiceUnavailable("not now"), Unreachable("refused", sent=False)]

    def trouble() -> None:
        if failures:
            raise failures.pop()

    world = World()
    world.store.trouble = trouble
    await world.start()
    world.emit()
    await world.clock.advance(5)
    await world.stop()
    assert world.store.writes == [("create", 1)]
    assert world.written == 1


async def test_a_write_that_keeps_failing_is_dropped_and_counted() -> None:
    world = World()
    tries: list[int] = []

    def trouble() -> None:
        tries.append(1)
        raise ServiceUnavailable("never")

    world.store.trouble = trouble
    await world.start()
    world.emit()
    await world.clock.advance(10)
    assert (len(tries), world.dropped("failed"), world.pending) == (3, 1, 0)
    world.store.trouble = lambda: None
    world.emit()
    await world.clock.advance(0)
    await world.stop()
    assert world.store.writes == [("create", 2)], "what was dropped is counted in the next"


async def test_a_refused_event_is_not_tried_again() -> None:
    world = World()
    tries: list[int] = []

    def trouble() -> None:
        tries.append(1)
        raise Forbidden("no")

    world.store.trouble = trouble
    await world.start()
    world.emit()
    await world.clock.advance(10)
    await world.stop()
    assert (len(tries), world.dropped("refused"), world.dropped("failed")) == (1, 1, 0)


async def test_a_server_cannot_make_the_writer_wait_for_an_hour() -> None:
    failures: list[ApiError] = [TooManyRequests("later", retry_after_s=3600)]

    def trouble() -> None:
        if failures:
            raise failures.pop()

    world = World()
    world.store.trouble = trouble
    await world.start()
    world.emit()
    await world.clock.advance(60)
    await world.stop()
    assert world.written == 1


async def test_a_lost_answer_does_not_make_two_events() -> None:
    world = World()
    world.store.lost = 1
    await world.start()
    world.emit()
    await world.clock.advance(5)
    await world.stop()
    assert world.store.writes == [("create", 1), ("patch", 1)]
    assert len(world.store.events) == 1


async def test_an_event_that_expired_on_the_server_is_made_again_with_its_count() -> None:
    world = World()
    await world.start()
    world.emit()
    await world.clock.advance(1)
    world.store.events.clear()
    world.emit()
    await world.clock.advance(1)
    await world.stop()
    assert world.store.writes == [("create", 1), ("create", 2)]
    (event,) = world.store.events.values()
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"


async def test_what_is_left_at_the_end_is_written() -> None:
    world = World()
    world.store.hold = asyncio.Event()
    await world.start()
    for number in range(5):
        world.emit(f"message {number}")
    await world.clock.advance(0)
    world.store.hold.set()
    await world.stop()
    assert len(world.store.events) == 5
    assert world.dropped("stopped") == 0


async def test_the_end_waits_no_longer_than_its_deadline() -> None:
    world = World(flush_s=5)
    world.store.hold = asyncio.Event()
    await world.start()
    for number in range(5):
        world.emit(f"message {number}")
    await world.stop(6)
    assert (world.store.events, world.dropped("stopped"), world.pending) == ({}, 5, 0)


async def test_secrets_and_endless_messages_do_not_get_into_events() -> None:
    world = World()
    await world.start()
    world.emit("refused: Bearer canary4711canary")
    world.emit("x" * 5000)
    await world.clock.advance(0)
    await world.stop()
    messages = [event["message"] for event in world.store.events.values()]
    assert not any("canary" in message for message in messages)
    assert max(map(len, messages)) == 1024


def test_a_reference_points_to_an_object() -> None:
    meta = Meta(name="web-0", namespace="a", uid="u1", resource_version="7")
    assert reference(PODS, Pod(metadata=meta), field_path="spec.containers{x}") == ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace="a",
        name="web-0",
        uid="u1",
        resource_version="7",
        field_path="spec.containers{x}",
    )
    assert reference(NODES, Node(metadata=Meta(name="n1"))).namespace == ""
